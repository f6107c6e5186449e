#!/bin/bash
# hvdtrain cell n8-a100
#SBATCH --job-name=n8-a100.12345678
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=nvidia_a100_80gb:4
#SBATCH --cpus-per-task=32
#SBATCH --mem=64G
#SBATCH --time=1:00:00
#SBATCH --partition=gpu
#SBATCH --account=phys
#SBATCH --output=/home/ada/lab/runs/digits/n8-a100/log/job.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --exclusive
#SBATCH --mail-type=FAIL
set -eo pipefail
source /etc/profile.d/modules.sh
module load gcc/13 cuda/12.4
set -u
cd -- /home/ada/lab
export HOROVOD_GLOO_IFACE=ib0
export NCCL_SOCKET_IFNAME=ib0
export NCCL_DEBUG=WARN
export DATA_DIR='/data/it'"'"'s here'
exec /home/ada/venv/bin/python -m hvdtrain.launch.batch --run-dir /home/ada/lab/runs/digits/n8-a100 --launcher pmix --pmix pmix_v5 --cpus-per-task 32 --srun=--cpu-bind=cores --job-name n8-a100.12345678 --stall-timeout 600 /home/ada/hvdtrain/jobs/digits.py --epochs 5
