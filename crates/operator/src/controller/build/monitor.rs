//! The ServiceMonitor by which the Prometheus operator finds slurmctld's metrics.

use api::{
    keys::apps,
    metrics::{MetricEndpoint, ServiceMonitor as Wanted},
    templates::Metadata,
};
use serde_json::{Value, json};

use super::Parent;
use crate::{runtime::ServiceMonitor, template::metadata::Marks};

/// The paths that slurmctld serves.
const PATHS: [&str; 4] = [
    "/metrics/jobs",
    "/metrics/nodes",
    "/metrics/partitions",
    "/metrics/scheduler",
];

pub(crate) fn build_monitor(parent: &Parent, wanted: &Wanted) -> ServiceMonitor {
    let given = Metadata {
        labels: wanted.labels.clone(),
        annotations: wanted.annotations.clone(),
    };
    let marks = Marks::of(&parent.controller.metadata)
        .and(Some(&given))
        .label(&parent.labels());
    let given = wanted.endpoints.clone().filter(|endpoints| !endpoints.is_empty());
    let endpoints = given.unwrap_or_else(|| {
        let of = |path: &str| MetricEndpoint {
            path: path.to_owned(),
            ..MetricEndpoint::default()
        };
        PATHS.map(of).to_vec()
    });
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|endpoint| build_endpoint(parent, wanted, endpoint))
        .collect();
    ServiceMonitor {
        metadata: marks.into_meta(&parent.namespace, parent.names.service_monitor(), parent.owner()),
        spec: json!({
            "namespaceSelector": { "matchNames": [parent.namespace] },
            "selector": { "matchLabels": parent.selector() },
            "endpoints": endpoints,
        }),
    }
}

fn build_endpoint(parent: &Parent, wanted: &Wanted, endpoint: &MetricEndpoint) -> Value {
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
}
