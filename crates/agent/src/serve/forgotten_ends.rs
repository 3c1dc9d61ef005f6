//! Ends of jobs that a killed slurmctld forgot.
//!
//! slurmctld saves its state up to five seconds after the end of a job. Killed before that, it returns with the job
//! running, while slurmdbd has the end. Slurm itself notices up to half an hour later and then starts the job again. So after each
//! start of slurmctld the agent compares its jobs with slurmdbd's records, and reports missing ends with the message that the node
//! sent the first time. A job whose start it forgot as well is pending. Slurm has no message that ends a pending job with its status, so such a
//! job is held, and a person decides.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use slurm::Job;
use slurm::agent::Refusal;
use slurm::conf::Configuration;
use slurm::job::JobStateName;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::Services;

/// A poll reads the live files and asks slurmctld once. slurmctld starts no job in the first seconds after its start.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// After slurmdbd did not respond.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

const SLURMDBD: &str = "accounting_storage/slurmdbd";

/// The first comparison only holds jobs. The second reports ends; slurmdbd may receive an end only after that, which the third reports.
const COMPARISONS: u32 = 3;

/// Between the first comparison and the next. Nodes register and kill what slurmctld does not know. If an end freed a node before, a job
/// whose start was forgotten would be started beside its own dying copy: slurmd rejects that, and Slurm drains the node.
const REGISTRATION: Duration = Duration::from_secs(10);

/// Jobs per call of sacct: below the length of a command line.
const MAX_JOBS: usize = 1000;

/// The status by which slurmctld takes a job for cancelled (`NO_VAL`).
const CANCELLED: u32 = 0xffff_fffe;

/// A job whose end slurmdbd has and slurmctld does not.
#[derive(Debug, PartialEq, Eq)]
struct Forgotten {
    job: u32,
    is_script: bool,
    /// State and exit status in slurmdbd's words.
    end: String,
    /// As of wait(2). `None` for a job that is pending in slurmctld.
    status: Option<u32>,
}

