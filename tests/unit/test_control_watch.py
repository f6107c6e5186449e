"""While ranks train: who is dead, who is behind, who failed first."""

from __future__ import annotations

import pytest

from hvdtrain.launch.control import FIRST_STEP_FACTOR, GONE_SECONDS, STACK_SECONDS
from tests.unit.worlds_of_control import Ranks

STALL = 60.0


def fail(ranks: Ranks, rank: int, reason: str, consequence: bool = False, status: int = 1) -> None:
    told = {"rank": rank, "node": "?", "reason": reason, "consequence": consequence, "status": status}
    ranks.supervisor.answer("fail", told)


def training(size: int = 4, stall_timeout: float = STALL) -> Ranks:
    """A world in which every rank has made 7 steps."""
    ranks = Ranks(size, stall_timeout).started()
    for rank in range(size):
        assert ranks.beat(rank, step=7, progress=True) == {"state": "run", "stack": False}
    return ranks


# --- death ---


def test_a_rank_whose_connection_stays_away_is_dead() -> None:
    ranks = training()
    ranks.supervisor.gone(2)
    assert ranks.after(GONE_SECONDS) == ""
    reason = ranks.after(0.1)
    assert reason.startswith("rank 2 on n1 died without a word") and "step 7" in reason
    assert ranks.supervisor.verdict is not None and ranks.supervisor.verdict.rank == 2


def test_a_rank_that_reconnects_is_alive() -> None:
    ranks = training()
    ranks.supervisor.gone(2)
    ranks.clock.now += GONE_SECONDS / 2
    ranks.beat(2, step=7)
    assert ranks.after(GONE_SECONDS * 10) == ""


def test_a_goodbye_is_not_death() -> None:
    ranks = training()
    ranks.supervisor.answer("bye", {"rank": 2})
    ranks.supervisor.gone(2)
    assert ranks.after(GONE_SECONDS * 2) == ""


def test_a_goodbye_over_a_new_connection_is_not_death_either() -> None:
    """Rank 0 was too busy to answer a beat in time, so that the rank dropped its connection."""
    ranks = training()
    ranks.supervisor.gone(2)
    ranks.supervisor.answer("bye", {"rank": 2})
    assert ranks.after(GONE_SECONDS * 2) == ""


def test_all_have_left_when_each_said_goodbye_or_died() -> None:
    ranks = training(3)
    assert not ranks.supervisor.all_left()
    ranks.supervisor.answer("bye", {"rank": 1})
    assert not ranks.supervisor.all_left()
    ranks.supervisor.gone(2)
    assert ranks.supervisor.all_left()


def test_whoever_beats_hears_the_verdict() -> None:
    ranks = training()
    ranks.supervisor.gone(3)
    reason = ranks.after(GONE_SECONDS + 0.1)
    assert ranks.beat(0) == {"state": "end", "verdict": {"rank": 3, "reason": reason, "details": "", "status": 1}}


# --- standstill ---


@pytest.mark.parametrize(
    ("steps", "waiting", "behind"),
    [
        # The one that does not wait for others is the one they wait for, wherever it is.
        ((7, 7, 7, 7), {0, 1, 3}, "rank 2 on n1, last step 7"),
        ((8, 8, 7, 7), {0, 1}, "ranks 2-3 on n1, last step 7"),
        ((7, 8, 8, 8), {0, 1, 3}, "rank 2 on n1, last step 8"),
        # When all wait, or none does, the smallest step tells.
        ((8, 7, 8, 8), {0, 1, 2, 3}, "rank 1 on n0, last step 7"),
        ((8, 7, 8, 7), set(), "ranks 1,3 on n0, last step 7"),
    ],
)
def test_a_standstill_names_who_is_behind(steps: tuple[int, ...], waiting: set[int], behind: str) -> None:
    ranks = training()
    for rank, step in enumerate(steps):
        ranks.beat(rank, step=step, progress=True, waiting=rank in waiting)
    ranks.after(STALL + 0.1)
    assert ranks.after(STACK_SECONDS + 0.1) == f"no rank has made progress for 60 s; behind: {behind}"


def test_the_stack_of_the_one_behind_is_asked_for_and_shown() -> None:
    ranks = training(2)
    ranks.beat(0, step=7, waiting=True)
    assert ranks.after(STALL) == ""
    assert ranks.beat(1, step=7) == {"state": "run", "stack": False}
    assert ranks.after(0.1) == ""
    assert ranks.beat(0, step=7, waiting=True) == {"state": "run", "stack": False}
    assert ranks.beat(1, step=7) == {"state": "run", "stack": True}
    ranks.supervisor.answer("stack", {"rank": 1, "stack": '  File "train.py", line 9, in load'})
    assert "behind: rank 1" in ranks.after(0.1)
    assert ranks.supervisor.verdict is not None
    assert ranks.supervisor.verdict.rank == 1
    assert ranks.supervisor.verdict.details.splitlines() == [
        "rank 1 on n0: step 7, backward",
        '  File "train.py", line 9, in load',
    ]


