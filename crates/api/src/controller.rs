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

/// How many backups a controller with high availability has when it does not say.
pub const DEFAULT_BACKUPS: i32 = 1;
/// The most backups. Each is a line in slurm.conf that every client tries in turn, so more of them help nobody.
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
    schema = "disabled",
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.external) || !self.external || has(self.externalConfig)",
        "message": "externalConfig is needed when external is true: it says where slurmctld runs",
    },
    {
        "rule": "!has(self.ha) || !has(self.ha.enabled) || !self.ha.enabled || (has(self.persistence) && \
            (!has(self.persistence.enabled) || self.persistence.enabled) && \
            has(self.persistence.existingClaim) && self.persistence.existingClaim != '')",
        "message": "ha needs persistence.enabled and persistence.existingClaim: all slurmctld share one ReadWriteMany claim",
    },
]))]
pub struct ControllerSpec {
    /// Slurm's name for the cluster, at most 40 characters; it cannot be changed. Absent: `<namespace>_<name>`.
    pub cluster_name: Option<String>,

    /// Key of auth/slurm, which all daemons of the cluster share. Absent: one is generated. The Secret's name cannot be
    /// changed.
    pub slurm_key_ref: Option<SecretKeyRef>,

    /// Older name of `jwtKeyRef`, which wins over it.
    pub jwt_hs256_key_ref: Option<SecretKeyRef>,

    /// Key that signs the cluster's tokens (auth/jwt). Absent: one is generated. It cannot be changed.
    pub jwt_key_ref: Option<SecretKeyRef>,

    /// JSON web key set with further keys whose tokens the cluster accepts.
    pub jwks_key_ref: Option<ConfigMapKeyRef>,

    /// The Accounting that keeps this cluster's records.
    pub accounting_ref: Option<ObjectRef>,

    /// The cluster's slurmctld runs outside Kubernetes; `externalConfig` says where.
    #[schemars(extend("default" = false))]
    pub external: Option<bool>,

    /// Where an external slurmctld is found.
    pub external_config: Option<ExternalConfig>,

    /// Standby slurmctld that take over when the active one fails.
    pub ha: Option<HighAvailability>,

    /// Fields of a core/v1 Container, merged over the slurmctld container.
    pub slurmctld: Option<ContainerOverlay>,

    /// Accepted and without effect: changes are always applied in place. To have slurmctld restarted instead, see
    /// `configUpdate`.
    #[schemars(extend("default" = false))]
    pub inplace_reconfigure: Option<bool>,

    /// How a change of the configuration reaches slurmctld. Absent: `InPlace`.
    pub config_update: Option<ConfigUpdate>,

    /// Fields of a core/v1 Container, merged over the reconfigure container.
    pub reconfigure: Option<ContainerOverlay>,

    /// Fields of a core/v1 Container, merged over the container that prints slurmctld's log.
    pub logfile: Option<ContainerOverlay>,

    /// What to lay over the slurmctld pods.
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

    /// Where slurmctld keeps its state.
    pub persistence: Option<Persistence>,

    /// What to lay over the Service that clients reach slurmctld by.
    pub service: Option<ServiceTemplate>,

    /// What Prometheus is to collect.
    pub metrics: Option<Metrics>,
}

open_enum! {
    /// How a change of the configuration reaches slurmctld.
    pub enum ConfigUpdate {
        /// The running slurmctld takes it over.
        #[default]
        InPlace,
        /// slurmctld is restarted with it.
        Restart,
    }
}

/// Standby slurmctld.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HighAvailability {
    /// Run standbys. It needs `persistence.existingClaim` to name a ReadWriteMany claim.
    #[schemars(extend("default" = false))]
    pub enabled: Option<bool>,

    /// Number of standbys, at most 8.
    #[schemars(extend("default" = DEFAULT_BACKUPS, "minimum" = 1, "maximum" = MAX_BACKUPS))]
    pub backups: Option<i32>,
}

/// Storage for slurmctld's state.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Persistence {
    /// Keep the state on a volume. Otherwise it is lost with the pod. It cannot be changed.
    #[schemars(extend("default" = true))]
    pub enabled: Option<bool>,

    /// Use this claim instead of making one. It cannot be changed.
    pub existing_claim: Option<String>,

    /// The claim to make.
    #[serde(flatten)]
    pub claim: ClaimSpec,
}

/// What is known about a Slurm cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ControllerStatus {
    /// What holds for this cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` this status is about.
    pub observed_generation: Option<i64>,

    /// Where the configuration stands.
    pub configuration: Option<ConfigurationStatus>,
}

