"""Get the studies' data: checked, gone on with after an interruption, once for all ranks and runs that share the folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from hvdtrain.data.sources import Remote, cache_folder, note_fetched, source
from hvdtrain.errors import UserError

# What has not arrived in full when a connection breaks is lost.
_CHUNK = 1 << 16
_ATTEMPTS = 3


def fetch(name: str, folder: Path | None = None, base_url: str | None = None) -> Path:
    """Download and unpack the data set `name` unless it is there; returns its folder.

    A download that broke off goes on where it ended, on the next attempt or the next call. HTTP(S)_PROXY and NO_PROXY are honoured.

    Args:
        folder: where to; default: `hvdtrain.data.sources.cache_folder`.
        base_url: take the files from this mirror, under their own names.

    Raises:
        UserError: no connection, no room, a file whose checksum differs, or data that only a person with an account can get: the
            message then says how.
    """
    wanted = source(name)
    target = (folder or cache_folder(name)).expanduser()
    if wanted.holds(target):
        return target
    if other := wanted.taken_for(target):
        raise UserError(
            f"{target} holds the data set {other}, whose files may have the same names; choose another folder with --to"
        )
    if not wanted.files:
        raise UserError(wanted.instructions.format(folder=target))
    try:
        target.mkdir(parents=True, exist_ok=True)
        with _alone(target):
            if wanted.holds(target):
                return target
            for remote in wanted.files:
                url = f"{base_url.rstrip('/')}/{remote.name}" if base_url else remote.url
                _get(remote, url, target)
                if ".tar" in remote.name:
                    _unpack(target / remote.name, target)
            note_fetched(target, name)
    except OSError as error:
        raise UserError(
            f"{target}: {error.strerror or error}; free some room, or choose another folder with --to"
        ) from None
    if not wanted.holds(target):
        raise UserError(f"{target} does not hold {wanted.describe()} after unpacking")
    return target


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One process at a time; the others wait and then find the data."""
    with open(target / ".lock", "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _get(remote: Remote, url: str, target: Path) -> None:
    try:
        import pooch
    except ImportError:
        raise UserError("hvdtrain fetch needs pooch: pip install 'hvdtrain[data]'") from None
    pooch.get_logger().setLevel("WARNING")
    try:
        pooch.retrieve(url, remote.checksum, fname=remote.name, path=target, downloader=_Resuming(remote))
    except ValueError as error:
        raise UserError(
            f"{url} came with another checksum than {remote.checksum}: it was removed; try again, or another --mirror ({error})"
        ) from None


class _Resuming:
    """For pooch, which begins anew: what came of a download stays beside the file, and the next attempt asks for the rest."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        import requests

        part = Path(output_file).parent / f"{self._remote.name}.part"
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._download(url, part)
                break
            except requests.RequestException as error:
                if attempt == _ATTEMPTS:
                    raise UserError(
                        f"{url}: {type(error).__name__}: {error}. What came so far stays in {part}; the same command goes on "
                        "from there. Behind a proxy set HTTPS_PROXY; on a node without a way out type it on the login node"
                    ) from None
                time.sleep(2.0 ** (attempt - 1))
        os.replace(part, output_file)

    def _download(self, url: str, part: Path) -> None:
        import requests

        have = part.stat().st_size if part.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        with requests.get(url, headers=headers, stream=True, timeout=30) as answer:
            if have and answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # all of it is there
            answer.raise_for_status()
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                have = 0
            with open(part, "ab" if have else "wb") as file, _progress(self._remote, have) as moved:
                for chunk in answer.iter_content(_CHUNK):
                    file.write(chunk)
                    moved(len(chunk))


@contextmanager
def _progress(remote: Remote, have: int) -> Iterator[Callable[[int], None]]:
    """On a terminal a line that moves; else a line at the end."""
    state = {"bytes": have, "shown": 0.0}
    began, terminal = time.monotonic(), sys.stderr.isatty()

    def moved(n: int) -> None:
        state["bytes"] += n
        now = time.monotonic()
        if terminal and now - state["shown"] > 0.2:
            state["shown"] = now
            done, rate = state["bytes"] / 1e6, (state["bytes"] - have) / 1e6 / max(now - began, 1e-3)
            print(
                f"\r{remote.name}: {done:,.0f} of {remote.megabytes:,.0f} MB, {rate:.1f} MB/s ",
                end="",
                file=sys.stderr,
            )

    yield moved
    end = "\r" if terminal else ""
    print(f"{end}{remote.name}: {state['bytes'] / 1e6:,.1f} MB in {time.monotonic() - began:.1f} s", file=sys.stderr)


def _unpack(archive: Path, target: Path) -> None:
    """Aside, then renamed part by part: what is there is whole. The archive goes, to save the room."""
    aside = target / ".unpacking"
    shutil.rmtree(aside, ignore_errors=True)
    print(f"unpacking {archive.name} ...", file=sys.stderr)
    try:
        with tarfile.open(archive) as tar:
            # The checksum vouches for it where Python is too old for a filter.
            tar.extractall(aside, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # type: ignore[arg-type]
    except (tarfile.TarError, EOFError) as error:
        raise UserError(f"{archive} cannot be unpacked: {error}; remove it and try again") from None
    for entry in aside.iterdir():
        place = target / entry.name
        # A folder that is not whole, as of an archive that somebody unpacked and broke off, is in the way.
        before = target / f".before.{entry.name}"
        shutil.rmtree(before, ignore_errors=True)
        if place.is_dir():
            os.replace(place, before)
        os.replace(entry, place)
        shutil.rmtree(before, ignore_errors=True)
    aside.rmdir()
    archive.unlink()


def main(arguments: list[str] | None = None) -> int:
    """`hvdtrain fetch NAME`."""
    import argparse

    from hvdtrain.data.sources import SOURCES

    parser = argparse.ArgumentParser(
        prog="hvdtrain fetch", description="Download a study's data: checked, resumable, once."
    )
    parser.add_argument("name", metavar="NAME", help=", ".join(SOURCES))
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="default: $HVDTRAIN_DATA/NAME, else the user's cache")
    parser.add_argument("--mirror", metavar="URL", help="take the files from below this address")
    options = parser.parse_args(arguments)
    print(fetch(options.name, options.to, options.mirror))
    return 0
