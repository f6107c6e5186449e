"""Parts of Keras and PyTorch that few trainings use, imported when they are first used.

`import keras` draws in scikit-learn and Matplotlib wherever they are installed, for wrappers and pictures: about a third of the
processor time of importing it with TensorFlow. The first optimizer of PyTorch draws in `torch._dynamo`, which compiles models:
about half of importing PyTorch and making a step. Every rank pays that at every start, with thousands of files on a shared
file system.

After `parts()` they are modules as before, whose code runs at the first look into them.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

#: Nothing in Keras looks into these while it is imported or trains.
OF_KERAS = ("keras.wrappers", "keras.visualization", "keras.src.visualization")
COMPILER = "torch._dynamo"


class _Finder:
    """Finds the parts where the ordinary finder does, with a loader that waits."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == COMPILER or name in OF_KERAS else None
        if spec is not None and spec.loader is not None:
            late = importlib.util.LazyLoader if name in OF_KERAS else _LateCompiler
            spec.loader = late(spec.loader)
        return spec


class _LateCompiler(Loader):
    """Leaves `torch._dynamo` a `_Compiler` until somebody compiles."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        module.__class__ = _Compiler


class _Compiler(ModuleType):
    """Before its code has run. Every step of an optimizer asks for `graph_break` and `disable`, which outside of what is being
    compiled have nothing to do; anything else that is asked for runs the code."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("__spec__", "__dict__", "__class__"):
            return ModuleType.__getattribute__(self, name)
        with _loading:
            # Another thread may have loaded it meanwhile; this one may be doing so.
            if type(self) is _Compiler and not _under_way:
                if name in _ANSWERS:
                    return _ANSWERS[name]
                _load(self)
        return ModuleType.__getattribute__(self, name)


_loading = threading.RLock()
_under_way: list[ModuleType] = []
#: Functions of PyTorch that must not be traced; it keeps what `disable` made of each in an attribute of the function.
_disabled: list[Callable[..., Any]] = []
_KEPT_IN = "__dynamo_disable"


def _load(module: ModuleType) -> None:
    spec = module.__spec__
    assert spec is not None and spec.loader is not None
    _under_way.append(module)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # As import does: the next one tries again.
        sys.modules.pop(COMPILER, None)
        raise
    finally:
        _under_way.clear()
    module.__class__ = ModuleType
    for function in _disabled:
        if getattr(function, _KEPT_IN, None) is function:
            delattr(function, _KEPT_IN)
    _disabled.clear()


def _graph_break(msg: str = "") -> None:
    """Outside of what is being compiled there is no graph to break."""


def _disable(fn: Callable[..., Any] | None = None, *arguments: Any, **options: Any) -> Any:
    """`fn` itself, for nobody traces it yet; where PyTorch's own wrapper asks, which asks again after `_load`."""
    if options == {"wrapping": False} and hasattr(fn, "__dict__"):
        assert fn is not None
        _disabled.append(fn)
        return fn
    module = sys.modules[COMPILER]
    _ = module.__path__  # any look but these two loads it
    return module.disable(fn, *arguments, **options)


_ANSWERS: dict[str, Callable[..., Any]] = {"graph_break": _graph_break, "disable": _disable}


def parts() -> None:
    """From now on import these parts late, but for those that are imported already."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
