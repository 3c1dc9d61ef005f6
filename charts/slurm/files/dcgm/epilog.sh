#!/bin/sh
# Removes the files that the prolog wrote for dcgm-exporter.
set -eu
dir="__JOB_MAPPING_DIR__"
[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0
for gpu in $(echo "$SLURM_JOB_GPUS" | tr ',' ' '); do
	rm -f "$dir/$gpu"
	echo "dcgm: GPU $gpu is free of job $SLURM_JOB_ID" >&2
done
