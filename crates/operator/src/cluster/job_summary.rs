//! What is kept of a list of jobs, and how often jobs are listed for it. Pure.

use std::{collections::BTreeMap, time::Duration};

use api::partition::PartitionJobs;
use jiff::{SignedDuration, Timestamp};
use slurm::{Hostlist, Job};

use crate::unix_time::timestamp;

/// Deadlines are written to pods at most this often, so jobs are not read more often for them.
const MIN_INTERVAL: SignedDuration = SignedDuration::from_secs(5);
/// Counts of jobs are written to Partitions at most this often.
const COUNT_INTERVAL: SignedDuration = SignedDuration::from_secs(15);
/// A time limit can change, and one job can follow another, without a change of the node's state.
const MAX_INTERVAL: SignedDuration = SignedDuration::from_mins(1);
/// The time that upstream adds to the start of a job without a limit.
const NO_LIMIT: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());

/// What is kept of a list of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSummary {
    /// When the last job on each node must have ended. Nodes without a running job have none.
    pub deadlines: BTreeMap<String, Timestamp>,
    /// When the oldest job on each node started. Nodes without a job have none.
    pub oldest: BTreeMap<String, Timestamp>,
    /// The jobs of each partition that has any. A job that waits for several partitions counts in each.
    pub loads: BTreeMap<String, PartitionJobs>,
}

impl JobSummary {
    pub fn of(jobs: &[Job]) -> Self {
        let mut summary = Self::default();
        for job in jobs {
            let partitions = job.partitions().filter(|_| !job.state.is_finished());
            for partition in partitions {
                let load = summary.loads.entry(partition.to_owned()).or_default();
                if job.state.may_be_on_nodes() {
                    load.running += 1;
                } else {
                    load.pending += 1;
                }
            }
            let end = end_of(job).filter(|_| job.state.is_running());
            let since = job.on_its_nodes_since().and_then(timestamp);
            if end.is_none() && since.is_none() {
                continue;
            }
            for node in job.node_list().iter().flat_map(Hostlist::names) {
                if let Some(end) = end {
                    let latest = summary.deadlines.entry(node.clone()).or_insert(end);
                    *latest = end.max(*latest);
                }
                if let Some(since) = since {
                    let earliest = summary.oldest.entry(node).or_insert(since);
                    *earliest = since.min(*earliest);
                }
            }
        }
        summary
    }
}

fn end_of(job: &Job) -> Option<Timestamp> {
    let start = job.start_time.finite()?;
    match job.latest_end() {
        Some(end) => timestamp(end),
        None => timestamp(start)?.checked_add(NO_LIMIT).ok(),
    }
}

/// When jobs are read: not at every poll. A list of jobs costs slurmctld and slurmrestd about as much as one of nodes, three
/// kilobytes each.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    last: Option<Timestamp>,
    /// Something has changed since the last read.
    pub(crate) is_outdated: bool,
}

impl Reading {
    pub(crate) fn was_done(&mut self, at: Timestamp) {
        (self.last, self.is_outdated) = (Some(at), false);
    }

    /// Whether jobs must be read now for the counts of Partitions.
    pub(crate) fn is_due_for_counts(&self, now: Timestamp) -> bool {
        self.last.is_none_or(|last| now.duration_since(last) >= COUNT_INTERVAL)
    }

    /// Whether jobs must be read now for deadlines, if any node is busy.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        let interval = if self.is_outdated { MIN_INTERVAL } else { MAX_INTERVAL };
        self.last.is_none_or(|last| now.duration_since(last) >= interval)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn job(state: &str, nodes: &str, limit: &Value) -> Job {
        let start = at("2026-01-01T00:00:00Z").as_second();
        serde_json::from_value(json!({
            "job_id": 1, "job_state": [state], "nodes": nodes,
            "start_time": { "set": true, "infinite": false, "number": start }, "time_limit": limit,
        }))
        .unwrap()
    }

