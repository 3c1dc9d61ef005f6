# A slurmctld and slurmds on one machine, without keys. Sourced before every command of the replay.
lab=/tmp/lab
export SLURM_CONF=$lab/slurm.conf

lab_init() {
    mkdir -p $lab/state $lab/spool $lab/log /run/slurmctld /run/slurm
    lab_conf
    echo CgroupPlugin=disabled >$lab/cgroup.conf
    lab_ctl_start
}

# The configuration is the standard input.
lab_conf() {
    { echo "SlurmctldHost=$(hostname)(127.0.0.1)"; cat; } >$SLURM_CONF
}

lab_ctl_start() {
    setsid slurmctld -D >>$lab/log/slurmctld 2>&1 </dev/null &
    echo $! >$lab/slurmctld.pid
    for _ in $(seq 100); do
        scontrol ping 2>&1 | grep -q UP && return
        sleep 0.1
    done
    tail $lab/log/slurmctld
    return 1
}

# A signal, as of kill: KILL and TERM wait for the end.
lab_ctl_signal() {
    kill "-$1" "$(cat $lab/slurmctld.pid)"
    case $1 in KILL | TERM) lab_wait_end "$(cat $lab/slurmctld.pid)" ;; esac
}

# A zombie has ended.
lab_wait_end() {
    while [ -e "/proc/$1" ] && ! grep -q 'State:.Z' "/proc/$1/status"; do sleep 0.05; done
}

# A number: n1 listens on port 7001. Slurm chooses n1 first, then n2.
lab_slurmd_start() {
    setsid slurmd -D -Z -N "n$1" \
        --conf "Port=700$1 NodeAddr=127.0.0.1 CPUs=4 RealMemory=100 Feature=workers Weight=$1" \
        >>"$lab/log/n$1" 2>&1 </dev/null &
    echo $! >"$lab/n$1.pid"
}

lab_slurmd_kill() {
    kill -9 "$(cat "$lab/n$1.pid")"
}

# slurmd and the scripts of its jobs: STOP or CONT.
lab_host_signal() {
    kill "-$2" "$(cat "$lab/n$1.pid")"
    for script in $(pgrep -f "^/bin/sh $lab/spool/n$1/"); do
        pkill "-$2" -s "$(ps -o sid= -p "$script" | tr -d " ")"
    done
}

lab_registered() {
    for _ in $(seq 300); do
        scontrol show node "n$1" 2>/dev/null | grep -q State=IDLE && return
        sleep 0.1
    done
    tail "$lab/log/n$1"
    return 1
}

lab_show() {
    scontrol --all --json show nodes
    echo =====
    squeue --all --states=all --json
    echo =====
    scontrol --all --json show partitions
    echo =====
    scontrol --all --json show reservations
}
