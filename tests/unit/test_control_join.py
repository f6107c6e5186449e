"""Before Horovod starts: the ranks meet, and what they disagree on is said once, with who says what."""

from __future__ import annotations

from typing import Any

import pytest

from hvdtrain.launch.control import GONE_SECONDS, PROBLEM_SECONDS
from tests.unit.worlds_of_control import Ranks


def test_all_wait_for_the_last_and_then_all_are_ready() -> None:
    ranks = Ranks(4)
    assert ranks.join_all() == {"state": "ready"}
    # The others ask again until they are told.
    assert [ranks.join(rank) for rank in range(4)] == [{"state": "ready"}] * 4


def test_an_uneven_layout_is_no_disagreement() -> None:
    assert Ranks(5).join_all() == {"state": "ready"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"size": 2}, ["disagree on the size of the world", "ranks 0-2 say 4", "rank 3 say 2"]),
        (
            {"versions": {"horovod": "0.27.0"}},
            ["ranks run different software", "ranks 0-2 say {'horovod': '0.28.1'}", "rank 3 say {'horovod': '0.27.0'}"],
        ),
        # A site whose nodes are all called "localhost".
        ({"node": "n0"}, ["local rank 1 of node n0", "two nodes call themselves n0"]),
        ({"local_size": 3}, ["2 ranks joined from node n1", "told [2, 3] ranks"]),
        ({"node": "n2", "local_rank": 0, "local_size": 1}, ["1 ranks joined from node n1", "told [2] ranks"]),
    ],
)
def test_a_disagreement_is_refused_and_says_who_says_what(wrong: dict[str, Any], words: list[str]) -> None:
    ranks = Ranks(4)
    answer = ranks.join_all(**wrong)
    assert answer["state"] == "refused"
    assert [word for word in words if word not in answer["problem"]] == []
    # Every rank hears the same.
    assert ranks.join(0) == answer


def test_two_processes_that_claim_one_rank_are_refused() -> None:
    ranks = Ranks(4)
    ranks.join(1)
    answer = ranks.join(1, pid=999, node="n7")
    assert answer["state"] == "refused"
    for word in ("two processes say that they are rank 1", "pid 101 on n0", "pid 999 on n7", "one launcher only"):
        assert word in answer["problem"]
    # The same pid on another node is another process; the first process asking again is not.
    assert ranks.join(1, node="n7")["state"] == "refused"
    assert ranks.join(1) == {"state": "waiting"}


def test_everybodys_problem_is_said_once() -> None:
    ranks = Ranks(4)
    for rank in range(3):
        assert ranks.join(rank, problem="no Horovod") == {"state": "waiting"}
    assert ranks.join(3, problem="no torch") == {
        "state": "refused",
        "problem": "ranks 0-2: no Horovod\nrank 3: no torch",
    }


def test_a_problem_ends_the_wait_for_the_others_a_moment_later() -> None:
    ranks = Ranks(8)
    assert ranks.join(2, problem="no Horovod") == {"state": "waiting"}
    ranks.clock.now += PROBLEM_SECONDS
    assert ranks.join(0, problem="no Horovod") == {"state": "waiting"}
    ranks.clock.now += 0.1
    assert ranks.join(1) == {"state": "refused", "problem": "ranks 0,2: no Horovod"}


def test_ranks_that_never_came_are_named_at_the_last_call() -> None:
    ranks = Ranks(8)
    for rank in (0, 1, 2, 5):
        ranks.join(rank)
    ranks.clock.now += 3600
    assert ranks.join(0) == {"state": "waiting"}
    answer = ranks.join(0, last_call=True)
    assert answer["state"] == "refused"
    for word in ("ranks 3,4,6,7 of 8 did not arrive", "the others are on n0, n1, n2", "HVDTRAIN_CONNECT_TIMEOUT"):
        assert word in answer["problem"]


def test_the_last_call_of_a_complete_world_is_ready() -> None:
    ranks = Ranks(2)
    ranks.join(0)
    assert ranks.join(1, last_call=True) == {"state": "ready"}


def test_a_connection_that_ends_before_the_start_is_not_a_death() -> None:
    """Ranks that wait ask anew again and again, some over a connection of its own each time."""
    ranks = Ranks(2)
    ranks.join(0)
    ranks.supervisor.gone(0)
    assert ranks.join(1) == {"state": "ready"}
    assert ranks.after(GONE_SECONDS + 1) == ""


def test_an_unknown_verb_is_an_error_of_the_sender() -> None:
    with pytest.raises(KeyError):
        Ranks(2).supervisor.answer("train", {"rank": 0})
