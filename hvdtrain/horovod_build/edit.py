"""One change of a source file, and how it is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hvdtrain.horovod_build.errors import BuildError


@dataclass(frozen=True)
class Edit:
    """Replace ``old``, which must occur exactly once in ``path``, by ``new``. ``feature`` names what a user gains."""

    path: str
    old: str
    new: str
    why: str
    feature: str | None = None


def apply_edit(root: Path, edit: Edit) -> None:
    """Make one edit under ``root``. Raises BuildError unless the text is there exactly once."""
    path = root / edit.path
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BuildError(f"cannot edit {edit.path}: {error.strerror}. Is this Horovod 0.28.1's source?") from error
    count = text.count(edit.old)
    if count != 1:
        first = edit.old.strip().splitlines()[0]
        raise BuildError(
            f"cannot edit {edit.path}: the text to replace is there {count} times instead of once ({first!r}). "
            "Is this the unchanged source of Horovod 0.28.1?"
        )
    path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
