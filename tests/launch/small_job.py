"""Messages of all sizes, types and operations, checked; then what is left of torch.distributed when the interpreter ends."""

from __future__ import annotations

import argparse
import atexit

import torch

import hvdtrain.torch as ht

options = argparse.ArgumentParser()
options.add_argument("--strategy", default="horovod")
strategy = options.parse_args().strategy
# Registered first, called last.
atexit.register(lambda: print("group alive at the end:", torch.distributed.is_initialized()))
world = ht.init(strategy)
total = sum(range(1, world.size + 1))
if strategy == "horovod":
    import horovod.torch as hvd

    for size in (1, 2, 3, 5, 7, 64, 1001, 100_003):
        for kind in (torch.float32, torch.float64, torch.int64):
            sent = torch.arange(size).to(kind) * (world.rank + 1)
            got = hvd.allreduce(sent, op=hvd.Sum, name=f"{size}.{kind}")
            assert torch.equal(got, torch.arange(size).to(kind) * total), (size, kind)
    # Large ones, which do not divide into equal pieces.
    operations = ((hvd.Sum, torch.sum), (hvd.Min, torch.amin), (hvd.Max, torch.amax), (hvd.Product, torch.prod))
    for kind in (torch.float32, torch.float16, torch.int32):
        for size in (500_009, 3_000_017):
            sent = [(torch.arange(size) % 3 + (torch.arange(size) + rank) % 2).to(kind) for rank in range(world.size)]
            for op, expected in operations:
                got = hvd.allreduce(sent[world.rank], op=op, name=f"large {kind} {size} {op}")
                assert torch.equal(got, expected(torch.stack(sent), 0).to(kind)), (size, kind, op)
    noise = torch.randn(3_000_017, generator=torch.Generator().manual_seed(world.rank))
    in_place = noise.clone()
    hvd.allreduce_(in_place, op=hvd.Average, name="in place")
    everybody = hvd.allgather(noise[None], name="everybody").double().mean(0)
    assert (in_place - everybody).abs().max() < 1e-6
    last_bits = hvd.allgather(in_place.view(torch.int32).to(torch.int64).sum()[None], name="last bits")
    assert (last_bits == last_bits[0]).all(), "ranks have different averages"
    handles = [
        hvd.allreduce_async(torch.full((n,), float(world.rank + 1)), name=f"n{n}", op=hvd.Sum) for n in range(1, 300)
    ]
    for n, handle in enumerate(handles, start=1):
        assert torch.equal(hvd.synchronize(handle), torch.full((n,), float(total))), n
else:
    assert ht.sum_over_ranks([world.rank + 1.0]) == [total]
if world.rank == 0:
    print(f"{world.size} ranks agree")
