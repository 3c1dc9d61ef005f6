//! Reads a Controller, everything it refers to, its children, and the last report of its agent. Writes nothing.

use std::sync::Arc;

use crate::{
    cluster::Snapshot,
    configuration::Inputs,
    defaults::Images,
    key_mismatch::{find_key_mismatch, find_other_key},
    partition::rules::{
        mark::{Joining, has_mark},
        names::created,
    },
    runtime::{Caches, Context, Key, ServiceMonitor},
    worker::Worker,
};
use api::{
    Controller, NodeSet, Partition,
    keys::apps,
    references::{ObjectRef, SecretKeyRef},
    wellknown::{JWT_KEY_FILE, SLURM_KEY_FILE},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaim, Pod, Secret},
};
use kube::ResourceExt;

/// The input of a plan.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) inputs: Inputs,
    pub(super) snapshot: Snapshot,
    pub(super) slurm_key: Option<Arc<Secret>>,
    pub(super) jwt_key: Option<Arc<Secret>>,
    /// The claim that all slurmctlds share.
    pub(super) claim: Option<Arc<PersistentVolumeClaim>>,
    /// An older Controller that has the same cluster name.
    pub(super) rival: Option<Key>,
    pub(super) stateful_set: Option<Arc<StatefulSet>>,
    /// Why no pod is made with a key of its Secrets.
    pub(super) other_keys: Vec<String>,
    /// Which daemons of the cluster have different keys.
    pub(super) key_mismatch: Option<String>,
    pub(super) images: Images,
    /// CustomResourceDefinitions that are older than this operator.
    pub(super) outdated: Vec<String>,
    /// Whether the API server serves ServiceMonitors.
    pub(super) has_service_monitors: bool,
}

/// Reads everything a plan for this Controller depends on.
pub(super) fn observe(controller: &Arc<Controller>, context: &Context) -> Observed {
    let now = context.clock.now();
    let mismatch = find_key_mismatch(controller, &context.caches, &context.clusters, now);
    Observed {
        key_mismatch: mismatch.map(|mismatch| mismatch.message()),
        images: context.defaults.images.clone(),
        outdated: context.definitions.outdated(),
        has_service_monitors: context.definitions.has::<ServiceMonitor>(),
        ..observe_objects(
            Arc::clone(controller),
            &context.caches,
            context.clusters.snapshot(controller),
            now,
        )
    }
}

/// Reads the objects from the caches.
pub(super) fn observe_objects(
    controller: Arc<Controller>,
    caches: &Caches,
    snapshot: Snapshot,
    now: Timestamp,
) -> Observed {
    let names = controller.child_names();
    let namespace = controller.namespace().unwrap_or_default();
    let spec = &controller.spec;
    let secret = |reference: Option<SecretKeyRef>| reference.and_then(|key| caches.secrets.get(&namespace, &key.name));
    let config_maps = referenced_config_maps(&controller)
        .filter_map(|name| Some((name.to_owned(), caches.config_maps.get(&namespace, name)?)))
        .collect();
    let config_map = |name: String| caches.config_maps.child_of(controller.as_ref(), &name);
    let stateful_set = caches
        .stateful_sets
        .child_of(controller.as_ref(), &names.stateful_set());
    let uid = stateful_set.as_ref().and_then(|set| set.uid());
    let pods = uid.map(|uid| caches.pods.owned_by(&uid)).unwrap_or_default();
    let mut node_sets = caches.node_sets.list(&namespace);
    node_sets.retain(|node_set| refers_to(&node_set.spec.controller_ref, &controller));
    let mut partitions = caches.partitions.list(&namespace);
    partitions.retain(|partition| refers_to(&partition.spec.controller_ref, &controller));
    Observed {
        slurm_key: secret(controller.slurm_key()),
        jwt_key: secret(controller.jwt_key()),
        claim: spec
            .existing_claim()
            .and_then(|name| caches.claims.get(&namespace, name)),
        rival: find_rival(&controller, caches),
        stateful_set,
        other_keys: [SLURM_KEY_FILE, JWT_KEY_FILE]
            .into_iter()
            .filter_map(|file| find_other_key(&controller, caches, file))
            .collect(),
        key_mismatch: None,
        images: Images::default(),
        outdated: Vec::new(),
        has_service_monitors: false,
        snapshot,
        inputs: Inputs {
            accounting: spec
                .accounting_name()
                .and_then(|name| caches.accountings.get(&namespace, name)),
            joining: observe_joining(&node_sets, &partitions, caches),
            node_sets,
            partitions,
            config_maps,
            config: config_map(names.config_map()),
            bundle: config_map(names.bundle_config_map()),
            history: config_map(names.history_config_map()),
            candidate: config_map(names.candidate_config_map()),
            pods,
            now,
            controller,
        },
    }
}