/// Compares after every start of slurmctld, and when a standby has become active, which is a start for the jobs.
pub(super) async fn poll(services: Arc<Services>) -> Infallible {
    let (mut start, mut left) = (None, 0);
    // A job that was held is not held again: a person may have released it.
    let mut restored = BTreeSet::new();
    loop {
        sleep(POLL_INTERVAL).await;
        let seen = services.active_start().await;
        if seen != start {
            (start, left) = (seen, COMPARISONS);
            restored.clear();
        }
        if start.is_none() || left == 0 {
            continue;
        }
        let is_first = left == COMPARISONS;
        match services.restore_ends(&mut restored, is_first).await {
            Ok(()) => {
                left -= 1;
                if left == 0 {
                    let start = start.unwrap_or_default();
                    services.compared_start.store(start, Ordering::Relaxed);
                }
                if is_first {
                    sleep(REGISTRATION).await;
                }
            }
            Err(error) => {
                debug!(%error, "cannot compare the jobs with slurmdbd");
                sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

/// Whether slurmctld reports to slurmdbd.
pub(super) fn has_database(configuration: &Configuration) -> bool {
    let storage = configuration.value("AccountingStorageType");
    storage.is_some_and(|storage| storage.eq_ignore_ascii_case(SLURMDBD))
}

impl Services {
    /// Whether the ends of jobs were compared after this start of slurmctld.
    pub(super) fn has_compared_ends(&self, start: u64) -> bool {
        self.compared_start.load(Ordering::Relaxed) == start
    }

    /// When slurmctld was started; `None` if it is a standby, does not respond, or has no slurmdbd.
    async fn active_start(&self) -> Option<u64> {
        let configuration = self.config.live_configuration()?;
        if !has_database(&configuration) {
            return None;
        }
        let client = self.channels.slurmctld.command_client(&configuration).ok()?;
        client.live_conf().await.ok()?;
        self.supervisor.state().await.ok()?.daemon.since
    }

    async fn restore_ends(&self, restored: &mut BTreeSet<u32>, only_hold: bool) -> Result<(), Refusal> {
        let tools = &self.channels.tools;
        let jobs: Vec<Job> = tools
            .list(&["squeue", "--all", "--states=pending,running,suspended", "--json"])
            .await?;
        for jobs in jobs.chunks(MAX_JOBS) {
            let records = tools.read_accounting(jobs).await?;
            for forgotten in compare(jobs, &records) {
                let is_due = forgotten.status.is_none() || !only_hold;
                if is_due && !restored.contains(&forgotten.job) && self.restore_end(&forgotten).await {
                    restored.insert(forgotten.job);
                }
            }
        }
        Ok(())
    }

    /// Returns whether it worked.
    async fn restore_end(&self, forgotten: &Forgotten) -> bool {
        let Forgotten { job, end, .. } = forgotten;
        let done = if let Some(status) = forgotten.status {
            info!(job, end, "slurmctld forgot the end of a job; reporting it again");
            self.complete_job(*job, forgotten.is_script, status).await
        } else {
            info!(job, end, "slurmctld forgot start and end of a job; holding it");
            let done = self.channels.tools.hold_job(*job, end).await;
            done.map_err(|error| error.to_string())
        };
        if let Err(error) = &done {
            warn!(job, error, "cannot restore the end of a job");
        }
        done.is_ok()
    }

    async fn complete_job(&self, job: u32, is_script: bool, status: u32) -> Result<(), String> {
        let client = self.client().map_err(|error| error.to_string())?;
        let done = client.complete_job(job, is_script, status).await;
        done.map_err(|error| error.to_string())
    }
}

/// Returns the jobs that have ended according to `records`: lines with number, state, exit status and times of submission, start
/// and end. A job that was requeued has other times, and so has another job of the same number.
fn compare(jobs: &[Job], records: &str) -> Vec<Forgotten> {
    let ends = records.lines().filter_map(|line| {
        let mut fields = line.split('|');
        let mut next = || fields.next();
        let (id, state, exit) = (next()?.parse::<u64>().ok()?, next()?, next()?);
        let mut time = || next()?.parse::<u64>().ok();
        let (submitted, started, _ended) = (time()?, time()?, time()?);
        let job = jobs.iter().find(|job| job.id == id)?;
        let is_same = job.submit_time.finite() == Some(submitted);
        let is_pending = job.state.has(JobStateName::Pending);
        let status = status(state, exit)?;
        (is_same && (is_pending || job.start_time.finite() == Some(started))).then_some(Forgotten {
            job: id.try_into().ok()?,
            is_script: job.batch_flag == Some(true),
            end: format!("{state} {exit}"),
            status: (!is_pending).then_some(status),
        })
    });
    ends.collect()
}

/// Returns the status that makes slurmctld end the job in this state. There is none for a timeout, which slurmctld finds by
/// itself, nor for ends that are followed by a requeue.
fn status(state: &str, exit: &str) -> Option<u32> {
    use JobStateName::{Cancelled, Completed, Failed, OutOfMemory};
    // "CANCELLED by 1000".
    let state = JobStateName::from_name(state.split(' ').next()?)?;
    let (code, signal) = exit.split_once(':')?;
    let (code, signal): (u8, u8) = (code.parse().ok()?, signal.parse().ok()?);
    match state {
        Cancelled => Some(CANCELLED),
        Completed | Failed | OutOfMemory => Some(u32::from(code) << 8 | u32::from(signal)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(id: u64, state: &str, submitted: u64, started: u64, is_script: bool) -> Job {
        let job = json!({
            "job_id": id, "job_state": [state], "nodes": "n1", "submit_time": submitted, "start_time": started,
            "batch_flag": is_script,
        });
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn an_end_that_only_slurmdbd_has_is_forgotten() {
        let jobs = [
            job(7, "RUNNING", 90, 100, true),
            job(8, "RUNNING", 90, 100, false),
            job(9, "RUNNING", 90, 100, true),
            job(10, "PENDING", 90, 0, true),
        ];
        let records = "7|COMPLETED|0:0|90|100|105\n8|FAILED|3:0|90|100|104\n9|RUNNING|0:0|90|100|Unknown\n\
                       5|FAILED|1:0|90|100|101\n10|COMPLETED|0:0|90|100|102\n";
        let forgotten = |job, is_script, end: &str, status| Forgotten {
            job,
            is_script,
            end: end.to_owned(),
            status,
        };
        let expected = [
            forgotten(7, true, "COMPLETED 0:0", Some(0)),
            forgotten(8, false, "FAILED 3:0", Some(0x300)),
            forgotten(10, true, "COMPLETED 0:0", None),
        ];
        assert_eq!(compare(&jobs, records), expected);
    }

    #[test]
    fn the_end_of_an_earlier_start_or_of_an_earlier_job_of_that_number_is_not_that_of_the_job() {
        let records = "7|NODE_FAIL|0:0|90|50|60\n7|COMPLETED|0:0|90|50|60\n7|COMPLETED|0:0|40|50|60\n7|RUNNING|0:0|90|100|Unknown\n";
        assert_eq!(compare(&[job(7, "RUNNING", 90, 100, true)], records), []);
        assert_eq!(compare(&[job(7, "PENDING", 91, 0, true)], records), []);
    }

    #[test]
    fn each_state_has_its_status_or_none() {
        for (state, exit, expected) in [
            ("COMPLETED", "0:0", Some(0)),
            ("FAILED", "2:0", Some(0x200)),
            ("FAILED", "0:9", Some(9)),
            ("OUT_OF_MEMORY", "0:125", Some(125)),
            ("CANCELLED by 1000", "0:15", Some(CANCELLED)),
            ("CANCELLED", "0:0", Some(CANCELLED)),
            ("TIMEOUT", "0:0", None),
            ("NODE_FAIL", "0:0", None),
            ("REQUEUED", "0:0", None),
            ("RESIZING", "0:0", None),
            ("COMPLETED", "", None),
            ("COMPLETED", "256:0", None),
        ] {
            assert_eq!(status(state, exit), expected, "{state} {exit}");
        }
    }
}