    fn minutes(count: u64) -> Value {
        json!({ "set": true, "infinite": false, "number": count })
    }

    #[test]
    fn the_latest_end_of_a_running_job_counts() {
        let summary = JobSummary::of(&[
            job("RUNNING", "n[1-2]", &minutes(60)),
            job("RUNNING", "n2", &minutes(90)),
            job("RUNNING", "n2", &minutes(5)),
            job("SUSPENDED", "n3", &minutes(60)),
            job("PENDING", "", &minutes(60)),
        ]);
        let expected = [
            ("n1".to_owned(), at("2026-01-01T01:00:00Z")),
            ("n2".to_owned(), at("2026-01-01T01:30:00Z")),
        ];
        assert_eq!(summary.deadlines, expected.into());
    }

    #[test]
    fn a_job_without_a_limit_ends_in_the_far_future() {
        for limit in [
            json!({ "set": true, "infinite": true, "number": 0 }),
            json!({ "set": false }),
        ] {
            let JobSummary { deadlines, .. } = JobSummary::of(&[job("RUNNING", "n1", &limit)]);
            assert_eq!(format!("{:.0}", deadlines["n1"]), "2318-04-12T23:47:16Z", "{limit}");
        }
    }

    #[test]
    fn a_limit_beyond_the_range_of_timestamps_counts_as_no_limit() {
        let JobSummary { deadlines, .. } = JobSummary::of(&[job("RUNNING", "n1", &minutes(u64::MAX))]);
        assert_eq!(format!("{:.0}", deadlines["n1"]), "2318-04-12T23:47:16Z");
    }

    #[test]
    fn jobs_are_read_within_5_s_of_a_change_and_every_minute_without_one() {
        let start = at("2026-01-01T00:00:00Z");
        let after = |seconds: i64| start + SignedDuration::from_secs(seconds);
        let mut reading = Reading::default();
        assert!(reading.is_due(start));
        reading.was_done(start);
        assert!(!reading.is_due(after(59)) && reading.is_due(after(60)));
        reading.is_outdated = true;
        assert!(!reading.is_due(after(4)) && reading.is_due(after(5)));
        reading.was_done(after(5));
        assert!(!reading.is_due(after(10)));
    }

    #[test]
    fn the_oldest_job_on_the_node_counts() {
        let job = |state: &[&str], nodes: &str, began: u64| -> Job {
            let start = json!({ "set": true, "infinite": false, "number": began });
            let job = json!({ "job_id": 1, "job_state": state, "nodes": nodes, "start_time": start });
            serde_json::from_value(job).unwrap()
        };
        let summary = JobSummary::of(&[
            job(&["RUNNING"], "n[1-2]", 200),
            job(&["SUSPENDED"], "n2", 100),
            job(&["RUNNING", "CONFIGURING"], "n1", 50),
            job(&["COMPLETED", "COMPLETING"], "n3", 50),
            job(&["PENDING"], "", 50),
        ]);
        let expected = [("n1", 200), ("n2", 100)];
        let expected = expected.map(|(node, second)| (node.to_owned(), Timestamp::from_second(second).unwrap()));
        assert_eq!(summary.oldest, expected.into());
    }

    #[test]
    fn a_pending_job_counts_in_each_of_its_partitions_and_a_finished_one_in_none() {
        let job = |state: &str, partition: &str| json!({ "job_id": 1, "job_state": [state], "partition": partition, "nodes": "" });
        let jobs: Vec<Job> = serde_json::from_value(json!([
            job("RUNNING", "a"),
            job("PENDING", "a,b"),
            job("COMPLETED", "a"),
            job("SUSPENDED", "b"),
        ]))
        .unwrap();
        let load = |running, pending| PartitionJobs { running, pending };
        assert_eq!(
            JobSummary::of(&jobs).loads,
            BTreeMap::from([("a".to_owned(), load(1, 1)), ("b".to_owned(), load(1, 1))])
        );
    }
}
