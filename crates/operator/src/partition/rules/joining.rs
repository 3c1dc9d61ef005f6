//! Workers that may register with Slurm at any moment: Slurm's last response may not contain them yet.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use slurm::Node;

use super::mark::Mark;

/// A slurmd registers within a second of its start. After a minute something prevents it from registering.
const REGISTRATION_TIMEOUT: SignedDuration = SignedDuration::from_mins(1);

/// A worker that runs on a Kubernetes node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Joining {
    /// Name of its NodeSet in Slurm.
    pub(crate) node_set: String,
    /// Its own name in Slurm.
    pub(crate) node: String,
    /// When its slurmd started, or else when its pod was created.
    pub(crate) since: Timestamp,
}

/// Returns the first worker that must have this mark and that Slurm did not list at this time, but may list by now.
pub(crate) fn first_joining<'a>(
    all: &'a [Joining],
    mark: &Mark,
    nodes: &BTreeMap<String, Node>,
    at: Timestamp,
) -> Option<&'a str> {
    let joins = |worker: &&Joining| {
        mark.is_for(&worker.node_set, &worker.node)
            && !nodes.contains_key(&worker.node)
            && at.duration_since(worker.since) < REGISTRATION_TIMEOUT
    };
    all.iter().find(joins).map(|worker| worker.node.as_str())
}
