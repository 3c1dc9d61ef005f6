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

/// Port of the database when the Accounting does not say: that of MySQL and MariaDB.
pub const DEFAULT_STORAGE_PORT: i64 = 3306;
/// Name of the database when the Accounting does not say: Slurm's own default.
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
    schema = "disabled",
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.external) || !self.external || has(self.externalConfig)",
    "message": "externalConfig is needed when external is true: it says where slurmdbd runs",
}]))]
pub struct AccountingSpec {
    /// Key of auth/slurm, the same one as its Controllers'. Absent: that of the Controller that refers to this object.
    pub slurm_key_ref: Option<SecretKeyRef>,

    /// Older name of `jwtKeyRef`, which wins over it.
    pub jwt_hs256_key_ref: Option<SecretKeyRef>,

    /// Key of auth/jwt, the same one as its Controllers'. Absent: that of the Controller that refers to this object. It
    /// cannot be changed.
    pub jwt_key_ref: Option<SecretKeyRef>,

    /// JSON web key set with further keys whose tokens slurmdbd accepts.
    pub jwks_key_ref: Option<ConfigMapKeyRef>,

    /// slurmdbd runs outside Kubernetes; `externalConfig` says where.
    #[schemars(extend("default" = false))]
    pub external: Option<bool>,

    /// Where an external slurmdbd is found.
    pub external_config: Option<ExternalConfig>,

    /// Fields of a core/v1 Container, merged over the slurmdbd container.
    pub slurmdbd: Option<ContainerOverlay>,

    /// What to lay over the slurmdbd pod.
    pub template: Option<PodTemplate>,

    /// The database.
    pub storage_config: Option<StorageConfig>,

    /// Lines to add to slurmdbd.conf.
    pub extra_conf: Option<String>,

    /// What to lay over the Service that slurmctld reaches slurmdbd by.
    pub service: Option<ServiceTemplate>,
}

/// The database slurmdbd keeps its records in.
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

/// What is known about an Accounting.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AccountingStatus {
    /// What holds for this Accounting.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` this status is about.
    pub observed_generation: Option<i64>,
}

impl AccountingSpec {
    /// Whether slurmdbd runs outside Kubernetes.
    pub fn is_external(&self) -> bool {
        self.external.unwrap_or(false)
    }

    /// Host and port of a slurmdbd outside Kubernetes, if it is there.
    pub fn external_address(&self) -> Option<(&str, i64)> {
        let external = self.external_config.as_ref().filter(|_| self.is_external())?;
        Some(external.address(wellknown::SLURMDBD_PORT))
    }

    /// The reference to the key of auth/jwt, under whichever name it was given.
    pub fn effective_jwt_key_ref(&self) -> Option<&SecretKeyRef> {
        self.jwt_key_ref.as_ref().or(self.jwt_hs256_key_ref.as_ref())
    }
}
