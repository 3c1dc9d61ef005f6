//! The last response of one cluster's Slurm. Unknown is a state of its own: it is never an empty cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use slurm::{
    Job, Node, Partition, Reservation,
    rest::{Observation, Process},
};

use super::job_summary::JobSummary;
use crate::{slurm_release, unix_time::timestamp};

/// What is known about a cluster's nodes and jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// Slurm responded.
    Known(Arc<Seen>),
    /// Slurm did not respond, or could not be reached.
    Unknown {
        /// The reason, as a sentence for people.
        why: String,
    },
}

/// Who returned what Slurm knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// slurmrestd, although there is an agent. Its responses are not signed: whoever controls the network or the Service could
    /// say "no jobs".
    #[default]
    Unsigned,
    /// slurmrestd of a cluster without an agent. There is nothing better.
    Agentless,
    /// The agent in slurmctld's pod, whose responses are signed.
    Agent,
}

/// The response of Slurm to one poll.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Nodes by name.
    pub nodes: BTreeMap<String, Node>,
    /// All jobs slurmctld knows, finished ones included. `None` if not requested, which does not mean "no jobs".
    pub jobs: Option<Vec<Job>>,
    /// Read if a NodeSet may have a reservation. `None` if they were not requested or not returned.
    pub reservations: Option<Vec<Reservation>>,
    /// Partitions by name. `None` if they were not requested or not returned.
    pub partitions: Option<Arc<BTreeMap<String, Partition>>>,
    /// From the last list of jobs, which may be a minute older than the nodes. `None` if jobs were never listed.
    pub job_summary: Option<Arc<JobSummary>>,
    /// Names of the QOS in the accounting database, or why they are not known. `None` if they were not requested.
    pub qos: Option<Result<BTreeSet<String>, String>>,
    /// The release of Slurm that responded, if reported.
    pub release: Option<slurm_release::Release>,
    /// Who returned nodes and jobs.
    pub source: Source,
    /// The slurmctld process that returned both nodes and jobs. Without it they are good for status but prove nothing.
    pub process: Option<Process>,
    /// When the first of the reads began.
    pub at: Timestamp,
}

impl Default for Knowledge {
    fn default() -> Self {
        Self::unknown("Slurm has not been polled yet")
    }
}

impl Knowledge {
    pub fn unknown(why: impl Into<String>) -> Self {
        Self::Unknown { why: why.into() }
    }

    /// The response, if Slurm responded.
    pub fn known(&self) -> Option<&Seen> {
        match self {
            Self::Known(seen) => Some(seen),
            Self::Unknown { .. } => None,
        }
    }
}

impl Seen {
    /// The result of a read that began at `at`.
    pub fn new(observation: Observation, at: Timestamp, source: Source) -> Self {
        let Observation { nodes, jobs, process } = observation;
        Self {
            job_summary: Some(Arc::new(JobSummary::of(&jobs))),
            jobs: Some(jobs),
            process,
            source,
            ..Self::of_nodes(nodes, at)
        }
    }

    /// Why the jobs may not be all that slurmctld has, so that "no jobs" proves nothing.
    pub fn doubt(&self) -> Option<&'static str> {
        (self.source == Source::Unsigned)
            .then_some("slurmctld's agent has not responded, and the response of slurmrestd is not signed")
    }

    /// Nodes alone, from a read that began at `at`. They prove nothing.
    pub fn of_nodes(nodes: Vec<Node>, at: Timestamp) -> Self {
        Self {
            nodes: nodes.into_iter().map(|node| (node.name.clone(), node)).collect(),
            at,
            ..Self::default()
        }
    }

    /// The end of the second in which the slurmctld that responded was started, by its own clock, if known. Slurm reports the start in
    /// whole seconds, and the previous process may have accepted an order in that second.
    pub fn boot(&self) -> Option<Timestamp> {
        timestamp(self.process?.boot_time.saturating_add(1))
    }

    /// Adds the release that responded, such as `26.05.5`.
    #[must_use]
    pub fn of_release(mut self, release: Option<&str>) -> Self {
        self.release = release.and_then(slurm_release::parse);
        self
    }

    /// The same nodes and jobs, before anything else has been read.
    pub(super) fn without_details(&self, before: Option<&Self>) -> Self {
        Self {
            job_summary: self
                .job_summary
                .clone()
                .or_else(|| before.and_then(|before| before.job_summary.clone())),
            release: self.release.or_else(|| before.and_then(|before| before.release)),
            ..self.clone()
        }
    }

    /// Returns the nodes that were added, removed or changed. The number of allocated CPUs does not count.
    pub fn changed_since<'a>(&'a self, before: &'a Self) -> BTreeSet<&'a str> {
        let names = self.nodes.keys().chain(before.nodes.keys()).map(String::as_str);
        names.filter(|name| self.fields(name) != before.fields(name)).collect()
    }

    fn fields(&self, name: &str) -> Option<impl PartialEq> {
        let node = self.nodes.get(name)?;
        let jobs = self.job_summary.as_ref();
        let times = jobs.map(|jobs| (jobs.deadlines.get(name), jobs.oldest.get(name)));
        Some((
            &node.state,
            (&node.reason, &node.comment, &node.topology),
            // A node that is down stays so when another slurmd registers.
            (&node.address, &node.slurmd_start_time),
            (&node.features, &node.active_features),
            times.unwrap_or_default(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::Seen;

    /// The successor of a worker that was set down registers, and its node stays down until the operator resumes it.
    #[test]
    fn a_registration_is_a_change() {
        let seen = |address: &str, started: u64| {
            let nodes = json!([{ "name": "n-0", "state": ["DOWN", "DRAIN", "DYNAMIC_NORM"], "reason": "slurm-operator: Pod is terminating",
                "address": address, "slurmd_start_time": { "set": true, "infinite": false, "number": started } }]);
            Seen::of_nodes(serde_json::from_value(nodes).unwrap(), Timestamp::UNIX_EPOCH)
        };
        let before = seen("10.0.0.1", 1);
        assert_eq!(seen("10.0.0.1", 1).changed_since(&before), [].into());
        for after in [seen("10.0.0.2", 1), seen("10.0.0.1", 2)] {
            assert_eq!(after.changed_since(&before), ["n-0"].into());
        }
    }
}
