"""Objects between ranks go in pieces: what is larger than one arrives whole, also where ranks bring different amounts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hvdtrain import objects
from tests.worlds import run_world

SCRIPT = """
import os, sys
import numpy as np
if sys.argv[1] == "torch":
    import hvdtrain.torch as h
    from hvdtrain._torch.start import from_rank_zero, gather_objects
else:
    import hvdtrain.keras as h
    from hvdtrain._keras.start import from_rank_zero as told, gather_objects
    from_rank_zero = lambda value: told(value, "value")
from hvdtrain import objects
world = h.init()
objects.PIECE = 1000
own = {"rank": world.rank, "numbers": np.arange(100 + 1000 * world.rank)}
gathered = gather_objects(own)
assert [each["rank"] for each in gathered] == [0, 1, 2]
assert all(np.array_equal(each["numbers"], np.arange(100 + 1000 * rank)) for rank, each in enumerate(gathered))
assert gather_objects(None) == [None] * 3
received = from_rank_zero(own if world.rank != 0 else {"weights": np.arange(5000.0)})
assert np.array_equal(received["weights"], np.arange(5000.0))
assert from_rank_zero("short" if world.rank == 0 else None) == "short"
print("whole")
"""


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("face", "launcher"),
    [("torch", "local"), ("torch", "mpirun"), ("tensorflow", "local"), ("keras on torch", "local")],
)
def test_objects_arrive_whole(face: str, launcher: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    backend = "torch" if face == "keras on torch" else "tensorflow"
    ended = run_world(3, script, face, options=["--launcher", launcher], KERAS_BACKEND=backend)
    assert ended.status == 0, ended.err
    assert ended.out.count("whole") == 3


def test_no_message_is_longer_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the sender's side alone: more bytes than 32 bits count would take minutes."""
    monkeypatch.setattr(objects, "PIECE", 64)
    sent: list[tuple[str, int]] = []

    def send(array: np.ndarray, name: str) -> np.ndarray:
        sent.append((name, array.nbytes))
        return array

    value = list(range(1000))
    assert objects.broadcast(value, 0, send, "x") is value
    assert objects.gather(value, 1, send, "y") == [value]
    assert {name for name, _ in sent} == {"x", "x.length", "y", "y.length"}
    assert max(size for _, size in sent) <= 64
