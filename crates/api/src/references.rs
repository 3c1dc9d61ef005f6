//! References to other objects, all of them in the namespace of the object that refers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// An object of the same namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct ObjectRef {
    /// Name of the object.
    #[serde(default)]
    pub name: String,

    /// Namespace of the object. Only the namespace of the referring object is accepted, so it can be omitted.
    pub namespace: Option<String>,
}

impl ObjectRef {
    /// The object of this name in the same namespace.
    pub fn local(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            namespace: None,
        }
    }
}

/// One entry of a Secret of the same namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[serde(default)]
    pub name: String,

    /// Key of the entry in the Secret's data.
    pub key: String,

    /// Accepted because the Kubernetes type has it. The operator needs the entry in any case.
    pub optional: Option<bool>,
}

/// One entry of a ConfigMap of the same namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct ConfigMapKeyRef {
    /// Name of the ConfigMap.
    #[serde(default)]
    pub name: String,

    /// Key of the entry in the ConfigMap's data.
    pub key: String,

    /// Accepted because the Kubernetes type has it. The operator needs the entry in any case.
    pub optional: Option<bool>,
}
