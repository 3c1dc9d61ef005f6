//! NodeSet: slurmd pods of one shape.

use std::collections::{BTreeMap, BTreeSet};

use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    autoscaling::Autoscaling,
    conditions::{Condition, RESERVATION_CREATED},
    drain::Drain,
    health::{DrainOn, Health},
    node_reason::OutOfService,
    overlay::{ClaimTemplate, ContainerOverlay, PodSpecOverlay},
    references::{ObjectRef, SecretKeyRef},
    templates::{Metadata, PodTemplate},
    time::Timestamp,
    update_strategy::{ScheduledUpdate, UpdateStrategy, UpdateStrategyType},
};

/// Default number of pods of a NodeSet, LoginSet or RestApi.
pub const DEFAULT_REPLICAS: i32 = 1;
/// Maximum number of pods of a set: Slurm's limit of nodes (`MAX_SLURM_NODES`). The same limit holds for login pods and
/// slurmrestd.
pub const MAX_REPLICAS: i32 = 65_536;
/// Maximum number of digits of a pod's ordinal: more than any ordinal has, and few enough for the length of a name.
pub const MAX_ORDINAL_PADDING: usize = 20;

/// Slurm nodes of one shape: pods that run slurmd and register with a Controller.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "slinky.slurm.net",
    version = "v1beta1",
    kind = "NodeSet",
    plural = "nodesets",
    singular = "nodeset",
    shortname = "nodesets",
    shortname = "nss",
    shortname = "slurmd",
    namespaced,
    status = "NodeSetStatus",
    doc = "Slurm nodes of one shape: pods that run slurmd and register with a Controller.",
    derive = "Default",
    derive = "PartialEq",
    category = "slurm",
    schema = "disabled",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name": "DESIRED", "type": "integer", "jsonPath": ".status.desired",
        "description": "Pods that should exist."}"#,
    printcolumn = r#"{"name": "REPLICAS", "type": "integer", "jsonPath": ".status.replicas",
        "description": "Pods that exist."}"#,
    printcolumn = r#"{"name": "UPDATED", "type": "integer", "jsonPath": ".status.updatedReplicas",
        "description": "Pods of the newest revision."}"#,
    printcolumn = r#"{"name": "READY", "type": "integer", "jsonPath": ".status.readyReplicas",
        "description": "Pods that are ready."}"#,
    printcolumn = r#"{"name": "REASON", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason",
        "description": "Why it is or is not: see the message of condition Ready."}"#,
    printcolumn = r#"{"name": "IDLE", "type": "integer", "jsonPath": ".status.slurmIdle", "priority": 1,
        "description": "Slurm nodes without a job."}"#,
    printcolumn = r#"{"name": "ALLOCATED", "type": "integer", "jsonPath": ".status.slurmAllocated", "priority": 1,
        "description": "Slurm nodes with a job."}"#,
    printcolumn = r#"{"name": "DOWN", "type": "integer", "jsonPath": ".status.slurmDown", "priority": 1,
        "description": "Slurm nodes that are down."}"#,
    printcolumn = r#"{"name": "DRAIN", "type": "integer", "jsonPath": ".status.slurmDrain", "priority": 1,
        "description": "Slurm nodes that accept no new job."}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct NodeSetSpec {
    /// The Controller these nodes belong to. Immutable.
    pub controller_ref: ObjectRef,

    /// Number of pods, at most 65536. Without effect with `scalingMode: DaemonSet` and with autoscaling.
    #[schemars(extend("default" = DEFAULT_REPLICAS))]
    pub replicas: Option<i32>,

    /// Workers that follow Slurm's queue: Slurm's power saving starts and stops them.
    pub autoscaling: Option<Autoscaling>,

    /// `StatefulSet`: numbered pods, `replicas` of them. `DaemonSet`: one pod on every Kubernetes node that matches.
    #[schemars(extend("default" = "StatefulSet"))]
    pub scaling_mode: Option<ScalingMode>,

    /// Fields of a core/v1 Container, merged over the slurmd container.
    pub slurmd: Option<ContainerOverlay>,

    /// SSH access to the nodes.
    pub ssh: Option<Ssh>,

    /// Fields of a core/v1 Container, merged over the container that prints slurmd's log.
    pub logfile: Option<ContainerOverlay>,

    /// Fields merged over the pods. `spec.hostname` is a prefix: the pod's ordinal follows it. Without its dashes it is
    /// Slurm's name of the set, its feature and its partition.
    pub template: Option<PodTemplate>,

    /// Settings of the Slurm nodes: `Key=Value` items separated by blanks, without backslashes and number signs.
    pub extra_conf: Option<String>,

    /// The partition of this NodeSet's nodes.
    pub partition: Option<NodeSetPartition>,

    /// Claims to create for every pod, each a core/v1 PersistentVolumeClaim. They replace pod volumes of the same name.
    /// Immutable.
    #[schemars(extend("nullable" = true))]
    pub volume_claim_templates: Option<Vec<ClaimTemplate>>,

    /// How pods of an older revision are replaced.
    pub update_strategy: Option<UpdateStrategy>,

    /// How long a pod that is to be removed waits for its jobs, whether it is removed for an update, a scale-in or the
    /// deletion of the NodeSet.
    pub drain: Option<Drain>,

    /// How the health of Kubernetes nodes affects the Slurm nodes on them.
    pub health: Option<Health>,

    /// Number of older revisions to keep.
    #[schemars(extend("default" = 0))]
    pub revision_history_limit: Option<i32>,

    /// What happens to the claims of removed pods.
    pub persistent_volume_claim_retention_policy: Option<ClaimRetentionPolicy>,

    /// Seconds that a pod must be ready before it counts as available.
    pub min_ready_seconds: Option<i32>,

    /// Digits of a pod's ordinal, padded with zeros: 3 gives `node-007`.
    #[schemars(extend("default" = 0))]
    pub ordinal_padding: Option<i64>,

    /// Whether a pod returns to the Kubernetes node that the pod with the same ordinal first ran on.
    #[schemars(extend("default" = false))]
    pub pin_to_node: Option<bool>,

    /// Whether pods that run jobs are protected from eviction.
    #[schemars(extend("default" = true))]
    pub workload_disruption_protection: Option<bool>,

    /// When to delete the Slurm node record of a pod that was lost: `Never`, or when its Kubernetes node is gone too
    /// (`NodeNotFound`).
    #[schemars(extend("default" = "Never"))]
    pub prune_slurm_node_records: Option<PruneNodeRecords>,

    /// Whether several slurmd pods may run on one Kubernetes node.
    #[schemars(extend("default" = false))]
    pub oversubscribe_node: Option<bool>,
}

