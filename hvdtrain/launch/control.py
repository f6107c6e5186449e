"""What rank 0 knows about the world: who has joined, how far each rank is, who failed. Decides when all must end.

Pure state: messages and the clock come in, answers go out; sockets and threads are elsewhere.

Verbs: `join` before Horovod starts, `beat` twice a second from then on, `stack` when asked, `fail` and `bye` at the end.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hvdtrain.stop import RESTART

Message = dict[str, Any]

#: A connection that ended without a word may come back (a dropped packet); after this many seconds its rank is dead.
GONE_SECONDS = 2.0
#: How long to wait for more ranks once one has reported a problem.
PROBLEM_SECONDS = 2.0
#: How long a rank that is behind may take to send its stack before the verdict is given without it.
STACK_SECONDS = 3.0
#: Loading data and compiling come before the first step, and take longer than any step.
FIRST_STEP_FACTOR = 2.0


@dataclass
class _Rank:
    """One rank as rank 0 sees it."""

    node: str = "?"
    step: int = 0
    beats: int = 0
    activity: str = "starting"
    waiting: bool = False
    heard: float = 0.0
    gone: float | None = None
    stack: str = ""
    left: bool = False


@dataclass(frozen=True)
class Verdict:
    """Why the world ends: the rank it began with, one sentence, and the Python stacks of those who stand still.

    `status`: that rank's exit status, and so that of every other: srun reports the highest and mpirun the first.
    """

    rank: int
    reason: str
    details: str = ""
    status: int = 1


@dataclass
class Supervisor:
    """The state of one world of `size` ranks.

    `stall_timeout` in seconds: no progress of any rank for that long ends the world; 0 never does.
    """

    size: int
    stall_timeout: float
    clock: Callable[[], float] = time.monotonic
    verdict: Verdict | None = None
    closing: bool = False
    _joined: dict[int, Message] = field(default_factory=dict)
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _progress: float = 0.0
    _asked: float | None = None
    _troubled: float | None = None
    _refusal: str = ""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def answer(self, verb: str, message: Message) -> Message:
        """The answer to one message of rank `message["rank"]`."""
        with self._lock:
            handle = {
                "join": self._join,
                "beat": self._beat,
                "stack": self._stack,
                "fail": self._fail,
                "bye": self._bye,
                "closing": self._is_closing,
            }
            return handle[verb](message["rank"], message)

    # --- before Horovod starts ---

    def _join(self, rank: int, message: Message) -> Message:
        place = message["place"]
        earlier = self._joined.get(rank)
        if earlier is not None and (earlier["place"]["node"], earlier["pid"]) != (place["node"], message["pid"]):
            return {
                "state": "refused",
                "problem": f"two processes say that they are rank {rank}: pid {earlier['pid']} on {earlier['place']['node']} "
                f"and pid {message['pid']} on {place['node']}; start each world by one launcher only",
            }
        self._joined[rank] = message
        if message["problem"] and self._troubled is None:
            self._troubled = self.clock()
        missing = [each for each in range(self.size) if each not in self._joined]
        # One rank's problem ends the wait, but most are everybody's: a moment lets the message name them all.
        troubled = self._troubled is not None and self.clock() - self._troubled > PROBLEM_SECONDS
        if missing and not (troubled or message["last_call"] or self._refusal):
            return {"state": "waiting"}
        # Once refused, always refused: a rank that comes later must not start Horovod alone.
        self._refusal = self._refusal or self._disagreement(missing)
        if self._refusal:
            return {"state": "refused", "problem": self._refusal}
        if not self._ranks:
            self.start()
        return {"state": "ready"}

    def _disagreement(self, missing: list[int]) -> str:
        """What is wrong with those who joined, as text; empty when Horovod may start."""
        if problems := _grouped(
            {rank: message["problem"] for rank, message in self._joined.items() if message["problem"]}
        ):
            return "\n".join(f"{_ranks(ranks)}: {text}" for text, ranks in problems.items())
        if missing:
            here = ", ".join(sorted({message["place"]["node"] for message in self._joined.values()}))
            return (
                f"{_ranks(missing)} of {self.size} did not arrive in time (the others are on {here}); see those ranks' logs, and "
                "whether their nodes reach rank 0. HVDTRAIN_CONNECT_TIMEOUT sets how many seconds to wait"
            )
        places = {rank: message["place"] for rank, message in self._joined.items()}
        if sizes := _differing({rank: place["size"] for rank, place in places.items()}):
            return f"ranks disagree on the size of the world: {sizes}"
        twice = [place for place, n in Counter((p["node"], p["local_rank"]) for p in places.values()).items() if n > 1]
        if twice:
            node, local_rank = twice[0]
            return f"several ranks are local rank {local_rank} of node {node}: do two nodes call themselves {node}?"
        for node, count in Counter(place["node"] for place in places.values()).items():
            claimed = {place["local_size"] for place in places.values() if place["node"] == node}
            if claimed != {count}:
                return f"{count} ranks joined from node {node}, but they were told {sorted(claimed)} ranks are there"
        if versions := _differing({rank: message["versions"] for rank, message in self._joined.items()}):
            return f"ranks run different software: {versions}"
        return ""

    # --- while training ---

    def start(self) -> None:
        """Horovod starts: from now on silence and standstill count."""
        with self._lock:
            now = self.clock()
            nodes = {rank: message["place"]["node"] for rank, message in self._joined.items()}
            self._ranks = {rank: _Rank(nodes.get(rank, "?"), heard=now) for rank in range(self.size)}
            self._progress = now

    def _beat(self, rank: int, message: Message) -> Message:
        now, state = self.clock(), self._ranks[rank]
        if message["beats"] != state.beats:
            self._progress, self._asked, state.stack = now, None, ""
        state.node, state.heard, state.gone = message["node"], now, None
        state.step, state.beats = message["step"], message["beats"]
        state.activity, state.waiting = message["activity"], message["waiting"]
        if self.verdict is not None:
            return {"state": "end", "verdict": dataclasses.asdict(self.verdict)}
        if self.closing:
            return {"state": "closing"}
        return {"state": "run", "stack": self._asked is not None and rank in self._behind()}

    def _stack(self, rank: int, message: Message) -> Message:
        self._ranks[rank].stack = message["stack"]
        return {}

    def _fail(self, rank: int, message: Message) -> Message:
        # Under MPI nobody joins, and it may fail before its first beat.
        known = self._ranks.get(rank, _Rank()).node
        node = message["node"] if known == _Rank.node else known
        # Ranks that fail because their peers vanished say so; they did not begin it.
        if not message.get("consequence"):
            status = message.get("status", 1)
            what = "was asked to stop" if status == RESTART else "failed"
            self._end(Verdict(rank, f"rank {rank} on {node} {what}: {message['reason']}", status=status))
        return {}

    def _bye(self, rank: int, message: Message) -> Message:
        if rank in self._ranks:
            # A connection before this one may have ended while rank 0 was too busy to answer.
            self._ranks[rank].left, self._ranks[rank].gone = True, None
        return {}

    def _is_closing(self, rank: int, message: Message) -> Message:
        return {"closing": self.closing}

    def gone(self, rank: int) -> None:
        """The connection of `rank` ended."""
        with self._lock:
            if rank in self._ranks and not self._ranks[rank].left:
                self._ranks[rank].gone = self.clock()

    def all_left(self) -> bool:
        """Whether every other rank has said goodbye, or is dead."""
        return all(state.left or state.gone is not None for rank, state in self._ranks.items() if rank != 0)

    def check(self) -> Verdict | None:
        """Look at the clock: is somebody dead, or nobody moving? Call it about twice a second."""
        with self._lock:
            now = self.clock()
            for rank, state in self._ranks.items():
                if state.gone is not None and now - state.gone > GONE_SECONDS and not self.closing:
                    self._end(
                        Verdict(
                            rank,
                            f"rank {rank} on {state.node} died without a word, last heard of at step {state.step} "
                            "(killed, out of memory, or crashed in native code)",
                        )
                    )
            if self.stall_timeout and self.verdict is None and not self.closing:
                self._check_stall(now)
            return self.verdict

    def _check_stall(self, now: float) -> None:
        if self.size > 1 and len(self._ranks) == self.size and self.all_left():
            return  # rank 0 works on alone, and nobody waits for it
        stepped = any(state.step for state in self._ranks.values())
        limit = self.stall_timeout * (1.0 if stepped else FIRST_STEP_FACTOR)
        if now - self._progress <= limit:
            self._asked = None
            return
        behind = self._behind()
        if not behind:
            return
        if self._asked is None:
            self._asked = now
        if now - self._asked > STACK_SECONDS or all(self._ranks[rank].stack for rank in behind):
            first = self._ranks[behind[0]]
            stacks = "\n".join(self._describe(rank, now) for rank in behind)
            self._end(
                Verdict(
                    behind[0],
                    f"no rank has made progress for {limit:g} s; behind: {_ranks(behind)} on {first.node}, last step {first.step}",
                    stacks,
                )
            )

    def _behind(self) -> list[int]:
        """The ranks that the others wait for: not waiting themselves, or else of the smallest step."""
        present = {rank: state for rank, state in self._ranks.items() if not state.left}
        busy = [rank for rank, state in present.items() if not state.waiting]
        if busy and len(busy) < len(present):
            return busy
        smallest = min((state.step for state in present.values()), default=0)
        return [rank for rank, state in present.items() if state.step == smallest]

    def _describe(self, rank: int, now: float) -> str:
        state = self._ranks[rank]
        head = f"rank {rank} on {state.node}: step {state.step}, {state.activity}"
        if state.stack:
            return f"{head}\n{state.stack}"
        return (
            f"{head}; it does not answer (last heard of {now - state.heard:.0f} s ago: frozen, or stuck in native code)"
        )

    def _end(self, verdict: Verdict) -> None:
        # The first reason is the reason; what follows from it comes later.
        if self.verdict is None:
            self.verdict = verdict


def _ranks(ranks: list[int]) -> str:
    """ "rank 3", "ranks 0-3", "ranks 1,3"."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"ranks {ordered[0]}-{ordered[-1]}"
    return "ranks " + ",".join(map(str, ordered))


def _grouped(values: dict[int, str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for rank, text in sorted(values.items()):
        groups.setdefault(text, []).append(rank)
    return groups


def _differing(values: dict[int, Any]) -> str:
    """The values and who has them, when there is more than one; else empty."""
    groups = _grouped({rank: str(value) for rank, value in values.items()})
    return "; ".join(f"{_ranks(ranks)} say {text}" for text, ranks in groups.items()) if len(groups) > 1 else ""
