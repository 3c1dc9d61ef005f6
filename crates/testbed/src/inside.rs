//! Runs commands inside a container with nsenter. `kubectl exec` does the same through five programs in a quarter of a
//! second of CPU time, which is too much for polling.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::faults::Pod;
use crate::namespaces;
use crate::process::Process;

impl Cluster {
    /// A command for a container of a pod, with the user, environment and working directory of its first process.
    pub fn inside(&self, pod: Pod, container: &str, program: &str) -> Result<Command> {
        let process = self.first_process(pod, container)?;
        let of_it = |file: &str| format!("/proc/{}/{file}", process.pid);
        let status = fs::read_to_string(of_it("status"))?;
        let environment = fs::read(of_it("environ"))?;
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &process.pid.to_string()])
            .args(namespaces::ALL)
            .arg("--wd")
            .args(["--setuid", effective(&status, "Uid:")?])
            .args(["--setgid", effective(&status, "Gid:")?])
            .args(["--", program])
            .env_clear()
            .envs(variables(&environment));
        Ok(command)
    }

    /// Looked up once per container.
    fn first_process(&self, pod: Pod, container: &str) -> Result<Process> {
        static FOUND: Mutex<BTreeMap<[String; 4], Process>> = Mutex::new(BTreeMap::new());
        let found = || FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        let key = [&self.layout.cluster, pod.namespace, pod.name, container].map(str::to_owned);
        let known = found().get(&key).copied();
        if let Some(process) = known.filter(|process| process.is_alive()) {
            return Ok(process);
        }
        let (_, id) = self.container(pod, Some(container))?;
        let process = Process::first_in_cgroup(&id).with_context(|| format!("{container} has no process"))?;
        found().insert(key, process);
        Ok(process)
    }
}

/// The second of the four ids in a line of /proc/PID/status.
fn effective<'a>(status: &'a str, key: &str) -> Result<&'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|ids| ids.split_whitespace().nth(1))
        .with_context(|| format!("/proc has no {key}"))
}

fn variables(environment: &[u8]) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    environment.split(|&byte| byte == 0).filter_map(|variable| {
        let equals = variable.iter().position(|&byte| byte == b'=')?;
        let (name, value) = variable.split_at_checked(equals)?;
        Some((OsStr::from_bytes(name), OsStr::from_bytes(value.get(1..)?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_user_is_taken() {
        let status = "Name:\tslurmctld\nUid:\t0\t401\t401\t401\nGid:\t401\t402\t401\t401\n";
        assert_eq!(effective(status, "Uid:").unwrap(), "401");
        assert_eq!(effective(status, "Gid:").unwrap(), "402");
        assert!(effective("", "Uid:").is_err());
    }

    #[test]
    fn values_may_have_equals_signs_and_be_empty() {
        let read: Vec<_> = variables(b"A=b=c\0EMPTY=\0nonsense\0").collect();
        let expected = [("A", "b=c"), ("EMPTY", "")].map(|(name, value)| (OsStr::new(name), OsStr::new(value)));
        assert_eq!(read, expected);
    }
}
