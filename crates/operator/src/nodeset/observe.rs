//! Reads the NodeSet, the objects around it, and the snapshot of Slurm.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{
    Controller, NodeSet, Partition,
    keys::{apps, labels},
    nodeset::ScalingMode,
    references::SecretKeyRef,
    wellknown::SLURM_KEY_FILE,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    core::v1::{Node, PersistentVolumeClaim, Pod},
};
use kube::ResourceExt;
use slurm::revision::Digest;

use super::{
    build,
    identity::Identity,
    plan::{ConditionsSeen, LastSeen, fit, note_workers},
};
use crate::{
    cluster::Knowledge,
    defaults::Images,
    finding::Finding,
    key_mismatch::find_other_key,
    partition::rules::mark::has_mark,
    reason,
    runtime::{Caches, Key},
    worker::Worker,
};

/// What a plan is made from.
#[derive(Clone, Debug)]
pub struct Observed {
    pub nodeset: Arc<NodeSet>,
    pub controller: Option<Arc<Controller>>,
    /// Why the Controller is not known although it exists.
    pub unreadable_controller: Option<String>,
    pub controller_names: Vec<String>,
    /// All NodeSets of the same Controller, including this one, by name.
    pub siblings: Vec<Arc<NodeSet>>,
    /// Partitions of the same Controller that mark nodes.
    pub partitions: Vec<Arc<Partition>>,
    pub pods: Vec<Arc<Pod>>,
    /// Pods with the labels and names of this NodeSet that have no owner.
    pub orphans: Vec<Arc<Pod>>,
    /// Node names of the pods of other NodeSets of the same Controller.
    pub foreign_hostnames: BTreeMap<String, Key>,
    pub revisions: Vec<Arc<ControllerRevision>>,
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
    /// Kubernetes nodes by name: those with a worker, and those that may get one.
    pub nodes: BTreeMap<String, Arc<Node>>,
    /// Slurm's records of this NodeSet's nodes without a pod, by name.
    pub records: BTreeMap<String, Identity>,
    /// Since when the records have had no pod.
    pub without_pod: BTreeMap<String, Timestamp>,
    /// What this process last saw of the worker of each name.
    pub last_seen: BTreeMap<String, LastSeen>,
    /// Since when this process has seen the conditions of Kubernetes nodes that drain.
    pub conditions_seen: ConditionsSeen,
    /// Since when pods that the status counts have been gone, while Slurm does not respond.
    pub vanished_since: Option<Timestamp>,
    pub namespace_goes: bool,
    /// Content of sssd.conf, if the spec refers to one and it exists.
    pub sssd_conf: Option<Vec<u8>>,
    /// Digest of the cluster's key, if it exists.
    pub slurm_key: Option<String>,
    /// Problem with a Secret that workers need to start.
    pub missing_secret: Option<Finding>,
    pub knowledge: Knowledge,
    /// Message about workers whose key differs from slurmctld's.
    pub key_mismatch: Option<String>,
    pub environment: Environment,
    pub now: Timestamp,
}

/// What is neither in the caches nor in Slurm.
#[derive(Clone, Debug)]
pub struct Environment {
    pub images: Images,
    pub cluster_domain: String,
    /// Conditions of Kubernetes nodes whose messages become part of drain reasons.
    pub propagated_conditions: Vec<String>,
    /// Whether the installed CRDs are older than this operator.
    pub crds_outdated: bool,
    /// Since when a deleted NodeSet has had nothing left in Slurm.
    pub empty_since: Option<Timestamp>,
    /// What this process had seen of workers before.
    pub last_seen: BTreeMap<String, LastSeen>,
}

impl Observed {
    pub fn workers(&self) -> impl Iterator<Item = Worker<'_>> {
        self.pods.iter().map(|pod| Worker(pod))
    }

    pub fn host(&self, worker: Worker<'_>) -> Option<&Node> {
        self.nodes.get(worker.kubernetes_node()?).map(AsRef::as_ref)
    }

    /// Returns the Slurm node of a worker, as the snapshot has it.
    pub fn slurm_node(&self, worker: Worker<'_>) -> Option<&slurm::Node> {
        self.knowledge.known()?.nodes.get(worker.slurm_name()?)
    }

    /// Returns how long a worker has to be ready to count as available.
    pub fn min_ready(&self) -> SignedDuration {
        SignedDuration::from_secs(self.nodeset.spec.min_ready_seconds().into())
    }

    /// Returns the Kubernetes node of each pinned ordinal. A pin lasts as long as its node: neither a cordon nor an outage
    /// ends it.
    pub fn pins(&self) -> BTreeMap<u32, &Node> {
        if !self.nodeset.spec.pins_to_node() {
            return BTreeMap::new();
        }
        let status = self.nodeset.status.as_ref();
        let pinned = status.and_then(|status| status.ordinal_to_node.as_ref());
        let pinned = pinned.into_iter().flatten();
        pinned
            .filter_map(|(ordinal, name)| Some((ordinal.parse().ok()?, self.nodes.get(name)?.as_ref())))
            .filter(|(_, node)| fit(&self.nodeset, node).stay)
            .collect()
    }
}

