#!/bin/sh
# Runs a job and waits for its end, for `helm test`. Arguments are options of sbatch.
# CONF_SERVER is the address of slurmctld, TIMEOUT the seconds within which the job must have ended.
set -eu
# In one stream, errors are in the log where they happened.
exec 2>&1
end=$(($(date +%s) + TIMEOUT))
is_late() { [ "$(date +%s)" -ge "$end" ]; }
fail() {
	echo "FAILED: $*"
	exit 1
}

# Slurm accepts the key only if others cannot read it, and the files of a Secret belong to root.
(umask 077 && cat /mnt/slurm-key/slurm.key >/etc/slurm/slurm.key)

# Slurm's commands authenticate through sackd, which fetches slurm.conf too and gives up if slurmctld does not respond.
sackd=$(command -v sackd) || fail "the image has no sackd: set test.image to an image of login pods, of Slurm 25.11 or newer"
mkdir -p /run/slurm
pid=
until [ -S /run/slurm/sack.socket ]; do
	if is_late; then
		fail "sackd got no configuration from slurmctld at $CONF_SERVER in $TIMEOUT s: see above, and the Controller's conditions"
	fi
	if [ -z "$pid" ] || ! kill -0 "$pid" 2>/dev/null; then
		[ -z "$pid" ] || sleep 4
		"$sackd" -D --conf-server "$CONF_SERVER" &
		pid=$!
	fi
	sleep 1
done

job=$(sbatch --parsable --job-name=helm-test --chdir=/tmp --output=/dev/null --wrap=hostname "$@") ||
	fail "sbatch failed, see above; test.args can have options of sbatch, for example --partition and --account"
job=${job%%;*}
echo "job $job submitted"

show() { scontrol --oneliner show job "$job" | tr ' ' '\n' | sed -n "s/^$1=//p"; }
while :; do
	state=$(show JobState)
	case $state in
	COMPLETED)
		echo "job $job completed on $(show NodeList)"
		exit 0
		;;
	BOOT_FAIL | CANCELLED | DEADLINE | FAILED | NODE_FAIL | OUT_OF_MEMORY | PREEMPTED | TIMEOUT)
		fail "job $job ended as $state with exit code $(show ExitCode), on $(show NodeList)"
		;;
	esac
	if is_late; then
		reason=$(show Reason)
		scancel "$job"
		sinfo --long --Node
		fail "job $job was $state after $TIMEOUT s (reason: $reason) and was cancelled; the nodes are above"
	fi
	sleep 1
done
