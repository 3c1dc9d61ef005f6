//! Controller: a Slurm cluster's slurmctld.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    claims::ClaimSpec,
    conditions::Condition,
    configuration::ConfigurationStatus,
    external::ExternalConfig,
    metrics::Metrics,
    overlay::ContainerOverlay,
    references::{ConfigMapKeyRef, ObjectRef, SecretKeyRef},
    templates::{PodTemplate, ServiceTemplate},
    wellknown,
};

/// Default number of standbys of a Controller with high availability.
pub const DEFAULT_BACKUPS: i32 = 1;
/// Maximum number of standbys. Each is a line in slurm.conf, and a client tries the lines one after another.
pub const MAX_BACKUPS: i32 = 8;

/// A Slurm cluster: its slurmctld, its configuration and its keys. The other kinds refer to it.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "Controller",
    plural = "controllers",
    singular = "controller",
    shortname = "slurmctld",
    namespaced,
    status = "ControllerStatus",
    doc = "A Slurm cluster: its slurmctld, its configuration and its keys.",
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
pub struct ControllerSpec {
    /// Slurm's name of the cluster, at most 40 characters. Defaults to `<namespace>_<name>`. Immutable.
    pub cluster_name: Option<String>,

    /// Key of auth/slurm, which all daemons of the cluster share. If absent, the operator generates one. The name of
    /// the Secret is immutable.
    pub slurm_key_ref: Option<SecretKeyRef>,

    /// Older name of `jwtKeyRef`, which takes precedence.
    pub jwt_hs256_key_ref: Option<SecretKeyRef>,

    /// Key that signs the cluster's tokens (auth/jwt). If absent, the operator generates one. Immutable.
    pub jwt_key_ref: Option<SecretKeyRef>,

    /// JSON web key set. The cluster also accepts tokens that are signed with one of its keys.
    pub jwks_key_ref: Option<ConfigMapKeyRef>,

    /// The Accounting that stores the records of this cluster.
    pub accounting_ref: Option<ObjectRef>,

    /// Whether slurmctld runs outside Kubernetes, at the address in `externalConfig`.
    #[schemars(extend("default" = false))]
    pub external: Option<bool>,

    /// Address of an external slurmctld.
    pub external_config: Option<ExternalConfig>,

    /// Standby slurmctld, one of which takes over when the active one fails.
    pub ha: Option<HighAvailability>,

    /// Fields of a core/v1 Container, merged over the slurmctld container.
    pub slurmctld: Option<ContainerOverlay>,

    /// Accepted for compatibility, without effect: changes are always applied in place. To restart slurmctld instead,
    /// set `configUpdate`.
    #[schemars(extend("default" = false))]
    pub inplace_reconfigure: Option<bool>,

    /// How slurmctld gets a change of the configuration. Defaults to `InPlace`.
    pub config_update: Option<ConfigUpdate>,

    /// Fields of a core/v1 Container, merged over the reconfigure container.
    pub reconfigure: Option<ContainerOverlay>,

    /// Fields of a core/v1 Container, merged over the container that prints slurmctld's log.
    pub logfile: Option<ContainerOverlay>,

    /// Fields merged over the slurmctld pods.
    pub template: Option<PodTemplate>,

    /// Lines to add to slurm.conf.
    pub extra_conf: Option<String>,

    /// ConfigMaps whose entries become files beside slurm.conf.
    #[schemars(extend("nullable" = true))]
    pub config_file_refs: Option<Vec<ObjectRef>>,

    /// ConfigMaps whose entries are scripts that slurmd runs before a job (Prolog).
    #[schemars(extend("nullable" = true))]
    pub prolog_script_refs: Option<Vec<ObjectRef>>,

    /// ConfigMaps whose entries are scripts that slurmd runs after a job (Epilog).
    #[schemars(extend("nullable" = true))]
    pub epilog_script_refs: Option<Vec<ObjectRef>>,

    /// ConfigMaps whose entries are scripts that slurmctld runs when it allocates a job (PrologSlurmctld).
    #[schemars(extend("nullable" = true))]
    pub prolog_slurmctld_script_refs: Option<Vec<ObjectRef>>,

    /// ConfigMaps whose entries are scripts that slurmctld runs when a job ends (EpilogSlurmctld).
    #[schemars(extend("nullable" = true))]
    pub epilog_slurmctld_script_refs: Option<Vec<ObjectRef>>,

