//! What there is: the Controller, everything it refers to, its children, and what its agent last said. Reads only.

use std::{collections::BTreeMap, sync::Arc};

use api::{
    Accounting, Controller, NodeSet, Partition,
    references::{ObjectRef, SecretKeyRef},
};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret},
};
use kube::ResourceExt;
use slurm::revision::Digest;

use super::{
    inputs::created,
    joining::{Joining, observe_joining},
    push::{Live, Report},
    since::Lives,
    tries::Tried,
};
use crate::{
    access::{Knowledge, Seen},
    defaults::Images,
    outside::View,
    runtime::{Caches, Key},
};

/// Everything a plan is made from.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) controller: Arc<Controller>,
    /// The one it refers to.
    pub(super) accounting: Option<Arc<Accounting>>,
    /// Those that refer to it, by name.
    pub(super) node_sets: Vec<Arc<NodeSet>>,
    /// Likewise.
    pub(super) partitions: Vec<Arc<Partition>>,
    /// Workers of the NodeSets that Slurm may not have shown yet.
    pub(super) joining: Vec<Joining>,
    /// Those it refers to, by name.
    pub(super) config_maps: BTreeMap<String, Arc<ConfigMap>>,
    pub(super) slurm_key: Option<Arc<Secret>>,
    pub(super) jwt_key: Option<Arc<Secret>>,
    /// The claim it shares among its slurmctld.
    pub(super) claim: Option<Arc<PersistentVolumeClaim>>,
    /// An older Controller within reach that has the same cluster name.
    pub(super) rival: Option<Key>,
    pub(super) stateful_set: Option<Arc<StatefulSet>>,
    pub(super) config: Option<Arc<ConfigMap>>,
    pub(super) bundle: Option<Arc<ConfigMap>>,
    pub(super) history: Option<Arc<ConfigMap>>,
    /// What was sent to an agent that could not be reached.
    pub(super) candidate: Option<Arc<ConfigMap>>,
    /// slurmctld's, by name.
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) report: Report,
    /// What Slurm said of its nodes and jobs.
    pub(super) knowledge: Knowledge,
    /// What slurmctld ran with, and since when.
    pub(super) lives: Lives,
    /// What slurmctld was last known to run with, if this operator has sent it.
    pub(super) served: Option<(Live, Arc<Tried>)>,
    /// What was seen last of a slurmctld outside Kubernetes.
    pub(super) outside: Option<Arc<View>>,
    /// Nodes that have not taken the last change over, as a hostlist.
    pub(super) lagging: Option<String>,
    /// Which daemons of the cluster have different keys, in words for people.
    pub(super) key_mismatch: Option<String>,
    pub(super) images: Images,
    /// Definitions that are older than this operator.
    pub(super) outdated: Vec<String>,
    /// Whether the cluster knows ServiceMonitors.
    pub(super) has_service_monitors: bool,
}

/// Reads from the caches what concerns this Controller.
pub(super) fn observe(
    controller: Arc<Controller>,
    caches: &Caches,
    report: Report,
    knowledge: Knowledge,
    images: Images,
    outdated: Vec<String>,
    has_service_monitors: bool,
) -> Observed {
    let names = controller.child_names();
    let namespace = controller.namespace().unwrap_or_default();
    let spec = &controller.spec;
    let secret = |reference: Option<SecretKeyRef>| reference.and_then(|key| caches.secrets.get(&namespace, &key.name));
    let config_maps = referenced_config_maps(&controller)
        .filter_map(|name| Some((name.to_owned(), caches.config_maps.get(&namespace, name)?)))
        .collect();
    let stateful_set = caches
        .stateful_sets
        .child_of(controller.as_ref(), &names.stateful_set());
    let config_map = |name: String| caches.config_maps.child_of(controller.as_ref(), &name);
    let pods = stateful_set
        .as_ref()
        .and_then(|set| set.uid())
        .map(|uid| caches.pods.owned_by(&uid))
        .unwrap_or_default();
    let node_sets: Vec<Arc<NodeSet>> = caches
        .node_sets
        .list(&namespace)
        .into_iter()
        .filter(|node_set| refers_to(node_set.as_ref(), &node_set.spec.controller_ref, &controller))
        .collect();
    let partitions: Vec<Arc<Partition>> = caches
        .partitions
        .list(&namespace)
        .into_iter()
        .filter(|partition| refers_to(partition.as_ref(), &partition.spec.controller_ref, &controller))
        .collect();
    Observed {
        accounting: spec
            .accounting_name()
            .and_then(|name| caches.accountings.get(&namespace, name)),
        joining: observe_joining(&node_sets, &partitions, caches),
        node_sets,
        partitions,
        config_maps,
        slurm_key: secret(controller.slurm_key()),
        jwt_key: secret(controller.jwt_key()),
        claim: spec
            .existing_claim()
            .and_then(|name| caches.claims.get(&namespace, name)),
        rival: find_rival(&controller, caches),
        stateful_set,
        config: config_map(names.config_map()),
        bundle: config_map(names.bundle_config_map()),
        history: config_map(names.history_config_map()),
        candidate: config_map(names.candidate_config_map()),
        pods,
        report,
        knowledge,
        lives: Lives::new(),
        served: None,
        outside: None,
        lagging: None,
        key_mismatch: None,
        images,
        outdated,
        has_service_monitors,
        controller,
    }
}

impl Observed {
    /// What Slurm said, if that was when slurmctld had these files, and no others yet.
    pub(super) fn fresh(&self, accepted: Digest) -> Option<&Seen> {
        let index = self.lives.iter().position(|(digest, _)| *digest == accepted)?;
        let (_, since) = self.lives.get(index)?;
        // What came after it is not accepted yet, and what was read since then is about that.
        let until = self.lives.get(index + 1).map(|(_, at)| *at);
        let is_about_it = |seen: &&Seen| seen.at > *since && until.is_none_or(|until| seen.at < until);
        self.knowledge.known().filter(is_about_it)
    }
}

/// Names of all ConfigMaps a Controller refers to.
pub(super) fn referenced_config_maps(controller: &Controller) -> impl Iterator<Item = &str> {
    let spec = &controller.spec;
    let files = spec.file_refs().into_iter().flat_map(|(_, references)| references);
    let jwks = spec.jwks_key_ref.iter().map(|reference| reference.name.as_str());
    files.map(|reference| reference.name.as_str()).chain(jwks)
}

/// Whether an object with this reference belongs to this Controller. A reference into another namespace is none.
pub(super) fn refers_to(object: &impl ResourceExt, reference: &ObjectRef, controller: &Controller) -> bool {
    let own = object.namespace();
    let elsewhere = reference
        .namespace
        .as_ref()
        .is_some_and(|namespace| !namespace.is_empty() && Some(namespace) != own.as_ref());
    !elsewhere && own == controller.namespace() && reference.name == controller.name_any()
}

/// An older Controller that this one cannot have the cluster name beside: they would share an accounting database.
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

/// Whether both write into one slurmdbd outside Kubernetes. Others are in the Controller's own namespace.
fn share_accounting(one: &Controller, other: &Controller, caches: &Caches) -> bool {
    let database = |controller: &Controller| {
        let namespace = controller.namespace().unwrap_or_default();
        let accounting = caches.accountings.get(&namespace, controller.spec.accounting_name()?)?;
        let (host, port) = accounting.spec.external_address()?;
        Some((host.to_owned(), port))
    };
    database(one).is_some_and(|database_of_one| database(other) == Some(database_of_one))
}
