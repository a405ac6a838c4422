#!/bin/bash
# A sweep as eight jobs of a SLURM array, without Ray. Submit it with:  sbatch examples/slurm_array.sh
#
# Every job carries out its part of the runs. The parts have no run in common, and all write to one folder, which the
# machines must share. A job that is killed goes on where it stopped when it is submitted again: finished runs are
# skipped. When all jobs have ended, this prints the table without running anything, also where there is no GPU:
#
#     ocil sweep table2 --out /shared/runs --data-dir /shared/data --set precision=bf16
#
#SBATCH --job-name=ocil
#SBATCH --array=1-8
#SBATCH --gpus=1
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
set -euo pipefail

EXPERIMENT=${EXPERIMENT:-table2}
OUT=${OUT:-/shared/runs}
DATA=${DATA:-/shared/data}
PRECISION=${PRECISION:-bf16}  # by default it would depend on the machine
PART="$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"

exec ocil sweep "$EXPERIMENT" --part "$PART" --out "$OUT" --data-dir "$DATA" --set "precision=$PRECISION" "$@"