    /// Storage of slurmctld's state.
    pub persistence: Option<Persistence>,

    /// Fields merged over the Service through which clients reach slurmctld.
    pub service: Option<ServiceTemplate>,

    /// Metrics for Prometheus.
    pub metrics: Option<Metrics>,
}

open_enum! {
    /// How slurmctld gets a change of the configuration.
    pub enum ConfigUpdate {
        /// The running slurmctld reads it.
        #[default]
        InPlace,
        /// slurmctld is restarted.
        Restart,
    }
}

/// Standby slurmctld.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HighAvailability {
    /// Whether standbys run. Requires a ReadWriteMany claim in `persistence.existingClaim`.
    #[schemars(extend("default" = false))]
    pub enabled: Option<bool>,

    /// Number of standbys, at most 8.
    #[schemars(extend("default" = DEFAULT_BACKUPS, "minimum" = 1))]
    pub backups: Option<i32>,
}

/// Storage for slurmctld's state.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Persistence {
    /// Whether the state is kept on a volume. Otherwise it is lost with the pod. Immutable.
    #[schemars(extend("default" = true))]
    pub enabled: Option<bool>,

    /// Existing claim to use instead of a new one. Immutable.
    pub existing_claim: Option<String>,

    /// The claim to create.
    #[serde(flatten)]
    pub claim: ClaimSpec,
}

/// Observed state of a Slurm cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ControllerStatus {
    /// Conditions of the cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` that this status describes.
    pub observed_generation: Option<i64>,

    /// State of the configuration.
    pub configuration: Option<ConfigurationStatus>,
}

impl Controller {
    /// Slurm's name of the cluster.
    pub fn cluster_name(&self) -> String {
        match self.spec.cluster_name.as_deref() {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => self
                .child_names()
                .default_cluster_name(self.metadata.namespace.as_deref().unwrap_or_default()),
        }
    }

    /// State of the configuration, once it was reported.
    pub fn configuration(&self) -> Option<&ConfigurationStatus> {
        self.status.as_ref()?.configuration.as_ref()
    }

    /// The Secret entry with the key of auth/slurm: the one that the spec names, else the generated one. `None` for an
    /// external slurmctld without a reference, because it has a key already.
    pub fn slurm_key(&self) -> Option<SecretKeyRef> {
        let ours = || self.generated_key(self.child_names().slurm_key_secret(), wellknown::SLURM_KEY_FILE);
        self.spec.slurm_key_ref.clone().or_else(ours)
    }

    /// The Secret entry with the key of auth/jwt, chosen in the same way.
    pub fn jwt_key(&self) -> Option<SecretKeyRef> {
        let ours = || self.generated_key(self.child_names().jwt_key_secret(), wellknown::JWT_KEY_FILE);
        self.spec.effective_jwt_key_ref().cloned().or_else(ours)
    }

    fn generated_key(&self, name: String, key: &str) -> Option<SecretKeyRef> {
        (!self.spec.is_external()).then(|| SecretKeyRef {
            name,
            key: key.to_owned(),
            optional: None,
        })
    }
}

impl ControllerSpec {
    /// Whether slurmctld runs outside Kubernetes.
    pub fn is_external(&self) -> bool {
        self.external.unwrap_or(false)
    }

    /// Host and port of slurmctld, if it runs outside Kubernetes.
    pub fn external_address(&self) -> Option<(&str, i64)> {
        let external = self.external_config.as_ref().filter(|_| self.is_external())?;
        Some(external.address(wellknown::SLURMCTLD_PORT))
    }

    /// The reference to the key of auth/jwt, from the newer or the older field.
    pub fn effective_jwt_key_ref(&self) -> Option<&SecretKeyRef> {
        self.jwt_key_ref.as_ref().or(self.jwt_hs256_key_ref.as_ref())
    }

    /// Name of the Accounting, if the spec refers to one.
    pub fn accounting_name(&self) -> Option<&str> {
        self.accounting_ref
            .as_ref()
            .map(|accounting| accounting.name.as_str())
            .filter(|name| !name.is_empty())
    }

    /// Whether standbys run.
    pub fn is_highly_available(&self) -> bool {
        !self.is_external() && self.ha.as_ref().is_some_and(|ha| ha.enabled.unwrap_or(false))
    }

