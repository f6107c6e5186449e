"""Readers of the studies' formats: real files, damaged ones, and those that ask for more than arrays."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvdtrain.data import cifar
from hvdtrain.data.idx import read_idx
from hvdtrain.data.sets import load, synthetic
from hvdtrain.data.sources import locate
from hvdtrain.errors import UserError


def idx(array: np.ndarray) -> bytes:
    codes = {"u1": 0x08, "i2": 0x0B, "f4": 0x0D}
    head = struct.pack(">HBB", 0, codes[array.dtype.str[1:]], array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("kind", ["u1", "i2", "f4"])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_comes_back_as_it_was(kind: str, packed: bool, tmp_path: Path) -> None:
    array = np.arange(60).reshape(5, 4, 3).astype(kind)
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    read = read_idx(path)
    assert read.dtype == np.dtype(kind)
    assert np.array_equal(read, array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an IDX file"),
        (b"\xff\xd8\xff\xe0 a photograph", "is not an IDX file"),
        (idx(np.zeros((4, 4), "u1"))[:-3], "it is truncated or damaged"),
        (idx(np.zeros((4, 4), "u1")) + b"more", "it is truncated or damaged"),
        (idx(np.zeros((4, 4), "u1"))[:6], "it is truncated or damaged"),
        (gzip.compress(idx(np.zeros((40, 40), "u1")), mtime=0)[:-9], "cannot be read"),
    ],
    ids=["empty", "another kind", "cut short", "too long", "half a head", "cut while packed"],
)
def test_a_damaged_idx_file_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_fashion_mnist_is_what_its_authors_say() -> None:
    """Debian's package dataset-fashion-mnist, which `make test` installs."""
    data = load("fashion-mnist")
    assert (data.x_train.shape, data.x_test.shape) == ((60_000, 28, 28, 1), (10_000, 28, 28, 1))
    assert data.x_train.dtype == np.uint8
    assert np.array_equal(np.bincount(data.y_train), [6000] * 10)
    assert np.array_equal(np.bincount(data.y_test), [1000] * 10)


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 10, n, np.uint8), rng.integers(0, 256, (n, 3072), np.uint8)


def write_cifar(folder: Path, pickled: bool) -> None:
    folder.mkdir(parents=True)
    training, test = cifar.PICKLED if pickled else cifar.BINARY
    for seed, name in enumerate((*training, test)):
        labels, planes = rows(7, seed)
        if pickled:
            content: dict[bytes, Any] = {b"data": planes, b"labels": labels.tolist(), b"batch_label": b"of five"}
            (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        else:
            (folder / name).write_bytes(np.concatenate([labels[:, None], planes], 1).tobytes())


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("below", [True, False])
def test_both_versions_of_cifar_hold_the_same(pickled: bool, below: bool, tmp_path: Path) -> None:
    name = "cifar-10-batches-py" if pickled else "cifar-10-batches-bin"
    write_cifar(tmp_path / "c" / name if below else tmp_path / "c", pickled)
    data = load("cifar10", tmp_path / "c")
    labels, planes = rows(7, 0)
    assert data.x_train.shape == (35, 32, 32, 3)
    assert data.x_test.shape == (7, 32, 32, 3)
    assert np.array_equal(data.y_train[:7], labels)
    assert np.array_equal(data.x_train[3, 2, 1], planes[3].reshape(3, 32, 32)[:, 2, 1])  # red, green, blue of one pixel


class Opens:
    """Run by a plain unpickler."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("ran.txt", "w")


@pytest.mark.parametrize(
    "content", [{b"data": Opens()}, Opens(), {b"data": np.zeros((2, 9), np.uint8), b"labels": [1, 2]}, [1]]
)
def test_a_pickle_runs_nothing(content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(UserError, match="is no batch of CIFAR-10's Python version"):
        cifar.read_pickled(path)
    assert not (tmp_path / "ran.txt").exists()


def test_a_cut_binary_batch_is_named(tmp_path: Path) -> None:
    write_cifar(tmp_path / "c", pickled=False)
    path = tmp_path / "c" / "data_batch_4.bin"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match=r"data_batch_4\.bin holds .* no whole number of images"):
        load("cifar10", tmp_path / "c")


def test_data_that_are_not_there_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDTRAIN_DATA", str(tmp_path / "none"))
    monkeypatch.delenv("DATA_DIR", raising=False)
    with pytest.raises(
        UserError, match=r"A folder must hold data_batch_1\.bin .* Type: hvdtrain fetch cifar10; or name the folder"
    ):
        load("cifar10")
    with pytest.raises(
        UserError, match=f"mnist is not in {tmp_path}/mnist and .*hvdtrain fetch mnist --to {tmp_path}/mnist"
    ):
        load("mnist", tmp_path)
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    with pytest.raises(UserError, match=f"caltech256 is not in {tmp_path}/caltech256 and"):
        locate("caltech256")
    with pytest.raises(UserError, match='did you mean "cifar10"'):
        load("cifar")


def test_made_up_images_are_marked_and_can_be_learned() -> None:
    data = synthetic(600, (12, 12, 3), 4, seed=1)
    assert data.synthetic
    assert data.x_train.shape == (600, 12, 12, 3)
    brightest = data.x_test.astype(int).sum((2, 3)).argmax(1) * 4 // 12
    assert (brightest == data.y_test).mean() > 0.99
    assert not load("digits").synthetic


def test_a_folder_that_may_not_be_looked_into_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", denied)
    with pytest.raises(UserError, match=r"mnist/train-images-idx3-ubyte: Permission denied$"):
        locate("mnist", tmp_path / "mnist")
