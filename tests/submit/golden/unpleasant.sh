#!/bin/bash
# hvdtrain cell n4-b32-linear-s0
set -euo pipefail
cd -- '/home/ada/a "b" $c'
export GREETING='it'"'"'s $HOME
and more'
export EMPTY=''
export OMP_NUM_THREADS=1
exec /home/ada/venv/bin/python -m hvdtrain.launch -n 4 --launcher auto --run-dir '/home/ada/a "b" $c/runs/digits/n4-b32-linear-s0' --stall-timeout 0.5 '/home/ada/it'"'"'s here/$job.py' --text 'a '"'"'b'"'"' "c" $HOME `id` \ ; & | * ~ !
#' --empty '' -- -x
