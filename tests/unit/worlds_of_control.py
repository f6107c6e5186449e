"""A world as rank 0's supervisor hears it, on a clock that a test moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hvdtrain.launch.control import Message, Supervisor


@dataclass
class Clock:
    """Seconds that pass only when a test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Ranks:
    """The messages of all ranks; two on each node unless said otherwise."""

    size: int
    stall_timeout: float = 60.0
    per_node: int = 2
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self.size, self.stall_timeout, self.clock)
        self._beats: dict[int, int] = {}

    def join(self, rank: int, *, problem: str = "", last_call: bool = False, **changed: Any) -> Message:
        """The answer to this rank's join; `changed` overrides parts of its place, its pid or its versions."""
        local_size = min(self.per_node, self.size - rank // self.per_node * self.per_node)
        message = {
            "rank": rank,
            "pid": changed.pop("pid", 100 + rank),
            "versions": changed.pop("versions", {"horovod": "0.28.1"}),
            "problem": problem,
            "last_call": last_call,
            "place": {
                "node": f"n{rank // self.per_node}", "size": self.size,
                "local_rank": rank % self.per_node, "local_size": local_size,
            } | changed,
        }  # fmt: skip
        return self.supervisor.answer("join", message)

    def join_all(self, **of_last: Any) -> Message:
        """The answer to the last rank's join, when all others have joined as they should."""
        for rank in range(self.size - 1):
            assert self.join(rank) == {"state": "waiting"}
        return self.join(self.size - 1, **of_last)

    def started(self) -> Ranks:
        """The same world, joined and training."""
        assert self.join_all() == {"state": "ready"}
        return self

    def beat(self, rank: int, *, step: int = 0, progress: bool = False, waiting: bool = False) -> Message:
        """The answer to a beat; with `progress` the rank has done something since its last."""
        self._beats[rank] = self._beats.get(rank, 0) + progress
        return self.supervisor.answer(
            "beat",
            {
                "rank": rank, "node": f"n{rank // self.per_node}", "step": step, "beats": self._beats[rank],
                "activity": "backward", "waiting": waiting,
            },
        )  # fmt: skip

    def after(self, seconds: float) -> str:
        """The reason why the world ends, if it does, when so many more seconds have passed."""
        self.clock.now += seconds
        verdict = self.supervisor.check()
        return "" if verdict is None else verdict.reason
