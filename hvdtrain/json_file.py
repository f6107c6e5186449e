"""One JSON object in one file: read, and written so that nobody ever finds half of it."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Write aside, flush to disk, rename: a reader sees the old file or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The watchdog's thread may note why all ends while the main thread notes it too.
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(aside, "w", encoding="utf-8") as file:
            json.dump(finite(value), file, indent=1, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`, or None when the file is not there."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, not an object")
    return value


def finite(value: Any) -> Any:
    """NaN and infinities as null: JSON has no word for them and other readers stop at them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value
