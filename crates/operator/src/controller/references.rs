//! Which Controllers a change affects.

use api::{Accounting, Controller, NodeSet, Partition, keys::apps};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service},
};

use super::observe::referenced_config_maps;
use crate::{
    references::{References, keys_of},
    runtime::{Key, ServiceMonitor},
};

pub(super) fn references() -> References<Controller> {
    References::<Controller>::new()
        .owns::<StatefulSet>()
        .owns::<Service>()
        .owns::<Secret>()
        .owns::<ConfigMap>()
        .owns::<ServiceMonitor>()
        .runs(apps::SLURMCTLD)
        .named_by::<NodeSet>(|node_set| Some(&node_set.spec.controller_ref.name))
        // A change of a Partition's status does not change the configuration. With a thousand Partitions, a reconcile for
        // each of these changes would cost as much as the change that they report.
        .on::<Partition>(|delta, _| {
            if delta.is_of_status() {
                return Vec::new();
            }
            keys_of(delta, |partition| Some(&partition.spec.controller_ref.name))
        })
        .names::<Accounting>(|controller, _| {
            let accounting = controller.spec.accounting_name();
            accounting.map(str::to_owned).into_iter().collect()
        })
        .names::<Secret>(|controller, _| {
            let keys = [controller.slurm_key(), controller.jwt_key()];
            keys.into_iter().flatten().map(|key| key.name).collect()
        })
        .names::<ConfigMap>(|controller, _| referenced_config_maps(controller).map(str::to_owned).collect())
        .names::<PersistentVolumeClaim>(|controller, _| {
            let claim = controller.spec.existing_claim();
            claim.map(str::to_owned).into_iter().collect()
        })
        // Controllers with the same cluster name block each other until one is deleted or renamed.
        .on::<Controller>(|delta, caches| {
            let has_same_name =
                |other: &Controller| delta.sides().any(|side| side.cluster_name() == other.cluster_name());
            let mut controllers = caches.controllers.all();
            controllers.retain(|controller| has_same_name(controller));
            controllers
                .iter()
                .map(|controller| Key::of(controller.as_ref()))
                .collect()
        })
}
