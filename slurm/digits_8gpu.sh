#!/bin/bash
# The digits job on 8 GPUs: two nodes of 4: sbatch slurm/digits_8gpu.sh [job arguments]
#SBATCH --job-name=digits-8gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --open-mode=append
set -euo pipefail
# SLURM runs a copy of this script; the folder it was submitted from is where the clone and its environment are.
cd "${SLURM_SUBMIT_DIR:-$PWD}"
if [ -f .venv/bin/activate ]; then
    # shellcheck disable=SC1091
    source .venv/bin/activate
fi
export HVDTRAIN_RUN_DIR="${HVDTRAIN_RUN_DIR:-$PWD/runs/slurm/digits-${SLURM_JOB_ID}}"
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"
srun --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" python -m hvdtrain.run digits "$@"
