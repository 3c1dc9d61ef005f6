//! Labels and annotations of workers that run. They are no reason to replace a worker, so they are put on it as it is: after
//! a takeover, after a change of the template's metadata, or after somebody took one away by which it is found.

use api::keys::{self, apps, labels};
use kube::ResourceExt;

use super::{Effect, Marks, Plan, id, worker::Worker};
use crate::nodeset::build::{self, Blueprint};

pub(super) fn plan_marks(blueprint: &Blueprint<'_>, workers: &[Worker<'_>], plan: &mut Plan) {
    let nodeset = blueprint.nodeset;
    let given = nodeset
        .spec
        .template
        .as_ref()
        .and_then(|template| template.metadata.clone())
        .unwrap_or_default();
    let mut wanted = given.labels.unwrap_or_default();
    wanted.extend(build::worker_labels(nodeset));
    wanted.insert(labels::SLINKY_COMPONENT.to_owned(), apps::SLURMD.to_owned());
    let protects = nodeset.spec.protects_workload();
    for worker in workers.iter().filter(|worker| worker.is_active()) {
        let mut changed: Marks = wanted
            .iter()
            .filter(|(key, value)| worker.label(key) != Some(value))
            .map(|(key, value)| (key.clone(), Some(value.clone())))
            .collect();
        if worker.label(labels::POD_NAME) != Some(worker.name()) {
            changed.insert(labels::POD_NAME.to_owned(), Some(worker.name().to_owned()));
        }
        let is_protected = worker.label(labels::POD_PROTECT) == Some(keys::ON);
        if is_protected != protects {
            changed.insert(labels::POD_PROTECT.to_owned(), protects.then(|| keys::ON.to_owned()));
        }
        let annotations: Marks = given
            .annotations
            .iter()
            .flatten()
            .filter(|(key, value)| worker.0.annotations().get(*key) != Some(value))
            .map(|(key, value)| (key.clone(), Some(value.clone())))
            .collect();
        if !changed.is_empty() || !annotations.is_empty() {
            plan.effects.push(Effect::MarkPod {
                pod: id(*worker),
                labels: changed,
                annotations,
            });
        }
    }
}
