"""Parts of Keras that few trainings use, imported when they are first used.

`import keras` draws in scikit-learn and Matplotlib wherever they are installed, for wrappers and pictures. That is about a third of
the processor time of importing it with TensorFlow, on every rank, at every start, and thousands of files on a shared file system.
With `keras_parts()` they are modules as before, whose code runs at the first look into them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

#: Nothing in Keras looks into these while it is imported or trains.
PARTS = ("keras.wrappers", "keras.visualization", "keras.src.visualization")


class _Finder:
    """Finds `PARTS` where the ordinary finder does, with a loader that waits."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in PARTS else None
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def keras_parts() -> None:
    """From now on import `PARTS` late. Does nothing where Keras is imported already."""
    if "keras" not in sys.modules and _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
