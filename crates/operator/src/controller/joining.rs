//! Workers that Kubernetes has and Slurm may show any moment: what the operator has read from Slurm need not know them yet. Pure.

use std::sync::Arc;

use api::{NodeSet, Partition, keys::apps};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use super::inputs::created;
use crate::{
    access::Seen,
    nodeset::plan::Worker,
    partition::mark::{Mark, has_mark},
    runtime::Caches,
};

/// A slurmd registers within a second of its start. One that has not after this is held up by something, and nobody waits for it.
const JOINS_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// A worker on its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Joining {
    /// Its set's name in Slurm.
    node_set: String,
    /// Its own.
    node: String,
    /// When its slurmd, or else its pod, began.
    since: Timestamp,
}

/// The workers of these sets, where a Partition leaves out some of them. Elsewhere nobody asks.
pub(super) fn observe_joining(
    node_sets: &[Arc<NodeSet>],
    partitions: &[Arc<Partition>],
    caches: &Caches,
) -> Vec<Joining> {
    if !partitions.iter().any(|partition| has_mark(partition)) {
        return Vec::new();
    }
    let of_set = |node_set: &Arc<NodeSet>| {
        let pods = node_set.uid().map(|uid| caches.pods.owned_by(&uid)).unwrap_or_default();
        let name = node_set.slurm_name();
        let workers = pods.into_iter().filter_map(move |pod| joining(&name, &pod));
        workers.collect::<Vec<_>>()
    };
    node_sets.iter().flat_map(of_set).collect()
}

fn joining(node_set: &str, pod: &Pod) -> Option<Joining> {
    let worker = Worker(pod);
    // Without a machine nothing of it runs.
    worker.kubernetes_node().filter(|_| worker.is_active())?;
    Some(Joining {
        node_set: node_set.to_owned(),
        node: worker.slurm_name()?.to_owned(),
        since: slurmd_started(pod).unwrap_or_else(|| created(pod)),
    })
}

fn slurmd_started(pod: &Pod) -> Option<Timestamp> {
    let mut containers = pod.status.as_ref()?.container_statuses.iter().flatten();
    let slurmd = containers.find(|container| container.name == apps::SLURMD)?;
    Some(slurmd.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0)
}

/// The first worker that is to have this mark and that Slurm did not show when it was looked at, but may by now.
pub(super) fn first_joining<'a>(all: &'a [Joining], mark: &Mark, seen: &Seen) -> Option<&'a str> {
    let joins = |worker: &&Joining| {
        mark.is_for(&worker.node_set, &worker.node)
            && !seen.nodes.contains_key(&worker.node)
            && seen.at.duration_since(worker.since) < JOINS_WITHIN
    };
    all.iter().find(joins).map(|worker| worker.node.as_str())
}