open_enum! {
    /// What determines the number of pods.
    pub enum ScalingMode {
        /// The field `replicas`.
        #[default]
        StatefulSet,
        /// The matching Kubernetes nodes.
        DaemonSet,
    }
}

open_enum! {
    /// When to delete the Slurm node record of a pod that was lost.
    pub enum PruneNodeRecords {
        /// Never.
        #[default]
        Never,
        /// When its Kubernetes node is gone too.
        NodeNotFound,
    }
}

open_enum! {
    /// What happens to the claim of a removed pod.
    pub enum ClaimRetention {
        /// It stays.
        #[default]
        Retain,
        /// It goes too.
        Delete,
    }
}

/// SSH access to the nodes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ssh {
    /// Whether sshd runs beside slurmd.
    #[schemars(extend("default" = false))]
    pub enabled: Option<bool>,

    /// Lines to add to sshd_config.
    pub extra_sshd_config: Option<String>,

    /// Secret entry with sssd.conf. Required when SSH is enabled.
    pub sssd_conf_ref: Option<SecretKeyRef>,
}

/// The partition of one NodeSet's nodes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeSetPartition {
    /// Whether the partition is created.
    #[schemars(extend("default" = true))]
    pub enabled: Option<bool>,

    /// Settings of the partition as in slurm.conf, for example `Default=YES MaxTime=1-00:00:00`. Write a value with
    /// blanks in double quotes; backslashes and number signs are rejected.
    // A second line could hold any other setting.
    #[schemars(extend("pattern" = r"^[^\n]*$"))]
    pub config: Option<String>,
}

impl NodeSetPartition {
    /// Whether the partition is to be created, which is the default.
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }
}

/// What happens to the claims of removed pods.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRetentionPolicy {
    /// When the NodeSet is deleted.
    #[schemars(extend("default" = "Retain"))]
    pub when_deleted: Option<ClaimRetention>,

    /// When the NodeSet is scaled in.
    #[schemars(extend("default" = "Retain"))]
    pub when_scaled: Option<ClaimRetention>,
}

/// Observed state of a NodeSet's pods and Slurm nodes.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["nodeSetHash", "selector"]))]
pub struct NodeSetStatus {
    /// Pods that exist.
    pub replicas: i32,

