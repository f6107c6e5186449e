"""Builds Horovod 0.28.1 for the torch and TensorFlow that are installed here.

Horovod's last release does not compile against today's frameworks and its build takes minutes each time. This room
fetches that release, applies a handful of checked edits, compiles it once per combination of versions, keeps the wheel
and installs it. Nothing here imports torch, TensorFlow or Horovod.
"""

from __future__ import annotations

from hvdtrain.horovod_build.check import BuildInfo, installed, problem

__all__ = ["BuildInfo", "installed", "problem"]
