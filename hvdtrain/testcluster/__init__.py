"""A real multi-node SLURM cluster on one machine, for tests and for trying the suite without a cluster.

Nodes are network namespaces with their own addresses and host names; slurmctld, slurmd and munged are the real ones.
"""

from __future__ import annotations

from hvdtrain.testcluster.cluster import Cluster, Options, attach, down, status, up
from hvdtrain.testcluster.errors import ClusterError, MissingToolsError, RequestError

__all__ = ["Cluster", "ClusterError", "MissingToolsError", "Options", "RequestError", "attach", "down", "status", "up"]
