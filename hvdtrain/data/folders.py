"""Image folders: one folder for each class, and splits of them that are the same on every rank."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from hvdtrain.data.alive import alive
from hvdtrain.errors import UserError

#: What counts as an image by its name; the rest is passed over and counted.
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
#: How folders begin that are no classes: hidden ones, and that of a file system's own at its root.
_NO_CLASS = (".", "lost+found")


@dataclass(frozen=True)
class Tree:
    """Images below `root`, in order of their names.

    Attributes:
        files: paths relative to `root`.
        labels: int64, shape (n,): index into `classes`.
        classes: names of the folders, sorted.
        strangers: files that are no images by their names, or are hidden.
        empty: classes without an image.
        key: changes whenever a file's name, size or time does.
    """

    root: Path
    files: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, ...]
    strangers: tuple[str, ...]
    empty: tuple[str, ...]
    key: str


def scan(root: Path) -> Tree:
    """The images in the class folders of `root`, at any depth below each; hidden files and folders are passed over.

    Raises:
        UserError: no such folder, one that cannot be read, or no class folder with an image in it.
    """
    try:
        if not root.is_dir():
            raise UserError(f"{root} is not a folder; it must hold one folder for each class, with images in it")
        with os.scandir(root) as entries:
            classes = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(_NO_CLASS))
    except OSError as error:
        _unreadable(error)
    files: list[str] = []
    labels: list[int] = []
    strangers: list[str] = []
    facts = []
    for label, name in enumerate(classes):
        # Without `onerror` a folder that cannot be read would be an empty one.
        for place, folders, found in os.walk(root / name, onerror=_unreadable):
            # Thumbnails and what else programs keep: copies of images, some of which would be validated on.
            folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
            for file in sorted(found):
                alive("looking through image folders")  # a file server may take long to say what it has
                path = Path(place, file)
                relative = str(path.relative_to(root))
                if path.suffix.lower() not in ENDINGS or file.startswith("."):
                    strangers.append(relative)
                    continue
                files.append(relative)
                labels.append(label)
                try:
                    status = path.stat()
                    facts.append((relative, status.st_size, status.st_mtime_ns))
                except OSError:  # a link to nowhere: counted among the unreadable ones
                    facts.append((relative, -1, 0))
    if not files:
        raise UserError(
            f"{root} has no images: it must hold one folder for each class, with files ending in {', '.join(ENDINGS)}"
        )
    with_images = set(labels)
    empty = tuple(name for label, name in enumerate(classes) if label not in with_images)
    key = hashlib.sha256(json.dumps([classes, facts]).encode()).hexdigest()[:16]
    return Tree(root, tuple(files), np.array(labels, np.int64), tuple(classes), tuple(strangers), empty, key)


def _unreadable(error: OSError) -> NoReturn:
    raise UserError(f"{error.filename}: {error.strerror}") from error


def split(
    labels: np.ndarray, share: float, seed: int = 0, good: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Indices for training and validation: of every class about `share` for validation, at least one where it has two.

    On which side a file is does not depend on which others can be read: one that comes back between two starts, or between two
    cells of a study, would else bring images that were trained on into the validation.

    Args:
        labels: shape (n,), of all files.
        share: between 0 and 1.
        seed: the same on every rank.
        good: indices of those that can be read; None: of all.

    Returns:
        Two sorted arrays, disjoint, which together cover `good`.

    Raises:
        UserError: a share that is none, no class of two, or none left to validate on.
    """
    if not 0 < share < 1:
        raise UserError(f"a share of {share} for validation is not between 0 and 1")
    chosen = []
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        number = min(max(round(share * len(own)), 1), len(own) - 1)
        chosen.append(np.random.default_rng([seed, int(label)]).permutation(own)[:number])
    validation = np.sort(np.concatenate([np.zeros(0, np.int64), *chosen]))
    if not len(validation):
        raise UserError("no class has two images: none is left to validate on")
    train = np.setdiff1d(np.arange(len(labels)), validation)
    if good is not None:
        train, validation = np.intersect1d(train, good), np.intersect1d(validation, good)
    if not len(validation):
        raise UserError("of the images to validate on none can be read")
    return train, validation
