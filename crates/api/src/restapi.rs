//! RestApi: a cluster's slurmrestd.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    conditions::Condition,
    nodeset::{DEFAULT_REPLICAS, replicas_or_default},
    overlay::ContainerOverlay,
    references::ObjectRef,
    templates::{PodTemplate, ServiceTemplate},
};

/// Slurm's REST API: pods that run slurmrestd for a Controller.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "RestApi",
    plural = "restapis",
    singular = "restapi",
    shortname = "slurmrestd",
    namespaced,
    status = "RestApiStatus",
    doc = "Slurm's REST API: pods that run slurmrestd for a Controller.",
    derive = "Default",
    derive = "PartialEq",
    category = "slurm",
    schema = "disabled",
    printcolumn = r#"{"name": "READY", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status",
        "description": "Whether the object is in the state that its spec describes."}"#,
    printcolumn = r#"{"name": "REASON", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason",
        "description": "Why it is or is not: see the message of condition Ready."}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct RestApiSpec {
    /// The Controller of the cluster that slurmrestd serves.
    pub controller_ref: ObjectRef,

    /// Number of pods, at most 65536.
    #[schemars(extend("default" = DEFAULT_REPLICAS))]
    pub replicas: Option<i32>,

    /// Fields of a core/v1 Container, merged over the slurmrestd container.
    pub slurmrestd: Option<ContainerOverlay>,

    /// Fields merged over the pods.
    pub template: Option<PodTemplate>,

    /// Fields merged over the Service through which clients reach slurmrestd.
    pub service: Option<ServiceTemplate>,
}

/// Observed state of a RestApi.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RestApiStatus {
    /// Conditions of the RestApi.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` that this status describes.
    pub observed_generation: Option<i64>,
}

impl RestApiSpec {
    /// Desired number of pods.
    pub fn replicas(&self) -> u32 {
        replicas_or_default(self.replicas)
    }
}
