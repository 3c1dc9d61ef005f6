//! Labels and annotations of running workers. They are no reason to replace a worker, so they are patched: after a
//! takeover, after a change of the template's metadata, or after a label was removed that selects the pod.

use std::collections::BTreeMap;

use api::keys::{
    annotations::{SSSD_CONF_HASH, TOPOLOGY},
    apps, labels,
};
use kube::ResourceExt;
use slurm::revision::Digest;

use super::{Effect, MetadataPatch, Plan};
use crate::{
    nodeset::build::{self, Blueprint},
    worker::{ObjectId, Worker},
};

pub(super) fn plan_marks(blueprint: &Blueprint<'_>, workers: &[Worker<'_>], plan: &mut Plan) {
    let nodeset = blueprint.nodeset;
    let given = nodeset.spec.pod_metadata().cloned().unwrap_or_default();
    let mut wanted = given.labels.unwrap_or_default();
    wanted.extend(build::worker_labels(nodeset));
    // [`super::protect`] decides about this label.
    wanted.remove(labels::POD_PROTECT);
    wanted.insert(labels::SLINKY_COMPONENT.to_owned(), apps::SLURMD.to_owned());
    let sssd_conf = blueprint.sssd_conf.map(|bytes| Digest::of(bytes).to_string());
    for worker in workers.iter().filter(|worker| worker.is_active()) {
        let mut changed: MetadataPatch = wanted
            .iter()
            .filter(|(key, value)| worker.label(key) != Some(value))
            .map(|(key, value)| (key.clone(), Some(value.clone())))
            .collect();
        if worker.label(labels::POD_NAME) != Some(worker.name()) {
            changed.insert(labels::POD_NAME.to_owned(), Some(worker.name().to_owned()));
        }
        let mut annotations: MetadataPatch = given
            .annotations
            .iter()
            .flatten()
            // The Kubernetes node decides about the topology.
            .filter(|(key, _)| *key != TOPOLOGY)
            .filter(|(key, value)| worker.0.annotations().get(*key) != Some(value))
            .map(|(key, value)| (key.clone(), Some(value.clone())))
            .collect();
        if let Some(hash) = sssd_conf.as_ref().filter(|hash| is_behind(*worker, hash)) {
            annotations.insert(SSSD_CONF_HASH.to_owned(), Some(hash.clone()));
        }
        if !changed.is_empty() || !annotations.is_empty() {
            plan.effects.push(Effect::MarkPod {
                pod: worker.id(),
                labels: changed,
                annotations,
            });
        }
    }
}

/// Whether its sssd.conf differs and can be updated. The annotation makes the kubelet update the file at once; otherwise
/// that takes a minute or more.
fn is_behind(worker: Worker<'_>, sssd_conf: &str) -> bool {
    let noted = worker.0.annotations().get(SSSD_CONF_HASH);
    noted.is_none_or(|noted| noted != sssd_conf) && build::takes_changed_sssd_conf(worker.0)
}

/// Merges the patches of several rules into one per pod.
pub(super) fn gather(effects: &mut Vec<Effect>) {
    let mut marks: BTreeMap<ObjectId, (MetadataPatch, MetadataPatch)> = BTreeMap::new();
    effects.retain(|effect| {
        let Effect::MarkPod {
            pod,
            labels,
            annotations,
        } = effect
        else {
            return true;
        };
        let (all_labels, all_annotations) = marks.entry(pod.clone()).or_default();
        all_labels.extend(labels.clone());
        all_annotations.extend(annotations.clone());
        false
    });
    effects.extend(marks.into_iter().map(|(pod, (labels, annotations))| Effect::MarkPod {
        pod,
        labels,
        annotations,
    }));
}
