"""What is in a checkpoint's file: tensors and plain values, which can be read without running code."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from hvdtrain.checkpoint import CheckpointError

#: What numbers of numpy are pickled as: a learning rate may be one, and what a scheduler computes.
_OF_NUMPY: list[Any] = [np.dtype, np.ndarray, np.float64(0).__reduce__()[0], np.zeros(0).__reduce__()[0]]
_OF_NUMPY += [type(np.dtype(kind)) for kind in "?bhilqBHILQefd"]


class AgreedCheckpointError(CheckpointError):
    """Rank 0 could not read or write; all ranks raise it."""

    agreed = True


def read(content: bytes, path: Path | None) -> dict[str, Any]:
    """What `write` has written, on the CPU.

    Raises:
        AgreedCheckpointError: it holds something else than values; on all ranks, which read the same.
    """
    try:
        with torch.serialization.safe_globals(_OF_NUMPY):
            loaded: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # The message goes on about how to load what is not trusted.
        what = next((line for line in str(error).splitlines() if "GLOBAL" in line or "class" in line), str(error))
        raise AgreedCheckpointError(
            f"checkpoint {path} holds more than numbers, tensors, lists and dictionaries, which may be code: {what.strip()}. "
            "Let the state_dict() of what is kept in it (schedulers, states=) give such values only"
        ) from None
    return loaded


class _Remembering:
    """A file that remembers why a write failed: torch.save makes another error of it, which says nothing of a full disk."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def write(content: dict[str, Any], file: IO[bytes]) -> None:
    """Raise the OSError of a write that failed."""
    remembering = _Remembering(file)
    try:
        torch.save(content, cast("IO[bytes]", remembering))
    except RuntimeError:
        if remembering.error is not None:
            raise remembering.error from None
        raise
