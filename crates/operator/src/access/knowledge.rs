//! What is known about one cluster's Slurm. Unknown is a state of its own: it is never an empty cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use slurm::{
    Job, Node, Reservation,
    rest::{Observation, Process},
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
            process: None,
            at,
        }
    }

    /// Names of the nodes that are not as they were: come, gone, or in another state or with another reason. How many of
    /// their CPUs are given away is nobody's business here.
    pub fn changed_since<'a>(&'a self, before: &'a Self) -> BTreeSet<&'a str> {
        let looks = |seen: &'a Self, name: &str| seen.nodes.get(name).map(|node| (&node.state, &node.reason));
        let names = self.nodes.keys().chain(before.nodes.keys()).map(String::as_str);
        names.filter(|name| looks(self, name) != looks(before, name)).collect()
    }
}
