"""SLURM's compressed lists, the name of a launch, another node of the step, and SLURM's programs when they are slow."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import UserError
from hvdtrain.site import commands
from hvdtrain.world import World, another_node, expand_hostlist, launch_id, tasks_per_node


@pytest.mark.parametrize(
    ("text", "counts"),
    [("1", [1]), ("2(x3)", [2, 2, 2]), ("2(x3),1", [2, 2, 2, 1]), ("3,1(x2),4", [3, 1, 1, 4]), ("2, 1", [2, 1])],
)
def test_tasks_per_node(text: str, counts: list[int]) -> None:
    assert tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "x", "2(x)", "2(3)", "2(x2", "2,,1", "-1", "2x3"])
def test_tasks_per_node_refuses_what_slurm_never_writes(text: str) -> None:
    with pytest.raises(UserError, match="is not a list of tasks per node such as") as caught:
        tasks_per_node(text)
    assert f'"{text}"' in str(caught.value)


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(1, 5)), min_size=1, max_size=6))
def test_tasks_per_node_undoes_slurms_compression(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
    assert tasks_per_node(text) == [count for count, times in runs for _ in range(times)]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("login", ["login"]),
        ("hvd-t4-2,hvd-v100-1", ["hvd-t4-2", "hvd-v100-1"]),
        ("hvd-t4-[1-2]", ["hvd-t4-1", "hvd-t4-2"]),
        ("v100-[1-2,07],login", ["v100-1", "v100-2", "v100-07", "login"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
        ("r[1-2]c[3,5]", ["r1c3", "r1c5", "r2c3", "r2c5"]),
        ("gpu[1,3].cluster.org", ["gpu1.cluster.org", "gpu3.cluster.org"]),
        ("a[1,2],b[3]", ["a1", "a2", "b3"]),
    ],
)
def test_hostlist(text: str, hosts: list[str]) -> None:
    assert expand_hostlist(text) == hosts


@pytest.mark.parametrize("text", ["n[a-b]", "n[1-b]", "n[]", "n[1,,2]"])
def test_hostlist_refuses_what_is_not_one(text: str) -> None:
    with pytest.raises(UserError, match="is not a host list such as") as caught:
        expand_hostlist(text)
    assert f'"{text}"' in str(caught.value)


PREFIXES = st.text("abxyz-.", min_size=1, max_size=6)


@st.composite
def host_groups(draw: st.DrawFn) -> tuple[str, list[str]]:
    """One entry of a host list as SLURM compresses it, and the names it stands for."""
    before, after = draw(PREFIXES), draw(st.sampled_from(["", "-ib", ".org"]))
    width = draw(st.integers(1, 4))
    items, names = [], []
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, 9 * 10 ** (width - 1)))
        last = first + draw(st.integers(0, 9))
        items.append(f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}")
        names += [f"{before}{number:0{width}}{after}" for number in range(first, last + 1)]
    return f"{before}[{','.join(items)}]{after}", names


@given(st.lists(st.one_of(host_groups(), PREFIXES.map(lambda name: (name, [name]))), min_size=1, max_size=4))
def test_hostlist_undoes_slurms_compression(groups: list[tuple[str, list[str]]]) -> None:
    text = ",".join(compressed for compressed, _ in groups)
    assert expand_hostlist(text) == [name for _, names in groups for name in names]


START = {"SLURM_CLUSTER_NAME": "hvd", "SLURM_JOB_ID": "13", "SLURM_STEP_ID": "0"}


def test_launch_id_is_the_same_on_all_ranks() -> None:
    ranks = [START | {"SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"n{rank}"} for rank in range(3)]
    assert len({launch_id(environ) for environ in ranks}) == 1
    # SLURM leaves the count unset in the first run, and some sites export 0.
    assert launch_id(START | {"SLURM_RESTART_COUNT": "0"}) == launch_id(START)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_RESTART_COUNT", "1"),
        ("SLURM_STEP_ID", "1"),
        ("SLURM_JOB_ID", "14"),
        ("SLURM_CLUSTER_NAME", "other"),
        ("HVDTRAIN_LAUNCH_ID", "by-hand"),
    ],
)
def test_launch_id_differs_for_another_start(name: str, value: str) -> None:
    assert launch_id(START | {name: value}) != launch_id(START)


def test_launch_id_can_be_given() -> None:
    assert launch_id(START | {"HVDTRAIN_LAUNCH_ID": "by-hand"}) == "by-hand"


@pytest.mark.parametrize(
    ("nodes", "other"),
    [("hvd-t4-[1-2]", "hvd-t4-2"), ("hvd-t4-[0-1]", "hvd-t4-0"), ("hvd-t4-1", None), ("", None), (None, None)],
)
def test_another_node_of_the_step(nodes: str | None, other: str | None) -> None:
    world = World(0, 2, 0, 1, 0, 2, "hvd-t4-1", "cpu", "gloo")
    assert another_node(world, {} if nodes is None else {"SLURM_STEP_NODELIST": nodes}) == other


# --- the environment of what is submitted ---


def test_settings_of_horovod_go_with_a_job() -> None:
    chosen = {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_GLOO_IFACE": "ib0", "HOROVOD_CYCLE_TIME": "5", "PATH": "/bin"}
    assert commands.clean_environment(chosen) == chosen


def test_the_place_of_an_outer_rank_does_not_go_with_a_job() -> None:
    place = [f"{level}{name}" for level in ("", "LOCAL_", "CROSS_") for name in ("RANK", "SIZE")]
    launcher = ["HOSTNAME", "CONTROLLER", "CPU_OPERATIONS", "GLOO_RENDEZVOUS_ADDR", "GLOO_RENDEZVOUS_PORT"]
    # Of these nobody can tell who set them, and ranks choose them anew.
    by_default = ["GLOO_IFACE", "GLOO_TIMEOUT_SECONDS", "FUSION_THRESHOLD"]
    outer = {f"HOROVOD_{name}": "1" for name in (*place, *launcher, *by_default)}
    assert commands.clean_environment({**outer, "HOROVOD_AUTOTUNE": "1"}) == {"HOROVOD_AUTOTUNE": "1"}


def test_the_cluster_that_somebody_chose_is_asked_too() -> None:
    assert commands.clean_environment({"SLURM_CLUSTERS": "x", "SLURM_JOB_ID": "1"}) == {"SLURM_CLUSTERS": "x"}
    # sbatch alone reads its own variable, and what it submits is to be found again.
    by_sbatch = {"SBATCH_CLUSTERS": "x"}
    assert commands.clean_environment(by_sbatch) == {**by_sbatch, "SLURM_CLUSTERS": "x"}


def test_a_choice_of_cluster_that_is_empty_is_none() -> None:
    assert commands.clean_environment({"SLURM_CLUSTERS": "x", "SBATCH_CLUSTERS": ""}) == {"SLURM_CLUSTERS": "x"}
    assert commands.clean_environment({"SLURM_CLUSTERS": " ", "SBATCH_CLUSTERS": " "}) == {}


@pytest.mark.parametrize("several", ["x,y", "all", "ALL"])
@pytest.mark.parametrize("variable", ["SLURM_CLUSTERS", "SBATCH_CLUSTERS"])
def test_several_clusters_cannot_be_asked(monkeypatch: pytest.MonkeyPatch, variable: str, several: str) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "x")
    monkeypatch.setenv(variable, several)
    with pytest.raises(commands.SlurmError, match=f"{variable}={several}: .* legal is .* export {variable}=NAME"):
        commands.call(["true"])


def test_defaults_for_srun_count_unless_they_are_those_of_an_outer_job() -> None:
    defaults = {"SLURM_ACCOUNT": "phys", "SLURM_PARTITION": "gpu", "SLURM_QOS": "high"}
    assert commands.srun_environment({**defaults, "SLURM_NTASKS": "4"}) == defaults
    assert commands.srun_environment({**defaults, "SLURM_JOB_ID": "1"}) == {}


# --- programs that are slow to answer, or never do ---


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_who_waits_at_a_terminal_is_told_what_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_SILENT_SECONDS", 0.2)
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert commands.call(["sh", "-c", "sleep 0.6; echo answered"]) == "answered\n"
    told, _, after = terminal.getvalue().partition("\r")
    assert told == "waiting up to 60 s for sh ..."
    assert after == "\033[K"  # and nothing of it stays


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(commands.SlurmError, match="sh did not answer within 1 s"):
        commands.call(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"], seconds=1)
    assert time.monotonic() - began < 10
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_refusal_is_quoted_in_full() -> None:
    with pytest.raises(commands.SlurmError, match="sh ended with status 3:\n  first\n  second"):
        commands.call(["sh", "-c", "printf 'first\\nsecond\\n' >&2; exit 3"])
