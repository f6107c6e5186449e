#!/bin/bash
# hvdtrain cell n8-a100
#SBATCH --job-name=n8-a100.12345678
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=nvidia_a100_80gb:4
#SBATCH --partition=gpu
#SBATCH --output=/dev/null
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
exec >>'/home/a\b c/runs/digits/n8-a100/log/job.log' 2>&1
set -euo pipefail
cd -- '/home/a\b c'
exec /home/ada/venv/bin/python -m hvdtrain.launch.batch --run-dir '/home/a\b c/runs/digits/n8-a100' --launcher gloo --job-name n8-a100.12345678 /home/ada/hvdtrain/jobs/digits.py --epochs 5
