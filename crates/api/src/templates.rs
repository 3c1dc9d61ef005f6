//! Fields that users merge over the pods and Services of the operator.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::overlay::{PodSpecOverlay, ServiceSpecOverlay};

/// Labels and annotations of an object that the operator creates.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Metadata {
    /// Labels to add. The operator's own labels take precedence.
    #[schemars(extend("nullable" = true))]
    pub labels: Option<BTreeMap<String, String>>,

    /// Annotations to add.
    #[schemars(extend("nullable" = true))]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Fields merged over the pods of a component.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PodTemplate {
    /// Labels and annotations of the pods.
    pub metadata: Option<Metadata>,

    /// Fields of a core/v1 PodSpec, merged over the operator's: volumes and the like by name, containers appended.
    pub spec: Option<PodSpecOverlay>,
}

/// Fields merged over the Service of a component.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTemplate {
    /// Labels and annotations of the Service.
    pub metadata: Option<Metadata>,

    /// Fields of a core/v1 ServiceSpec, merged over the operator's. `externalIPs` is ignored.
    pub spec: Option<ServiceSpecOverlay>,

    /// Port of the Service. If absent or 0, the port of the component.
    pub port: Option<i64>,

    /// Port on every Kubernetes node, for a Service of type NodePort or LoadBalancer. If absent or 0, Kubernetes
    /// chooses one.
    pub node_port: Option<i64>,
}