pub fn observe(
    caches: &Caches,
    nodeset: Arc<NodeSet>,
    knowledge: Knowledge,
    mut environment: Environment,
    now: Timestamp,
) -> Observed {
    let namespace = nodeset.namespace().unwrap_or_default();
    let namespace = namespace.as_str();
    let uid = nodeset.uid().unwrap_or_default();
    let controller_name = nodeset.spec.controller_ref.name.as_str();
    let controller = caches.controllers.get(namespace, controller_name);
    let mut siblings = caches.node_sets.list(namespace);
    siblings.retain(|other| other.spec.controller_ref.name == controller_name);
    let mut partitions = caches.partitions.list(namespace);
    partitions.retain(|partition| partition.spec.controller_ref.name == controller_name && has_mark(partition));
    let controllers = caches.controllers.list(namespace);
    // In this order, a pod that loses its owner meanwhile is in both lists rather than in neither.
    let pods = caches.pods.owned_by(&uid);
    let (orphans, foreign_hostnames) = observe_foreign_pods(caches, &nodeset);
    let mut last_seen = std::mem::take(&mut environment.last_seen);
    let records = observe_records(&nodeset, &pods, &knowledge, &last_seen);
    if knowledge.known().is_some() {
        // Names that nothing needs any more are forgotten.
        last_seen.retain(|name, last| records.contains_key(name) || !last.is_past(now));
    }
    note_workers(&mut last_seen, &pods, now);
    let nodes = observe_nodes(caches, &nodeset, &pods, &records, &last_seen);
    let (slurm_key, sssd_conf, missing_secret) = observe_secrets(caches, &nodeset, controller.as_deref());
    Observed {
        claims: observe_claims(caches, &nodeset, &pods),
        controller_names: controllers.iter().map(|controller| controller.name_any()).collect(),
        pods,
        records,
        without_pod: BTreeMap::new(),
        last_seen,
        conditions_seen: ConditionsSeen::new(),
        vanished_since: None,
        namespace_goes: caches.is_ending(namespace),
        revisions: caches.revisions.owned_by(&uid),
        nodes,
        nodeset,
        partitions,
        controller,
        unreadable_controller: None,
        siblings,
        orphans,
        foreign_hostnames,
        slurm_key,
        sssd_conf,
        missing_secret,
        key_mismatch: None,
        knowledge,
        environment,
        now,
    }
}

/// Returns the records of this NodeSet: by the operator's comment, or what is left if slurmctld has forgotten that.
fn observe_records(
    nodeset: &NodeSet,
    pods: &[Arc<Pod>],
    knowledge: &Knowledge,
    last_seen: &BTreeMap<String, LastSeen>,
) -> BTreeMap<String, Identity> {
    let uid = nodeset.uid().unwrap_or_default();
    let with_pod: BTreeSet<&str> = pods.iter().filter_map(|pod| Worker(pod).slurm_name()).collect();
    let nodes = knowledge.known().into_iter().flat_map(|seen| seen.nodes.values());
    let described = |node: &slurm::Node| {
        // Comments of other NodeSets are not parsed.
        let comment = Some(&node.comment).filter(|comment| comment.contains(&uid))?;
        Identity::parse(comment).filter(|identity| identity.node_set_uid == uid)
    };
    // A killed slurmctld may have forgotten the comment, and that the record was deleted.
    let has_ordinals = nodeset.spec.scaling_mode() == ScalingMode::StatefulSet;
    let (namespace, prefix) = (
        nodeset.namespace().unwrap_or_default(),
        format!("{}-", nodeset.name_any()),
    );
    let leaving = |node: &slurm::Node| {
        let is_left = has_ordinals && (node.state.is_drain() || node.state.is_down());
        let identity = Identity::of_leaving(&node.reason).filter(|_| is_left)?;
        let ordinal = identity.pod_name.strip_prefix(&prefix)?;
        (identity.namespace == namespace && ordinal.parse::<u32>().is_ok()).then_some(identity)
    };
    let ended = |node: &slurm::Node| {
        let pod = last_seen.get(&node.name)?.ended_pod()?;
        Some(Identity {
            namespace: namespace.clone(),
            pod_name: pod.to_owned(),
            ..Identity::default()
        })
    };
    let forgotten = |node: &slurm::Node| {
        let node = Some(node).filter(|node| node.comment.is_empty())?;
        leaving(node).or_else(|| ended(node))
    };
    nodes
        .filter(|node| node.state.is_dynamic() && !with_pod.contains(node.name.as_str()))
        .filter_map(|node| Some((node.name.clone(), described(node).or_else(|| forgotten(node))?)))
        .collect()
}

