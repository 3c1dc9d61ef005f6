//! What there is: the Partition, its Controller, how it stands there, and what Slurm says of it. Reads only.

use std::sync::Arc;

use api::{Controller, Partition, Validate as _};
use kube::ResourceExt as _;

use super::drift::Found;
use crate::{
    cluster::{Clusters, Knowledge, partition_reports::PartitionReport},
    runtime::{Caches, Key},
};

/// Everything a plan is made from.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) partition: Arc<Partition>,
    pub(super) controller: Option<Arc<Controller>>,
    /// Its namespace is being deleted.
    pub(super) namespace_goes: bool,
    /// None until its Controller has been looked at.
    pub(super) standing: Option<PartitionReport>,
    pub(super) knowledge: Knowledge,
    /// What people changed in Slurm beside closing it.
    pub(super) found: Found,
}

impl Observed {
    /// Whether its slurmctld runs outside Kubernetes.
    pub(super) fn is_outside(&self) -> bool {
        let controller = self.controller.as_ref();
        controller.is_some_and(|controller| controller.spec.is_external())
    }

    /// Whether there is something to say to a slurmctld outside Kubernetes, or may be.
    pub(super) fn is_told_directly(&self) -> bool {
        let controller = self.controller.as_ref();
        let cluster_stays = controller.is_some_and(|controller| controller.metadata.deletion_timestamp.is_none());
        let is_leaving = self.partition.metadata.deletion_timestamp.is_some();
        let is_valid = || self.partition.check().errors().next().is_none();
        self.is_outside() && cluster_stays && !self.namespace_goes && (is_leaving || is_valid())
    }
}

pub(super) fn observe(partition: Arc<Partition>, caches: &Caches, clusters: &Clusters) -> Observed {
    let namespace = partition.namespace().unwrap_or_default();
    let key = Key::new(&namespace, &partition.spec.controller_ref.name);
    let controller = caches.controllers.get(&key.namespace, &key.name);
    let knowledge = match &controller {
        Some(_) => clusters.knowledge(&key),
        None => Knowledge::unknown("there is no Controller"),
    };
    Observed {
        namespace_goes: caches.is_ending(&namespace),
        standing: clusters.partition_report(&key, &partition.name_any()),
        partition,
        controller,
        knowledge,
        found: Found::default(),
    }
}
