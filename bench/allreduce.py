"""Bus bandwidth of an allreduce by message size, against what the link between the ranks can carry.

    python bench/allreduce.py --ranks 2,4                     # ranks of this machine
    sudo python bench/allreduce.py --ranks 2,4 --link 1gbit   # one rank per node of a test cluster whose links are limited

    Horovod MPI    hvd.allreduce under mpirun, or srun --mpi=pmix
    Horovod Gloo   hvd.allreduce under our rendezvous
    torch Gloo     torch.distributed.all_reduce

Bus bandwidth is bytes x 2 (n - 1) / n / seconds: what each rank has to send at least, so that it can be laid beside the speed of a
link whatever the number of ranks. The limits are measured in the same processes: a memory copy, and one TCP stream from rank 0 to
rank 1. Seconds are medians over repetitions; the first ones of each size do not count.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from turns import finish, in_cluster, in_ranks, machine, on_nodes, parser, spread, table, take_turns

import hvdtrain.torch as ht

#: Contender -> launcher here, srun's option on a cluster, and the strategy of `init`.
CONTENDERS = {
    "Horovod MPI": ("mpirun", ["--mpi=pmix"], "horovod"),
    "Horovod Gloo": ("local", [], "horovod"),
    "torch Gloo": ("local", [], "ddp"),
}
SIZES = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
LIMITS = ("memory copy", "TCP stream")


def measure(options: argparse.Namespace) -> dict[str, float]:
    """In MB/s: the limits, and the bus bandwidth by size in bytes."""
    world = ht.init(options.rank)
    if options.rank == "ddp":
        operation: Callable[[Any], Any] = torch.distributed.all_reduce
    else:
        import horovod.torch as hvd

        def operation(tensor: Any) -> Any:
            hvd.allreduce_(tensor, op=hvd.Sum, name=f"bench.{len(tensor)}")

    found = {"memory copy": _copy(), "TCP stream": _stream(1 << 20 if options.tiny else 32 << 20)}
    for size in SIZES[:3] if options.tiny else [each for each in SIZES if each <= options.largest]:
        tensor = torch.zeros(size // 4)
        # At 100 MB/s the largest takes seconds.
        repeats = max(3, min(100, (64 << 20) // size))
        seconds = []
        for _ in range(repeats + 2):
            began = time.perf_counter()
            operation(tensor)
            seconds.append(time.perf_counter() - began)
        found[str(size)] = size * 2 * (world.size - 1) / world.size / statistics.median(seconds[2:]) / 1e6
    return found


def _copy() -> float:
    source = torch.zeros(16 << 20, dtype=torch.uint8)
    target, seconds = torch.empty_like(source), []
    for _ in range(8):
        began = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - began)
    return len(source) / statistics.median(seconds[2:]) / 1e6


def _stream(size: int) -> float:
    """MB/s of one TCP stream from rank 0 to rank 1, as rank 1 sees them arrive; the same on all ranks."""
    from hvdtrain.launch import network

    world, rate = ht.world(), 0.0
    server = socket.create_server(("", 0)) if world.rank == 1 else None
    mine = (network.own_address(world), server.getsockname()[1]) if server else None
    address = ht.gather_objects(mine)[1]
    if world.rank == 0:
        with socket.create_connection(address, timeout=60) as out:
            out.sendall(bytes(size))
    if server:
        source, _ = server.accept()
        with source, server:
            left, buffer, began = size, bytearray(1 << 20), time.perf_counter()
            while left:
                left -= source.recv_into(buffer)
            rate = size / (time.perf_counter() - began) / 1e6
    return float(ht.sum_over_ranks([rate])[0])


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--ranks", default="2,4", help="numbers of ranks, with commas, at least 2 (default %(default)s)")
    made.add_argument(
        "--link", help="start a test cluster whose nodes send at this rate, as 1gbit (needs root and SLURM)"
    )
    made.add_argument(
        "--largest", type=int, default=SIZES[-1], help="bytes of the largest message (default %(default)s)"
    )
    made.add_argument("--rank", help=argparse.SUPPRESS)
    made.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.rank:
        found = measure(options)
        if ht.world().rank == 0:
            options.out.write_text(json.dumps(found))
        return
    in_cluster(options.link, "--link", str(options.link))
    if options.tiny:
        options.ranks, options.rounds = "2", 1
    facts, rows, figures = machine(), [], {}
    for ranks in map(int, options.ranks.split(",")):
        arguments = ["--largest", options.largest, *(["--tiny"] if options.tiny else [])]
        turns: dict[str, Callable[[], dict[str, float]]] = {}
        for name, (launcher, mpi, strategy) in CONTENDERS.items():
            if options.link:
                turns[name] = partial(on_nodes, __file__, ranks, 1, "--rank", strategy, *arguments, mpi=mpi)
            else:
                turns[name] = partial(in_ranks, __file__, ranks, launcher, "--rank", strategy, *arguments)
        results = take_turns(turns, options.rounds)
        by_name = {name: {key: spread([r[key] for r in found]) for key in found[0]} for name, found in results.items()}
        figures[f"{ranks} ranks"] = by_name
        limits = {limit: max(each[limit]["median"] for each in by_name.values()) for limit in LIMITS}
        for size in (key for key in next(iter(by_name.values())) if key not in LIMITS):
            rates = [each[size]["median"] for each in by_name.values()]
            shares = [f"{rate:,.0f} ({rate / limits['TCP stream']:.2f})" for rate in rates]
            rows.append([ranks, f"{int(size) >> 10:,} KB", *shares, *(f"{limit:,.0f}" for limit in limits.values())])
    header = [
        "ranks",
        "message",
        *(f"{name} MB/s (of stream)" for name in CONTENDERS),
        *(f"{each} MB/s" for each in LIMITS),
    ]
    finish(options, facts, table(header, rows), {"link": options.link, "bus_mb_per_s": figures})


if __name__ == "__main__":
    main()
