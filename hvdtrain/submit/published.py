"""The scripts in `slurm/`: rendered by the same code as cells, for `sbatch slurm/JOB_8gpu.sh` from a clone.

`python -m hvdtrain.submit.published` writes them anew.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from hvdtrain import paths
from hvdtrain.site.profile import Site
from hvdtrain.submit import batch_script
from hvdtrain.submit.shape import place

#: Name of the scripts -> job that they run, each for these numbers of GPUs. A new job is added here, and nowhere else.
JOBS = {
    "caltech256": "caltech256",
    "cifar10": "cifar10_cnn",
    "digits": "digits",
    "fruit": "fruit",
    "mnist_cnn": "mnist_cnn",
    "mnist_mlp": "mnist_mlp",
}
GPUS = (1, 2, 4, 8, 16)
#: Most GPU nodes have four or eight; a flag of sbatch changes it.
PER_NODE = 4


def scripts() -> Mapping[str, str]:
    """Name -> text of every script."""
    return {f"{name}_{gpus}gpu.sh": render(name, gpus) for name in JOBS for gpus in GPUS}


def render(name: str, gpus: int) -> str:
    """The script `name` for its job on `gpus` GPUs, untyped and with nothing of any site in it."""
    site = Site()
    shape = place(gpus, per_node=PER_NODE)
    given: list[batch_script.Directive] = [("job-name", f"{name}-{gpus}gpu"), *batch_script.resources(shape, site)]
    given += batch_script.behaviour(site)
    nodes = "" if shape.nodes == 1 else f", {shape.nodes} nodes with {shape.tasks_per_node} each"
    lines = [
        "#!/bin/bash",
        f"# The {JOBS[name]} job on {gpus} GPU{'s' * (gpus > 1)}{nodes}: sbatch slurm/{name}_{gpus}gpu.sh [job arguments]",
        "# Flags of sbatch win over those below: sbatch --partition=gpu --gpus-per-node=a100:2 --nodes=4 --ntasks-per-node=2 ...",
        "# DATA_DIR and other variables of your shell reach the job. Written by python -m hvdtrain.submit.published.",
        *batch_script.texts(given),
        *batch_script.preparation(site),
        "# SLURM runs a copy of this script; the folder it was submitted from is where the clone and its environment are.",
        'cd -- "${SLURM_SUBMIT_DIR:-$PWD}"',
        "if [ -f .venv/bin/activate ]; then",
        "    # shellcheck disable=SC1091",
        "    source .venv/bin/activate",
        "fi",
        f'exec python -m hvdtrain.launch.batch {JOBS[name]} "$@"',
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write all scripts, and remove those of jobs that are no longer there."""
    folder = paths.shipped("slurm")
    wanted = scripts()
    for path in folder.glob("*.sh"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = Path(folder / name)
        path.write_text(text)
        path.chmod(0o755)
    print(f"wrote {len(wanted)} scripts to {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
