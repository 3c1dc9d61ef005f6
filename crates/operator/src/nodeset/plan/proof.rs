//! The proof that a worker has no job, without which it is not deleted.
//!
//! One snapshot is enough, because of the order in which it is read: first the node, then the jobs, from one slurmctld
//! process. A node with DRAIN in the first read gets no new job; if the second shows no job on it, it has none. Whatever is
//! unclear counts as a job.

use std::collections::HashMap;

use slurm::{Hostlist, Job, hostlist::HostlistError};
use thiserror::Error;

use crate::cluster::Seen;

/// Whether a node has jobs, or can get some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Occupancy {
    /// Slurm has no such node, and no job is on it.
    Absent,
    /// It can get a job at any moment.
    Undrained,
    /// A job is on the node, or may be.
    Busy { why: String },
    /// Power saving has stopped it, and it has no job.
    Off,
    /// Power saving has started it, and it has not registered: its jobs wait for that.
    Starting,
    /// It has no job and can get none: the worker may be removed.
    Free {
        /// Why Slurm's record of the node has to outlive the worker, if it does.
        keep_record: Option<String>,
    },
    /// The snapshot proves nothing.
    Unclear { why: String },
}

/// A snapshot of Slurm, indexed by node.
#[derive(Debug)]
pub struct Evidence<'a> {
    pub seen: &'a Seen,
    on_nodes: Result<JobsByNode<'a>, NotIndexed>,
    by_name: Result<JobsByNode<'a>, NotIndexed>,
}

#[derive(Debug, Error)]
enum NotIndexed {
    #[error("jobs have not been read yet")]
    NotRead,
    #[error("the nodes of job {job} cannot be read: {source}")]
    BadNodes { job: u64, source: HostlistError },
}

/// An index, because thousands of nodes are looked up while there are thousands of jobs.
type JobsByNode<'a> = HashMap<String, Vec<&'a Job>>;

impl<'a> Evidence<'a> {
    pub fn new(seen: &'a Seen) -> Self {
        let index = |is_meant: fn(&Job) -> bool, nodes: fn(&Job) -> Result<Hostlist, HostlistError>| {
            let jobs = seen.jobs.as_ref().ok_or(NotIndexed::NotRead)?;
            let mut by_node = JobsByNode::new();
            for job in jobs.iter().filter(|job| is_meant(job)) {
                let nodes = nodes(job).map_err(|source| NotIndexed::BadNodes { job: job.id, source })?;
                for name in nodes.names() {
                    by_node.entry(name).or_default().push(job);
                }
            }
            Ok(by_node)
        };
        Self {
            seen,
            on_nodes: index(|job| job.state.may_be_on_nodes(), Job::node_list),
            by_name: index(
                |job| !job.state.is_finished() && !job.required_nodes.is_empty(),
                |job| Hostlist::parse(&job.required_nodes),
            ),
        }
    }

    /// Returns the occupancy of the node of a worker.
    pub fn occupancy(&self, name: &str) -> Occupancy {
        let node = self.seen.nodes.get(name);
        if let Some(node) = node.filter(|node| node.state.is_cloud()) {
            match self.need(name) {
                Occupancy::Free { .. } if node.state.is_off() => return Occupancy::Off,
                need if node.state.is_off() => return need,
                // Its jobs wait until it registers.
                Occupancy::Free { .. } | Occupancy::Busy { .. } if node.state.is_starting() => {
                    return Occupancy::Starting;
                }
                _ => {}
            }
        }
        // An undrained node needs no further look.
        if node.is_some_and(|node| !node.state.is_drain()) {
            return Occupancy::Undrained;
        }
        match (self.need(name), node) {
            (Occupancy::Free { .. }, None) => Occupancy::Absent,
            (Occupancy::Free { .. }, Some(node)) if !node.state.is_drained() => Occupancy::Busy {
                why: format!("its state is {}", node.state),
            },
            (Occupancy::Free { .. }, Some(node)) if !node.state.is_dynamic() => Occupancy::Free {
                keep_record: Some("it is defined in slurm.conf".to_owned()),
            },
            (occupancy, _) => occupancy,
        }
    }

