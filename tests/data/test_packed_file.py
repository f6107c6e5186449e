"""The packed file when something goes wrong: interrupted runs, full disks, other runs; and that long work shows as work."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hvdtrain import launch
from hvdtrain.data import packed
from hvdtrain.data.folders import Tree, scan
from hvdtrain.data.packed import pack
from hvdtrain.data.packing import Share
from hvdtrain.errors import UserError
from hvdtrain.world import World, detect
from tests.data import images

GB = 10**9


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    monkeypatch.setenv("HVDTRAIN_CACHE", str(tmp_path / "cache"))
    return detect()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return scan(images.tree(tmp_path / "t", classes=2, each=3))


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the watchdog hears."""
    heard: list[str] = []
    monkeypatch.setattr(launch, "active", SimpleNamespace(progress=heard.append))
    return heard


def gather(value: object) -> list[object]:
    return [value]


def disk_of(folder: Path, total: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing but packed files took room on a disk of `total` bytes."""

    def usage(place: Path) -> SimpleNamespace:
        return SimpleNamespace(free=total - sum(path.stat().st_blocks * 512 for path in folder.rglob("*.*")))

    monkeypatch.setattr(shutil, "disk_usage", usage)


def test_what_an_interrupted_packing_left_takes_no_room_from_the_next(
    alone: World, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same images: what was written of them, and a file that is not whole. Of others: what a run that was killed left."""
    pack(tree, 64, alone, gather)
    whole = next((tmp_path / "cache").rglob("*.u8"))
    whole.write_bytes(bytes(whole.stat().st_size))
    whole.with_suffix(".part").write_bytes(bytes(len(tree.files) * 64 * 64 * 3))
    (whole.parent / "other-64-v2.part").write_bytes(bytes(100_000))
    disk_of(tmp_path / "cache", 100_000, monkeypatch)
    again = pack(tree, 64, alone, gather)
    assert again.images.any()
    assert list((tmp_path / "cache").rglob("*.part")) == []


def test_room_that_another_run_is_about_to_fill_is_not_free(
    alone: World, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache" / alone.node
    folder.mkdir(parents=True)
    with open(folder / "other-64-v2.part", "wb") as file, open(folder / "other-64-v2.lock", "w") as lock:
        file.truncate(GB)
        fcntl.flock(lock, fcntl.LOCK_EX)
        disk_of(tmp_path / "cache", GB, monkeypatch)
        with pytest.raises(UserError, match=r"has 0\.0 GB free beside 1\.0 GB for other runs that pack now"):
            pack(tree, 64, alone, gather)
        assert (folder / "other-64-v2.part").exists()


def test_a_packing_that_fails_leaves_nothing_half_written(
    alone: World, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Share:
        raise KeyboardInterrupt

    monkeypatch.setattr(packed, "decode_files", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pack(tree, 16, alone, gather)
    assert [path.suffix for path in (tmp_path / "cache").rglob("*.*")] == [".lock"]


@pytest.mark.parametrize("call", ["truncate", "replace"])
def test_what_keeps_the_leader_from_writing_is_told_to_all(
    alone: World, tree: Tree, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a traceback on one rank while the others wait for it."""

    def full(*_: object) -> None:
        raise OSError(122, "Disk quota exceeded", "x")

    monkeypatch.setattr(os, call, full)
    told: list[object] = []

    def heard(value: object) -> list[object]:
        told.append(value)
        return [value]

    with pytest.raises(UserError, match=r"Disk quota exceeded; set HVDTRAIN_CACHE to a folder") as caught:
        pack(tree, 16, alone, heard)
    assert caught.value.agreed
    assert "Disk quota exceeded" in str(told[-1])


def test_a_cache_that_cannot_be_written_is_told_to_all(
    alone: World, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "x")

    monkeypatch.setattr(shutil, "disk_usage", denied)
    with pytest.raises(UserError, match="Permission denied; set HVDTRAIN_CACHE") as caught:
        pack(tree, 16, alone, gather)
    assert caught.value.agreed


def test_ranks_tell_each_other_little_however_many_images_there_are(alone: World, tmp_path: Path) -> None:
    """Checksums are for the node's own leader: they are in the file."""
    tree = scan(images.tree(tmp_path / "t", classes=2, each=60))
    longest = 0

    def heard(value: object) -> list[object]:
        nonlocal longest
        longest = max(longest, len(repr(value)))
        return [value]

    pack(tree, 8, alone, heard)
    assert longest < 300


def test_long_looks_at_files_show_as_work(alone: World, tree: Tree, beats: list[str]) -> None:
    """Or the watchdog would end a start with a large packed file, or with folders on a slow file server."""
    pack(tree, 16, alone, gather)
    beats.clear()
    pack(tree, 16, alone, gather)
    assert beats == ["checking packed images"] * len(tree.files)
    beats.clear()
    scan(tree.root)
    assert len(beats) == len(tree.files)


def test_a_row_may_be_written_by_anyone(alone: World, tree: Tree, tmp_path: Path) -> None:
    """Two ranks of a node, one after the other: the checksums that each left are one file's."""
    from hvdtrain.data import packed_file

    two = [replace(alone, rank=rank, size=2, local_rank=rank, local_size=2) for rank in range(2)]
    base = tmp_path / "base"
    row = 8 * 8 * 3
    assert packed_file.prepare(base, len(tree.files), row) == ""
    told = [packed._decode_share(tree, 8, base.with_suffix(".part"), place) for place in two]
    assert [problem for _, problem in told] == ["", ""]
    assert packed_file.finish(base, len(tree.files), row, [share for share, _ in told]) == ""
    assert os.path.getsize(base.with_suffix(".u8")) == len(tree.files) * row
    assert packed_file.intact(base, tree, row)
    pixels = np.fromfile(base.with_suffix(".u8"), np.uint8)
    pixels[-1] ^= 1
    pixels.tofile(base.with_suffix(".u8"))
    assert not packed_file.intact(base, tree, row)
