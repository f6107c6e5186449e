"""Downloads, from a real server that can break off, lie about what it has, and count who asks."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from hvdtrain.data import fetch as fetching
from hvdtrain.data import sources
from hvdtrain.data.fetch import fetch, main
from hvdtrain.errors import UserError


class Mirror(ThreadingHTTPServer):
    """Serves `files` by name; breaks off after `break_after` bytes of each answer while `breaks` lasts."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.breaks, self.break_after = 0, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        name, asked = self.path.lstrip("/"), self.headers.get("Range")
        self.server.asked.append((name, asked))
        body = self.server.files.get(name)
        if body is None:
            self.send_error(404)
            return
        begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body) - begin))
        self.end_headers()
        rest = body[begin:]
        if self.server.breaks:
            self.server.breaks -= 1
            rest = rest[: self.server.break_after]
        self.wfile.write(rest)

    def log_message(self, format: str, *args: object) -> None:
        pass


def archive() -> bytes:
    packed = io.BytesIO()
    rng = np.random.default_rng(0)
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"):
            content = (
                np.concatenate([rng.integers(0, 10, (5, 1)), rng.integers(0, 256, (5, 3072))], 1)
                .astype(np.uint8)
                .tobytes()
            )
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """A mirror of a small CIFAR-10, whose checksum is known."""
    server = Mirror()
    body = archive()
    known = sources.SOURCES["cifar10"]
    remote = replace(known.files[0], checksum=f"sha256:{hashlib.sha256(body).hexdigest()}")
    monkeypatch.setitem(sources.SOURCES, "cifar10", replace(known, files=[remote]))
    monkeypatch.setattr(fetching.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(fetching, "_CHUNK", 500)
    server.files[remote.name] = body
    yield server
    server.shutdown()
    server.server_close()


def test_it_comes_once_and_is_read(mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cifar10", "--to", str(tmp_path / "c"), "--mirror", mirror.url]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "c")
    assert sources.locate("cifar10", tmp_path / "c") == tmp_path / "c"
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        ".hvdtrain-data",
        ".lock",
        "cifar-10-batches-bin",
    ]
    assert fetch("cifar10", tmp_path / "c", mirror.url) == tmp_path / "c"
    assert len(mirror.asked) == 1


def test_a_folder_that_lacks_a_file_is_made_whole(mirror: Mirror, tmp_path: Path) -> None:
    fetch("cifar10", tmp_path / "whole", mirror.url)
    files = {path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*.bin")}
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    (tmp_path / "part" / sorted(files)[0]).unlink()
    fetch("cifar10", tmp_path / "part", mirror.url)
    assert {path.relative_to(tmp_path / "part") for path in (tmp_path / "part").rglob("*.bin")} == files
    assert not list((tmp_path / "part").glob(".before*"))


def test_four_that_ask_at_once_download_once(mirror: Mirror, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: fetch("cifar10", tmp_path, mirror.url), range(4)))
    assert len(mirror.asked) == 1


def test_a_download_that_breaks_off_goes_on_where_it_ended(mirror: Mirror, tmp_path: Path) -> None:
    mirror.breaks, mirror.break_after = 2, 4000
    fetch("cifar10", tmp_path, mirror.url)
    assert [asked for _, asked in mirror.asked] == [None, "bytes=4000-", "bytes=8000-"]


def test_what_came_stays_for_the_next_call(mirror: Mirror, tmp_path: Path) -> None:
    mirror.breaks, mirror.break_after = 3, 1000
    with pytest.raises(UserError, match=r"What came so far stays in .*\.part; the same command goes on"):
        fetch("cifar10", tmp_path, mirror.url)
    fetch("cifar10", tmp_path, mirror.url)
    assert mirror.asked[-1][1] == "bytes=3000-"


def test_another_file_than_expected_is_not_kept(mirror: Mirror, tmp_path: Path) -> None:
    name = next(iter(mirror.files))
    mirror.files[name] = mirror.files[name][:-1] + b"?"
    with pytest.raises(UserError, match="came with another checksum than sha256:"):
        fetch("cifar10", tmp_path, mirror.url)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_mirror_without_it_and_a_server_that_is_not_there(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="404"):
        fetch("cifar10", tmp_path, f"{mirror.url}/elsewhere")
    with pytest.raises(UserError, match="HTTPS_PROXY"):
        fetch("cifar10", tmp_path, "http://127.0.0.1:9")


def test_data_behind_an_account_come_with_instructions(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)asks for an account.*unzip archive\.zip"):
        fetch("fruit", tmp_path)


def test_every_source_has_a_checksum_or_instructions() -> None:
    for source in sources.SOURCES.values():
        assert source.instructions or all(
            each.checksum.startswith("md5:") and len(each.checksum) == 36 for each in source.files
        )


def test_a_folder_of_one_data_set_is_not_taken_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST and Fashion-MNIST have files of the same names."""
    for folder in (tmp_path, tmp_path / "fashion-mnist"):
        folder.mkdir(exist_ok=True)
        for name in sources.source("mnist").layouts[0]:
            (folder / name).touch()
    (tmp_path / sources.MARK).write_text("mnist\n")
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    assert sources.locate("mnist") == tmp_path
    assert sources.locate("fashion-mnist") == tmp_path / "fashion-mnist"
    assert main(["mnist", "--to", str(tmp_path)]) == 0
    with pytest.raises(UserError, match="holds the data set mnist, whose files may have the same names"):
        main(["fashion-mnist", "--to", str(tmp_path)])
    # Others do not mind, and it goes on being found.
    assert sources.source("cifar10").taken_for(tmp_path) == ""
    sources.note_fetched(tmp_path, "cifar10")
    assert sources.fetched(tmp_path) == ["mnist", "cifar10"]
    assert sources.locate("mnist") == tmp_path
    (tmp_path / sources.MARK).write_text("cifar10\n")
    assert sources.locate("mnist") == tmp_path


def test_a_folder_that_is_named_for_a_data_set_is_not_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put in place by hand it has no mark: trained as Fashion-MNIST, MNIST would give numbers that nobody doubts."""
    place = tmp_path / "mnist"
    place.mkdir()
    for name in sources.source("mnist").layouts[0]:
        (place / f"{name}.gz").touch()
    monkeypatch.chdir(place)
    for given in (place, Path("."), tmp_path / "mnist" / ".." / "mnist"):
        assert sources.locate("mnist", given) == given
        with pytest.raises(UserError, match=r"fashion-mnist is not in .* holds mnist, whose files have the same names"):
            sources.locate("fashion-mnist", given)
    with pytest.raises(UserError, match="holds the data set mnist, whose files may have the same names"):
        main(["fashion-mnist", "--to", str(place)])


def test_a_guard_that_a_name_alone_takes_no_folder(tmp_path: Path) -> None:
    """Nothing lies there yet; or what was fetched to it is another data set than its name says."""
    place = tmp_path / "mnist"
    place.mkdir()
    fashion = sources.source("fashion-mnist")
    assert fashion.taken_for(place) == ""
    for name in fashion.layouts[0]:
        assert fashion.taken_for(place) == "", "a fetch that was broken off goes on"
        (place / name).touch()
    assert fashion.taken_for(place) == "mnist"
    sources.note_fetched(place, "fashion-mnist")
    assert sources.locate("fashion-mnist", place) == place
