"""How many nodes one job may have: those of the partition that it goes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdtrain.errors import UserError
from hvdtrain.site import commands, detect
from hvdtrain.site.detect import Facts
from hvdtrain.submit import batch_script, options, request
from hvdtrain.submit.cell import Cell, Shape
from hvdtrain.submit.nodes import nodes_for
from hvdtrain.submit.slurm import Slurm

#: As printed by sinfo: nodes of a partition differ in memory, so they are two lines.
CPUS = "2|debug*|32|64000|1:00:00|x|(null)\n60|compute|32|64000|1-0|x|(null)\n40|compute|32|128000|1-0|x|(null)\n"
GPUS = """\
2|debug*|32|64000|1:00:00|x|gpu:a100:4
20|compute|32|64000|1-0|x|gpu:a100:4
8|compute|32|64000|1-0|x|gpu:v100:4
9|old|32|64000|1-0|x|gpu:v100:4
50|cpu|64|64000|1-0|x|(null)
"""


@pytest.fixture(autouse=True)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SBATCH_PARTITION", raising=False)
    return tmp_path


def cluster(monkeypatch: pytest.MonkeyPatch, sinfo: str, *words: str, hidden: str = "") -> Slurm:
    """The transport to such a cluster, for such a request; of what is `hidden` sinfo says something where it is named."""

    def call(argv: list[str], seconds: float = 0.0) -> str:
        if argv[0] != "sinfo":
            return ""
        assert "--exact" in argv, "nodes that differ are to be told apart"
        assert "--all" not in argv, "it lists what this user may not see or use, and goes with no --partition"
        named = [names.split(",") for word in argv if (names := word.removeprefix("--partition=")) != word]
        if not named:
            return sinfo
        return "".join(line for line in (sinfo + hidden).splitlines(True) if line.split("|")[1].strip("*") in named[0])

    monkeypatch.setattr(commands, "present", lambda: True)
    monkeypatch.setattr(commands, "call", call)
    return Slurm(options.parse(["--gpus", "1", *words]))


def nodes(monkeypatch: pytest.MonkeyPatch, sinfo: str, gpus: int, *words: str, gpu_type: str | None = None) -> int:
    """Nodes of so many ranks on such a cluster."""
    return cluster(monkeypatch, sinfo, *words).shape(gpus, gpu_type).nodes


@pytest.mark.parametrize("partition", ["compute", "debug,compute", "compute, debug"])
def test_a_partition_that_is_asked_for_counts(monkeypatch: pytest.MonkeyPatch, partition: str) -> None:
    assert nodes(monkeypatch, CPUS, 128, "--partition", partition) == 4
    assert nodes(monkeypatch, CPUS, 3200, "--partition", partition) == 100
    with pytest.raises(UserError, match="there are 3200 GPUs: 100 nodes with 32 each; nearest that fit: 3200"):
        nodes(monkeypatch, CPUS, 6400, "--partition", partition)


def test_a_partition_of_the_profile_counts(monkeypatch: pytest.MonkeyPatch, room: Path) -> None:
    (room / "hvdtrain.toml").write_text('[site]\npartition = "compute"\n')
    assert nodes(monkeypatch, CPUS, 128) == 4


def test_without_one_it_is_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in ([], ["--partition", "debug"]):
        with pytest.raises(UserError, match="there are 64 GPUs: 2 nodes with 32 each"):
            nodes(monkeypatch, CPUS, 128, *words)


def test_what_the_profile_says_stays(monkeypatch: pytest.MonkeyPatch, room: Path) -> None:
    (room / "hvdtrain.toml").write_text("[site]\nnodes = 3\n")
    with pytest.raises(UserError, match="3 nodes with 32 each"):
        nodes(monkeypatch, CPUS, 128, "--partition", "compute")
    (room / "hvdtrain.toml").write_text("[site.gpus.v100]\nnodes = 5\n")
    with pytest.raises(UserError, match="5 nodes with 4 each"):
        nodes(monkeypatch, GPUS, 32, "--partition", "old", gpu_type="v100")


@pytest.mark.parametrize(
    ("lines", "words", "partition"),
    [
        ("", [], "old"),  # the one that has most of them
        ('[site]\npartition = "mine"\n', [], "mine"),
        ('[site.gpus.v100]\npartition = "mine"\n', [], "mine"),
        ('[site]\npartition = "yours"\n[site.gpus.v100]\npartition = "mine"\n', [], "mine"),
        ('[site]\npartition = "mine"\n', ["--partition", "compute"], "compute"),
        ('[site.gpus.v100]\npartition = "mine"\n', ["--partition", "compute"], "compute"),
    ],
)
def test_a_partition_that_somebody_names_goes_before_the_one_that_is_found(
    monkeypatch: pytest.MonkeyPatch, room: Path, lines: str, words: list[str], partition: str
) -> None:
    # As `hvdtrain site detect --write` leaves it.
    (room / "config" / "hvdtrain").mkdir(parents=True)
    written = detect.profile(Facts(detect.parse_sinfo(GPUS)))
    (room / "config" / "hvdtrain" / "site.toml").write_text(detect.to_toml(written))
    (room / "hvdtrain.toml").write_text(lines)
    slurm = cluster(monkeypatch, GPUS, *words)
    asked = batch_script.resources(slurm.shape(4, "v100"), slurm.site, "v100")
    assert dict(asked)["partition"] == partition


#: Each GPU type is in a partition of its own.
APART = "4|a{0}|32|64000|1-0|x|gpu:a100:4\n4|b{1}|32|64000|1-0|x|gpu:v100:4\n9|c{2}|32|64000|1-0|x|(null)\n"


@pytest.mark.parametrize("default", [("*", "", ""), ("", "*", ""), ("", "", "*")])
@pytest.mark.parametrize(
    ("named", "words", "partition"),
    [
        ("a", [], "b"),
        ("a, c", [], "b"),
        ("a, b", [], "a, b"),
        # What is wrong with it SLURM says in its own words; of one that sinfo does not list nobody knows what it has.
        ("b", ["--partition", "a"], "a"),
        ("mine", [], "mine"),
    ],
)
def test_a_partition_of_a_file_does_not_take_types_that_it_has_not(
    monkeypatch: pytest.MonkeyPatch, room: Path, default: tuple[str, ...], named: str, words: list[str], partition: str
) -> None:
    (room / "hvdtrain.toml").write_text(f'[site]\npartition = "{named}"\n')
    slurm = cluster(monkeypatch, APART.format(*default), *words)
    asked = batch_script.resources(slurm.shape(4, "v100"), slurm.site, "v100")
    assert dict(asked)["partition"] == partition


@pytest.mark.parametrize("table", ["[gpus.v100]", '[gpus.big]\nslurm = "v100"'])
def test_a_type_that_the_general_partition_has_not_keeps_the_one_that_a_file_has_for_it(
    monkeypatch: pytest.MonkeyPatch, room: Path, table: str
) -> None:
    (room / "config" / "hvdtrain").mkdir(parents=True)
    (room / "config" / "hvdtrain" / "site.toml").write_text(f'{table}\npartition = "mine"\n')
    (room / "hvdtrain.toml").write_text('[site]\npartition = "a"\n')
    slurm = cluster(monkeypatch, APART.format("*", "", ""))
    name = "big" if "big" in table else "v100"
    asked = batch_script.resources(slurm.shape(4, name), slurm.site, name)
    assert dict(asked)["partition"] == "mine"


@pytest.mark.parametrize(
    ("words", "gpu_type", "most"),
    [
        ([], "a100", 2),
        (["--partition", "compute"], "a100", 20),
        (["--partition", "debug"], "a100", 2),
        (["--partition", "compute"], "v100", 8),
        (["--partition", "compute"], None, 28),
        (["--partition", "debug,old"], "v100", 9),
        # What is wrong with it SLURM says in its own words.
        (["--partition", "cpu"], "v100", 9),
    ],
)
def test_nodes_with_the_gpus_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, words: list[str], gpu_type: str | None, most: int
) -> None:
    assert nodes(monkeypatch, GPUS, 4 * most, *words, gpu_type=gpu_type) == most
    with pytest.raises(UserError, match=f"{most} nodes? with 4 each"):
        nodes(monkeypatch, GPUS, 4 * most + 4, *words, gpu_type=gpu_type)


@pytest.mark.parametrize("partition", ["hidden", "hidden,secret"])
def test_a_partition_that_sinfo_does_not_show_may_have_any_number(
    monkeypatch: pytest.MonkeyPatch, partition: str
) -> None:
    assert nodes(monkeypatch, GPUS, 400, "--partition", partition) == 100


#: These sinfo does not list.
HIDDEN = "6|hidden|96|64000|1-0|x|gpu:h100:4\n3|secret|96|64000|1-0|x|gpu:h100:8\n"


@pytest.mark.parametrize(
    ("lines", "words", "gpus", "expected"),
    [
        ("", ["--partition", "hidden"], 8, Shape(2, 4, 4)),
        ("", ["--partition", "secret"], 8, Shape(1, 8, 8)),
        ("", ["--partition", "hidden, secret"], 24, Shape(3, 8, 8)),
        ("", ["--partition", "debug,secret"], 8, Shape(1, 8, 8)),
        ('directives = ["--partition=secret"]\n', [], 8, Shape(1, 8, 8)),
        ('directives = ["--partition secret"]\n', [], 8, Shape(1, 8, 8)),
        ('partition = "secret"\nranks_per_node = 2\n', [], 8, Shape(1, 8, 8)),
    ],
)
@pytest.mark.parametrize("sinfo", [CPUS, GPUS])
def test_a_hidden_partition_that_is_named_has_what_it_has(
    monkeypatch: pytest.MonkeyPatch, room: Path, lines: str, words: list[str], gpus: int, expected: Shape, sinfo: str
) -> None:
    (room / "hvdtrain.toml").write_text(f"[site]\n{lines}")
    slurm = cluster(monkeypatch, sinfo, *words, hidden=HIDDEN)
    assert slurm.shape(gpus) == slurm.shape(gpus, "h100") == expected
    asked = dict(batch_script.resources(slurm.shape(gpus, "h100"), slurm.site, "h100"))
    assert asked["gpus-per-node"] == f"h100:{expected.gpus_per_node}"
    assert {*slurm.site.gpus} == {"h100", *(["a100", "v100"] if sinfo == GPUS else [])}
    assert slurm.site.gpus["h100"].partition is None, "nothing goes there by itself"


def test_the_partition_of_a_type_may_be_hidden(monkeypatch: pytest.MonkeyPatch, room: Path) -> None:
    (room / "hvdtrain.toml").write_text('[site.gpus.h100]\npartition = "secret"\n')
    slurm = cluster(monkeypatch, GPUS, hidden=HIDDEN)
    assert slurm.shape(16, "h100") == Shape(2, 8, 8)
    assert nodes_for(slurm.profile, slurm.facts, "h100").cpus_per_task == 12
    assert slurm.shape(8, "a100") == Shape(2, 4, 4)


#: Nodes differ in their GPUs, from one partition to another and within one.
MIXED = """\
10|gpu4*|32|64000|1-0|x|gpu:v100:4
2|gpu8|96|64000|1-0|x|gpu:v100:8
10|both|32|64000|1-0|x|gpu:v100:4
2|both|96|64000|1-0|x|gpu:v100:8
1|test|4|64000|1-0|x|gpu:v100:2
6|cpu|16|64000|1-0|x|(null)
"""


@pytest.mark.parametrize(
    ("gpus", "words", "expected"),
    [
        (8, [], Shape(2, 4, 4)),
        (8, ["--partition", "gpu4"], Shape(2, 4, 4)),
        (8, ["--partition", "gpu8"], Shape(1, 8, 8)),
        (16, ["--partition", "both"], Shape(2, 8, 8)),
        # Two nodes have eight, and twelve have at least four.
        (32, ["--partition", "both"], Shape(8, 4, 4)),
        (4, ["--partition", "test"], None),
        (16, ["--partition", "both", "--gpus-per-node", "4"], Shape(4, 4, 4)),
    ],
)
@pytest.mark.parametrize("gpu_type", [None, "v100"])
def test_nodes_that_a_partition_has(
    monkeypatch: pytest.MonkeyPatch, gpus: int, words: list[str], expected: Shape | None, gpu_type: str | None
) -> None:
    slurm = cluster(monkeypatch, MIXED, *words)
    if expected is not None:
        assert slurm.shape(gpus, gpu_type) == expected
    else:
        with pytest.raises(UserError, match=r"there are 2 GPUs.*: 1 node with 2 each"):
            slurm.shape(gpus, gpu_type)


def test_a_partition_that_sbatch_is_told_by_other_means(monkeypatch: pytest.MonkeyPatch, room: Path) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "gpu8")
    assert cluster(monkeypatch, MIXED).shape(8) == Shape(1, 8, 8)
    # The script that sbatch gets names one, and then the variable does not count.
    assert cluster(monkeypatch, MIXED, "--partition", "gpu4").shape(8) == Shape(2, 4, 4)
    (room / "hvdtrain.toml").write_text('[site]\nskip = ["partition"]\n')
    assert cluster(monkeypatch, MIXED, "--partition", "gpu4").shape(8) == Shape(1, 8, 8)
    monkeypatch.setenv("SBATCH_PARTITION", "")
    (room / "hvdtrain.toml").write_text('[site]\ndirectives = ["--exclusive", "--partition=gpu8"]\n')
    for words in ([], ["--partition", "gpu4"]):
        assert cluster(monkeypatch, MIXED, *words).shape(8) == Shape(1, 8, 8)
    monkeypatch.setenv("SBATCH_PARTITION", "hidden")
    (room / "hvdtrain.toml").unlink()
    assert nodes(monkeypatch, GPUS, 400) == 100


@pytest.mark.parametrize(
    ("sinfo", "gpus", "words", "expected"),
    [
        ("10|a*|32|1|1-0|x|gpu:1\n4|b|64|1|1-0|x|gpu:8\n", 16, [], Shape(2, 8, 8)),
        ("20|a*|32|1|1-0|x|gpu:4\n4|b|64|1|1-0|x|gpu:8\n", 8, ["--gpus-per-node", "8"], Shape(1, 8, 8)),
        ("20|a*|32|1|1-0|x|gpu:4\n4|b|64|1|1-0|x|gpu:8\n", 80, [], Shape(20, 4, 4)),
        # A job has nodes of one of them, and no more than that has.
        ("20|a*|32|1|1-0|x|gpu:4\n4|b|64|1|1-0|x|gpu:8\n", 84, [], None),
    ],
)
def test_of_several_partitions_a_job_may_have_the_nodes_of_any_one(
    monkeypatch: pytest.MonkeyPatch, sinfo: str, gpus: int, words: list[str], expected: Shape | None
) -> None:
    slurm = cluster(monkeypatch, sinfo, "--partition", "a,b", *words)
    if expected is not None:
        assert slurm.shape(gpus) == expected
    else:
        with pytest.raises(UserError, match="nearest that fit: 80"):
            slurm.shape(gpus)


@pytest.mark.parametrize(
    ("sinfo", "gpus", "words"),
    [
        *(
            ("4|gpu*|64|1|1-0|x|gpu:a100:4\n1|mig|64|1|1-0|x|gpu:a100_1g.5gb:28\n", n, ["--partition", "mig"])
            for n in (7, 14, 28)
        ),
        ("1|int*|64|1|1-0|x|gpu:a100_1g.5gb:28\n8|gpu|64|1|1-0|x|gpu:a100:4\n", 8, []),
    ],
)
def test_a_partition_that_has_slices_of_gpus_alone(
    monkeypatch: pytest.MonkeyPatch, sinfo: str, gpus: int, words: list[str]
) -> None:
    assert cluster(monkeypatch, sinfo, *words).shape(gpus) == Shape(1, gpus, gpus)


def test_what_a_mixed_partition_has_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = cluster(monkeypatch, MIXED, "--partition", "both")
    with pytest.raises(UserError, match="there are 56 GPUs: 10 nodes with 4 each, 2 nodes with 8 each; nearest"):
        slurm.shape(64)
    with pytest.raises(UserError, match="51 ranks cannot lie evenly on at most 12 nodes with 4 or 8 GPUs each"):
        slurm.shape(51)


@pytest.mark.parametrize(
    ("words", "cpus"),
    [([], 8), (["--partition", "gpu8"], 12), (["--partition", "both"], 8), (["--partition", "test"], 2)],
)
def test_cores_of_a_rank_are_its_share_of_the_nodes_that_it_goes_to(
    monkeypatch: pytest.MonkeyPatch, room: Path, words: list[str], cpus: int
) -> None:
    (room / "toy.py").touch()
    given = options.parse(["--job", "toy.py", "--gpus", "2", *words])
    slurm = cluster(monkeypatch, MIXED, *words)
    cell = Cell("n2", "toy", "toy.py", "toy", 2, slurm.shape(2, "v100"), "gloo", "slurm", gpu_type="v100")
    script = slurm.script(cell, request.read(given, "slurm", room))
    assert batch_script.value(script, "cpus-per-task") == str(cpus)


def test_several_clusters_are_refused_before_anything_is_sized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "x,y")
    monkeypatch.setattr(commands, "present", lambda: True)
    with pytest.raises(UserError, match="SLURM_CLUSTERS=x,y"):
        Slurm(options.parse(["--gpus", "8", "--dry-run"]))


def test_nodes_that_differ_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for sinfo: SLURM's test nodes here are all alike."""

    def call(argv: list[str], seconds: float = 0.0) -> str:
        if argv[0] != "sinfo":
            return ""
        assert "--all" not in argv, "it lists what this user may not see or use"
        exact = "1|all*|32|64000|1-0|x|(null)\n2|all*|128|256000|1-0|x|(null)\n"
        return exact if "--exact" in argv else "3|all*|32+|64000+|1-0|x|(null)\n"

    monkeypatch.setattr(commands, "call", call)
    assert [(group.nodes, group.cpus) for group in detect.look().groups] == [(1, 32), (2, 128)]
