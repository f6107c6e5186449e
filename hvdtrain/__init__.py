"""Horovod data-parallel training on today's stack and any SLURM cluster, and the truth about how it scales."""

__version__ = "0.1.0"
