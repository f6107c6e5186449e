"""The thread on every rank that listens to rank 0, and ends the process when the world has ended."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

import hvdtrain.run
from hvdtrain import launch, record, stop
from hvdtrain.errors import UserError, agreed
from hvdtrain.launch import session, watchdog
from hvdtrain.launch.control import Verdict
from hvdtrain.launch.rendezvous import Address, Client, Message, Server
from hvdtrain.launch.session import Session
from hvdtrain.launch.watchdog import Watchdog
from hvdtrain.stop import RESTART
from hvdtrain.world import World
from tests.unit.starting import eventually
from tests.unit.test_rendezvous_file import dead_port

# How the thread ends here.
pytestmark = pytest.mark.filterwarnings("ignore:(?s)Exception in thread hvdtrain-watchdog.*SystemExit")


@dataclass
class Process:
    """What this process would have said, and the status that it would have ended with."""

    said: list[str] = field(default_factory=list)
    status: list[int] = field(default_factory=list)

    def leave(self, status: int) -> NoReturn:
        self.status.append(status)
        sys.exit()  # only the thread


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    """Instead of this one; with less patience than people need, and no run folder."""
    found = Process()
    monkeypatch.setattr(watchdog, "leave", found.leave)
    monkeypatch.setattr(watchdog, "say", found.said.append)
    monkeypatch.setattr(watchdog, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(watchdog, "GONE_SECONDS", 0.1)
    for name in (record.RUN_DIR_VARIABLE, record.ATTEMPT_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return found


def answer(verb: str, message: Message) -> Message:
    return {"state": "run", "stack": False}


@pytest.fixture
def server() -> Iterator[Server]:
    result = Server("127.0.0.1", answer, lambda rank: None)
    yield result
    result.close()


class FullDisk:
    """Whatever is written there is refused."""

    def __call__(self, *given: Any, **facts: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    write = flush = __call__


def watch(address: Address, rank: int) -> Client:
    client = Client(address, rank, timeout=0.2)
    Watchdog(rank, "node2", client, 0.3, None)
    return client


def test_a_rank_0_that_never_answered_is_out_of_reach_not_dead(process: Process) -> None:
    """Debian's /etc/hosts gives a machine's own name to 127.0.1.1; others find nobody there."""
    address = Address("127.0.1.1", dead_port(), "s" * 32)
    # Any rank: rank 0, which has never heard of it, cannot speak for it.
    watch(address, rank=3)
    assert eventually(lambda: process.status == [1])
    assert process.said == [
        f"rank 3 on node2 cannot reach rank 0 at 127.0.1.1:{address.port}: its name leads to an address that other nodes do not "
        "reach (see /etc/hosts there), or a firewall stands between them; ending all other ranks"
    ]


def test_a_firewall_that_drops_what_is_sent(process: Process) -> None:
    with socket.socket() as deaf:  # the kernel accepts for it, and nobody answers
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(1)
        watch(Address("127.0.0.1", deaf.getsockname()[1], "s" * 32), rank=2)
        assert eventually(lambda: process.status == [1])
    assert "cannot reach rank 0" in process.said[0] and "frozen" not in process.said[0]


def test_a_rank_0_that_has_answered_once_is_dead(process: Process, server: Server) -> None:
    client = watch(server.address, rank=1)
    assert eventually(lambda: client.answered)
    server.close()
    client.close()  # as its end would end the connection
    assert eventually(lambda: process.status == [1])
    assert process.said[0].startswith("rank 0 died without a word")


# --- what the file system refuses keeps no rank alive ---


def test_a_folder_that_cannot_be_read_is_no_later_attempt(
    process: Process, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slurm.json").mkdir()  # reading it is an error, as on a file server that is away
    monkeypatch.setenv(record.RUN_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setenv(record.ATTEMPT_VARIABLE, "7-0")
    assert not record.superseded(tmp_path)
    monkeypatch.setattr(watchdog, "_LOOK_EVERY", 1)
    client = watch(server.address, rank=1)
    assert eventually(lambda: client.answered)
    server.close()
    client.close()
    assert eventually(lambda: process.status == [1])
    assert process.said[0].startswith("rank 0 died without a word")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), ValueError("half a file"), record.SupersededError()])
@pytest.mark.parametrize("name", ["note", "finish"])
def test_a_verdict_ends_a_rank_that_cannot_record_it(
    name: str, error: Exception, process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **facts: Any) -> NoReturn:
        raise error

    monkeypatch.setenv(record.RUN_DIR_VARIABLE, str(tmp_path))
    monkeypatch.setattr(record, name, refuse)
    dog = Watchdog(0, "node1", Client(Address("127.0.0.1", dead_port(), "s"), 0), 300.0, None)
    dog.stop()
    with pytest.raises(SystemExit):
        dog.end(Verdict(2, "rank 2 on node2 was asked to stop", status=RESTART))
    assert process.status == [RESTART]


def test_a_verdict_ends_a_rank_whose_log_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    status: list[int] = []
    monkeypatch.setattr(watchdog, "leave", status.append)
    monkeypatch.setattr(sys, "stderr", FullDisk())
    monkeypatch.setenv(watchdog.JOB_STDERR_VARIABLE, "12345")  # nor can the job's own be written
    dog = Watchdog(1, "node1", Client(Address("127.0.0.1", dead_port(), "s"), 1), 300.0, None)
    dog.stop()
    for rank in (0, 2):  # as the one that speaks for all, and as one that does not
        dog.end(Verdict(rank, "why"))
    assert status == [1, 1]


@pytest.fixture
def ended(process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Session, list[Message]]:
    """A session on rank 0 whose records cannot be written, and what it tells the world."""
    monkeypatch.setenv(record.RUN_DIR_VARIABLE, str(tmp_path))
    for name in ("note", "finish"):
        monkeypatch.setattr(record, name, FullDisk())
    monkeypatch.setattr(stop, "leaving", lambda: None)  # this process goes on
    for module in (session, hvdtrain.run):
        monkeypatch.setattr(module, "leave", process.leave)
    monkeypatch.setattr(session, "say", process.said.append)
    told: list[Message] = []

    def send(verb: str, **message: Any) -> Message:
        told.append({"verb": verb, **message})
        return {}

    found = Session(World(0, 2, 0, 2, 0, 1, "node1", "cpu", "local"), "torch")
    found._client = SimpleNamespace(send=send, close=lambda: None)  # type: ignore[assignment]
    return found, told


@pytest.mark.parametrize("error", [RuntimeError("no luck"), stop.Stopped("SIGTERM came", 15, agreed=False)])
def test_a_failure_is_told_to_the_world_though_it_cannot_be_recorded(
    error: BaseException, process: Process, ended: tuple[Session, list[Message]]
) -> None:
    found, told = ended
    with pytest.raises(SystemExit):
        found.fail(error, status=7)
    assert [each["verb"] for each in told] == ["fail"]
    assert process.status == [7]


def test_an_agreed_end_is_an_end_though_it_cannot_be_recorded(
    process: Process, ended: tuple[Session, list[Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = ended
    monkeypatch.setattr(launch, "active", found)
    with pytest.raises(SystemExit):
        hvdtrain.run._end_world(agreed(UserError("the same mistake")), 2)
    assert process.status == [2]


def test_an_agreed_end_is_recorded_as_such_though_the_terminal_was_closed(
    process: Process, ended: tuple[Session, list[Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = ended
    finished: list[tuple[Any, ...]] = []
    monkeypatch.setattr(launch, "active", found)
    monkeypatch.setattr(record, "finish", lambda *facts: finished.append(facts))
    master, terminal = os.openpty()
    os.close(master)
    with contextlib.suppress(OSError), open(terminal, "w", buffering=1) as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        with pytest.raises(SystemExit):
            hvdtrain.run._end_world(stop.Stopped("SIGHUP came", 1), RESTART, "preempted")
    assert process.status == [RESTART]
    assert [facts[1:] for facts in finished] == [("preempted", RESTART, "SIGHUP came")]


def test_a_meeting_file_that_stays_keeps_nobody(
    process: Process, ended: tuple[Session, list[Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, told = ended
    found._watchdog = SimpleNamespace(stop=lambda: None)  # type: ignore[assignment]
    found._file = Path("/proc/self/status")  # may not be deleted
    found.close()
    assert [each["verb"] for each in told] == ["bye"]


def test_what_is_said_may_hold_names_that_are_no_utf_8(capfd: pytest.CaptureFixture[str]) -> None:
    watchdog.say("/data/caf\udce9 is not a folder")
    assert capfd.readouterr().err == "hvdtrain: /data/caf\\udce9 is not a folder\n"


def test_steps_that_are_counted_say_what_a_rank_does(process: Process) -> None:
    """Those of a compiled loop: Python told last that it was saving, or has told nothing yet."""
    sent: list[dict[str, Any]] = []

    def send(verb: str, **message: Any) -> Message:
        sent.append(message)
        return {"state": "run"}

    rank = Watchdog(0, "node1", SimpleNamespace(send=send), 300.0, None)  # type: ignore[arg-type]
    rank.stop()
    older, newer = [7], [0]
    rank.counters += [lambda: older[0], lambda: newer[0]]
    told = []
    for change in ("begin", "step", "save", "step"):
        if change == "step":
            newer[0] += 1
        elif change == "save":
            rank.activity, rank.beats = "saving", rank.beats + 1
        rank._beat()
        told.append((sent[-1]["activity"], sent[-1]["step"], sent[-1]["beats"]))
    assert told[1:] == [("training", 8, 8), ("saving", 8, 9), ("training", 9, 10)]
