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
exec /home/ada/venv/bin/python -m hvdtrain.launch.batch --run-dir /home/ada/lab/runs/digits/n8-a100 --launcher gloo --job-name n8-a100.12345678 --srun=--container-image=hub/h:1 --srun=--container-workdir=/home/ada/lab --srun=--container-mounts=/home/ada/lab:/home/ada/lab,/home/ada/lab/runs/digits:/home/ada/lab/runs/digits,/home/ada/hvdtrain/jobs:/home/ada/hvdtrain/jobs,/data:/d --python python /home/ada/hvdtrain/jobs/digits.py --epochs 5
