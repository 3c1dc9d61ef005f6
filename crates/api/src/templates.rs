//! What a user may say about the pods and Services the operator makes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::overlay::{PodSpecOverlay, ServiceSpecOverlay};

/// Labels and annotations for an object the operator makes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Metadata {
    /// Labels to add. The operator's own labels win over them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub labels: Option<BTreeMap<String, String>>,

    /// Annotations to add.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// What to lay over the pods of a component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PodTemplate {
    /// Labels and annotations of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,

    /// Fields of a core/v1 PodSpec, merged over the operator's: volumes and the like by name, containers appended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<PodSpecOverlay>,
}

/// What to lay over the Service of a component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTemplate {
    /// Labels and annotations of the Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,

    /// Fields of a core/v1 ServiceSpec, merged over the operator's. `externalIPs` is never taken over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<ServiceSpecOverlay>,

    /// Port the Service listens on. Absent or 0: the component's own port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,

    /// Port on every Kubernetes node, for a Service of type NodePort or LoadBalancer. Absent or 0: Kubernetes picks one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_port: Option<i64>,
}
