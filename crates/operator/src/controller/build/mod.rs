//! The children of a Controller. Pure: values in, objects out.

mod containers;
pub(super) mod stateful_set;

use std::collections::BTreeMap;

use api::{
    Controller,
    keys::{ON, apps, components, labels},
    metrics::{self, MetricEndpoint},
    references::SecretKeyRef,
    templates::Metadata,
    wellknown::SLURMCTLD_PORT,
};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use serde_json::{Value, json};

use crate::{
    overlay::lay_over,
    parent::Parent,
    runtime::ServiceMonitor,
    template::{component::Component, fields, metadata::Marks, service::PortClash},
};

/// As long as the charts' keys, and longer than any hash needs.
pub(super) const KEY_LENGTH: usize = 1024;

/// The paths of slurmctld's metrics.
const METRICS_PATHS: [&str; 4] = [
    "/metrics/jobs",
    "/metrics/nodes",
    "/metrics/partitions",
    "/metrics/scheduler",
];

fn component<'a>(parent: &Parent<'a>) -> Component<'a, Controller> {
    Component {
        object: parent.controller,
        app: apps::SLURMCTLD,
        label: components::CONTROLLER,
    }
}

/// The Secret of a new key with these bytes. It is mutable: kubelets stop watching an immutable Secret, and give its old
/// content to new pods after it was deleted and created again under the same name.
pub(super) fn build_key(parent: &Parent, key: &SecretKeyRef, bytes: Vec<u8>) -> Secret {
    Secret {
        metadata: component(parent).meta(key.name.clone()),
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([(key.key.clone(), ByteString(bytes))])),
        ..Secret::default()
    }
}

/// Routes clients to the active slurmctld.
pub(super) fn build_service(parent: &Parent) -> Result<Value, PortClash> {
    let given = parent.controller.spec.service.as_ref();
    let marks = Marks::of(&parent.controller.metadata);
    let mut service = component(parent).service(marks, parent.names.service(), SLURMCTLD_PORT, given)?;
    let active = json!({ "spec": { "selector": { labels::CONTROLLER_ACTIVE: ON } } });
    lay_over(&mut service, &fields(active));
    Ok(service)
}

/// Gives every slurmctld pod its name in SlurmctldHost, ready or not.
pub(super) fn build_internal_service(parent: &Parent) -> Result<Value, PortClash> {
    let marks = Marks::of(&parent.controller.metadata);
    let mut service = component(parent).service(marks, parent.names.internal_service(), SLURMCTLD_PORT, None)?;
    let headless = json!({ "spec": { "clusterIP": "None", "publishNotReadyAddresses": true } });
    lay_over(&mut service, &fields(headless));
    Ok(service)
}

/// The ServiceMonitor by which the Prometheus operator finds slurmctld's metrics.
pub(super) fn build_monitor(parent: &Parent, wanted: &metrics::ServiceMonitor) -> ServiceMonitor {
    let given = Metadata {
        labels: wanted.labels.clone(),
        annotations: wanted.annotations.clone(),
    };
    let marks = Marks::of(&parent.controller.metadata).and(Some(&given));
    let of_path = |path: &str| MetricEndpoint {
        path: path.to_owned(),
        ..MetricEndpoint::default()
    };
    let given = wanted.endpoints.clone().filter(|endpoints| !endpoints.is_empty());
    let endpoints = given.unwrap_or_else(|| METRICS_PATHS.map(of_path).to_vec());
    let build_endpoint = |endpoint: &MetricEndpoint| {
        json!({
            "port": apps::SLURMCTLD,
            "scheme": "http",
            "path": endpoint.path,
            "interval": endpoint.interval.as_ref().or(wanted.interval.as_ref()),
            "scrapeTimeout": endpoint.scrape_timeout.as_ref().or(wanted.scrape_timeout.as_ref()),
            // Both Services have these labels. The one for clients contains only the active slurmctld, once.
            "relabelings": [{
                "action": "keep",
                "sourceLabels": ["__meta_kubernetes_service_name"],
                "regex": parent.names.service(),
            }],
        })
    };
    ServiceMonitor {
        metadata: component(parent).child(marks, parent.names.service_monitor()),
        spec: json!({
            "namespaceSelector": { "matchNames": [parent.namespace] },
            "selector": { "matchLabels": parent.selector() },
            "endpoints": endpoints.iter().map(build_endpoint).collect::<Vec<_>>(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_of_a_key_is_mutable_so_that_kubelets_watch_it() {
        let controller = api::Controller::new("slurm", api::ControllerSpec::default());
        let key = SecretKeyRef {
            name: "keys".to_owned(),
            key: "slurm.key".to_owned(),
            optional: None,
        };
        let secret = build_key(&Parent::new(&controller), &key, vec![1; KEY_LENGTH]);
        assert_eq!(secret.immutable, None);
        assert_eq!(secret.data.unwrap()["slurm.key"].0.len(), KEY_LENGTH);
    }
}
