"""Weights of backbones: downloads that broke off, that others make at the same time, and that cannot be made."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from hvdtrain.data import pretrained
from hvdtrain.errors import UserError

WHOLE = b"weights, whole"


class Network:
    """What `keras.utils.get_file` does, of a server with one file."""

    def __init__(self) -> None:
        self.served, self.reachable, self.content = 0, True, WHOLE

    def get_file(self, fname: str, origin: str, cache_subdir: str = "datasets") -> str:
        path = pretrained.folder().parent / cache_subdir / fname
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            if not self.reachable:
                raise Exception(
                    f"URL fetch failure on {origin}: None -- [Errno -3] Temporary failure in name resolution"
                )
            self.served += 1
            path.write_bytes(self.content[:5])
            pause.wait(0.05)
            path.write_bytes(self.content)
        return str(path)


pause = threading.Event()


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Network:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    return Network()


def load(network: Network) -> bytes:
    """As a model of keras.applications does."""
    files = SimpleNamespace(get_file=network.get_file)

    def make() -> bytes:
        path = Path(files.get_file("net_notop.h5", "https://x/net_notop.h5", cache_subdir="models"))
        if path.read_bytes() != WHOLE:
            raise OSError("Unable to synchronously open file (truncated file: eof = 5)")
        return path.read_bytes()

    try:
        return pretrained.load(make, files, "--backbone Net --weights imagenet")
    finally:
        assert files.get_file == network.get_file


def test_weights_are_loaded_once_and_kept(network: Network) -> None:
    assert [load(network), load(network)] == [WHOLE, WHOLE]
    assert network.served == 1
    assert sorted(path.name for path in pretrained.folder().iterdir()) == [".hvdtrain.lock", "net_notop.h5"]


def test_a_file_that_broke_off_is_fetched_anew(network: Network) -> None:
    pretrained.folder().mkdir()
    (pretrained.folder() / "net_notop.h5").write_bytes(WHOLE[:5])
    (pretrained.folder() / ".fetching-dead").mkdir()
    assert load(network) == WHOLE
    assert sorted(path.name for path in pretrained.folder().iterdir()) == [".hvdtrain.lock", "net_notop.h5"]


def test_nobody_sees_a_file_that_another_has_begun(network: Network) -> None:
    """As on nodes that share a home folder; threads, each with an open file of its own, exclude each other as processes do."""
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(load(network))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [WHOLE] * 4
    assert network.served == 1


def test_a_slow_download_is_progress_for_as_long_as_it_grows(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a world whose rank 0 fetches for long would be ended as stalled; one that stands still is."""
    told: list[str] = []
    before: list[int] = []

    def slowly(fname: str, origin: str, cache_subdir: str) -> str:
        path = Path(cache_subdir) / fname
        if not path.exists():
            with open(path, "wb", buffering=0) as file:
                for byte in range(len(WHOLE)):
                    file.write(WHOLE[byte : byte + 1])
                    pause.wait(0.03)
            before.append(len(told))
            pause.wait(0.3)
            before.append(len(told))
        return str(path)

    monkeypatch.setattr(pretrained, "alive", told.append)
    monkeypatch.setattr(pretrained, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(network, "get_file", slowly)
    assert load(network) == WHOLE
    assert 1 <= before[0] <= before[1] <= len(WHOLE)
    assert told == ["fetching weights"] * before[1]
    assert "hvdtrain-download" not in [thread.name for thread in threading.enumerate()]


def test_what_cannot_be_loaded_twice_says_what_to_do(network: Network) -> None:
    network.content = b"an answer of the proxy"
    with pytest.raises(
        UserError, match=r"--backbone Net --weights imagenet: Unable to .*truncated.* fetch the weights once"
    ):
        load(network)
    assert network.served == 2


def test_without_a_network_it_says_where_weights_may_come_from(network: Network, tmp_path: Path) -> None:
    network.reachable = False
    with pytest.raises(UserError) as caught:
        load(network)
    assert str(caught.value) == (
        "--backbone Net --weights imagenet: URL fetch failure on https://x/net_notop.h5: None -- [Errno -3] Temporary failure in "
        f"name resolution. Where nodes have no way out, fetch the weights once on the login node (they stay in {tmp_path}/models), "
        "or name a file: --weights FILE; --weights none begins at random"
    )


def test_what_no_network_would_mend_says_nothing_of_networks(network: Network) -> None:
    def make() -> None:
        raise ValueError("Input size must be at least 32x32")

    with pytest.raises(UserError, match=r"--weights none: Input size must be at least 32x32$"):
        pretrained.load(make, SimpleNamespace(get_file=network.get_file), "--backbone Net --weights none")


BACKBONE = """
import argparse, pathlib, sys
import keras
from keras.src.applications import mobilenet_v2
import hvdtrain.keras as hk
from hvdtrain.data import image_job, pretrained
server = pathlib.Path(sys.argv[1])
hk.init("single")
options = argparse.Namespace(backbone="MobileNetV2", weights="none")
made = image_job._backbone(options, 32)
name = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5"
made.save(server / name)
whole = (server / name).read_bytes()
mobilenet_v2.BASE_WEIGHT_PATH = f"file://{server}/"
options.weights = "imagenet"
pretrained.folder().mkdir(parents=True, exist_ok=True)
(pretrained.folder() / name).write_bytes(whole[: len(whole) // 2])
again = image_job._backbone(options, 32)
assert (again.get_weights()[0] == made.get_weights()[0]).all()
(pretrained.folder() / name).unlink()
(server / name).unlink()
image_job._backbone(options, 32)
"""


def test_kerases_own_downloads_go_that_way(tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.mkdir()
    script = tmp_path / "script.py"
    script.write_text(BACKBONE)
    environment = {**os.environ, "KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path / "home")}
    ended = subprocess.run(
        [sys.executable, "-m", "hvdtrain.run", str(script), str(server)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ended.returncode == 2, ended.stderr
    assert (
        "failed in rank_zero_first(): --backbone MobileNetV2 --weights imagenet: URL fetch failure on file://"
        in ended.stderr
    )
    assert f"(they stay in {tmp_path}/home/models)" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_who_waits_for_a_download_that_stands_still_is_not_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes share a home: what the one waits for is the other's, of the same world."""
    told: list[str] = []
    monkeypatch.setattr(pretrained, "alive", told.append)
    monkeypatch.setattr(pretrained, "_POLL_SECONDS", 0.02)
    aside = tmp_path / f"{pretrained._ASIDE}x"
    aside.mkdir()
    (aside / "weights").write_bytes(b"begun")
    with open(tmp_path / "lock", "w") as held, open(tmp_path / "lock", "w") as other, ThreadPoolExecutor(1) as pool:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = pool.submit(pretrained._locked, other, tmp_path)
        time.sleep(0.3)
        assert told == ["waiting for weights"]
        (aside / "weights").write_bytes(b"begun and gone on")
        time.sleep(0.3)
        assert told == ["waiting for weights"] * 2
        fcntl.flock(held, fcntl.LOCK_UN)
        assert waiting.result(timeout=5)
