#!/bin/bash
# The cifar10_cnn job on 1 GPU: sbatch slurm/cifar10_1gpu.sh [job arguments]
# Flags of sbatch win over those below: sbatch --partition=gpu --gpus-per-node=a100:2 --nodes=4 --ntasks-per-node=2 ...
# DATA_DIR and other variables of your shell reach the job. Written by python -m hvdtrain.submit.published.
#SBATCH --job-name=cifar10-1gpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
set -euo pipefail
# SLURM runs a copy of this script; the folder it was submitted from is where the clone and its environment are.
cd -- "${SLURM_SUBMIT_DIR:-$PWD}"
if [ -f .venv/bin/activate ]; then
    # shellcheck disable=SC1091
    source .venv/bin/activate
fi
exec python -m hvdtrain.launch.batch cifar10_cnn "$@"
