//! What is known about one cluster's Slurm. Unknown is a state of its own: it is never an empty cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use slurm::{
    Job, Node, Partition, Reservation,
    rest::{Observation, Process},
};

use super::{
    deadlines::{self, Deadlines},
    load::{self, JobLoads},
    oldest_job::{self, OldestJobs},
};

/// What is known about a cluster's nodes and jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// Slurm answered.
    Known(Arc<Seen>),
    /// It did not, or could not be asked.
    Unknown {
        /// Why, as a sentence for people.
        why: String,
    },
}

/// What Slurm answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// By name.
    pub nodes: BTreeMap<String, Node>,
    /// All jobs slurmctld knows, finished ones included. `None` if they were not asked for, which is not "no jobs".
    pub jobs: Option<Vec<Job>>,
    /// Where a NodeSet may have one. `None` if they were not asked for, or not told.
    pub reservations: Option<Vec<Reservation>>,
    /// By name. `None` if they were not asked for, or not told.
    pub partitions: Option<Arc<BTreeMap<String, Partition>>>,
    /// The jobs of each partition, by the last list of jobs there was, which may be some seconds older. `None` if there was none yet.
    pub job_loads: Option<Arc<JobLoads>>,
    /// When the last job on each node must have ended, by the last list of jobs there was, which may be a minute older than
    /// the nodes. `None` if there was none yet.
    pub deadlines: Option<Arc<Deadlines>>,
    /// Since when the oldest job on each node has been there, by the same list as the deadlines.
    pub beginnings: Option<Arc<OldestJobs>>,
    /// Names of the QOS in the accounting database, or why they are not known. `None` if they were not asked for.
    pub qos: Option<Result<BTreeSet<String>, String>>,
    /// Year and month of the Slurm release that answered, if it told.
    pub release: Option<(u16, u16)>,
    /// The life of slurmctld that gave both. Without it they are good for status and prove nothing.
    pub process: Option<Process>,
    /// When the first of the reads was begun.
    pub at: Timestamp,
}

impl Knowledge {
    /// Nothing is known, for this reason.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self::Unknown { why: why.into() }
    }

    /// What Slurm answered, if it did.
    pub fn known(&self) -> Option<&Seen> {
        match self {
            Self::Known(seen) => Some(seen),
            Self::Unknown { .. } => None,
        }
    }
}

impl Seen {
    /// What was read beginning at `at`.
    pub fn new(observation: Observation, at: Timestamp) -> Self {
        let Observation { nodes, jobs, process } = observation;
        Self {
            deadlines: Some(Arc::new(deadlines::of_jobs(&jobs))),
            beginnings: Some(Arc::new(oldest_job::of_jobs(&jobs))),
            job_loads: Some(Arc::new(load::of_jobs(&jobs))),
            jobs: Some(jobs),
            process,
            ..Self::of_nodes(nodes, at)
        }
    }

    /// Nodes alone, read beginning at `at`. They prove nothing.
    pub fn of_nodes(nodes: Vec<Node>, at: Timestamp) -> Self {
        Self {
            nodes: nodes.into_iter().map(|node| (node.name.clone(), node)).collect(),
            jobs: None,
            reservations: None,
            partitions: None,
            job_loads: None,
            deadlines: None,
            beginnings: None,
            qos: None,
            release: None,
            process: None,
            at,
        }
    }

    /// When the slurmctld that answered began, by its own clock, if that is known.
    pub fn boot(&self) -> Option<Timestamp> {
        Timestamp::from_second(i64::try_from(self.process?.boot_time).ok()?).ok()
    }

    /// With the release that answered, such as `26.05.5`.
    #[must_use]
    pub fn of_release(self, release: Option<&str>) -> Self {
        Self {
            release: release.and_then(year_and_month),
            ..self
        }
    }

    /// Names of the nodes that are not as they were: come, gone, in another state, or with something else written on them. How
    /// many of their CPUs are given away is nobody's business here.
    pub fn changed_since<'a>(&'a self, before: &'a Self) -> BTreeSet<&'a str> {
        let names = self.nodes.keys().chain(before.nodes.keys()).map(String::as_str);
        names.filter(|name| self.shown(name) != before.shown(name)).collect()
    }

    fn shown(&self, name: &str) -> Option<impl PartialEq> {
        let node = self.nodes.get(name)?;
        let deadline = self.deadlines.as_ref().and_then(|deadlines| deadlines.get(name));
        let beginning = self.beginnings.as_ref().and_then(|beginnings| beginnings.get(name));
        Some((
            &node.state,
            (&node.reason, &node.comment, &node.topology),
            (&node.features, &node.active_features),
            (deadline, beginning),
        ))
    }
}

fn year_and_month(release: &str) -> Option<(u16, u16)> {
    let mut numbers = release.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::year_and_month;

    #[test]
    fn a_release_is_a_year_and_a_month() {
        assert_eq!(year_and_month("26.05.5"), Some((26, 5)));
        assert_eq!(year_and_month("26.11.0-0rc1"), Some((26, 11)));
        assert_eq!(year_and_month("26"), None);
        assert_eq!(year_and_month("of our own"), None);
    }
}
