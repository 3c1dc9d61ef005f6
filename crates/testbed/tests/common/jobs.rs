//! Jobs whose exit code shows whether they were disturbed.

use std::time::Duration;

use anyhow::{Context, Result};
use testbed::harness::{Namespace, eventually, expect};

use super::slurm::{self, slurm};

/// A requeued job waits until its old credentials have expired, which takes two minutes.
const AGAIN: Duration = Duration::from_mins(5);

/// Starts a job of that many seconds in partition `all`. It exits with 7.
pub fn start_job(namespace: &Namespace, seconds: u32) -> String {
    slurm::start_job(namespace, "--partition=all", &format!("sleep {seconds}; exit 7")).unwrap()
}

/// Waits for the end of a job that was restarted this many times and then ran until its own exit.
pub fn wait_undisturbed(namespace: &Namespace, job: &str, restarts: u32) {
    let shown = eventually(&format!("job {job} has ended"), AGAIN, || {
        let shown = slurm(namespace, &format!("scontrol show job {job}"))?;
        expect(shown.contains("JobState=FAILED"), &shown)?;
        Ok(shown)
    })
    .unwrap();
    let whole = shown.contains("ExitCode=7:0") && shown.contains(&format!("Restarts={restarts}"));
    assert!(whole, "{shown}");
}

/// Waits until a job is this many seconds old.
pub fn wait_older(namespace: &Namespace, job: &str, seconds: u32) {
    let line = format!("echo $(($(date +%s) - $(date -d $(squeue --noheader --jobs={job} --format=%S) +%s)))");
    eventually(&format!("job {job} is {seconds} s old"), slurm::SOON, || {
        let age: u32 = slurm(namespace, &line)?.trim().parse()?;
        expect(age >= seconds, age)
    })
    .unwrap();
}

/// Number of restarts of a job.
pub fn restarts(namespace: &Namespace, job: &str) -> Result<u32> {
    let shown = slurm(namespace, &format!("scontrol show job {job}"))?;
    let (_, rest) = shown.split_once("Restarts=").context("no count of restarts")?;
    Ok(rest.split_whitespace().next().unwrap_or_default().parse()?)
}
