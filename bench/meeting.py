"""How long a large world needs to meet at rank 0's server, which all of Gloo's ranks find each other through.

    python bench/meeting.py --members 256 --json bench/results/meeting.json

    at once        our Horovod: a rank puts its addresses and is handed all that are meant for it
    one by one     Horovod as released: a rank asks for every other's list of addresses, twice, and for half of their host names

Both run against the server that `hvdtrain` starts, in a process of its own as in rank 0. The members are simulated: threads of one
process per core that speak the protocol of Horovod's client (a connection for each request), so they share the server's cores.
First all of them join, as before every start. The members' own connections to each other, which come after, are not made.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import sys
import threading
import time
from http.client import HTTPConnection, HTTPException

from turns import finish, machine, parser, spread, table, take_turns

from hvdtrain.launch import control, preflight, rendezvous
from hvdtrain.world import World

#: Bytes of an address of Gloo's over TCP: a socket's, and a sequence number.
ADDRESS = 136


class Member:
    """What one rank asks of the server; counts its requests."""

    def __init__(self, address: rendezvous.Address, rank: int, size: int) -> None:
        self.address, self.rank, self.size, self.requests = address, rank, size, 0

    def ask(self, method: str, key: str, body: bytes | None = None) -> bytes | None:
        """The answer to one request; None if there is nothing yet."""
        self.requests += 1
        connection = HTTPConnection(self.address.host, self.address.port, timeout=600)
        connection.request(method, f"/{self.address.secret}/mesh/{key}", body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return content if answer.status == 200 else None

    def get(self, key: str) -> bytes:
        """As Horovod's client: ask again every 10 ms until it is there, then once more for the value."""
        while self.ask("GET", key) is None:
            time.sleep(0.01)
        return self.ask("GET", key) or b""

    def join(self) -> None:
        """As before every start: until all are there."""
        world = World(self.rank, self.size, self.rank, self.size, 0, 1, "node", "cpu", "local")
        client = rendezvous.Client(self.address, self.rank, timeout=60)
        hello = preflight.introduction(world, "torch", self.address, "")
        while client.send("join", **hello, last_call=False)["state"] == "waiting":
            time.sleep(preflight.asking_interval(self.size))
        client.close()

    def meet(self, at_once: bool) -> None:
        """Put this rank's addresses, and get the others'."""
        others = [each for each in range(self.size) if each != self.rank]
        if not at_once:
            self.ask("PUT", f"rank_{self.rank}", b"node")
            for other in range(self.rank):
                self.ask("GET", f"rank_{other}")
        self.ask("PUT", str(self.rank), bytes(ADDRESS) * len(others))
        if at_once:
            got = len(self.get(f"addresses/{self.rank}/{self.size}"))
        else:
            got = sum(len(self.get(str(other))) for other in others) // len(others)
        if got != ADDRESS * len(others):
            raise ConnectionError(f"rank {self.rank} was given {got} bytes")


def serve(size: int, pipe: multiprocessing.connection.Connection) -> None:
    """Rank 0's server, until the pipe is written to."""
    supervisor = control.Supervisor(size, 0.0)
    server = rendezvous.Server("127.0.0.1", supervisor.answer, supervisor.gone)
    pipe.send(server.address)
    pipe.recv()
    server.close()


def take_part(
    address: rendezvous.Address, ranks: list[int], size: int, at_once: bool, told: multiprocessing.Queue
) -> None:
    """Some members, each in a thread; tells seconds to join, seconds to meet, and requests, or what went wrong."""
    members = [Member(address, rank, size) for rank in ranks]
    problems: list[str] = []

    def run(step: str, *arguments: bool) -> float:
        def one(member: Member) -> None:
            try:
                getattr(member, step)(*arguments)
            except (OSError, HTTPException) as error:
                problems.append(f"rank {member.rank}: {error!r}")

        threads = [threading.Thread(target=one, args=(member,)) for member in members]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - began

    told.put((run("join"), run("meet", at_once), sum(member.requests for member in members), problems))


def meeting(size: int, at_once: bool) -> dict[str, float]:
    """Seconds until all have joined, until all have met, and the requests of the latter."""
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    told = processes.Queue()
    server = processes.Process(target=serve, args=(size, there))
    server.start()
    address = here.recv()
    groups = [list(range(size))[first :: os.cpu_count()] for first in range(min(size, os.cpu_count() or 1))]
    workers = [processes.Process(target=take_part, args=(address, ranks, size, at_once, told)) for ranks in groups]
    for worker in workers:
        worker.start()
    found = [told.get() for _ in workers]
    for worker in workers:
        worker.join()
    here.send("enough")
    server.join()
    if problems := [text for *_, texts in found for text in texts]:
        sys.exit(f"{len(problems)} of {size} members failed; the first: {problems[0]}")
    joined, met, requests, _ = zip(*found, strict=True)
    return {"join_seconds": max(joined), "seconds": max(met), "requests": sum(requests)}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--members", default="256", help="sizes of the world, with commas (default %(default)s)")
    options: argparse.Namespace = made.parse_args()
    if options.tiny:
        options.members, options.rounds = "8", 1
    facts, rows, figures = machine(), [], {}
    for size in map(int, options.members.split(",")):
        contenders = {name: functools.partial(meeting, size, name == "at once") for name in ("at once", "one by one")}
        for name, found in take_turns(contenders, options.rounds).items():
            each = {key: spread([result[key] for result in found]) for key in found[0]}
            figures[f"{size} members, {name}"] = each
            shown = [f"{each[key]['median']:.2f}" for key in ("join_seconds", "seconds")]
            rows.append([size, name, *shown, f"{each['requests']['median']:,.0f}"])
    header = ["members", "addresses", "join s", "meet s", "requests to meet"]
    finish(options, facts, table(header, rows), {"meetings": figures})


if __name__ == "__main__":
    main()
