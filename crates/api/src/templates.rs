//! What a user may say about the pods and Services the operator makes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::overlay::{PodSpecOverlay, ServiceSpecOverlay};

/// Labels and annotations for an object the operator makes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Metadata {
    /// Labels to add. The operator's own labels win over them.
    #[schemars(extend("nullable" = true))]
    pub labels: Option<BTreeMap<String, String>>,

    /// Annotations to add.
    #[schemars(extend("nullable" = true))]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// What to lay over the pods of a component.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PodTemplate {
    /// Labels and annotations of the pods.
    pub metadata: Option<Metadata>,

    /// Fields of a core/v1 PodSpec, merged over the operator's: volumes and the like by name, containers appended.
    pub spec: Option<PodSpecOverlay>,
}

/// What to lay over the Service of a component.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTemplate {
    /// Labels and annotations of the Service.
    pub metadata: Option<Metadata>,

    /// Fields of a core/v1 ServiceSpec, merged over the operator's. `externalIPs` is never taken over.
    pub spec: Option<ServiceSpecOverlay>,

    /// Port the Service listens on. Absent or 0: the component's own port.
    pub port: Option<i64>,

    /// Port on every Kubernetes node, for a Service of type NodePort or LoadBalancer. Absent or 0: Kubernetes picks one.
    pub node_port: Option<i64>,
}