impl Controller {
    /// Slurm's name for the cluster.
    pub fn cluster_name(&self) -> String {
        match self.spec.cluster_name.as_deref() {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => self
                .child_names()
                .default_cluster_name(self.metadata.namespace.as_deref().unwrap_or_default()),
        }
    }

    /// Where the key of auth/slurm is: where the user says, or else in a Secret of ours. `None` if it can be in neither,
    /// since a slurmctld outside Kubernetes has a key already.
    pub fn slurm_key(&self) -> Option<SecretKeyRef> {
        let ours = || self.generated_key(self.child_names().slurm_key_secret(), wellknown::SLURM_KEY_FILE);
        self.spec.slurm_key_ref.clone().or_else(ours)
    }

    /// Where the key of auth/jwt is, in the same way.
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

    /// Host and port of a slurmctld outside Kubernetes, if it is there.
    pub fn external_address(&self) -> Option<(&str, i64)> {
        let external = self.external_config.as_ref().filter(|_| self.is_external())?;
        Some(external.address(wellknown::SLURMCTLD_PORT))
    }

    /// The reference to the key of auth/jwt, under whichever name it was given.
    pub fn effective_jwt_key_ref(&self) -> Option<&SecretKeyRef> {
        self.jwt_key_ref.as_ref().or(self.jwt_hs256_key_ref.as_ref())
    }

    /// Name of the Accounting, if there is one.
    pub fn accounting_name(&self) -> Option<&str> {
        self.accounting_ref
            .as_ref()
            .map(|accounting| accounting.name.as_str())
            .filter(|name| !name.is_empty())
    }

    /// Whether there are standbys.
    pub fn is_highly_available(&self) -> bool {
        !self.is_external() && self.ha.as_ref().is_some_and(|ha| ha.enabled.unwrap_or(false))
    }

    /// Number of slurmctld, standbys included.
    pub fn replicas(&self) -> u32 {
        if !self.is_highly_available() {
            return 1;
        }
        let backups = self.ha.as_ref().and_then(|ha| ha.backups).unwrap_or(DEFAULT_BACKUPS);
        1 + u32::try_from(backups.clamp(0, MAX_BACKUPS)).unwrap_or(0)
    }

    /// How a change of the configuration reaches slurmctld.
    pub fn config_update(&self) -> ConfigUpdate {
        self.config_update.clone().unwrap_or_default()
    }

    /// Whether slurmctld's state is kept on a volume: it is, unless the user said otherwise.
    pub fn is_persistent(&self) -> bool {
        self.persistence
            .as_ref()
            .and_then(|persistence| persistence.enabled)
            .unwrap_or(true)
    }

    /// The claim the user brought along for slurmctld's state.
    pub fn existing_claim(&self) -> Option<&str> {
        let claim = self.persistence.as_ref()?.existing_claim.as_deref()?;
        (self.is_persistent() && !claim.is_empty()).then_some(claim)
    }

    /// Every list of ConfigMaps whose entries end up beside slurm.conf, with the name of its field.
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
    fn the_cluster_is_named_after_namespace_and_object_unless_it_says() {
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
    fn standbys_count_only_when_they_are_enabled_and_ours() {
        for (spec, replicas) in [
            (serde_json::json!({}), 1),
            (serde_json::json!({ "ha": { "enabled": false, "backups": 3 } }), 1),
            (serde_json::json!({ "ha": { "enabled": true } }), 2),
            (serde_json::json!({ "ha": { "enabled": true, "backups": 3 } }), 4),
            (serde_json::json!({ "ha": { "enabled": true, "backups": -5 } }), 1),
            // Definitions without a maximum may be the installed ones.
            (serde_json::json!({ "ha": { "enabled": true, "backups": i32::MAX } }), 9),
            (serde_json::json!({ "external": true, "ha": { "enabled": true } }), 1),
        ] {
            assert_eq!(controller(spec.clone()).spec.replicas(), replicas, "{spec}");
        }
    }

    #[test]
    fn keys_nobody_names_are_ours_unless_slurmctld_is_elsewhere() {
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
    fn the_newer_name_of_the_jwt_key_wins() {
        let spec = controller(serde_json::json!({
            "jwtKeyRef": { "name": "new", "key": "k" }, "jwtHs256KeyRef": { "name": "old", "key": "k" },
        }))
        .spec;
        assert_eq!(spec.effective_jwt_key_ref().unwrap().name, "new");
    }
}