/// Returns all nodes in `DaemonSet` mode, else those of workers, existing or gone.
fn observe_nodes(
    caches: &Caches,
    nodeset: &NodeSet,
    pods: &[Arc<Pod>],
    records: &BTreeMap<String, Identity>,
    last_seen: &BTreeMap<String, LastSeen>,
) -> BTreeMap<String, Arc<Node>> {
    if nodeset.spec.scaling_mode() == ScalingMode::DaemonSet {
        let all = caches.nodes.all().into_iter();
        return all.map(|node| (node.name_any(), node)).collect();
    }
    let hosts = pods.iter().filter_map(|pod| Worker(pod).kubernetes_node());
    let status = nodeset.status.as_ref();
    let pinned = status
        .filter(|_| nodeset.spec.pins_to_node())
        .and_then(|status| status.ordinal_to_node.as_ref());
    let cut_off = status.and_then(|status| status.cut_off.as_ref());
    let noted = [pinned, cut_off].into_iter().flatten().flatten();
    hosts
        .chain(noted.map(|(_, node)| node.as_str()))
        .chain(records.values().map(|identity| identity.node.as_str()))
        .chain(last_seen.values().filter_map(LastSeen::node))
        .filter_map(|name| Some((name.to_owned(), caches.nodes.get("", name)?)))
        .collect()
}

/// Returns the pods to adopt, and the node names of all other foreign workers.
fn observe_foreign_pods(caches: &Caches, nodeset: &NodeSet) -> (Vec<Arc<Pod>>, BTreeMap<String, Key>) {
    let namespace = nodeset.namespace().unwrap_or_default();
    let name = nodeset.name_any();
    let cluster = nodeset.spec.controller_ref.name.as_str();
    let mut orphans = Vec::new();
    let mut hostnames = BTreeMap::new();
    for pod in caches.pods.list(&namespace) {
        let mut owners = pod.owner_references().iter();
        let owner = owners.find(|owner| owner.controller == Some(true));
        if owner.is_some_and(|owner| Some(&owner.uid) == nodeset.metadata.uid.as_ref()) {
            continue;
        }
        let worker = Worker(&pod);
        if worker.label(labels::NAME) != Some(apps::SLURMD) {
            continue;
        }
        let prefix = pod.metadata.generate_name.as_deref();
        let is_named_after = worker.ordinal(&name).is_some() || prefix == Some(&nodeset.child_names().pod_prefix());
        let is_ours = worker.label(labels::INSTANCE) == Some(&name) && is_named_after;
        if owner.is_none() && is_ours && worker.is_active() {
            orphans.push(pod);
        } else if worker.label(labels::CLUSTER) == Some(cluster)
            && let Some(hostname) = worker.slurm_name()
        {
            hostnames.insert(hostname.to_owned(), Key::of(pod.as_ref()));
        }
    }
    (orphans, hostnames)
}

fn observe_claims(caches: &Caches, nodeset: &NodeSet, pods: &[Arc<Pod>]) -> Vec<Arc<PersistentVolumeClaim>> {
    if nodeset.spec.claim_templates().is_empty() {
        return Vec::new();
    }
    let namespace = nodeset.namespace().unwrap_or_default();
    let suffixes: BTreeSet<&str> = pods.iter().filter_map(|pod| Worker(pod).claim_suffix()).collect();
    suffixes
        .iter()
        .flat_map(|suffix| build::claims_of(nodeset, suffix))
        .filter_map(|name| caches.claims.get(&namespace, &name))
        .collect()
}

/// Returns the digest of the key, sssd.conf, and the first problem with their Secrets.
fn observe_secrets(
    caches: &Caches,
    nodeset: &NodeSet,
    controller: Option<&Controller>,
) -> (Option<String>, Option<Vec<u8>>, Option<Finding>) {
    let namespace = nodeset.namespace().unwrap_or_default();
    let mut missing = None;
    let mut entry = |SecretKeyRef { name, key, .. }: &SecretKeyRef, field: &str| {
        let secret = caches.secrets.get(&namespace, name);
        let data = secret.as_ref().and_then(|secret| secret.data.as_ref()?.get(key));
        if data.is_none() {
            missing.get_or_insert_with(|| match secret {
                None => format!("{field} names Secret {name:?}, which does not exist; create it, or name another"),
                Some(_) => {
                    format!("{field} names the entry {key:?} of Secret {name:?}, which has no such entry; add it")
                }
            });
        }
        data.map(|bytes| bytes.0.clone())
    };
    let slurm_key = controller.and_then(|controller| entry(&controller.slurm_key()?, "slurmKeyRef of the Controller"));
    let sssd = nodeset.spec.wanted_sssd();
    let sssd_conf = sssd.and_then(|reference| entry(reference, "spec.ssh.sssdConfRef"));
    let missing = missing.map(|message| Finding::blocking(reason::SECRET_MISSING, message));
    let missing = missing.or_else(|| {
        let other = find_other_key(controller?, caches, SLURM_KEY_FILE)?;
        Some(Finding::blocking(reason::KEY_MISMATCH, other))
    });
    let slurm_key = slurm_key.map(|bytes| Digest::of(&bytes).to_string());
    (slurm_key, sssd_conf, missing)
}
