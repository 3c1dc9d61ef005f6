//! Reads a Partition, its Controller, the Controller's report about it and Slurm's last response. Writes nothing.

use std::sync::Arc;

use api::{Controller, NodeSet, Partition, Validate as _};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::{
    drift::Found,
    external::channel::{Reach, reach},
};
use crate::{
    cluster::{Knowledge, partition_reports::PartitionReport},
    runtime::{Context, Key},
};

/// The state of a Partition. The plan completes it, and its effects change it.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) partition: Arc<Partition>,
    /// The key of its Controller.
    pub(super) cluster: Key,
    pub(super) controller: Option<Arc<Controller>>,
    /// Why the Controller is not known although it exists.
    pub(super) unreadable_controller: Option<String>,
    /// The namespace is being deleted.
    pub(super) is_namespace_deleted: bool,
    /// The report of its Controller, which the plan replaces for an external slurmctld. `None` while its state is not known.
    pub(super) report: Option<PartitionReport>,
    pub(super) knowledge: Knowledge,
    /// Its external slurmctld, if something may have to be sent to it.
    pub(super) external: Option<Reach>,
    /// All Partitions of its namespace, for an external slurmctld.
    pub(super) siblings: Vec<Arc<Partition>>,
    /// The NodeSets of its Controller, for an external slurmctld.
    pub(super) node_sets: Vec<Arc<NodeSet>>,
    /// Manual changes in Slurm other than the state, which the plan finds.
    pub(super) found: Found,
    pub(super) now: Timestamp,
}

impl Observed {
    /// Whether its slurmctld runs outside Kubernetes.
    pub(super) fn is_external(&self) -> bool {
        let controller = self.controller.as_ref();
        controller.is_some_and(|controller| controller.spec.is_external())
    }
}

pub(super) async fn observe(partition: Arc<Partition>, context: &Context) -> Observed {
    let Context { caches, clusters, .. } = context;
    let namespace = partition.namespace().unwrap_or_default();
    let cluster = Key::new(&namespace, &partition.spec.controller_ref.name);
    let controller = caches.controllers.get(&namespace, &cluster.name);
    let unreadable_controller = match &controller {
        Some(_) => None,
        None => context.unseen_controller(&cluster).await,
    };
    let is_namespace_deleted = caches.is_ending(&namespace);
    let is_external = controller
        .as_ref()
        .is_some_and(|controller| controller.spec.is_external() && controller.metadata.deletion_timestamp.is_none());
    let is_leaving = partition.metadata.deletion_timestamp.is_some();
    let is_valid = || partition.check().errors().next().is_none();
    let (mut external, mut siblings, mut node_sets) = (None, Vec::new(), Vec::new());
    // Only a Partition of an external slurmctld is compared with others here: a list for each of many would be quadratic.
    if is_external && !is_namespace_deleted && (is_leaving || is_valid()) {
        external = Some(reach(context, &cluster).await);
        siblings = caches.partitions.list(&namespace);
        node_sets = caches.node_sets.list(&namespace);
        node_sets.retain(|node_set| node_set.spec.controller_ref.name == cluster.name);
    }
    Observed {
        is_namespace_deleted,
        report: clusters.partition_report(&cluster, &partition.name_any()),
        knowledge: match &controller {
            Some(_) => clusters.knowledge(&cluster),
            None => Knowledge::unknown("there is no Controller"),
        },
        external,
        siblings,
        node_sets,
        found: Found::default(),
        now: context.clock.now(),
        partition,
        cluster,
        controller,
        unreadable_controller,
    }
}
