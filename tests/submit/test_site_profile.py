"""Site profiles: precedence, mistakes, what a cluster says of itself. No cluster is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from submit_helpers import plain_environment

from hvdtrain.errors import UserError
from hvdtrain.site import detect, files
from hvdtrain.site.detect import Facts
from hvdtrain.site.files import Layer, combine, layers
from hvdtrain.site.profile import Gpu, Site
from hvdtrain.site.times import minutes

#: As printed by `sinfo --format=%D|%P|%c|%m|%l|%f|%G` of a site with long gres names, GPUs in several partitions, CPU nodes.
SINFO = """\
10|cpu*|64|256000|2-00:00:00|icelake|(null)
4|gpu|128|512000|1-00:00:00|a100,ib|gpu:nvidia_a100_80gb:4(S:0-3)
4|devel|128|512000|1:00:00|a100,ib|gpu:nvidia_a100_80gb:4(S:0-3)
2|gpu|96|384000|1-00:00:00|v100|gpu:tesla_v100:2(S:0-1),nvme:1
1|big|96|384000|1-00:00:00|v100|gpu:tesla_v100:2(S:0-1)
"""
CONFIG = {"ClusterName": "alps", "MaxArraySize": "101", "TaskPlugin": "task/affinity,task/cgroup", "JobRequeue": "1"}
ALPS = Facts(detect.parse_sinfo(SINFO), CONFIG, ["none", "pmi2", "pmix_v5"])


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("--partition gpu", "--partition=gpu"),
        ("--comment 'two words'", "--comment=two words"),
        ("--comment a=b ", "--comment=a=b"),
        ("--exclusive", "--exclusive"),
        ("--mail-type=FAIL", "--mail-type=FAIL"),
    ],
)
def test_a_directive_may_have_a_blank_before_its_value(written: str, meant: str) -> None:
    assert Site(directives=[written]).directives == [meant]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("-C fast", "give its long name, such as --constraint=fast"),
        ("-pgpu", "give its long name, such as --constraint=fast"),
        ("-", "give its long name"),
        ("exclusive", "give its long name"),
        ("--exclusive --hold", "give each directive by itself"),
        ("--comment 'two words", "No closing quotation"),
    ],
)
def test_what_is_no_directive_is_a_mistake(written: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        combine([Layer("site.toml", {"directives": [written]})])
    assert said in str(caught.value) and written in str(caught.value)


def test_what_a_cluster_says() -> None:
    site = combine([Layer("detected", detect.profile(ALPS))]).site
    assert (site.name, site.cpu_bind, site.pmix, site.limits.array_size) == ("alps", "cores", "pmix_v5", 100)
    assert site.gpus["a100"].model_dump(exclude_none=True) == {
        "slurm": "nvidia_a100_80gb", "partition": "gpu", "per_node": 4, "nodes": 4,
    }  # fmt: skip
    assert site.gpus["v100"].partition == "gpu"
    assert site.gpus["v100"].nodes == 2
    assert site.gpus_per_node == 4
    assert site.cpus_per_task == 32


def test_a_partition_whose_name_says_that_jobs_are_tried_or_ended_there_comes_last() -> None:
    names = {"scavenge": "7-00:00:00", "gpu": "2-00:00:00", "gpu-debug": "infinite", "Preemptible": "infinite"}
    lines = [f"8|{name}|64|1|{limit}|x|gpu:a100:4" for name, limit in names.items()]
    for order in (lines, lines[::-1]):
        site = combine([Layer("detected", detect.profile(Facts(detect.parse_sinfo("\n".join(order)))))]).site
        assert site.gpus["a100"].partition == "gpu"


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"AccountingStorageType": "accounting_storage/slurmdbd"}, True),
        ({"AccountingStorageType": "accounting_storage/none"}, False),
        ({"AccountingStorageType": "(null)"}, False),  # of newer SLURM
    ],
)
def test_accounting(settings: dict[str, str], kept: bool) -> None:
    assert Facts([], settings).accounting == kept


def test_a_cluster_that_starts_no_job_again() -> None:
    facts = Facts(ALPS.groups, {**CONFIG, "JobRequeue": "0"})
    requeue = combine([Layer("detected", detect.profile(facts))]).site.requeue
    assert (requeue.on, requeue.retries) == ([], 0)


def test_what_starts_no_job_again_does_so_after_accidents_only_where_that_is_asked_for() -> None:
    never, once = Layer("user", {"requeue": {"on": []}}), Layer("here", {"requeue": {"retries": 1}})
    assert combine([never]).site.requeue.retries == 0
    assert combine([never, once]).site.requeue.retries == combine([once, never]).site.requeue.retries == 1


def test_a_cluster_without_gpus() -> None:
    site = combine([Layer("detected", detect.profile(Facts(detect.parse_sinfo(SINFO.splitlines()[0]))))]).site
    assert (site.gpus, site.gpus_per_node, site.ranks_per_node, site.nodes) == ({}, None, 64, 10)


def test_what_is_detected_survives_toml(tmp_path: Path) -> None:
    values = detect.profile(ALPS)
    (tmp_path / "site.toml").write_text(detect.to_toml(values))
    assert files.read_toml(tmp_path / "site.toml") == values


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("gpu:t4:4(S:0-1)", {"t4": 4}),
        ("gpu:4", {"": 4}),
        ("gpu:a100:2,gpu:v100:2(S:0)", {"a100": 2, "v100": 2}),
        ("(null)", {}),
        ("nvme:1,shard:8", {}),
        ("gpu:0,gpu:t4:0", {}),
    ],
)
def test_gres(text: str, types: dict[str, int]) -> None:
    assert detect.parse_gres(text) == types


@pytest.mark.parametrize(
    "text",
    [
        "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n",
        "srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: pmix_v4\nsrun: pmix\n",
    ],
)
def test_mpi_types_of_two_releases(text: str) -> None:
    assert {"none", "pmi2", "pmix", "pmix_v4"} == set(detect.parse_mpi(text))


def test_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "hvdtrain").mkdir(parents=True)
    (tmp_path / "config" / "hvdtrain" / "site.toml").write_text(
        'partition = "user"\naccount = "user"\nqos = "user"\n[environment]\nA = "user"\nB = "user"\n'
    )
    (tmp_path / "hvdtrain.toml").write_text(
        'gpus = [2]\n[site]\naccount = "here"\nqos = "here"\n[site.environment]\nA = "here"\n'
    )
    (tmp_path / "given.toml").write_text('qos = "given"\n')
    detected = Layer("detected", {"partition": "detected", "mem": "detected"})
    profile = combine(
        [detected, *layers(tmp_path, str(tmp_path / "given.toml")), Layer("the command line", {"time": "1:00"})]
    )
    site = profile.site
    assert (site.mem, site.partition, site.account, site.qos, site.time) == (
        "detected",
        "user",
        "here",
        "given",
        "1:00",
    )
    assert site.environment == {"A": "here", "B": "user"}
    assert profile.origins["account"] == "hvdtrain.toml here"
    assert profile.origins["environment.B"].endswith("hvdtrain/site.toml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"partion": "x"}, 'a site profile has no key "partion"; legal are name, partition'),
        ({"partion": "x"}, 'did you mean "partition"?'),
        ({"gpus": {"a100": {"per-node": 4}}}, 'no key "gpus.a100.per-node"'),
        ({"gpus": {"a100": {"per-node": 4}}}, 'did you mean "per_node"?'),
        ({"requeue": {"retry": 1}}, 'no key "requeue.retry"'),
        ({"gpus_per_node": 0}, "mine: gpus_per_node = 0: input should be greater than or equal to 1"),
        ({"time": "tomorrow"}, "is not a time such as 90 (minutes)"),
        ({"environment": {"A B": "x"}}, '"A B" is not the name of a shell variable'),
        ({"launcher": "ssh"}, "'auto', 'gloo' or 'pmix'"),
        ({"directives": ["exclusive"]}, "is not a directive such as --exclusive"),
    ],
)
def test_mistakes_in_a_profile(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        combine([Layer("mine", values)])
    assert message in str(caught.value)
    assert str(caught.value).startswith("mine: ")


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hvdtrain site detect --write"):
        layers(tmp_path, str(tmp_path / "nowhere.toml"))


@pytest.mark.parametrize("name", ["a100", "A100", "nvidia_a100_80gb"])
def test_gpu_types_by_any_of_their_names(name: str) -> None:
    site = combine([Layer("detected", detect.profile(ALPS))]).site
    assert site.gpu(name).slurm == "nvidia_a100_80gb"


@pytest.mark.parametrize(
    ("gres", "names"),
    [
        (["nvidia_a100_80gb:4", "a100_1g.5gb:28"], {"a100": "nvidia_a100_80gb", "a100_1g.5gb": "a100_1g.5gb"}),
        (["a100:4", "a100_1g.5gb:28"], {"a100": "a100", "a100_1g.5gb": "a100_1g.5gb"}),
        (["a100_1g.5gb:28"], {"a100_1g.5gb": "a100_1g.5gb"}),
        (["a100-pcie-40gb:2", "a100-sxm4-80gb:4"], {name: name for name in ("a100-pcie-40gb", "a100-sxm4-80gb")}),
        (["a100:4", "nvidia_a100_80gb:4"], {"a100": "a100", "nvidia_a100_80gb": "nvidia_a100_80gb"}),
    ],
)
def test_a_short_name_is_that_of_one_whole_gpu(gres: list[str], names: dict[str, str]) -> None:
    for order in (gres, gres[::-1]):
        lines = "".join(f"2|gpu*|64|256000|1-0|x|gpu:{each}\n" for each in order)
        site = combine([Layer("detected", detect.profile(Facts(detect.parse_sinfo(lines))))]).site
        assert {name: gpu.slurm for name, gpu in site.gpus.items()} == names
        if "a100" not in names:
            with pytest.raises(UserError, match=r"(?s)the types here are .*a100"):
                site.gpu("a100")


def test_slices_of_gpus_are_no_gpus_to_count() -> None:
    lines = "2|gpu*|64|1|1-0|x|gpu:a100:4\n1|gpu*|64|1|1-0|x|gpu:a100:3,gpu:a100_1g.5gb:7\n1|gpu*|64|1|1-0|x|gpu:a100_1g.5gb:28\n"
    site = combine([Layer("detected", detect.profile(Facts(detect.parse_sinfo(lines))))]).site
    assert (site.gpus_per_node, site.nodes, site.cpus_per_task) == (4, 3, 16)
    assert site.gpus["a100_1g.5gb"].per_node == 28


def test_a_type_stays_known_when_a_partition_goes_before_its_own() -> None:
    weaker = Layer("weaker", {"gpus": {"h100": {"partition": "hopper"}}})
    profile = combine([weaker, Layer("stronger", {"partition": "debug"})])
    assert profile.site.gpus == {"h100": Gpu()}
    assert profile.site.gpu("h100").partition is None


def test_a_gpu_type_that_the_site_has_not() -> None:
    site = combine([Layer("detected", detect.profile(ALPS))]).site
    with pytest.raises(UserError, match=r'--gpu-type "a1000": the types here are a100, v100; did you mean "a100"'):
        site.gpu("a1000")
    with pytest.raises(UserError, match="the site profile names no GPU types"):
        Site().gpu("a100")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("30:30", 30.5), ("2:00:00", 120), ("1-0", 1440), ("1-12:30", 2190), ("1-00:00:30", 1440.5)],
)
def test_times(text: str, expected: float) -> None:
    assert minutes(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-5", "1h", "1:2:3:4", "INFINITE"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        minutes(text)


def test_show_without_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "hvdtrain.toml").write_text('[site]\naccount = "phys"\n')
    environment = plain_environment(XDG_CONFIG_HOME=str(tmp_path / "none"))
    command = [sys.executable, "-m", "hvdtrain", "site", "show", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["site"]["account"] == "phys"
    assert told["origins"] == {"account": "hvdtrain.toml here"}
    assert set(Site.model_fields) == set(told["site"]), "every default is visible"
    assert "nothing is detected" in done.stderr
