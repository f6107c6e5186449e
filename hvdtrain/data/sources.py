"""Where the studies' data come from, how they are recognised, and where they are looked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import UserError, nearest

_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


#: Says in a folder which data sets were fetched to it: the files of some have the same names.
MARK = ".hvdtrain-data"


def fetched(folder: Path) -> list[str]:
    """The data sets that were fetched to `folder`, as far as it was noted."""
    try:
        return (folder / MARK).read_text(encoding="utf-8").split()
    except OSError:
        return []


def note_fetched(folder: Path, name: str) -> None:
    """`name` is in `folder` now."""
    (folder / MARK).write_text(
        "".join(f"{each}\n" for each in dict.fromkeys([*fetched(folder), name])), encoding="utf-8"
    )


@dataclass(frozen=True)
class Remote:
    """A file to download: `checksum` as pooch takes it (algorithm:hex), as its publisher states it."""

    name: str
    url: str
    checksum: str
    megabytes: float


@dataclass(frozen=True)
class Source:
    """One data set.

    Attributes:
        folder: below the cache, and the name that distributions use.
        layouts: sets of files, any of which makes a folder hold the data; a folder ends with a slash.
        files: to download.
        instructions: instead, for data behind an account.
    """

    name: str
    folder: str
    layouts: Sequence[Sequence[str]]
    files: Sequence[Remote] = ()
    instructions: str = ""

    def holds(self, folder: Path) -> bool:
        """Whether `folder` has one of the layouts; IDX files may be compressed. Not where another data set lies.

        Raises:
            UserError: it may not be looked into.
        """
        try:
            return not self.taken_for(folder) and any(
                all(_present(folder, name) for name in layout) for layout in self.layouts
            )
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}") from error

    def taken_for(self, folder: Path) -> str:
        """Another data set with files of the same names that was fetched to `folder`, or names it; "" without one."""
        here = fetched(folder)
        if self.name in here:
            return ""
        named = os.path.basename(os.path.abspath(folder))
        for other in SOURCES.values():
            shared = self._names() & other._names() if other is not self else set()
            if other.name in here and shared:
                return other.name
            whole = any(all(_present(folder, name) for name in layout) for layout in other.layouts)
            if other.folder == named and shared and whole:
                return other.name  # put there by hand, which leaves no mark
        return ""

    def _names(self) -> set[str]:
        return {name for layout in self.layouts for name in layout}

    def describe(self) -> str:
        """What a folder must hold, in words."""
        return ", or ".join(_listed(layout) for layout in self.layouts)


def _present(folder: Path, name: str) -> bool:
    return (folder / name).exists() or (folder / f"{name}.gz").exists()


def _listed(layout: Sequence[str]) -> str:
    return ", ".join(layout) if len(layout) < 5 else f"{layout[0]} ... {layout[-1]} ({len(layout)} files)"


def _idx_files(base: str, checksums: Sequence[str], megabytes: Sequence[float]) -> list[Remote]:
    parts = zip(_IDX, checksums, megabytes, strict=True)
    return [Remote(f"{name}.gz", f"{base}{name}.gz", f"md5:{md5}", size) for name, md5, size in parts]


def _cifar(folder: str, ending: str) -> tuple[str, ...]:
    return *(f"{folder}data_batch_{number}{ending}" for number in range(1, 6)), f"{folder}test_batch{ending}"


SOURCES: dict[str, Source] = {
    each.name: each
    for each in (
        Source(
            "mnist",
            "mnist",
            [_IDX],
            _idx_files(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                (
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    "9fb629c4189551a2d022fa330f9573f3",
                    "ec29112dd5afa0611ce80d1b7f02629c",
                ),
                (9.9, 0.1, 1.6, 0.1),
            ),
        ),
        Source(
            "fashion-mnist",
            "fashion-mnist",
            [_IDX],
            _idx_files(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                (
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "25c81989df183df01b3e8a0aad5dffbe",
                    "bef4ecab320f06d8554ea6380940ec79",
                    "bb300cfdad3c16e7a12a480ee83cd310",
                ),
                (26.4, 0.1, 4.4, 0.1),
            ),
        ),
        Source(
            "cifar10",
            "cifar10",
            [
                _cifar("", ".bin"),
                _cifar("cifar-10-batches-bin/", ".bin"),
                _cifar("", ""),
                _cifar("cifar-10-batches-py/", ""),
            ],
            [
                Remote(
                    "cifar-10-python.tar.gz",
                    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                    "md5:c58f30108f718f92721af3b95e74349a",
                    170.5,
                )
            ],
        ),
        Source(
            "caltech256",
            "caltech256",
            [("256_ObjectCategories/",), ("001.ak47/",)],
            [
                Remote(
                    "256_ObjectCategories.tar",
                    "https://data.caltech.edu/records/nyy15-4j048/files/256_ObjectCategories.tar",
                    "md5:67b4f42ca05d46448c6bb8ecd2220f6d",
                    1183.0,
                )
            ],
        ),
        Source(
            "fruit",
            "fruit",
            [("train/", "test/"), ("dataset/train/", "dataset/test/")],
            instructions=(
                "The images (fresh and rotten apples, bananas and oranges: 10,901 for training, 2,698 for the test) are on Kaggle, "
                "which asks for an account.\n"
                "  1. Sign in at https://www.kaggle.com and open the data set sriramr/fruits-fresh-and-rotten-for-classification\n"
                "  2. Download archive.zip, and unpack it: unzip archive.zip -d {folder}\n"
                "  3. {folder} (or its folder dataset) must then hold train/ and test/, each with a folder for each class"
            ),
        ),
    )
}


def source(name: str) -> Source:
    """The data set `name`.

    Raises:
        UserError: unknown; says the nearest.
    """
    if name not in SOURCES:
        raise UserError(f'data set "{name}" is not one of {", ".join(SOURCES)}{nearest(name, SOURCES)}')
    return SOURCES[name]


def cache_folder(name: str) -> Path:
    """Where `hvdtrain fetch` puts the data set: below $HVDTRAIN_DATA, else the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    given = os.environ.get("HVDTRAIN_DATA")
    root = Path(given) if given else Path(cache) / "hvdtrain" / "data"
    return root.expanduser() / source(name).folder


def locate(name: str, data_dir: str | Path | None = None) -> Path:
    """The folder that holds the data set: `data_dir`, else $DATA_DIR, else where it was fetched or a distribution put it.

    Raises:
        UserError: it is not there; says which files are looked for and the command that gets them.
    """
    wanted = source(name)
    asked = data_dir or os.environ.get("DATA_DIR")
    if asked:
        given = Path(asked).expanduser()
        # The one that names it first: beside it there may be another one's files, under the same names.
        places = [given] if given.name == wanted.folder else [given / wanted.folder, given]
    else:
        places = [cache_folder(name), Path("/usr/share/datasets") / wanted.folder]
    for place in places:
        if wanted.holds(place):
            return place
    looked = " and ".join(str(place) for place in places)
    taken = "".join(
        f"; {place} holds {other}, whose files have the same names"
        for place in places
        if (other := wanted.taken_for(place))
    )
    get = f"hvdtrain fetch {name}" + (f" --to {places[0]}" if asked else "")
    raise UserError(
        f"the data set {name} is not in {looked}{taken}. A folder must hold {wanted.describe()}. Type: {get}; "
        "or name the folder: --data-dir FOLDER"
    )