/// The workers of these NodeSets, if a Partition excludes some of them. Otherwise nothing depends on them.
fn observe_joining(node_sets: &[Arc<NodeSet>], partitions: &[Arc<Partition>], caches: &Caches) -> Vec<Joining> {
    if !partitions.iter().any(|partition| has_mark(partition)) {
        return Vec::new();
    }
    let mut joining = Vec::new();
    for node_set in node_sets {
        let pods = node_set.uid().map(|uid| caches.pods.owned_by(&uid)).unwrap_or_default();
        for pod in &pods {
            let worker = Worker(pod);
            // A pod without a node does not run.
            let runs = worker.is_active() && worker.kubernetes_node().is_some();
            joining.extend(worker.slurm_name().filter(|_| runs).map(|node| Joining {
                node_set: node_set.slurm_name(),
                node: node.to_owned(),
                since: slurmd_started(pod).unwrap_or_else(|| created(pod.as_ref())),
            }));
        }
    }
    joining
}

fn slurmd_started(pod: &Pod) -> Option<Timestamp> {
    let mut containers = pod.status.as_ref()?.container_statuses.iter().flatten();
    let slurmd = containers.find(|container| container.name == apps::SLURMD)?;
    Some(slurmd.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0)
}

/// Names of all ConfigMaps a Controller refers to.
pub(crate) fn referenced_config_maps(controller: &Controller) -> impl Iterator<Item = &str> {
    let spec = &controller.spec;
    let files = spec.file_refs().into_iter().flat_map(|(_, references)| references);
    let jwks = spec.jwks_key_ref.iter().map(|reference| reference.name.as_str());
    files.map(|reference| reference.name.as_str()).chain(jwks)
}

/// Whether a reference in the Controller's namespace is to this Controller. One into another namespace is ignored.
pub(crate) fn refers_to(reference: &ObjectRef, controller: &Controller) -> bool {
    let namespace = reference.namespace.as_ref().filter(|namespace| !namespace.is_empty());
    let is_elsewhere = namespace.is_some() && namespace != controller.metadata.namespace.as_ref();
    !is_elsewhere && reference.name == controller.name_any()
}

/// An older Controller that conflicts because of the cluster name: they would share an accounting database.
fn find_rival(controller: &Controller, caches: &Caches) -> Option<Key> {
    let name = controller.cluster_name();
    let age = |controller: &Controller| (created(controller), Key::of(controller));
    caches
        .controllers
        .all()
        .into_iter()
        .filter(|other| other.metadata.uid != controller.metadata.uid && other.cluster_name() == name)
        .filter(|other| age(other) < age(controller))
        .find(|other| other.namespace() == controller.namespace() || share_accounting(other, controller, caches))
        .map(|other| Key::of(other.as_ref()))
}

/// Whether both use the same external slurmdbd. Other slurmdbds are in the Controller's own namespace.
fn share_accounting(one: &Controller, other: &Controller, caches: &Caches) -> bool {
    let database = |controller: &Controller| {
        let namespace = controller.namespace().unwrap_or_default();
        let accounting = caches.accountings.get(&namespace, controller.spec.accounting_name()?)?;
        let (host, port) = accounting.spec.external_address()?;
        Some((host.to_owned(), port))
    };
    database(one).is_some_and(|database_of_one| database(other) == Some(database_of_one))
}