    /// Pods of the newest revision.
    pub updated_replicas: i32,

    /// Pods that are ready.
    pub ready_replicas: i32,

    /// Pods that have been ready for `minReadySeconds`.
    pub available_replicas: i32,

    /// Pods that should be available but are not.
    pub unavailable_replicas: i32,

    /// Pods that should exist.
    pub desired: i32,

    /// Slurm nodes without a job. Absent while Slurm is unreachable.
    pub slurm_idle: Option<i32>,

    /// Slurm nodes with a job, full or in part. Absent while Slurm is unreachable.
    pub slurm_allocated: Option<i32>,

    /// Slurm nodes that are down. Absent while Slurm is unreachable.
    pub slurm_down: Option<i32>,

    /// Slurm nodes that accept no new job. Absent while Slurm is unreachable.
    pub slurm_drain: Option<i32>,

    /// Slurm nodes that are down, drained, failing or do not respond. Absent while Slurm is unreachable.
    pub slurm_out_of_service: Option<i32>,

    /// Why, since when and by whom Slurm nodes are out of service: the first 20 by name. Absent if there are none, or while
    /// Slurm is unreachable.
    #[schemars(extend("nullable" = true, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node"]))]
    pub out_of_service: Option<Vec<OutOfService>>,

    /// The `metadata.generation` that this status describes.
    pub observed_generation: Option<i64>,

    /// The newest revision, as in the label `controller.kubernetes.io/hash` of its pods.
    // Always written, like the selector: upstream's definitions require both and may be installed.
    pub node_set_hash: String,

    /// Number of collisions of revision names.
    pub collision_count: Option<i32>,

    /// Conditions of the NodeSet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The start time of the scheduled update for which the last reservation was created.
    pub reserved_start: Option<Timestamp>,

    /// The Kubernetes node that each ordinal is pinned to, if `pinToNode` is set.
    #[schemars(extend("nullable" = true))]
    pub ordinal_to_node: Option<BTreeMap<String, String>>,

    /// Slurm nodes whose Kubernetes nodes do not respond, or may not, with the names of those. The Slurm names are not
    /// reused, because the jobs may still run.
    #[schemars(extend("nullable" = true))]
    pub cut_off: Option<BTreeMap<String, String>>,

    /// Label selector of the pods, for the scale subresource.
    pub selector: String,
}

/// The number of pods for a `spec.replicas`, clamped because the installed definitions may have no maximum.
pub(crate) fn replicas_or_default(replicas: Option<i32>) -> u32 {
    u32::try_from(replicas.unwrap_or(DEFAULT_REPLICAS).clamp(0, MAX_REPLICAS)).unwrap_or(0)
}

impl NodeSet {
    /// Slurm's name of the set, which is also its feature and its partition.
    pub fn slurm_name(&self) -> String {
        let from_hostname = self
            .spec
            .hostname_prefix()
            .and_then(|prefix| prefix.split_whitespace().next())
            .map(|prefix| prefix.trim_matches('-'))
            .filter(|prefix| !prefix.is_empty());
        from_hostname.map_or_else(|| self.name_any(), str::to_owned)
    }

    /// The condition about the Slurm reservation of a scheduled update, if the status has one.
    pub fn reservation_condition(&self) -> Option<&Condition> {
        let conditions = &self.status.as_ref()?.conditions;
        conditions
            .iter()
            .find(|condition| condition.type_ == RESERVATION_CREATED)
    }

    /// Whether Slurm may hold a reservation for this NodeSet, or should.
    pub fn may_have_reservation(&self) -> bool {
        let start = self.spec.scheduled_update().and_then(|scheduled| scheduled.start_time);
        start.and_then(|start| start.instant()).is_some() || self.reservation_condition().is_some()
    }
}

impl NodeSetSpec {
    /// Desired number of pods. It has an effect only with [`ScalingMode::StatefulSet`].
    pub fn replicas(&self) -> u32 {
        replicas_or_default(self.replicas)
    }

    /// What determines the number of pods.
    pub fn scaling_mode(&self) -> ScalingMode {
        self.scaling_mode.clone().unwrap_or_default()
    }

    /// The prefix of the host names, from the template.
    pub fn hostname_prefix(&self) -> Option<&str> {
        self.pod_spec()?.text("hostname")
    }

    /// Labels and annotations that the pod template sets.
    pub fn pod_metadata(&self) -> Option<&Metadata> {
        self.template.as_ref()?.metadata.as_ref()
    }

