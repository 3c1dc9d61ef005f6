//! Carries out a plan. After a failed step, the later steps that do not depend on it are still carried out.

use std::sync::Arc;

use api::{
    Controller,
    keys::{ON, annotations, labels},
};
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use kube::ResourceExt as _;
use serde_json::json;
use tracing::info;

use super::{
    build::{KEY_LENGTH, build_key},
    plan::{Effect, Plan},
};
use crate::{
    cluster::Follower,
    configuration::{DeliveryChange, WakeKubelet},
    parent::Parent,
    reason,
    runtime::{Applied, Context, Error, Key, Writer},
};

pub(super) async fn apply(context: &Context, writer: &Writer, controller: &Arc<Controller>, plan: &Plan) -> Applied {
    let key = Key::of(controller.as_ref());
    let configuration = &plan.configuration;
    if let Some(sent) = &configuration.sent {
        context.clusters.note_sent(&key, sent.clone());
    }
    if let Some(hides) = configuration.hides_records {
        context.clusters.note_hidden_records(&key, hides);
    }
    if let Some(states) = &configuration.remembered_states {
        context.clusters.note_manual_states(&key, states.clone());
    }
    context
        .clusters
        .follow_jobs(&key, &Follower::Controller, configuration.depends_on_slurm);
    let mut applied = Applied::default();
    for new in &plan.keys {
        let mut bytes = vec![0; KEY_LENGTH];
        context.clock.host().fill(&mut bytes);
        info!(controller = %key, secret = %new.name, "generating a key");
        // If the Secret exists already, its key is kept, and the next reconcile reads it.
        let secret = build_key(&Parent::new(controller), new, bytes);
        applied.note(writer.create(&secret).await);
    }
    for service in &plan.services {
        applied.note(writer.apply(service).await);
    }
    let mut configured = true;
    for config_map in configuration.history.iter().chain(&configuration.config_maps) {
        configured &= applied.note(writer.apply(config_map).await);
    }
    let set = plan.stateful_set.as_ref().filter(|_| configured);
    applied.apply(writer, set).await;
    applied.apply(writer, plan.service_monitor.as_ref()).await;
    if let Some(wake) = &configuration.wake_kubelet {
        applied.note(wake_kubelet(writer, &key, wake).await);
    }
    match &configuration.delivery {
        DeliveryChange::None => {}
        DeliveryChange::Pause => context.clusters.deliver(&key, None),
        DeliveryChange::Deliver(wanted) => context.clusters.deliver(&key, Some((**wanted).clone())),
    }
    for effect in &plan.effects {
        let done = carry_out(context, writer, controller, &key, effect).await;
        applied.note(done);
    }
    context.clusters.publish(&key, configuration.partitions.clone());
    if let (Some(keep), Some(uid)) = (&plan.keep, controller.uid()) {
        let caches = &context.caches;
        applied.note(writer.prune(&caches.stateful_sets, &uid, &keep.stateful_sets).await);
        applied.note(writer.prune(&caches.services, &uid, &keep.services).await);
        applied.note(writer.prune(&caches.config_maps, &uid, &keep.config_maps).await);
        let monitors = &caches.service_monitors;
        applied.note(writer.prune(monitors, &uid, &keep.service_monitors).await);
    }
    applied
}

/// Makes the kubelet refresh the mount of a revision that was sent in a ConfigMap.
async fn wake_kubelet(writer: &Writer, key: &Key, wake: &WakeKubelet) -> Result<(), Error> {
    let WakeKubelet { pod, uid, sequence } = wake;
    info!(controller = %key, %pod, sequence, "annotating the pod so that the kubelet refreshes its mounts");
    let noted = json!({ annotations::CANDIDATE: sequence.to_string() });
    let patch = json!({ "metadata": { "uid": uid, "annotations": noted } });
    writer.patch_if_there::<Pod>(&key.namespace, pod, patch).await
}

async fn carry_out(
    context: &Context,
    writer: &Writer,
    controller: &Arc<Controller>,
    key: &Key,
    effect: &Effect,
) -> Result<(), Error> {
    match effect {
        Effect::LabelActive { pod, uid, active } => {
            info!(controller = %key, %pod, active, "labelling the pod as active or standby");
            let value = active.then_some(ON);
            // The UID prevents that a newer pod of this name gets the label.
            let patch = json!({ "metadata": { "uid": uid, "labels": { labels::CONTROLLER_ACTIVE: value } } });
            writer.patch_if_there::<Pod>(&key.namespace, pod, patch).await?;
        }
        Effect::DeleteStatefulSet { name, uid, why } => {
            info!(controller = %key, stateful_set = %name, %why, "replacing the StatefulSet");
            context.events.warn(
                controller.as_ref(),
                reason::REPLACING,
                format!("StatefulSet {name} is replaced: {why}"),
            );
            writer.delete::<StatefulSet>(&key.namespace, name, uid).await?;
        }
        Effect::DeletePod { pod, uid, why } => {
            info!(controller = %key, %pod, %why, "replacing a pod that does not start slurmctld any more");
            context.events.warn(
                controller.as_ref(),
                reason::POD_SUPERSEDED,
                format!("pod {pod} is replaced, because it does not start slurmctld any more: {why}"),
            );
            writer.delete::<Pod>(&key.namespace, pod, uid).await?;
        }
    }
    Ok(())
}
