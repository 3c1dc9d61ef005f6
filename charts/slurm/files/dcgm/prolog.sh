#!/bin/sh
# Records for dcgm-exporter which job uses which GPU: one file per GPU index that contains the job ID.
set -eu
dir="__JOB_MAPPING_DIR__"
[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0
mkdir -p "$dir"
for gpu in $(echo "$SLURM_JOB_GPUS" | tr ',' ' '); do
	echo "$SLURM_JOB_ID" >"$dir/$gpu"
	echo "dcgm: GPU $gpu belongs to job $SLURM_JOB_ID" >&2
done
