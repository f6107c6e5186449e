"""The doctor as a job of several nodes."""

from __future__ import annotations

import json

from tests.slurm.lab import Lab


def test_the_doctor_on_nodes(lab: Lab) -> None:
    done = lab("doctor", "--json", "--on-nodes", "2", timeout=200)
    found = json.loads(done.stdout)
    nodes = {each["node"] for each in found if "node" in each}
    assert len(nodes) == 2
    together = {each["name"]: each["status"] for each in found if each["part"] == "nodes"}
    assert together == {"shared-folder": "ok", "reach": "ok", "time-skew": "ok"}
    assert [each for each in found if each["status"] == "failed"] == []
    assert done.returncode == 0
