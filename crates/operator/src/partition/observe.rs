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
    /// All Partitions of its namespace, for an external slurmctld.
    pub(super) siblings: Vec<Arc<Partition>>,
    /// The NodeSets of its Controller, for an external slurmctld.
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
    // Only a Partition of an external slurmctld is compared with others here: a list for each of many would be quadratic.
    let (siblings, mut node_sets) = match &external {
        Some(_) => (
            caches.partitions.list(&key.namespace),
            caches.node_sets.list(&key.namespace),
        ),
        None => (Vec::new(), Vec::new()),
    };
    node_sets.retain(|node_set| node_set.spec.controller_ref.name == key.name);
    Observed {
        is_namespace_deleted,
        report: clusters.partition_report(&key, &partition.name_any()),
        knowledge: match &controller {
            Some(_) => clusters.knowledge(&key),
            None => Knowledge::unknown("there is no Controller"),
        },
        external,
        siblings,
        node_sets,
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
