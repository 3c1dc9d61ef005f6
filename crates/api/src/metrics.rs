//! Metrics of slurmctld for Prometheus.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::time::PrometheusDuration;

/// Metrics of slurmctld.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    /// Whether slurmctld serves metrics on its port.
    #[schemars(extend("default" = false))]
    pub enabled: Option<bool>,

    /// The ServiceMonitor for the Prometheus operator.
    #[schemars(extend("nullable" = true))]
    pub service_monitor: Option<ServiceMonitor>,
}

impl Metrics {
    /// Whether slurmctld serves metrics.
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(false)
    }

    /// The ServiceMonitor to create, if it and the metrics are enabled.
    pub fn wanted_monitor(&self) -> Option<&ServiceMonitor> {
        let monitor = self.service_monitor.as_ref()?;
        (self.is_enabled() && monitor.enabled.unwrap_or(false)).then_some(monitor)
    }
}

/// A `monitoring.coreos.com/v1` ServiceMonitor to create.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMonitor {
    /// Whether the ServiceMonitor is created. Requires enabled metrics and the definitions of the Prometheus operator.
    #[schemars(extend("default" = false))]
    pub enabled: Option<bool>,

    /// Labels of the ServiceMonitor.
    #[schemars(extend("nullable" = true))]
    pub labels: Option<BTreeMap<String, String>>,

    /// Annotations of the ServiceMonitor.
    #[schemars(extend("nullable" = true))]
    pub annotations: Option<BTreeMap<String, String>>,

    /// Scrape interval, for endpoints that set none.
    pub interval: Option<PrometheusDuration>,

    /// Scrape timeout, for endpoints that set none.
    pub scrape_timeout: Option<PrometheusDuration>,

    /// Endpoints to scrape. Defaults to jobs, nodes, partitions and scheduler.
    #[schemars(extend("nullable" = true))]
    pub endpoints: Option<Vec<MetricEndpoint>>,
}

/// A path under which slurmctld serves metrics.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricEndpoint {
    /// The path, for example `/metrics/jobs`.
    pub path: String,

    /// Scrape interval. Defaults to that of the ServiceMonitor.
    pub interval: Option<PrometheusDuration>,

    /// Scrape timeout. Defaults to that of the ServiceMonitor.
    pub scrape_timeout: Option<PrometheusDuration>,
}
