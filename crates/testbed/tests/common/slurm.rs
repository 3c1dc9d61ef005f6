//! Slurm's nodes, jobs and state in a cluster of the operator.

use std::time::Duration;

use anyhow::Result;
use testbed::harness::{Namespace, eventually, expect};

pub const SOON: Duration = Duration::from_mins(2);

/// Runs a shell command in the slurmctld container of Controller `slurm`.
pub fn slurm(namespace: &Namespace, line: &str) -> Result<String> {
    namespace.inside("slurm-controller-0", "slurmctld", line)
}

/// The name of slurmrestd's pod.
pub fn slurmrestd_pod(namespace: &Namespace) -> Result<String> {
    let path = "jsonpath={.items[0].metadata.name}";
    namespace.ask(&["get", "pods", "-l", "app.kubernetes.io/name=slurmrestd", "-o", path])
}

/// Waits until there are exactly this many nodes, all idle.
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

/// Waits until the output of `scontrol show node` contains all of `words` and none of `absent`.
pub fn wait_node(namespace: &Namespace, node: &str, words: &[&str], absent: &[&str]) -> Result<()> {
    eventually(&format!("node {node} with {words:?}, without {absent:?}"), SOON, || {
        let shown = slurm(namespace, &format!("scontrol show node {node} --oneliner"))?;
        let holds = words.iter().all(|word| shown.contains(word)) && !absent.iter().any(|word| shown.contains(word));
        expect(holds, shown)
    })
}

/// Submits a job.
pub fn submit_job(namespace: &Namespace, options: &str, line: &str) -> Result<String> {
    let submit = format!("sbatch --parsable --chdir=/tmp -o /dev/null {options} --wrap '{line}'");
    Ok(slurm(namespace, &submit)?.trim().to_owned())
}

/// Submits a job and waits until it runs. A job of less than a second may end before it was seen to run.
pub fn start_job(namespace: &Namespace, options: &str, line: &str) -> Result<String> {
    let job = submit_job(namespace, options, line)?;
    wait_job(namespace, &job, "RUNNING")?;
    Ok(job)
}

/// Waits until a job is in a state. The error contains the whole record.
pub fn wait_job(namespace: &Namespace, job: &str, state: &str) -> Result<()> {
    eventually(&format!("job {job} {state}"), SOON, || {
        let shown = slurm(namespace, &format!("scontrol show job {job}"))?;
        expect(shown.contains(&format!("JobState={state}")), shown)
    })
}

/// Waits until a job has completed, and expects that it was never restarted.
pub fn wait_done(namespace: &Namespace, job: &str) -> Result<()> {
    wait_job(namespace, job, "COMPLETED")?;
    let shown = slurm(namespace, &format!("scontrol show job {job}"))?;
    expect(shown.contains("Restarts=0") && shown.contains("ExitCode=0:0"), shown)
}

/// Waits until Slurm has saved its current state. Slurm saves it every five seconds; a kill loses later changes.
pub fn wait_saved(namespace: &Namespace) -> Result<()> {
    // A new job, because without a change Slurm would not save its state again.
    let submit = "date +%s.%N; scancel $(sbatch --parsable --hold --wrap true)";
    // A slurmctld that has just started may not accept jobs yet.
    let now = eventually("a job is accepted", SOON, || slurm(namespace, submit))?;
    let newer = format!(
        "find /var/spool/slurmctld -name job_state -newermt @{} | grep .",
        now.trim()
    );
    eventually("Slurm has saved its state", SOON, || slurm(namespace, &newer)).map(drop)
}

/// Shell expression for slurmctld's state directory.
pub const STATE: &str = "$(sed -n s/^StateSaveLocation=//p /etc/slurm/slurm.conf)";

/// Keeps slurmctld from saving the state of its nodes or jobs: it first writes a new file, and a folder with that name
/// prevents it.
pub fn hold_state(namespace: &Namespace, of: &[&str]) -> Result<()> {
    wait_saved(namespace)?;
    let folders: Vec<String> = of.iter().map(|of| format!("{of}_state.new")).collect();
    // While slurmctld saves its state, a file with that name exists.
    eventually("slurmctld's state is held", SOON, || {
        slurm(namespace, &format!("cd {STATE} && mkdir -p {}", folders.join(" ")))
    })
    .map(drop)
}

pub fn release_state(namespace: &Namespace) -> Result<()> {
    eventually("slurmctld's container runs", SOON, || {
        slurm(namespace, &format!("cd {STATE} && rm -rf *_state.new"))
    })
    .map(drop)
}

/// Returns the live slurm.conf. Fails while the ConfigMap for the next pod differs.
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
