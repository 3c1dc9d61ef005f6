//! Accounting: the slurmdbd that keeps the records of one or more clusters.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    conditions::Condition,
    external::ExternalConfig,
    overlay::ContainerOverlay,
    references::{ConfigMapKeyRef, SecretKeyRef},
    templates::{PodTemplate, ServiceTemplate},
    wellknown,
};

/// Port of the database unless the Accounting sets one: that of MySQL and MariaDB.
pub const DEFAULT_STORAGE_PORT: i64 = 3306;
/// Name of the database unless the Accounting sets one: Slurm's own default.
pub const DEFAULT_STORAGE_DATABASE: &str = "slurm_acct_db";

/// Slurm's accounting: the slurmdbd between Controllers and a database.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "Accounting",
    plural = "accountings",
    singular = "accounting",
    shortname = "slurmdbd",
    namespaced,
    status = "AccountingStatus",
    doc = "Slurm's accounting: the slurmdbd between Controllers and a database.",
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
pub struct AccountingSpec {
    /// Key of auth/slurm, which must be the key of its Controllers. Defaults to the key of the Controller that refers
    /// to this object.
    pub slurm_key_ref: Option<SecretKeyRef>,

    /// Older name of `jwtKeyRef`, which takes precedence.
    pub jwt_hs256_key_ref: Option<SecretKeyRef>,

    /// Key of auth/jwt, which must be the key of its Controllers. Defaults to the key of the Controller that refers to
    /// this object. Immutable.
    pub jwt_key_ref: Option<SecretKeyRef>,

    /// JSON web key set. slurmdbd also accepts tokens that are signed with one of its keys.
    pub jwks_key_ref: Option<ConfigMapKeyRef>,

    /// Whether slurmdbd runs outside Kubernetes, at the address in `externalConfig`.
    #[schemars(extend("default" = false))]
    pub external: Option<bool>,

    /// Address of an external slurmdbd.
    pub external_config: Option<ExternalConfig>,

    /// Fields of a core/v1 Container, merged over the slurmdbd container.
    pub slurmdbd: Option<ContainerOverlay>,

    /// Fields merged over the slurmdbd pod.
    pub template: Option<PodTemplate>,

    /// The database.
    pub storage_config: Option<StorageConfig>,

    /// Lines to add to slurmdbd.conf.
    pub extra_conf: Option<String>,

    /// Fields merged over the Service through which slurmctld reaches slurmdbd.
    pub service: Option<ServiceTemplate>,
}

/// The database in which slurmdbd stores its records.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageConfig {
    /// Host of the database server.
    pub host: String,

    /// Port of the database server.
    #[schemars(extend("default" = DEFAULT_STORAGE_PORT))]
    pub port: Option<i64>,

    /// Name of the database.
    #[schemars(extend("default" = DEFAULT_STORAGE_DATABASE))]
    pub database: Option<String>,

    /// User of the database.
    pub username: Option<String>,

    /// Password of the user.
    pub password_key_ref: SecretKeyRef,
}

impl StorageConfig {
    /// Port of the database server; 0 counts as absent.
    pub fn port(&self) -> i64 {
        self.port.filter(|port| *port != 0).unwrap_or(DEFAULT_STORAGE_PORT)
    }

    /// Name of the database.
    pub fn database(&self) -> &str {
        self.database
            .as_deref()
            .filter(|name| !name.is_empty())
            .unwrap_or(DEFAULT_STORAGE_DATABASE)
    }
}

/// Observed state of an Accounting.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AccountingStatus {
    /// Conditions of the Accounting.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` that this status describes.
    pub observed_generation: Option<i64>,
}

impl AccountingSpec {
    /// Whether slurmdbd runs outside Kubernetes.
    pub fn is_external(&self) -> bool {
        self.external.unwrap_or(false)
    }

    /// Host and port of slurmdbd, if it runs outside Kubernetes.
    pub fn external_address(&self) -> Option<(&str, i64)> {
        let external = self.external_config.as_ref().filter(|_| self.is_external())?;
        Some(external.address(wellknown::SLURMDBD_PORT))
    }

    /// The reference to the key of auth/jwt, from the newer or the older field.
    pub fn effective_jwt_key_ref(&self) -> Option<&SecretKeyRef> {
        self.jwt_key_ref.as_ref().or(self.jwt_hs256_key_ref.as_ref())
    }
}
