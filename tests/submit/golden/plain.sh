#!/bin/bash
# hvdtrain cell n4-b32-linear-s0
set -euo pipefail
cd -- /home/ada/work
exec /home/ada/venv/bin/python -m hvdtrain.launch -n 4 --launcher auto --run-dir /home/ada/work/runs/digits/n4-b32-linear-s0 /home/ada/hvdtrain/jobs/digits.py --batch-size 32 --lr-rule linear --seed 0
