"""Data of its own on each rank, of different or unknown length: who is through goes on without weight until all are.

Horovod's `join` divides by the number of all ranks, also of those that are through, and leaves them with other parameters. Here
the ranks tell each other, one batch ahead and while a step is computed, how many samples they bring to the next one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hvdtrain._torch import stand_in
from hvdtrain._torch.collectives import Flight
from hvdtrain._torch.rows import at_once, samples_of
from hvdtrain._torch.start import collectives, session, sum_over_ranks, world
from hvdtrain._torch.workers import Drawing, Seeded, Worker, seed_from
from hvdtrain.data.shard import epoch_order
from hvdtrain.errors import UserError

#: Numbers the loaders, which all ranks make in the same order: those of two may have messages under way at once.
_loaders = itertools.count(1)


class JoinLoader:
    """Batches of this rank's own data; attributes as those of `Loader`.

    A rank that is through gives its last batch again, with `samples` 0 and `weight` 0.
    """

    def __init__(
        self, dataset: Dataset[Any], batch_size: int, shuffle: bool, seed: int, options: dict[str, Any]
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.epoch = 1
        self.samples = 0
        self.weight = 1.0
        self.union = 0
        self.seed = seed
        self._shuffle = shuffle
        self._options = options
        self._consumed = 0
        self._batches = 0
        self._skip = 0
        self._under_way = self._broken_off = False
        self._flight: Flight | None = None
        self._iterable = isinstance(dataset, IterableDataset)
        if not self._iterable and len(cast(Sized, dataset)) == 0:
            raise _nothing()
        # Samples of all ranks in an epoch, as far as anybody knows.
        known = 0 if self._iterable else len(cast(Sized, dataset))
        total, unknown, full, squares = sum_over_ranks([known, float(self._iterable), batch_size, batch_size**2])
        # Only now: a rank whose first one was refused makes another, and meets the others here.
        self._message = f"samples of the next step of loader {next(_loaders)}"
        self._total = 0 if unknown else int(total)
        self.full, self.alike = int(full), full**2 == world().size * squares

    @property
    def steps(self) -> int | None:
        """Not known: the ranks' data may have any length."""
        return None

    @property
    def left(self) -> int | None:
        """Not known either."""
        return None

    @property
    def fraction(self) -> float:
        """Share of the epoch that was given so far: 0.0 where nobody knows its length, as in a first epoch of iterables."""
        return min(1.0, self._consumed / self._total) if self._total else 0.0

    def facts(self) -> dict[str, Any]:
        """Not the data, the seed and the size of a batch, which are each rank's own; see `TrainLoader`."""
        return {"uneven": "join", "epoch": self.epoch}

    def __iter__(self) -> Iterator[Any]:
        """One epoch, which ends on all ranks at once."""
        number = self.epoch
        self.epoch += 1
        own, skip = self._own(number)
        if not self._skip:
            self._consumed = self._batches = 0
        last: Any = None
        for _ in range(skip):
            last = next(own, last)  # a rank that is through already gives it again
            session().progress("data")
        self._skip = 0
        self._under_way, self._broken_off = True, False
        try:
            yield from self._steps(own, last)
        except GeneratorExit:
            self._broken_off = True
            raise
        finally:
            stand_in.over()
        self._total = self._consumed
        self._under_way = False

    def _steps(self, own: Iterator[Any], last: Any) -> Iterator[Any]:
        """Batches until all ranks are through; `last` is the one before."""
        if self._flight is not None:
            # An epoch was broken off: a slow rank may not yet have told what it would have brought next.
            self._told(None)
        upcoming = next(own, None)
        self._tell(upcoming)
        while total := self._told(upcoming):
            current, samples = upcoming, samples_of(upcoming)
            if current is None:
                current = last
            if current is None:
                raise _nothing()
            last = current
            upcoming = next(own, None)
            self._tell(upcoming)
            self.samples, self.union, self.weight = samples, total, samples * world().size / total
            self._consumed += total
            self._batches += samples > 0
            stand_in.given(samples)
            yield current

    def _tell(self, batch: Any) -> None:
        """Begin to tell the others how many samples this rank brings to the next step."""
        if world().size == 1:
            return
        count = torch.tensor([float(samples_of(batch))], dtype=torch.float64)
        self._flight = collectives().start_allreduce(count, self._message, average=False)

    def _told(self, batch: Any) -> int:
        """Samples of all ranks in the next step."""
        if self._flight is None:
            return samples_of(batch)
        with session().waiting():
            flight, self._flight = self._flight, None
            return int(collectives().wait(flight).item())

    def _own(self, number: int) -> tuple[Iterator[Any], int]:
        """This rank's batches of an epoch, and how many of them were given before; without an order all have to be read again."""
        options, seeds = {"generator": torch.Generator(), **self._options}, (self.seed, number, world().rank)
        if options.get("num_workers"):
            options["worker_init_fn"] = Worker(options.get("worker_init_fn"), seeds if self._iterable else ())
        if self._iterable:
            data = DataLoader(self.dataset, batch_size=self.batch_size, **options)
            return iter(data) if options.get("num_workers") else Drawing(data, seed_from(*seeds)), self._skip
        order = epoch_order(len(cast(Sized, self.dataset)), seed_from(self.seed, world().rank), number, self._shuffle)
        batches = [
            [seed_from(*seeds, begin), *order[begin : begin + self.batch_size].tolist()]
            for begin in range(0, len(order), self.batch_size)
        ]
        # The last of those before may be needed once more.
        given = max(0, min(self._skip, len(batches)) - 1)
        rows, options = at_once(self.dataset, options, world().device)
        return iter(DataLoader(Seeded(rows), batch_sampler=batches[given:], **options)), self._skip - given

    def state_dict(self, within: bool = False, finished: int = 0) -> dict[str, Any]:
        """The epoch under way and how many batches of it this rank has given; see `TrainLoader`."""
        # What was left by a break is over when the caller says so; in the middle of a loop it is not.
        broken_off = self._broken_off and self.epoch - 1 <= finished
        under_way = within or (self._under_way and not broken_off)
        given = {"batches": self._batches, "consumed": self._consumed} if under_way else {"batches": 0, "consumed": 0}
        return {"epoch": self.epoch - under_way, "total": self._total, **given}

    def load_state_dict(self, states: list[dict[str, Any]], rank: int) -> str:
        """Go on where `state_dict()` was; with another number of ranks at the beginning of that epoch."""
        self.epoch = states[0]["epoch"]
        self._total = states[0]["total"]
        if len(states) == world().size:
            self._skip = self._batches = states[rank]["batches"]
            self._consumed = states[rank]["consumed"]
            return ""
        if states[0]["consumed"]:
            return f"the ranks' data is shared out anew, so epoch {self.epoch} begins again"
        return ""


def _nothing() -> UserError:
    return UserError(
        f'rank {world().rank} on {world().node} has no sample at all; with uneven="join" every rank needs one to keep in step with'
    )