def test_a_frozen_rank_ends_the_world_without_its_stack() -> None:
    ranks = training(2)
    for _ in range(70):
        ranks.clock.now += 1
        ranks.beat(0, step=7, waiting=True)
        if ranks.supervisor.check():
            break
    assert ranks.supervisor.verdict is not None
    # 60 s of standstill, then 3 s of waiting for a stack that does not come.
    assert ranks.supervisor.verdict.details == (
        "rank 1 on n0: step 7, backward; it does not answer (last heard of 65 s ago: frozen, or stuck in native code)"
    )


def test_progress_of_any_rank_is_progress_of_the_world() -> None:
    ranks = training(2)
    for _ in range(10):
        assert ranks.after(STALL - 1) == ""
        ranks.beat(1, step=7, progress=True)


def test_progress_while_a_stack_is_awaited_is_progress_too() -> None:
    ranks = training(2)
    assert ranks.after(STALL + 1) == ""
    ranks.beat(0, step=8, progress=True)
    assert ranks.after(STACK_SECONDS + 1) == ""
    assert ranks.beat(1, step=7) == {"state": "run", "stack": False}


def test_beats_without_progress_do_not_count() -> None:
    ranks = training(2)
    reason = ""
    for _ in range(70):
        ranks.beat(0, step=7)
        ranks.beat(1, step=7)
        reason = reason or ranks.after(1)
    assert reason.startswith("no rank has made progress for 60 s")


def test_the_first_step_may_take_longer() -> None:
    ranks = Ranks(2, STALL).started()
    assert ranks.after(STALL * FIRST_STEP_FACTOR) == ""
    ranks.after(0.1)
    assert f"made progress for {STALL * FIRST_STEP_FACTOR:g} s" in ranks.after(STACK_SECONDS + 0.1)


def test_a_stall_timeout_of_0_never_ends_a_world() -> None:
    ranks = training(2, stall_timeout=0.0)
    for _ in range(3):
        assert ranks.after(1e6) == ""
    ranks.supervisor.gone(1)
    assert "died" in ranks.after(GONE_SECONDS + 0.1)


def test_a_rank_that_has_left_is_not_behind() -> None:
    ranks = training(3)
    ranks.supervisor.answer("bye", {"rank": 1})
    ranks.beat(0, step=9, progress=True)
    ranks.beat(2, step=8, progress=True)
    ranks.after(STALL + 0.1)
    assert "behind: rank 2 on n1, last step 8" in ranks.after(STACK_SECONDS + 0.1)


# --- the reason ---


def test_the_first_reason_is_the_reason() -> None:
    ranks = training()
    fail(ranks, 1, "the data are unreadable")
    fail(ranks, 2, "something else")
    ranks.supervisor.gone(3)
    assert ranks.after(3600) == "rank 1 on n0 failed: the data are unreadable"


@pytest.mark.parametrize(("status", "what"), [(1, "failed"), (2, "failed"), (75, "was asked to stop")])
def test_all_end_with_the_status_of_the_one_that_began_it(status: int, what: str) -> None:
    """mpirun reports the first rank that ends, srun the highest status: neither need be the rank that began it."""
    ranks = training()
    fail(ranks, 1, "why", status=status)
    reason = f"rank 1 on n0 {what}: why"
    assert ranks.beat(3) == {"state": "end", "verdict": {"rank": 1, "reason": reason, "details": "", "status": status}}


def test_a_consequence_does_not_begin_an_end() -> None:
    ranks = training()
    fail(ranks, 3, "peers vanished", consequence=True)
    assert ranks.after(1) == ""
    fail(ranks, 2, "out of memory")
    assert ranks.after(1) == "rank 2 on n1 failed: out of memory"


def test_a_failure_before_the_start_names_the_node_that_it_says() -> None:
    supervisor = Ranks(2).supervisor
    supervisor.answer("fail", {"rank": 1, "node": "n9", "reason": "no GPU"})
    assert supervisor.verdict is not None and supervisor.verdict.reason == "rank 1 on n9 failed: no GPU"


def test_so_does_one_before_the_first_beat_where_nobody_joined() -> None:
    supervisor = Ranks(2).supervisor
    supervisor.start()
    supervisor.answer("fail", {"rank": 1, "node": "n9", "reason": "no GPU", "consequence": False, "status": 2})
    assert supervisor.verdict is not None and supervisor.verdict.reason == "rank 1 on n9 failed: no GPU"


def test_closing_ends_without_a_verdict() -> None:
    ranks = training()
    ranks.supervisor.closing = True
    assert ranks.beat(1, step=7) == {"state": "closing"}
    ranks.supervisor.gone(2)
    assert ranks.after(3600) == ""


def test_a_verdict_outlives_closing() -> None:
    ranks = training()
    fail(ranks, 1, "late")
    ranks.supervisor.closing = True
    assert ranks.beat(0)["state"] == "end"


def test_rank_0_may_work_on_after_the_others_have_left() -> None:
    """It exports a model, say: nobody waits for it, so that is no stall."""
    ranks = training(3)
    for rank in (1, 2):
        ranks.supervisor.answer("bye", {"rank": rank})
    assert ranks.after(STALL * 10) == ""
    assert ranks.after(STACK_SECONDS * 2) == ""
