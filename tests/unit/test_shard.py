"""N ranks together train on what one rank would: the shards' arithmetic, for every size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.data.shard import ShardBatch, Uneven, epoch_order, shard, share, steps_left, steps_per_epoch

SAMPLES, BATCHES, SIZES = st.integers(1, 200), st.integers(1, 17), st.integers(1, 9)


def all_ranks(n: int, batch: int, size: int, uneven: Uneven = "pad") -> list[list[ShardBatch]]:
    order = epoch_order(n, seed=3, epoch=1)
    return [list(shard(order, batch, rank, size, uneven)) for rank in range(size)]


def counted(step: ShardBatch) -> list[int]:
    """The samples of one batch that count."""
    assert step.samples in (0, len(step.indices))
    return step.indices[: step.samples].tolist()


@given(SAMPLES, BATCHES, SIZES)
def test_every_sample_is_trained_on_exactly_once(n: int, batch: int, size: int) -> None:
    seen = [sample for rank in all_ranks(n, batch, size) for step in rank for sample in counted(step)]
    assert sorted(seen) == list(range(n))


@given(SAMPLES, BATCHES, SIZES)
def test_every_rank_makes_the_same_number_of_steps(n: int, batch: int, size: int) -> None:
    ranks = all_ranks(n, batch, size)
    assert {len(rank) for rank in ranks} == {steps_per_epoch(n, batch, size, "pad")} == {-(-n // (batch * size))}
    # A rank without a sample still has a batch to take part with, and no batch is larger than asked.
    assert all(1 <= len(step.indices) <= batch for rank in ranks for step in rank)


@given(SAMPLES, BATCHES, SIZES)
def test_the_average_over_ranks_is_the_mean_over_the_steps_samples(n: int, batch: int, size: int) -> None:
    gradient = np.random.default_rng(0).normal(size=n)
    for parts in zip(*all_ranks(n, batch, size), strict=True):
        averaged = sum(part.weight * gradient[part.indices].mean() for part in parts) / size
        together = [sample for part in parts for sample in counted(part)]
        assert averaged == pytest.approx(gradient[together].mean(), abs=1e-12)


@given(SAMPLES, BATCHES, SIZES)
def test_each_step_covers_what_one_rank_with_the_whole_batch_would(n: int, batch: int, size: int) -> None:
    alone = shard(epoch_order(n, seed=3, epoch=1), batch * size, 0, 1)
    for one, parts in zip(alone, zip(*all_ranks(n, batch, size), strict=True), strict=True):
        assert [sample for part in parts for sample in counted(part)] == one.indices.tolist()
        assert one.weight == 1


@given(SAMPLES, BATCHES, SIZES)
def test_drop_leaves_out_only_the_step_that_is_not_full(n: int, batch: int, size: int) -> None:
    if n < batch * size:
        with pytest.raises(ValueError, match="do not fill one step"):
            all_ranks(n, batch, size, "drop")
        return
    ranks = all_ranks(n, batch, size, "drop")
    assert {len(rank) for rank in ranks} == {n // (batch * size)}
    assert all(step.samples == batch and step.weight == 1 for rank in ranks for step in rank)
    seen = [sample for rank in ranks for step in rank for sample in counted(step)]
    assert len(set(seen)) == len(seen) == n // (batch * size) * batch * size


def test_a_rank_without_a_sample_keeps_step_and_weighs_nothing() -> None:
    ranks = all_ranks(5, 4, 8)
    idle = [rank[0] for rank in ranks if rank[0].samples == 0]
    assert len(idle) == 3
    assert all(step.weight == 0 and len(step.indices) == 1 for step in idle)


def test_refusals_say_what_is_legal() -> None:
    with pytest.raises(ValueError, match=r'100 samples .* 4 ranks x 32.*batch size of at most 25, .*uneven="pad"'):
        steps_per_epoch(100, 32, 4, "drop")
    with pytest.raises(ValueError, match="data set is empty"):
        steps_per_epoch(0, 32, 4, "pad")


@given(st.integers(2, 300), st.integers(0, 2**32), st.integers(0, 500))
def test_order_depends_on_seed_and_epoch_only(n: int, seed: int, epoch: int) -> None:
    order = epoch_order(n, seed, epoch)
    assert sorted(order.tolist()) == list(range(n))
    assert order.tolist() == epoch_order(n, seed, epoch).tolist()


def test_every_epoch_and_every_seed_has_an_order_of_its_own() -> None:
    orders = {tuple(epoch_order(50, seed, epoch).tolist()) for seed in range(4) for epoch in range(10)}
    assert len(orders) == 40


def test_order_without_shuffling_is_the_data_sets_own() -> None:
    assert epoch_order(5, seed=1, epoch=7, shuffle=False).tolist() == [0, 1, 2, 3, 4]


@given(st.integers(0, 200), BATCHES, SIZES)
def test_evaluation_covers_every_sample_once_and_in_order(n: int, batch: int, size: int) -> None:
    ranks = [share(n, batch, rank, size) for rank in range(size)]
    assert [sample for rank in ranks for part in rank for sample in part.tolist()] == list(range(n))
    assert all(1 <= len(part) <= batch for rank in ranks for part in rank)
    lengths = [sum(map(len, rank)) for rank in ranks]
    assert max(lengths) - min(lengths) <= 1


@given(SAMPLES, BATCHES, SIZES, SIZES, st.integers(0, 3), st.sampled_from(["pad", "drop"]))
def test_an_epoch_begun_by_other_ranks_goes_on_where_they_stopped(
    n: int, batch: int, before: int, after: int, steps: int, uneven: Uneven
) -> None:
    order = epoch_order(n, seed=3, epoch=1)
    start = min(n, steps * batch * before)
    rest = [list(shard(order, batch, rank, after, uneven, start)) for rank in range(after)] if start else []
    seen = [sample for rank in rest for step in rank for sample in counted(step)]
    left = order[start:].tolist() if start else []
    if uneven == "drop":
        left = left[: len(left) // (batch * after) * batch * after]
    assert sorted(seen) == sorted(left)
    assert {len(rank) for rank in rest} <= {steps_left(n - start, batch, after, uneven)}


@given(SAMPLES, BATCHES, SIZES)
def test_every_batch_that_counts_has_a_position_of_its_own(n: int, batch: int, size: int) -> None:
    order = epoch_order(n, seed=3, epoch=1)
    steps = [step for rank in all_ranks(n, batch, size) for step in rank if step.samples]
    assert len({step.position for step in steps}) == len(steps)
    assert all(order[step.position] == step.indices[0] for step in steps)
    assert sum(step.union for step in all_ranks(n, batch, size)[0]) == n
