"""Shapes: how many nodes, and how many ranks on each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import UserError
from hvdtrain.submit.cell import Shape
from hvdtrain.submit.shape import place


@pytest.mark.parametrize(
    ("gpus", "per_node", "nodes", "expected"),
    [
        (1, 4, 4, (1, 1)),
        (2, 4, 4, (1, 2)),
        (3, 4, 4, (1, 3)),
        (4, 4, 4, (1, 4)),
        (6, 4, 4, (2, 3)),
        (8, 4, 4, (2, 4)),
        (9, 4, 4, (3, 3)),
        (12, 4, 4, (3, 4)),
        (16, 4, 4, (4, 4)),
        (16, 8, None, (2, 8)),
        (10, 8, None, (2, 5)),
        (5, 4, None, (5, 1)),
        (12, 2, None, (6, 2)),
        (7, None, None, (1, 7)),
    ],
)
def test_layouts(gpus: int, per_node: int | None, nodes: int | None, expected: tuple[int, int]) -> None:
    assert place(gpus, per_node=per_node, nodes=nodes) == Shape(*expected, expected[1])


@pytest.mark.parametrize(
    ("gpus", "nodes", "message"),
    [
        (5, 4, "5 ranks cannot lie evenly on at most 4 nodes with 4 GPUs each"),
        (5, 4, "nearest that fit: 4 and 6"),
        (7, 2, "nearest that fit: 6 and 8"),
        (32, 4, "there are 16 GPUs: 4 nodes with 4 each, nearest that fit: 16"),
    ],
)
def test_impossible_numbers(gpus: int, nodes: int, message: str) -> None:
    with pytest.raises(UserError) as caught:
        place(gpus, per_node=4, nodes=nodes)
    assert message.replace(", nearest", "; nearest") in str(caught.value)


def test_nodes_of_several_sizes() -> None:
    sizes = {4: 10, 8: 2}
    assert place(16, per_node=8, sizes=sizes) == Shape(2, 8, 8)
    assert place(32, per_node=8, sizes=sizes) == Shape(8, 4, 4)
    with pytest.raises(UserError, match="there are 48 GPUs: 12 nodes with 4 each"):
        place(56, per_node=4, sizes=sizes)


def test_the_most_of_one_job() -> None:
    with pytest.raises(UserError, match=r"one job may have 8 GPUs here .*; nearest that fit: 8"):
        place(16, per_node=4, nodes=64, most=8)


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 32))
def test_every_layout_is_even_and_fits(gpus: int, per_node: int, nodes: int) -> None:
    try:
        shape = place(gpus, per_node=per_node, nodes=nodes)
    except UserError as error:
        assert "nearest that fit" in str(error)  # noqa: PT017
        assert all(gpus % count or gpus // count > per_node for count in range(1, nodes + 1))
    else:
        assert shape.nodes * shape.tasks_per_node == gpus
        assert shape.tasks_per_node <= per_node
        assert shape.nodes <= nodes
