"""The real SLURM cluster that the tests in this directory run against."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from hvdtrain import testcluster


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
