//! Reads a Partition, its Controller, the Controller's report about it and Slurm's last response. Writes nothing.

use std::sync::Arc;

use api::{Controller, NodeSet, Partition, Validate as _};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::external::channel::{Reach, reach};
use crate::{
    cluster::{Knowledge, partition_reports::PartitionReport},
    runtime::{Context, Key},
};

/// The input of a plan.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) partition: Arc<Partition>,
    pub(super) controller: Option<Arc<Controller>>,
    /// The namespace is being deleted.
    pub(super) is_namespace_deleted: bool,
    /// The report of its Controller. `None` until the Controller has been reconciled with it.
    pub(super) report: Option<PartitionReport>,
    pub(super) knowledge: Knowledge,
    /// Its external slurmctld, if something may have to be sent to it.
    pub(super) external: Option<Reach>,
    /// All Partitions of its namespace.
    pub(super) siblings: Vec<Arc<Partition>>,
    /// The NodeSets of its Controller.
    pub(super) node_sets: Vec<Arc<NodeSet>>,
    pub(super) now: Timestamp,
}

impl Observed {
    /// The key of its Controller.
    pub(super) fn cluster(&self) -> Key {
        cluster_of(&self.partition)
    }
}

fn cluster_of(partition: &Partition) -> Key {
    Key::new(
        partition.namespace().unwrap_or_default(),
        &partition.spec.controller_ref.name,
    )
}

pub(super) async fn observe(partition: Arc<Partition>, context: &Context) -> Observed {
    let Context { caches, clusters, .. } = context;
    let key = cluster_of(&partition);
    let controller = caches.controllers.get(&key.namespace, &key.name);
    let is_namespace_deleted = caches.is_ending(&key.namespace);
    let external = if !is_namespace_deleted && is_external(&partition, controller.as_deref()) {
        Some(reach(context, &key).await)
    } else {
        None
    };
    let node_sets = caches.node_sets.list(&key.namespace).into_iter();
    Observed {
        is_namespace_deleted,
        report: clusters.partition_report(&key, &partition.name_any()),
        knowledge: match &controller {
            Some(_) => clusters.knowledge(&key),
            None => Knowledge::unknown("there is no Controller"),
        },
        external,
        siblings: caches.partitions.list(&key.namespace),
        node_sets: node_sets
            .filter(|node_set| node_set.spec.controller_ref.name == key.name)
            .collect(),
        now: context.clock.now(),
        partition,
        controller,
    }
}

/// Whether something may have to be sent to an external slurmctld.
fn is_external(partition: &Partition, controller: Option<&Controller>) -> bool {
    let is_leaving = partition.metadata.deletion_timestamp.is_some();
    let is_valid = || partition.check().errors().next().is_none();
    controller
        .is_some_and(|controller| controller.spec.is_external() && controller.metadata.deletion_timestamp.is_none())
        && (is_leaving || is_valid())
}
