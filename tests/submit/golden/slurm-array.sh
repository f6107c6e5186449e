#!/bin/bash
# hvdtrain: 2 cells of one shape
#SBATCH --job-name=digits.1
#SBATCH --array=0-1%1
#SBATCH --output='/home/it'"'"'s "a" $b %%j `c` ;&|/%a.log'
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=nvidia_a100_80gb:4
#SBATCH --cpus-per-task=32
#SBATCH --mem=64G
#SBATCH --time=1:00:00
#SBATCH --partition=gpu
#SBATCH --account=phys
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --exclusive
#SBATCH --mail-type=FAIL
exec bash '/home/it'"'"'s "a" $b %j `c` ;&|'/"$SLURM_ARRAY_TASK_ID.sh"
