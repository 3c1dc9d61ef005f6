//! The fields of a core/v1 PersistentVolumeClaimSpec.
//!
//! They are structs and not an overlay, because they share a closed schema with our own fields, which rejects typos.
//! The structs of k8s-openapi do not serve: they do not accept quantities that are written as numbers.

use std::{borrow::Cow, collections::BTreeMap};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::int_or_string::IntOrString;

/// The storage to claim. The fields mean what they mean in a core/v1 PersistentVolumeClaim.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSpec {
    /// Ways the volume can be mounted, for example `ReadWriteOnce`.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub access_modes: Option<Vec<String>>,

    /// Claim or snapshot of the same namespace to copy data from.
    pub data_source: Option<DataSource>,

    /// Object to copy data from, of any kind that a populator handles.
    pub data_source_ref: Option<DataSourceRef>,

    /// Amount of storage.
    pub resources: Option<ClaimResources>,

    /// Label selector of the volumes to choose from.
    pub selector: Option<LabelSelector>,

    /// StorageClass of the volume. Defaults to that of the cluster.
    pub storage_class_name: Option<String>,

    /// VolumeAttributesClass of the volume.
    pub volume_attributes_class_name: Option<String>,

    /// `Filesystem` or `Block`.
    pub volume_mode: Option<String>,

    /// Name of the volume to bind.
    pub volume_name: Option<String>,
}

/// An object of the same namespace, by kind and name.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct DataSource {
    /// API group of the object. Defaults to the core group.
    pub api_group: Option<String>,

    /// Kind of the object.
    pub kind: String,

    /// Name of the object.
    pub name: String,
}

/// An object, by kind, name and namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataSourceRef {
    /// API group of the object. Defaults to the core group.
    pub api_group: Option<String>,

    /// Kind of the object.
    pub kind: String,

    /// Name of the object.
    pub name: String,

    /// Namespace of the object. Another namespace needs a ReferenceGrant there.
    pub namespace: Option<String>,
}

/// Amounts of storage, by resource name.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimResources {
    /// Maximum amounts.
    pub limits: Option<BTreeMap<String, Quantity>>,

    /// Minimum amounts.
    pub requests: Option<BTreeMap<String, Quantity>>,
}

/// Selects objects by their labels. All requirements must be met.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LabelSelector {
    /// Labels that the object must have.
    pub match_labels: Option<BTreeMap<String, String>>,

    /// Requirements on labels.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Option<Vec<LabelRequirement>>,
}

/// A requirement on one label.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LabelRequirement {
    /// Key of the label.
    pub key: String,

    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,

    /// Values to compare with. Empty for `Exists` and `DoesNotExist`.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Option<Vec<String>>,
}

/// An amount as Kubernetes writes it: `4Gi`, `500M`, `2`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quantity(pub IntOrString);

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        })
    }
}
