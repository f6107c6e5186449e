#!/bin/bash
# hvdtrain cell n8-a100
#SBATCH --job-name=n8-a100.12345678
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=nvidia_a100_80gb:4
#SBATCH --partition=gpu
#SBATCH --output=/home/ada/lab/runs/digits/n8-a100/log/job.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
set -euo pipefail
cd -- /home/ada/lab
exec /home/ada/venv/bin/python -m hvdtrain.launch.batch --run-dir /home/ada/lab/runs/digits/n8-a100 --launcher gloo --job-name n8-a100.12345678 '--inside=ch-run --cd /home/ada/lab --bind /home/ada/lab --bind /home/ada/lab/runs/digits --bind /home/ada/hvdtrain/jobs --bind /data:/d /i/h --' --python python /home/ada/hvdtrain/jobs/digits.py --epochs 5
