//! What Prometheus is to collect from slurmctld.

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
    /// Have slurmctld serve metrics on its port.
    #[schemars(extend("default" = false))]
    pub enabled: Option<bool>,

    /// The ServiceMonitor that makes the Prometheus operator collect them.
    #[schemars(extend("nullable" = true))]
    pub service_monitor: Option<ServiceMonitor>,
}

impl Metrics {
    /// Whether slurmctld is to serve metrics.
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(false)
    }

    /// The ServiceMonitor to make, if one is wanted: there is nothing to monitor while metrics are off.
    pub fn wanted_monitor(&self) -> Option<&ServiceMonitor> {
        let monitor = self.service_monitor.as_ref()?;
        (self.is_enabled() && monitor.enabled.unwrap_or(false)).then_some(monitor)
    }
}

/// A `monitoring.coreos.com/v1` ServiceMonitor to make.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceMonitor {
    /// Make the ServiceMonitor. It needs metrics to be enabled and the Prometheus operator's definitions to be installed.
    #[schemars(extend("default" = false))]
    pub enabled: Option<bool>,

    /// Labels of the ServiceMonitor.
    #[schemars(extend("nullable" = true))]
    pub labels: Option<BTreeMap<String, String>>,

    /// Annotations of the ServiceMonitor.
    #[schemars(extend("nullable" = true))]
    pub annotations: Option<BTreeMap<String, String>>,

    /// Time between two collections, for endpoints that do not say.
    pub interval: Option<PrometheusDuration>,

    /// Time after which a collection is given up, for endpoints that do not say.
    pub scrape_timeout: Option<PrometheusDuration>,

    /// Endpoints to collect from. Absent or empty: jobs, nodes, partitions and scheduler.
    #[schemars(extend("nullable" = true))]
    pub endpoints: Option<Vec<MetricEndpoint>>,
}

/// One path that slurmctld serves metrics under.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricEndpoint {
    /// The path, for example `/metrics/jobs`.
    pub path: String,

    /// Time between two collections. Absent: the ServiceMonitor's.
    pub interval: Option<PrometheusDuration>,

    /// Time after which a collection is given up. Absent: the ServiceMonitor's.
    pub scrape_timeout: Option<PrometheusDuration>,
}