    /// Returns the jobs that may be on this node, as far as they could be read.
    pub fn jobs_on(&self, name: &str) -> impl Iterator<Item = &'a Job> {
        let here = self.on_nodes.as_ref().ok().and_then(|jobs| jobs.get(name));
        here.into_iter().flatten().copied()
    }

    /// Returns the occupancy of a node without a worker, by its jobs alone: it can get none, whatever its state.
    pub fn need(&self, name: &str) -> Occupancy {
        let (on_nodes, by_name) = match (&self.on_nodes, &self.by_name) {
            (Err(why), _) | (_, Err(why)) => return Occupancy::Unclear { why: why.to_string() },
            (Ok(on_nodes), Ok(by_name)) => (on_nodes, by_name),
        };
        if self.seen.process.is_none() {
            let why = "the slurmctld process is unknown: it was restarted or reconfigured during the poll, or slurmrestd is older \
                       than v0.0.45";
            return Occupancy::Unclear { why: why.to_owned() };
        }
        if let Some(why) = self.seen.doubt() {
            return Occupancy::Unclear { why: why.to_owned() };
        }
        if let Some((first, others)) = on_nodes.get(name).and_then(|jobs| jobs.split_first()) {
            let more = match others.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let why = format!("job {} ({}) is there{more}", first.id, first.state);
            return Occupancy::Busy { why };
        }
        let named = by_name.get(name).and_then(|jobs| jobs.first());
        // Slurm would fail the job.
        let keep_record = named.map(|job| format!("job {} asks for it by name", job.id));
        Occupancy::Free { keep_record }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;
    use slurm::rest::{Observation, Process};

    use super::*;
    use crate::cluster::Source;

    fn seen(nodes: &[(&str, &[&str])], jobs: &[(u64, &[&str], &str, &str)]) -> Seen {
        let nodes = nodes
            .iter()
            .map(|(name, state)| json!({ "name": name, "state": state }));
        let jobs = jobs.iter().map(|(id, state, nodes, required)| {
            json!({ "job_id": id, "job_state": state, "nodes": nodes, "required_nodes": required })
        });
        let observation = Observation {
            nodes: nodes.map(|node| serde_json::from_value(node).unwrap()).collect(),
            jobs: jobs.map(|job| serde_json::from_value(job).unwrap()).collect(),
            process: Some(Process { boot_time: 1000 }),
        };
        Seen::new(observation, Timestamp::UNIX_EPOCH, Source::Agent)
    }

    fn occupancy(seen: &Seen) -> Occupancy {
        Evidence::new(seen).occupancy("n-1")
    }

    const DRAINED: &[(&str, &[&str])] = &[("n-1", &["IDLE", "DRAIN", "DYNAMIC_NORM"])];
    const FREE: Occupancy = Occupancy::Free { keep_record: None };

    #[test]
    fn a_drained_node_without_jobs_is_proven() {
        assert_eq!(occupancy(&seen(DRAINED, &[])), FREE);
        let elsewhere: &[(u64, &[&str], &str, &str)] =
            &[(7, &["RUNNING"], "n-[2-9]", ""), (8, &["COMPLETED"], "n-1", "")];
        assert_eq!(occupancy(&seen(DRAINED, elsewhere)), FREE);
        assert_eq!(
            occupancy(&seen(&[("n-1", &["DOWN", "DRAIN", "DYNAMIC_NORM"])], &[])),
            FREE
        );
    }

    #[test]
    fn an_idle_node_may_get_a_job_at_any_moment() {
        for state in [
            &["IDLE", "DYNAMIC_NORM"][..],
            &["DOWN", "DYNAMIC_NORM"],
            &["IDLE", "DRAIN", "UNDRAIN"],
        ] {
            assert!(
                matches!(occupancy(&seen(&[("n-1", state)], &[])), Occupancy::Undrained),
                "{state:?}"
            );
        }
    }

    #[test]
    fn every_job_that_may_be_there_counts() {
        for state in [
            &["RUNNING"][..],
            &["SUSPENDED"],
            &["RUNNING", "CONFIGURING"],
            &["COMPLETED", "COMPLETING"],
            &["RUNNING", "STOPPED"],
            &["RUNNING", "SIGNALING"],
            &["COMPLETED", "STAGE_OUT"],
            &["SOMETHING_NEW"],
        ] {
            let seen = seen(DRAINED, &[(7, state, "n-[0-3]", "")]);
            assert!(matches!(occupancy(&seen), Occupancy::Busy { .. }), "{state:?}");
        }
    }

    #[test]
    fn a_busy_state_counts_even_if_no_job_is_listed() {
        for state in [
            &["ALLOCATED", "DRAIN"][..],
            &["MIXED", "DRAIN"],
            &["IDLE", "DRAIN", "COMPLETING"],
            &["DRAIN"],
        ] {
            assert!(
                matches!(occupancy(&seen(&[("n-1", state)], &[])), Occupancy::Busy { .. }),
                "{state:?}"
            );
        }
    }

    #[test]
    fn a_node_that_slurm_does_not_have_is_absent_unless_a_job_is_there() {
        assert_eq!(occupancy(&seen(&[], &[])), Occupancy::Absent);
        let job: &[(u64, &[&str], &str, &str)] = &[(7, &["RUNNING"], "n-1", "")];
        assert!(matches!(occupancy(&seen(&[], job)), Occupancy::Busy { .. }));
    }

    #[test]
    fn what_cannot_be_read_proves_nothing() {
        let odd: &[(u64, &[&str], &str, &str)] = &[(7, &["RUNNING"], "n-[1-", "")];
        assert!(matches!(occupancy(&seen(DRAINED, odd)), Occupancy::Unclear { .. }));
        let mut other_process = seen(DRAINED, &[]);
        other_process.process = None;
        assert!(matches!(occupancy(&other_process), Occupancy::Unclear { .. }));
        let mut unsigned = seen(DRAINED, &[]);
        unsigned.source = Source::Unsigned;
        assert!(matches!(occupancy(&unsigned), Occupancy::Unclear { .. }));
        unsigned.source = Source::Agentless;
        assert_eq!(occupancy(&unsigned), FREE);
        let mut no_jobs_read = seen(DRAINED, &[]);
        no_jobs_read.jobs = None;
        assert!(matches!(occupancy(&no_jobs_read), Occupancy::Unclear { .. }));
    }

    #[test]
    fn a_record_that_a_job_asks_for_by_name_stays() {
        let waiting: &[(u64, &[&str], &str, &str)] = &[(7, &["PENDING"], "", "n-[1-2]")];
        let Occupancy::Free { keep_record: Some(why) } = occupancy(&seen(DRAINED, waiting)) else {
            panic!("the worker may go, the record may not")
        };
        assert_eq!(why, "job 7 asks for it by name");
        let done: &[(u64, &[&str], &str, &str)] = &[(7, &["COMPLETED"], "", "n-[1-2]")];
        assert_eq!(occupancy(&seen(DRAINED, done)), FREE);
    }

    #[test]
    fn a_record_without_a_worker_is_needed_by_jobs_alone() {
        let down: &[(&str, &[&str])] = &[("n-1", &["DOWN", "DYNAMIC_NORM"])];
        let need = |jobs: &[(u64, &[&str], &str, &str)]| {
            let seen = seen(down, jobs);
            Evidence::new(&seen).need("n-1")
        };
        assert_eq!(need(&[(7, &["COMPLETED"], "n-1", "n-1")]), FREE);
        assert!(matches!(need(&[(7, &["RUNNING"], "n-1", "")]), Occupancy::Busy { .. }));
        assert!(matches!(
            need(&[(7, &["PENDING"], "", "n-1")]),
            Occupancy::Free { keep_record: Some(_) }
        ));
        assert!(matches!(
            need(&[(7, &["PENDING"], "", "n-[1-")]),
            Occupancy::Unclear { .. }
        ));
    }

    #[test]
    fn a_record_from_slurm_conf_stays() {
        let seen = seen(&[("n-1", &["IDLE", "DRAIN"])], &[]);
        assert!(matches!(occupancy(&seen), Occupancy::Free { keep_record: Some(_) }));
    }
}