    /// Number of slurmctld pods, standbys included.
    pub fn replicas(&self) -> u32 {
        if !self.is_highly_available() {
            return 1;
        }
        let backups = self.ha.as_ref().and_then(|ha| ha.backups).unwrap_or(DEFAULT_BACKUPS);
        1 + u32::try_from(backups.clamp(0, MAX_BACKUPS)).unwrap_or(0)
    }

    /// How slurmctld gets a change of the configuration.
    pub fn config_update(&self) -> ConfigUpdate {
        self.config_update.clone().unwrap_or_default()
    }

    /// Whether slurmctld's state is kept on a volume, which is the default.
    pub fn is_persistent(&self) -> bool {
        self.persistence
            .as_ref()
            .and_then(|persistence| persistence.enabled)
            .unwrap_or(true)
    }

    /// The existing claim for slurmctld's state, if the spec names one.
    pub fn existing_claim(&self) -> Option<&str> {
        let claim = self.persistence.as_ref()?.existing_claim.as_deref()?;
        (self.is_persistent() && !claim.is_empty()).then_some(claim)
    }

    /// Every list of ConfigMaps whose entries become files beside slurm.conf, with the name of its field.
    pub fn file_refs(&self) -> [(&'static str, &[ObjectRef]); 5] {
        let lists = [
            ("configFileRefs", &self.config_file_refs),
            ("prologScriptRefs", &self.prolog_script_refs),
            ("epilogScriptRefs", &self.epilog_script_refs),
            ("prologSlurmctldScriptRefs", &self.prolog_slurmctld_script_refs),
            ("epilogSlurmctldScriptRefs", &self.epilog_slurmctld_script_refs),
        ];
        lists.map(|(field, list)| (field, list.as_deref().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller(spec: serde_json::Value) -> Controller {
        let mut controller = Controller::new("slurm", serde_json::from_value(spec).unwrap());
        controller.metadata.namespace = Some("hpc".into());
        controller
    }

    #[test]
    fn the_cluster_is_named_after_namespace_and_object_by_default() {
        assert_eq!(controller(serde_json::json!({})).cluster_name(), "hpc_slurm");
        assert_eq!(
            controller(serde_json::json!({ "clusterName": "" })).cluster_name(),
            "hpc_slurm"
        );
        assert_eq!(
            controller(serde_json::json!({ "clusterName": "big" })).cluster_name(),
            "big"
        );
    }

    #[test]
    fn standbys_count_only_when_enabled_and_not_external() {
        for (spec, replicas) in [
            (serde_json::json!({}), 1),
            (serde_json::json!({ "ha": { "enabled": false, "backups": 3 } }), 1),
            (serde_json::json!({ "ha": { "enabled": true } }), 2),
            (serde_json::json!({ "ha": { "enabled": true, "backups": 3 } }), 4),
            (serde_json::json!({ "ha": { "enabled": true, "backups": -5 } }), 1),
            // The installed definitions may have no maximum.
            (serde_json::json!({ "ha": { "enabled": true, "backups": i32::MAX } }), 9),
            (serde_json::json!({ "external": true, "ha": { "enabled": true } }), 1),
        ] {
            assert_eq!(controller(spec.clone()).spec.replicas(), replicas, "{spec}");
        }
    }

    #[test]
    fn keys_are_generated_unless_they_are_given_or_slurmctld_is_external() {
        let bare = controller(serde_json::json!({}));
        let key = |name: &str, key: &str| SecretKeyRef {
            name: name.into(),
            key: key.into(),
            optional: None,
        };
        assert_eq!(bare.slurm_key(), Some(key("slurm-auth-slurm", "slurm.key")));
        assert_eq!(bare.jwt_key(), Some(key("slurm-auth-jwt", "jwt.key")));
        let elsewhere = controller(serde_json::json!({ "external": true }));
        assert_eq!((elsewhere.slurm_key(), elsewhere.jwt_key()), (None, None));
    }

    #[test]
    fn the_newer_name_of_the_jwt_key_takes_precedence() {
        let spec = controller(serde_json::json!({
            "jwtKeyRef": { "name": "new", "key": "k" }, "jwtHs256KeyRef": { "name": "old", "key": "k" },
        }))
        .spec;
        assert_eq!(spec.effective_jwt_key_ref().unwrap().name, "new");
    }
}
