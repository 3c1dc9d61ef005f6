//! RestApi: a cluster's slurmrestd.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    conditions::Condition,
    nodeset::{DEFAULT_REPLICAS, MAX_REPLICAS, replicas_or_default},
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
    schema = "disabled",
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct RestApiSpec {
    /// The Controller whose cluster is served.
    pub controller_ref: ObjectRef,

    /// Number of pods, at most 65536.
    #[schemars(extend("default" = DEFAULT_REPLICAS, "maximum" = MAX_REPLICAS))]
    pub replicas: Option<i32>,

    /// Fields of a core/v1 Container, merged over the slurmrestd container.
    pub slurmrestd: Option<ContainerOverlay>,

    /// What to lay over the pods.
    pub template: Option<PodTemplate>,

    /// What to lay over the Service that clients reach slurmrestd by.
    pub service: Option<ServiceTemplate>,
}

/// What is known about a RestApi.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RestApiStatus {
    /// What holds for this RestApi.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` this status is about.
    pub observed_generation: Option<i64>,
}

impl RestApiSpec {
    /// Number of pods that are wanted.
    pub fn replicas(&self) -> u32 {
        replicas_or_default(self.replicas)
    }
}
