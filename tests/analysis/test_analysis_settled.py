"""A batch most of whose runs had not settled when they ended is not counted by those that had."""

from __future__ import annotations

from analysis.assemble import assemble
from analysis.tables import read_inputs
from analysis.target import ways
from tests.analysis.conftest import AddCell

SETTLED = [0.8 - 0.5 * 0.6**epoch for epoch in range(20)]
RISING = [0.1 + 0.04 * epoch for epoch in range(20)]


def test_most_runs_that_have_not_settled_are_a_lower_bound(add_cell: AddCell) -> None:
    for seed in range(3):
        add_cell(1, [100.0] * 20, SETTLED, seed=seed)
        add_cell(2, [200.0] * 20, SETTLED if seed < 2 else RISING, seed=seed)
        study = add_cell(4, [400.0] * 20, SETTLED if seed == 0 else RISING, seed=seed)
    read = read_inputs([study])
    found = assemble(read).insights
    (group,) = found.epochs.groups
    assert group.batches.tolist() == [32, 64], "one of three is outvoted, two are not"
    (said,) = [finding for finding in found.findings if "lower bound" in finding.message]
    assert said.code == "horizon"
    assert said.message.startswith("global batch 128: 2 of 3 runs had not settled")
    # Without a target times are to stability.
    stable = {way.n_gpus: way.epochs for way in ways(read.table, None, read.runs)}
    assert stable[4] is None
    assert stable[1] == stable[2] is not None