    /// Fields of the pod spec that the pod template sets.
    pub fn pod_spec(&self) -> Option<&PodSpecOverlay> {
        self.template.as_ref()?.spec.as_ref()
    }

    /// Kinds of devices in the `Gres=` settings of `extraConf`: `gpu` for `Gres=gpu:a100:2`.
    pub fn device_kinds(&self) -> BTreeSet<String> {
        let settings = self.extra_conf.as_deref().unwrap_or_default().split_whitespace();
        settings
            .filter_map(|setting| setting.split_once('='))
            .filter(|(key, _)| key.eq_ignore_ascii_case("Gres"))
            .flat_map(|(_, devices)| devices.split(','))
            .filter_map(|device| device.trim().split(':').next())
            .filter(|kind| !kind.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Whether the pods use the network of their Kubernetes node. Slurm then knows them by the node's name.
    pub fn uses_host_network(&self) -> bool {
        self.pod_spec().is_some_and(|spec| spec.is_set("hostNetwork"))
    }

    /// The SSH settings, if SSH is enabled.
    pub fn wanted_ssh(&self) -> Option<&Ssh> {
        self.ssh.as_ref().filter(|ssh| ssh.enabled.unwrap_or(false))
    }

    /// The Secret entry with sssd.conf, whether or not SSH is enabled.
    pub fn wanted_sssd(&self) -> Option<&SecretKeyRef> {
        self.ssh.as_ref()?.sssd_conf_ref.as_ref()
    }

    /// The settings of the partition, if it is enabled.
    pub fn wanted_partition(&self) -> Option<&str> {
        let partition = self.partition.as_ref().filter(|partition| partition.is_enabled())?;
        Some(partition.config.as_deref().unwrap_or_default())
    }

    /// The claims to create for every pod.
    pub fn claim_templates(&self) -> &[ClaimTemplate] {
        self.volume_claim_templates.as_deref().unwrap_or_default()
    }

    /// How pods of an older revision are replaced.
    pub fn update_strategy(&self) -> UpdateStrategy {
        self.update_strategy.clone().unwrap_or_default()
    }

    /// The settings of a scheduled update, if pods are replaced by one.
    pub fn scheduled_update(&self) -> Option<ScheduledUpdate> {
        let strategy = self.update_strategy();
        let is_scheduled = strategy.kind() == UpdateStrategyType::ScheduledUpdate;
        strategy.scheduled_update.filter(|_| is_scheduled)
    }

    /// How long a pod that is to be removed waits for its jobs.
    pub fn drain(&self) -> Drain {
        self.drain.clone().unwrap_or_default()
    }

    /// The conditions of Kubernetes nodes that drain the Slurm nodes on them.
    pub fn drain_on(&self) -> &[DrainOn] {
        self.health.as_ref().map(Health::drain_on).unwrap_or_default()
    }

    /// Number of older revisions to keep.
    pub fn revision_history_limit(&self) -> usize {
        usize::try_from(self.revision_history_limit.unwrap_or(0)).unwrap_or(0)
    }

    /// What happens to claims when the NodeSet is deleted.
    pub fn claims_when_deleted(&self) -> ClaimRetention {
        let policy = self.persistent_volume_claim_retention_policy.as_ref();
        policy
            .and_then(|policy| policy.when_deleted.clone())
            .unwrap_or_default()
    }

    /// What happens to claims when the NodeSet is scaled in.
    pub fn claims_when_scaled(&self) -> ClaimRetention {
        let policy = self.persistent_volume_claim_retention_policy.as_ref();
        policy.and_then(|policy| policy.when_scaled.clone()).unwrap_or_default()
    }

    /// Seconds that a pod must be ready before it counts as available.
    pub fn min_ready_seconds(&self) -> u32 {
        u32::try_from(self.min_ready_seconds.unwrap_or(0)).unwrap_or(0)
    }

    /// Digits of a pod's ordinal.
    pub fn ordinal_padding(&self) -> usize {
        let given = self.ordinal_padding.unwrap_or(0).max(0);
        usize::try_from(given).map_or(MAX_ORDINAL_PADDING, |given| given.min(MAX_ORDINAL_PADDING))
    }

    /// Whether pods return to the Kubernetes node they first ran on. It has an effect only on pods with ordinals.
    pub fn pins_to_node(&self) -> bool {
        self.pin_to_node.unwrap_or(false) && self.scaling_mode() != ScalingMode::DaemonSet
    }

    /// Whether pods that run jobs are protected from eviction.
    pub fn protects_workload(&self) -> bool {
        self.workload_disruption_protection.unwrap_or(true)
    }

    /// When to delete the Slurm node record of a pod that was lost.
    pub fn prune_node_records(&self) -> PruneNodeRecords {
        self.prune_slurm_node_records.clone().unwrap_or_default()
    }

    /// Whether several slurmd pods may run on one Kubernetes node.
    pub fn oversubscribes_node(&self) -> bool {
        self.oversubscribe_node.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodeset(spec: serde_json::Value) -> NodeSet {
        let mut spec = spec;
        spec["controllerRef"] = serde_json::json!({ "name": "slurm" });
        NodeSet::new("compute", serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn slurm_names_the_set_after_the_hostname_without_its_dashes() {
        for (hostname, expected) in [
            ("gpu-", "gpu"),
            ("--gpu--", "gpu"),
            ("gpu", "gpu"),
            ("gpu- x", "gpu"),
            ("-", "compute"),
            ("", "compute"),
        ] {
            let nodeset = nodeset(serde_json::json!({ "template": { "spec": { "hostname": hostname } } }));
            assert_eq!(nodeset.slurm_name(), expected, "{hostname:?}");
        }
        assert_eq!(nodeset(serde_json::json!({})).slurm_name(), "compute");
    }

    #[test]
    fn device_kinds_come_from_all_gres_settings() {
        for (extra_conf, kinds) in [
            ("", vec![]),
            ("Weight=5 Gres=", vec![]),
            ("Gres=gpu", vec!["gpu"]),
            (
                "gres=gpu:a100:2,gpu:h100:1,shard:8 GRES=license",
                vec!["gpu", "license", "shard"],
            ),
        ] {
            let nodeset = nodeset(serde_json::json!({ "extraConf": extra_conf }));
            assert_eq!(
                nodeset.spec.device_kinds().into_iter().collect::<Vec<_>>(),
                kinds,
                "{extra_conf}"
            );
        }
    }

    #[test]
    fn a_partition_in_the_spec_is_enabled_by_default() {
        for (spec, expected) in [
            (serde_json::json!({}), None),
            (serde_json::json!({ "partition": {} }), Some("")),
            (serde_json::json!({ "partition": { "config": "" } }), Some("")),
            (
                serde_json::json!({ "partition": { "config": "Default=YES" } }),
                Some("Default=YES"),
            ),
            (
                serde_json::json!({ "partition": { "enabled": false, "config": "Default=YES" } }),
                None,
            ),
        ] {
            assert_eq!(nodeset(spec.clone()).spec.wanted_partition(), expected, "{spec}");
        }
    }

    #[test]
    fn an_absent_field_has_the_default_of_the_schema() {
        let spec = nodeset(serde_json::json!({})).spec;
        assert_eq!(spec.replicas(), 1);
        assert_eq!(spec.scaling_mode(), ScalingMode::StatefulSet);
        assert_eq!(spec.claims_when_deleted(), ClaimRetention::Retain);
        assert_eq!(spec.claims_when_scaled(), ClaimRetention::Retain);
        assert_eq!(spec.prune_node_records(), PruneNodeRecords::Never);
        assert!(spec.protects_workload());
        assert!(!spec.pins_to_node() && !spec.oversubscribes_node());
    }

    #[test]
    fn replicas_are_clamped_to_slurms_limit() {
        for (given, replicas) in [
            (-1, 0),
            (0, 0),
            (3, 3),
            (65_536, 65_536),
            (65_537, 65_536),
            (i32::MAX, 65_536),
        ] {
            let spec = nodeset(serde_json::json!({ "replicas": given })).spec;
            assert_eq!(spec.replicas(), replicas, "{given}");
        }
    }

    #[test]
    fn the_digits_of_an_ordinal_are_limited() {
        for (given, digits) in [(-1, 0), (3, 3), (i64::MAX, 20)] {
            assert_eq!(
                nodeset(serde_json::json!({ "ordinalPadding": given }))
                    .spec
                    .ordinal_padding(),
                digits
            );
        }
    }

    #[test]
    fn a_value_of_another_release_is_kept() {
        let spec = nodeset(serde_json::json!({ "scalingMode": "Spiral" })).spec;
        assert_eq!(spec.scaling_mode(), ScalingMode::Other("Spiral".into()));
        assert_eq!(serde_json::to_value(&spec).unwrap()["scalingMode"], "Spiral");
    }
}
