//! The Services of slurmctld: one for clients, one that gives every pod a name.

use api::{
    keys::{ON, apps, labels},
    wellknown::SLURMCTLD_PORT,
};
use serde_json::Value;

use super::Parent;
use crate::template::{
    metadata::Marks,
    service::{PortClash, Service},
};

/// Routes clients to the active slurmctld.
pub(crate) fn build_service(parent: &Parent) -> Result<Value, PortClash> {
    let template = parent.controller.spec.service.as_ref();
    let mut selector = parent.selector();
    selector.insert(labels::CONTROLLER_ACTIVE.to_owned(), ON.to_owned());
    Service {
        meta: Marks::of(&parent.controller.metadata)
            .and(template.and_then(|template| template.metadata.as_ref()))
            .label(&parent.labels())
            .into_meta(&parent.namespace, parent.names.service(), parent.owner()),
        selector,
        port_name: apps::SLURMCTLD,
        port: SLURMCTLD_PORT,
        headless: false,
    }
    .with(template)
}

/// Gives every slurmctld pod its name in SlurmctldHost.
pub(crate) fn build_internal_service(parent: &Parent) -> Result<Value, PortClash> {
    Service {
        meta: parent
            .marks()
            .into_meta(&parent.namespace, parent.names.internal_service(), parent.owner()),
        selector: parent.selector(),
        port_name: apps::SLURMCTLD,
        port: SLURMCTLD_PORT,
        headless: true,
    }
    .with(None)
}
