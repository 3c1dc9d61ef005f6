//! LoginSet: pods that users log in to.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    conditions::Condition,
    int_or_string::IntOrString,
    nodeset::{DEFAULT_REPLICAS, replicas_or_default},
    overlay::ContainerOverlay,
    references::{ObjectRef, SecretKeyRef},
    templates::{PodTemplate, ServiceTemplate},
};

/// Login nodes: pods with sshd, sssd and Slurm's commands.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "LoginSet",
    plural = "loginsets",
    singular = "loginset",
    shortname = "loginsets",
    shortname = "lss",
    shortname = "sackd",
    namespaced,
    status = "LoginSetStatus",
    doc = "Login nodes: pods with sshd, sssd and Slurm's commands.",
    derive = "Default",
    derive = "PartialEq",
    category = "slurm",
    schema = "disabled",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name": "REPLICAS", "type": "integer", "jsonPath": ".status.replicas",
        "description": "Pods that exist."}"#,
    printcolumn = r#"{"name": "READY", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status",
        "description": "Whether the object is in the state that its spec describes."}"#,
    printcolumn = r#"{"name": "REASON", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason",
        "description": "Why it is or is not: see the message of condition Ready."}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct LoginSetSpec {
    /// The Controller of the cluster that users log in to. Immutable.
    pub controller_ref: ObjectRef,

    /// Number of pods, at most 65536.
    #[schemars(extend("default" = DEFAULT_REPLICAS))]
    pub replicas: Option<i32>,

    /// Fields of a core/v1 Container, merged over the login container. A port named `login` replaces port 22.
    pub login: Option<ContainerOverlay>,

    /// Fields of a core/v1 Container, merged over the container that prepares `/etc/slurm`.
    pub initconf: Option<ContainerOverlay>,

    /// Fields merged over the pods.
    pub template: Option<PodTemplate>,

    /// Public keys that are accepted for root, one per line.
    pub root_ssh_authorized_keys: Option<String>,

    /// Lines to add to sshd_config.
    pub extra_sshd_config: Option<String>,

    /// Secret entry with sssd.conf.
    pub sssd_conf_ref: SecretKeyRef,

    /// How pods are replaced, as in an apps/v1 Deployment.
    pub strategy: Option<DeploymentStrategy>,

    /// Fields merged over the Service through which users reach the pods.
    pub service: Option<ServiceTemplate>,
}

/// How the pods of a Deployment are replaced.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentStrategy {
    /// `RollingUpdate` or `Recreate`.
    #[serde(rename = "type")]
    pub type_: Option<String>,

    /// Settings of `RollingUpdate`.
    pub rolling_update: Option<RollingDeployment>,
}

/// Settings of a Deployment's rolling update.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingDeployment {
    /// Maximum number of pods beyond `replicas`, as a number or a percentage.
    pub max_surge: Option<IntOrString>,

    /// Maximum number of unavailable pods, as a number or a percentage.
    pub max_unavailable: Option<IntOrString>,
}

/// Observed state of a LoginSet's pods.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["selector"]))]
pub struct LoginSetStatus {
    /// Pods that exist.
    pub replicas: i32,

    /// Label selector of the pods, for the scale subresource.
    pub selector: String,

    /// Conditions of the LoginSet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` that this status describes.
    pub observed_generation: Option<i64>,
}

impl LoginSetSpec {
    /// Desired number of pods.
    pub fn replicas(&self) -> u32 {
        replicas_or_default(self.replicas)
    }
}
