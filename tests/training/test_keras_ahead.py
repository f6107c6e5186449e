"""Batches that threads make before they are asked for: the same as without threads, whatever is asked for next."""

from __future__ import annotations

import threading
import time

import pytest

from hvdtrain._keras.ahead import Ahead, Key


def test_batches_come_in_the_order_that_they_are_asked_for_and_at_most_so_many_ahead() -> None:
    made: list[Key] = []

    def make(key: Key) -> Key:
        time.sleep(0.001 * (key[2] % 3))
        made.append(key)
        return key

    ahead = Ahead(make, threads=3, depth=4)
    for step in range(10):
        assert ahead.get((1, 0, step), 10) == (1, 0, step)
        assert len(made) <= step + 5
    assert sorted(made) == [(1, 0, step) for step in range(10)], "a batch was made twice, or one beyond the epoch"


def test_another_epoch_or_step_is_given_though_others_were_made_ahead() -> None:
    ahead = Ahead(lambda key: key, threads=2, depth=3)
    for key in ((1, 0, 0), (1, 0, 0), (1, 0, 5), (2, 0, 0), (2, 64, 1), (2, 64, 2), (1, 0, 19)):
        assert ahead.get(key, 20) == key


def test_threads_make_batches_while_one_is_used() -> None:
    began = threading.Event()

    def make(key: Key) -> Key:
        if key[2] == 1:
            began.set()
        return key

    ahead = Ahead(make, threads=2, depth=2)
    ahead.get((1, 0, 0), 3)
    assert began.wait(30)


def test_an_error_in_a_thread_is_raised_where_the_batch_is_asked_for() -> None:
    def make(key: Key) -> Key:
        if key[2] == 2:
            raise OSError("the disk is gone")
        return key

    ahead = Ahead(make, threads=2, depth=4)
    assert ahead.get((1, 0, 0), 4) == (1, 0, 0)
    assert ahead.get((1, 0, 1), 4) == (1, 0, 1)
    with pytest.raises(OSError, match="the disk is gone"):
        ahead.get((1, 0, 2), 4)
    assert ahead.get((1, 0, 3), 4) == (1, 0, 3)
