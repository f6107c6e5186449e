"""The store by which Gloo's ranks find each other: plain keys, and all that is meant for one rank at once."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hvdtrain.launch.store import Store


def addresses_of(rank: int, size: int) -> bytes:
    """What a rank puts: four bytes for each other rank, that name both."""
    return b"".join(bytes([rank, other, 7, 7]) for other in range(size) if other != rank)


def meant_for(rank: int, size: int) -> bytes:
    return b"".join(bytes([other, rank, 7, 7]) for other in range(size) if other != rank)


def test_keys_are_kept_by_scope_and_forgotten() -> None:
    store = Store()
    store.put("global/0", b"a")
    store.put("local/0", b"b")
    assert (store.get("global/0"), store.get("local/0"), store.get("cross/0")) == (b"a", b"b", None)
    store.delete("global/0")
    store.delete("global/0")
    assert (store.get("global/0"), store.get("local/0")) == (None, b"b")


@pytest.mark.parametrize("size", [2, 3, 40])
def test_every_rank_is_handed_what_is_meant_for_it(size: int) -> None:
    store, drawn = Store(), random.Random(size)
    delays = [drawn.random() * 0.1 for _ in range(size)]

    def take_part(rank: int) -> bytes | None:
        time.sleep(delays[rank])
        store.put(f"mesh/{rank}", addresses_of(rank, size))
        return store.get(f"mesh/addresses/{rank}/{size}")

    with ThreadPoolExecutor(size) as pool:
        assert list(pool.map(take_part, range(size))) == [meant_for(rank, size) for rank in range(size)]


def test_who_waits_is_woken_by_the_last_one() -> None:
    store = Store()
    for rank in (0, 1):
        store.put(f"mesh/{rank}", addresses_of(rank, 3))
    late = threading.Timer(0.2, store.put, ("mesh/2", addresses_of(2, 3)))
    late.start()
    began = time.monotonic()
    assert store.addresses("mesh", 0, 3, seconds=30) == meant_for(0, 3)
    assert 0.1 < time.monotonic() - began < 5
    late.join()


def test_who_waits_in_vain_may_ask_again() -> None:
    store = Store()
    store.put("mesh/0", addresses_of(0, 3))
    store.put("mesh/2", addresses_of(2, 3))
    store.put("mesh/something else", b"")
    assert store.addresses("mesh", 0, 3, seconds=0.05) is None
    store.put("mesh/1", addresses_of(1, 3))
    assert store.addresses("mesh", 0, 3, seconds=0.05) == meant_for(0, 3)


def test_meshes_of_several_scopes_and_sizes_do_not_meet() -> None:
    """A node's name may hold what looks like the question for addresses."""
    store = Store()
    store.put("local/addresses/0", b"plain")
    assert store.get("local/addresses/0") == b"plain"
    for rank in (0, 1):
        store.put(f"a/{rank}", addresses_of(rank, 2))
    assert store.addresses("b", 0, 2, seconds=0.01) is None
    assert store.get("a/addresses/1/2") == meant_for(1, 2)
