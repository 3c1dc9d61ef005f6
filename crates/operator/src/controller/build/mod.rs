//! The children of a Controller. Pure: values in, objects out.

mod containers;
pub(super) mod stateful_set;

use std::collections::BTreeMap;

use api::{
    keys::{ON, apps, labels},
    metrics::{self, MetricEndpoint},
    references::SecretKeyRef,
    templates::{Metadata, ServiceTemplate},
    wellknown::SLURMCTLD_PORT,
};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use serde_json::{Value, json};

use crate::{
    parent::Parent,
    runtime::ServiceMonitor,
    template::{
        metadata::Marks,
        service::{PortClash, Service},
    },
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

/// The Secret of a new key with these bytes. It is mutable: kubelets stop watching an immutable Secret, and give its old
/// content to new pods after it was deleted and created again under the same name.
pub(super) fn build_key(parent: &Parent, key: &SecretKeyRef, bytes: Vec<u8>) -> Secret {
    Secret {
        metadata: parent.marks().into_meta(&parent.namespace, &key.name, parent.owner()),
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([(key.key.clone(), ByteString(bytes))])),
        ..Secret::default()
    }
}

/// Routes clients to the active slurmctld.
pub(super) fn build_service(parent: &Parent) -> Result<Value, PortClash> {
    let template = parent.controller.spec.service.as_ref();
    let mut service = service(parent, parent.names.service(), template);
    service
        .selector
        .insert(labels::CONTROLLER_ACTIVE.to_owned(), ON.to_owned());
    service.with(template)
}

/// Gives every slurmctld pod its name in SlurmctldHost.
pub(super) fn build_internal_service(parent: &Parent) -> Result<Value, PortClash> {
    let service = Service {
        headless: true,
        ..service(parent, parent.names.internal_service(), None)
    };
    service.with(None)
}

fn service(parent: &Parent, name: String, template: Option<&ServiceTemplate>) -> Service<'static> {
    Service {
        meta: Marks::of(&parent.controller.metadata)
            .and(template.and_then(|template| template.metadata.as_ref()))
            .label(&parent.labels())
            .into_meta(&parent.namespace, name, parent.owner()),
        selector: parent.selector(),
        port_name: apps::SLURMCTLD,
        port: SLURMCTLD_PORT,
        headless: false,
    }
}

/// The ServiceMonitor by which the Prometheus operator finds slurmctld's metrics.
pub(super) fn build_monitor(parent: &Parent, wanted: &metrics::ServiceMonitor) -> ServiceMonitor {
    let given = Metadata {
        labels: wanted.labels.clone(),
        annotations: wanted.annotations.clone(),
    };
    let marks = Marks::of(&parent.controller.metadata)
        .and(Some(&given))
        .label(&parent.labels());
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
        metadata: marks.into_meta(&parent.namespace, parent.names.service_monitor(), parent.owner()),
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
