//! The memory of a process, from the kernel, and its CPU time.

use std::fs;

use anyhow::{Context, Result};
use testbed::cluster::Cluster;
use testbed::control_plane;

/// The operator's, in MiB.
pub(crate) fn operator(cluster: &Cluster) -> Result<f64> {
    resident(&process_of(cluster, "slurm-operator")?)
}

/// The process of the operator or of its webhook.
pub(crate) fn process_of(cluster: &Cluster, name: &str) -> Result<String> {
    let uid = cluster.ask(&[
        "get",
        "pods",
        "--namespace=slinky",
        &format!("--selector=app.kubernetes.io/name={name}"),
        "-o",
        "jsonpath={.items[0].metadata.uid}",
    ])?;
    let processes = fs::read_dir("/proc")?.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.bytes().all(|byte| byte.is_ascii_digit()).then_some(name)
    });
    let is_it = |pid: &String| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        read("cgroup").contains(&uid) && read("cmdline").starts_with("/slurm-operator\0")
    };
    let mut found = processes.into_iter().filter(is_it);
    found.next().with_context(|| format!("{name} does not run"))
}

/// kube-controller-manager's, in MiB.
pub(crate) fn controller_manager(cluster: &Cluster) -> Result<f64> {
    let process = cluster.component(control_plane::PLACE, "kube-controller-manager")?;
    resident(&process.pid.to_string())
}

fn resident(pid: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kilobytes: f64 = kilobytes.context("/proc does not tell the memory")?.trim().parse()?;
    Ok(kilobytes / 1024.0)
}

/// The CPU time of a process, in seconds.
pub(crate) fn cpu_seconds(pid: &str) -> Result<f64> {
    // Linux reports ticks of 10 ms here, whatever its own are. The name, in parentheses, may have spaces.
    const TICKS: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, after_name) = stat.rsplit_once(") ").context("/proc does not tell the name")?;
    let ticks: Vec<f64> = after_name
        .split(' ')
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse().ok())
        .collect();
    Ok(ticks.iter().sum::<f64>() / TICKS)
}
