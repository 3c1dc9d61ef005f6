//! Judges an object by the files that slurmctld would get: it plans a new cluster with all objects of its Controller,
//! before and after the change.

use std::{collections::BTreeMap, sync::Arc};

use api::{Accounting, Controller, NodeSet, Partition, validate::check_shared_claim};
use host::Host;
use k8s_openapi::{
    api::core::v1::{ConfigMap, PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{Resource, ResourceExt as _};
use runtime::admission::Verdict;
use serde::de::DeserializeOwned;

use super::{Change, reads::Reads};
use crate::{
    cluster::Snapshot,
    configuration::{Inputs, plan},
    controller::{referenced_config_maps, refers_to},
    finding::Finding,
    reason,
};

/// Reasons to reject a request. The others depend on objects that may be on their way, or on Slurm's answers.
const REJECTED: [&str; 5] = [
    reason::CONFIG_REJECTED,
    reason::BAD_FILE,
    reason::BAD_PARTITION,
    reason::PARTITION_NAME_TAKEN,
    reason::CONFIG_MAP_MISSING,
];
/// Reasons that only Slurm's answers settle.
const UNKNOWN: [&str; 3] = [
    reason::WAITS_FOR_JOBS,
    reason::WAITS_FOR_ACCOUNTING,
    reason::WAITS_FOR_NODES,
];

/// A kind that has a part in slurmctld's files.
pub(super) trait Previewed: Resource<DynamicType = ()> + Clone + DeserializeOwned {
    /// The name of its Controller.
    fn controller(&self) -> String;

    /// The object, if it is a Controller.
    fn as_controller(&self) -> Option<&Controller> {
        None
    }

    /// Puts it into the inputs, in place of its former version.
    fn place(self, inputs: &mut Inputs);

    /// Whether a finding is about this object. It begins with the field or the object.
    fn owns(&self, message: &str) -> bool;
}

impl Previewed for Controller {
    fn controller(&self) -> String {
        self.name_any()
    }

    fn as_controller(&self) -> Option<&Controller> {
        Some(self)
    }

    fn place(self, inputs: &mut Inputs) {
        inputs.controller = Arc::new(self);
    }

    fn owns(&self, message: &str) -> bool {
        message.starts_with("spec.") || message.starts_with("ConfigMap ")
    }
}

impl Previewed for NodeSet {
    fn controller(&self) -> String {
        self.spec.controller_ref.name.clone()
    }

    fn place(self, inputs: &mut Inputs) {
        replace(&mut inputs.node_sets, self);
    }

    fn owns(&self, message: &str) -> bool {
        message.starts_with(&format!("NodeSet {:?}", self.name_any()))
    }
}

impl Previewed for Partition {
    fn controller(&self) -> String {
        self.spec.controller_ref.name.clone()
    }

    fn place(self, inputs: &mut Inputs) {
        replace(&mut inputs.partitions, self);
    }

    fn owns(&self, message: &str) -> bool {
        message.starts_with(&format!("Partition {:?}", self.name_any()))
    }
}

fn replace<K: Resource<DynamicType = ()>>(objects: &mut Vec<Arc<K>>, object: K) {
    objects.retain(|other| other.name_any() != object.name_any());
    objects.push(Arc::new(object));
}

/// What the change does to slurmctld's files. What was wrong before is not rejected.
pub(super) async fn preview<K: Previewed>(reads: &Reads, namespace: &str, change: &Change<K>) -> Verdict {
    match read(reads, namespace, change).await {
        Ok(Some((inputs, claim))) => judge(&inputs, claim.as_deref(), change),
        // Its Controller may be on its way.
        Ok(None) => Verdict::default(),
        Err(error) => Verdict::warn(format!(
            "it was not checked against the cluster's other objects, because they cannot be read: {error}"
        )),
    }
}

fn judge<K: Previewed>(inputs: &Inputs, claim: Option<&PersistentVolumeClaim>, change: &Change<K>) -> Verdict {
    let before = change.old.as_ref().map(|old| with(inputs, old)).as_ref().map(plan_new);
    let after = plan_new(&with(inputs, &change.new));
    let (mut verdict, before) = (Verdict::default(), before.unwrap_or_default());
    for Finding { reason, message, .. } in after.0 {
        if !change.new.owns(&message) || UNKNOWN.contains(&reason) {
            continue;
        }
        let was_before = before.0.iter().any(|other| other.message == message);
        if REJECTED.contains(&reason) && !was_before {
            verdict.errors.push(message);
        } else {
            verdict.warnings.push(message);
        }
    }
    let doubts = after.1.into_iter().filter(|doubt| !before.1.contains(doubt));
    verdict.warnings.extend(doubts);
    if let Some((controller, claim)) = change.new.as_controller().zip(claim) {
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref());
        let problems = check_shared_claim(controller, modes.unwrap_or_default());
        verdict.errors.extend(problems.errors().map(ToString::to_string));
    }
    verdict
}

fn with<K: Previewed>(inputs: &Inputs, object: &K) -> Inputs {
    let (mut inputs, mut object) = (inputs.clone(), object.clone());
    let metadata = object.meta_mut();
    // A new object has neither yet. The youngest one loses a conflict.
    metadata.uid.get_or_insert_with(|| "new".to_owned());
    metadata.creation_timestamp.get_or_insert(Time(inputs.now));
    object.place(&mut inputs);
    inputs
}

/// What is wrong, and what is doubtful, in a cluster that starts with these inputs.
fn plan_new(inputs: &Inputs) -> (Vec<Finding>, Vec<String>) {
    let outcome = plan(inputs, &Snapshot::default(), None);
    (outcome.findings, outcome.doubts)
}

/// Reads what the files depend on, and the claim that standbys share.
async fn read<K: Previewed>(
    reads: &Reads,
    namespace: &str,
    change: &Change<K>,
) -> Result<Option<(Inputs, Option<Arc<PersistentVolumeClaim>>)>, Arc<kube::Error>> {
    let controller = match change.new.as_controller() {
        Some(controller) => Arc::new(controller.clone()),
        None => match reads.get(namespace, &change.new.controller()).await? {
            Some(controller) => controller,
            None => return Ok(None),
        },
    };
    let mut inputs = Inputs {
        controller,
        accounting: None,
        node_sets: reads.list(namespace).await?,
        partitions: reads.list(namespace).await?,
        joining: Vec::new(),
        config_maps: BTreeMap::new(),
        config: None,
        bundle: None,
        history: None,
        candidate: None,
        pods: Vec::new(),
        now: Host::real().timestamp(),
    };
    let controller = Arc::clone(&inputs.controller);
    inputs
        .node_sets
        .retain(|found| refers_to(&found.spec.controller_ref, &controller));
    inputs
        .partitions
        .retain(|found| refers_to(&found.spec.controller_ref, &controller));
    for name in referenced_config_maps(&controller) {
        if let Some(found) = reads.get::<ConfigMap>(namespace, name).await? {
            inputs.config_maps.insert(name.to_owned(), found);
        }
    }
    if let Some(name) = controller.spec.accounting_name() {
        inputs.accounting = reads.get::<Accounting>(namespace, name).await?;
    }
    let claim = match controller
        .spec
        .existing_claim()
        .filter(|_| change.new.as_controller().is_some())
    {
        Some(name) => reads.get(namespace, name).await?,
        None => None,
    };
    Ok(Some((inputs, claim)))
}
