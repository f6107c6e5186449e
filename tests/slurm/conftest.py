"""The real SLURM cluster that the tests in this directory run against."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdtrain import testcluster
from tests.slurm.lab import PLAIN, Lab


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)


UNPLEASANT = 'it\'s a "room" $HOME `id` %j x'


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[testcluster.Cluster]:
    """A four-node cluster of this test session's own: `.env`, `.nodes`, `.run([...])`, `.directory`.

    Never skips: without a cluster nothing here has been tested, so the tests fail and say why.
    The cluster ends with the session, and also when the session is killed.
    """
    options = testcluster.Options(name=f"t{os.getpid()}", owner_pid=os.getpid())
    try:
        cluster = testcluster.up(options)
    except testcluster.ClusterError as error:
        pytest.fail(f"the test cluster did not start: {error}", pytrace=False)
    yield cluster
    testcluster.down(options)


@pytest.fixture
def lab(slurm_cluster: testcluster.Cluster, tmp_path: Path) -> Lab:
    """In a folder whose name no shell and no sbatch may touch; the cluster keeps no accounts."""
    room = tmp_path / UNPLEASANT
    room.mkdir()
    (room / "plain.py").write_text(PLAIN)
    return Lab(slurm_cluster, room)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A cluster with accounting and arrays of at most four tasks."""
    options = testcluster.Options(
        name=f"m{os.getpid() % 10**7}", owner_pid=os.getpid(), accounting=True, settings=("MaxArraySize=5",)
    )
    lab = Lab(testcluster.up(options), tmp_path_factory.mktemp("small"))
    (lab.room / "plain.py").write_text(PLAIN)
    yield lab
    testcluster.down(options)
