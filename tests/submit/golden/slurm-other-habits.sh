#!/bin/bash
# hvdtrain cell n8-a100
#SBATCH --job-name=n8-a100.12345678
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --mem-per-gpu=16G
#SBATCH --time=0:30
#SBATCH --constraint=a100
#SBATCH --output=/home/ada/lab/runs/digits/n8-a100/log/job.log
#SBATCH --no-requeue
set -euo pipefail
cd -- /home/ada/lab
exec /home/ada/venv/bin/python -m hvdtrain.launch.batch --run-dir /home/ada/lab/runs/digits/n8-a100 --launcher gloo --warning 60 --requeue-on= --retries 0 --job-name n8-a100.12345678 /home/ada/hvdtrain/jobs/digits.py --epochs 5
