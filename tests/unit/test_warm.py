"""Ranks that are forked from a warm process are ranks like others to their launcher, and to themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.worlds import Ended, run_cold_world, run_world, still_running, warm

TELLS = """
import sys
was_there = "torch" in sys.modules
import json, os, random, signal
import hvdtrain.torch as ht
import numpy
world = ht.init()
text = json.dumps({
    "warm": was_there, "arguments": sys.argv[1:], "folder": os.getcwd(), "name": __name__, "path": sys.path[0],
    "given": os.environ.get("GIVEN"), "left": os.environ.get("HVDTRAIN_TESTS_WARM"),
    "drawn": [random.random(), numpy.random.rand()],
    "hash": hash("text"), "ignores": signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN, "rank": world.rank,
    "input": os.readlink("/proc/self/fd/0").split(":")[0],
})
os.write(1, f"{text}\\n".encode())  # in one piece: two ranks write to one pipe
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "tells.py"
    path.write_text(TELLS)
    return path


def told(ended: Ended) -> list[dict[str, object]]:
    assert ended.status == 0, ended.err
    return sorted((json.loads(line) for line in ended.out.splitlines()), key=lambda each: each["rank"])


@pytest.mark.ranks
@pytest.mark.parametrize("launcher", ["local", "mpirun"])
def test_a_warm_rank_has_all_that_a_cold_one_has(launcher: str, script: Path) -> None:
    words, options = ("a b", '{"c"}'), ["--launcher", launcher]
    ranks = told(run_world(2, script, *words, options=options, GIVEN="yes"))
    cold = told(run_cold_world(2, script, *words, options=options, GIVEN="yes"))
    assert [each.pop("warm") for each in ranks] == [True, True]
    assert [each.pop("warm") for each in cold] == [False, False]
    for name in ("drawn", "hash"):
        # Neither the same numbers nor the same order of sets in two ranks.
        assert len({str(each.pop(name)) for each in [*ranks, *cold]}) == 4
    assert ranks == cold


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("given", "warm"), [({"OMP_NUM_THREADS": "3"}, False), ({"TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor"}, True)]
)
def test_a_rank_is_cold_where_its_libraries_would_start_otherwise(
    given: dict[str, str], warm: bool, script: Path
) -> None:
    (rank,) = told(run_world(1, script, options=["--launcher", "none"], **given))
    assert rank["warm"] is warm


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ends", "status"), [("sys.exit(7)", 7), ("os._exit(9)", 9), ("os.kill(os.getpid(), signal.SIGKILL)", 137)]
)
def test_it_ends_as_its_launcher_sees(ends: str, status: int, tmp_path: Path) -> None:
    path = tmp_path / "ends.py"
    path.write_text(f"import os, signal, sys\nimport hvdtrain.torch\n{ends}\n")
    assert run_world(1, path).status == status
    assert not still_running(str(path))


@pytest.mark.ranks
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_launcher(number: signal.Signals, tmp_path: Path) -> None:
    path, mark = tmp_path / "waits.py", tmp_path / "mark"
    path.write_text(
        "import os, sys, time\nimport hvdtrain.torch as ht\nrank = ht.init().rank\n"
        "open(f'{sys.argv[1]}{rank}', 'w').write(str(os.getpid()))\ntime.sleep(100)\n"
    )
    command = [sys.executable, "-m", "hvdtrain.launch", "-n", "2", "--launcher", "local", str(path), str(mark)]
    with subprocess.Popen(command, env={**os.environ, **warm("torch")}, stderr=subprocess.DEVNULL) as launcher:
        pids = []
        for rank in range(2):
            while not (written := Path(f"{mark}{rank}")).exists() or not written.read_text():
                assert launcher.poll() is None
                time.sleep(0.05)
            pids.append(int(written.read_text()))
        launcher.send_signal(number)
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
