//! Slurm's nodes, jobs and state in a cluster of the operator.

use std::time::Duration;

use anyhow::Result;
use testbed::harness::{Namespace, eventually, expect};

pub const SOON: Duration = Duration::from_mins(2);

/// Runs a shell line in slurmctld's container of Controller `slurm`.
pub fn slurm(namespace: &Namespace, line: &str) -> Result<String> {
    namespace.inside("slurm-controller-0", "slurmctld", line)
}

/// The name of slurmrestd's pod.
pub fn slurmrestd_pod(namespace: &Namespace) -> Result<String> {
    let path = "jsonpath={.items[0].metadata.name}";
    namespace.ask(&["get", "pods", "-l", "app.kubernetes.io/name=slurmrestd", "-o", path])
}

/// Waits until exactly these many nodes are idle.
pub fn wait_idle(namespace: &Namespace, count: usize) -> Result<()> {
    eventually(&format!("{count} idle nodes"), SOON, || {
        // Not sinfo: it does not show nodes that are in no partition.
        let nodes = slurm(namespace, "scontrol show nodes --oneliner")?;
        let idle = nodes
            .lines()
            .filter(|node| node.contains(" State=IDLE+DYNAMIC_NORM "))
            .count();
        expect(idle == count && nodes.lines().count() == count, nodes)
    })
}

/// Waits until what `scontrol show node` says of a node has all these words in it, and none of those.
pub fn wait_node(namespace: &Namespace, node: &str, words: &[&str], absent: &[&str]) -> Result<()> {
    eventually(&format!("node {node} with {words:?}, without {absent:?}"), SOON, || {
        let shown = slurm(namespace, &format!("scontrol show node {node} --oneliner"))?;
        let holds = words.iter().all(|word| shown.contains(word)) && !absent.iter().any(|word| shown.contains(word));
        expect(holds, shown)
    })
}

/// Submits a job and waits until it runs.
pub fn start_job(namespace: &Namespace, options: &str, line: &str) -> Result<String> {
    let submit = format!("sbatch --parsable --chdir=/tmp -o /dev/null {options} --wrap '{line}'");
    let job = slurm(namespace, &submit)?.trim().to_owned();
    wait_job(namespace, &job, "RUNNING")?;
    Ok(job)
}

/// Waits until a job is in a state; the whole record is shown when it is not.
pub fn wait_job(namespace: &Namespace, job: &str, state: &str) -> Result<()> {
    eventually(&format!("job {job} {state}"), SOON, || {
        let shown = slurm(namespace, &format!("scontrol show job {job}"))?;
        expect(shown.contains(&format!("JobState={state}")), shown)
    })
}

/// Waits until a job has ended well, and sees that it was never begun anew.
pub fn wait_done(namespace: &Namespace, job: &str) -> Result<()> {
    wait_job(namespace, job, "COMPLETED")?;
    let shown = slurm(namespace, &format!("scontrol show job {job}"))?;
    expect(shown.contains("Restarts=0") && shown.contains("ExitCode=0:0"), shown)
}

/// Waits until what has happened so far is on disk. Slurm writes its state every five seconds; what is younger than that is
/// lost by any kill.
pub fn wait_saved(namespace: &Namespace) -> Result<()> {
    // Something new, or there might be no further write to wait for.
    let submit = "date +%s.%N; scancel $(sbatch --parsable --hold --wrap true)";
    // A slurmctld that has just begun may not let everybody in yet.
    let now = eventually("a job is taken", SOON, || slurm(namespace, submit))?;
    let newer = format!(
        "find /var/spool/slurmctld -name job_state -newermt @{} | grep .",
        now.trim()
    );
    eventually("Slurm's state is on disk", SOON, || slurm(namespace, &newer)).map(drop)
}

/// Where slurmctld keeps its state, to be said in a shell.
pub const STATE: &str = "$(sed -n s/^StateSaveLocation=//p /etc/slurm/slurm.conf)";

/// Keeps slurmctld from writing down what it knows of its nodes, or of its jobs: it writes a new file first, under the name of this
/// folder.
pub fn hold_state(namespace: &Namespace, of: &[&str]) -> Result<()> {
    wait_saved(namespace)?;
    let folders: Vec<String> = of.iter().map(|of| format!("{of}_state.new")).collect();
    // While it writes, there is a file of that name.
    eventually("slurmctld's state is held", SOON, || {
        slurm(namespace, &format!("cd {STATE} && mkdir -p {}", folders.join(" ")))
    })
    .map(drop)
}

pub fn release_state(namespace: &Namespace) -> Result<()> {
    eventually("slurmctld's container is there", SOON, || {
        slurm(namespace, &format!("cd {STATE} && rm -rf *_state.new"))
    })
    .map(drop)
}

/// The live slurm.conf, once the ConfigMap that the next pod would start from holds the same.
pub fn slurm_conf(namespace: &Namespace) -> Result<String> {
    let file = slurm(namespace, "cat /etc/slurm/slurm.conf")?;
    let object = namespace.field("configmap/slurm-config", ".data.slurm\\.conf")?;
    expect(object == file, (object, &file))?;
    Ok(file)
}

/// The names in the output of `scontrol --oneliner show nodes`, sorted.
pub fn node_names(shown: &str) -> Vec<String> {
    let names = shown.lines().filter_map(|line| line.strip_prefix("NodeName="));
    let mut names: Vec<String> = names
        .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
        .collect();
    names.sort();
    names
}
