//! NodeSet: slurmd pods of one shape.

use std::collections::{BTreeMap, BTreeSet};

use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    conditions::{Condition, RESERVATION_CREATED},
    drain::Drain,
    names::NodeSetName,
    overlay::{ClaimTemplate, ContainerOverlay, PodSpecOverlay},
    references::{ObjectRef, SecretKeyRef},
    templates::{Metadata, PodTemplate},
    time::Timestamp,
    update_strategy::{ScheduledUpdate, UpdateStrategy, UpdateStrategyType},
};

/// How many pods a NodeSet has when it does not say.
pub const DEFAULT_REPLICAS: i32 = 1;
/// The most pods of a set. Slurm has no more nodes (`MAX_SLURM_NODES`), and the same is more than anybody needs of login pods or slurmrestd.
pub const MAX_REPLICAS: i32 = 65_536;
/// The most digits a pod's number can be given: more than any number has, and far from where names become too long.
pub const MAX_ORDINAL_PADDING: usize = 20;

/// Slurm nodes of one shape: pods that run slurmd and register with a Controller.
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
    printcolumn = r#"{"name": "IDLE", "type": "integer", "jsonPath": ".status.slurmIdle", "priority": 1,
        "description": "Slurm nodes without a job."}"#,
    printcolumn = r#"{"name": "ALLOCATED", "type": "integer", "jsonPath": ".status.slurmAllocated", "priority": 1,
        "description": "Slurm nodes with a job."}"#,
    printcolumn = r#"{"name": "DOWN", "type": "integer", "jsonPath": ".status.slurmDown", "priority": 1,
        "description": "Slurm nodes that are down."}"#,
    printcolumn = r#"{"name": "DRAIN", "type": "integer", "jsonPath": ".status.slurmDrain", "priority": 1,
        "description": "Slurm nodes that take no new job."}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct NodeSetSpec {
    /// The Controller these nodes belong to. It cannot be changed.
    pub controller_ref: ObjectRef,

    /// Number of pods, at most 65536. With `scalingMode: DaemonSet` the Kubernetes nodes decide instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = DEFAULT_REPLICAS, "maximum" = MAX_REPLICAS))]
    pub replicas: Option<i32>,

    /// `StatefulSet`: numbered pods, `replicas` of them. `DaemonSet`: one pod on every Kubernetes node that matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "StatefulSet"))]
    pub scaling_mode: Option<ScalingMode>,

    /// Fields of a core/v1 Container, merged over the slurmd container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurmd: Option<ContainerOverlay>,

    /// SSH access to the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Ssh>,

    /// Fields of a core/v1 Container, merged over the container that prints slurmd's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logfile: Option<ContainerOverlay>,

    /// What to lay over the pods. `spec.hostname` is a prefix here: the pod's number follows it, and without its dashes
    /// it is Slurm's name for the set, its feature and its partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,

    /// Settings of the Slurm nodes, as `Key=Value` items with blanks between them, without backslashes and number signs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_conf: Option<String>,

    /// The partition of these nodes alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<NodeSetPartition>,

    /// Claims to make for every pod, each a core/v1 PersistentVolumeClaim. A pod volume of the same name gives way. They
    /// cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub volume_claim_templates: Option<Vec<ClaimTemplate>>,

    /// How pods of an older revision are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,

    /// How long a pod that is to leave waits for its jobs, whatever it leaves for: an update, a smaller number, the
    /// NodeSet's deletion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,

    /// Number of older revisions to keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 0))]
    pub revision_history_limit: Option<i32>,

    /// What becomes of the claims of pods that go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_retention_policy: Option<ClaimRetentionPolicy>,

    /// Seconds a pod must be ready before it counts as available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ready_seconds: Option<i32>,

    /// Digits of a pod's number, filled with zeros: 3 makes `node-007`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 0, "minimum" = 0))]
    pub ordinal_padding: Option<i64>,

    /// Bring a pod of the same number back to the Kubernetes node it first ran on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub pin_to_node: Option<bool>,

    /// Keep pods that run jobs from being evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub workload_disruption_protection: Option<bool>,

    /// When to remove the Slurm node of a pod that vanished unplanned: `Never`, or once its Kubernetes node is gone too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Never"))]
    pub prune_slurm_node_records: Option<PruneNodeRecords>,

    /// Let several slurmd pods run on one Kubernetes node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub oversubscribe_node: Option<bool>,
}

open_enum! {
    /// What decides how many pods there are.
    pub enum ScalingMode {
        /// `replicas` does.
        #[default]
        StatefulSet,
        /// The matching Kubernetes nodes do.
        DaemonSet,
    }
}

open_enum! {
    /// When to remove the Slurm node of a pod that vanished unplanned.
    pub enum PruneNodeRecords {
        /// Not at all.
        #[default]
        Never,
        /// Once its Kubernetes node is gone too.
        NodeNotFound,
    }
}

open_enum! {
    /// What becomes of a claim whose pod goes.
    pub enum ClaimRetention {
        /// It stays.
        #[default]
        Retain,
        /// It goes too.
        Delete,
    }
}

/// SSH access to the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ssh {
    /// Run sshd beside slurmd.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub enabled: Option<bool>,

    /// Lines to add to sshd_config.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra_sshd_config: Option<String>,

    /// The sssd.conf to use. Needed when SSH is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sssd_conf_ref: Option<SecretKeyRef>,
}

/// The partition of one NodeSet's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeSetPartition {
    /// Make the partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub enabled: Option<bool>,

    /// The rest of its line in slurm.conf, for example `Default=YES MaxTime=1-00:00:00`. A value with blanks is written in double
    /// quotes; backslashes and number signs are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    // A second line could be any setting at all.
    #[schemars(extend("pattern" = r"^[^\n]*$"))]
    pub config: Option<String>,
}

impl NodeSetPartition {
    /// Whether the partition is to be made: who writes it down wants it, unless it says otherwise.
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }
}

/// What becomes of the claims of pods that go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRetentionPolicy {
    /// When the NodeSet is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Retain"))]
    pub when_deleted: Option<ClaimRetention>,

    /// When the NodeSet is scaled in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Retain"))]
    pub when_scaled: Option<ClaimRetention>,
}

/// What is known about a NodeSet's pods and Slurm nodes.
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

    /// Pods that should be available and are not.
    pub unavailable_replicas: i32,

    /// Pods that should exist.
    pub desired: i32,

    /// Slurm nodes without a job. Absent while Slurm cannot be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm_idle: Option<i32>,

    /// Slurm nodes with a job, full or in part. Absent while Slurm cannot be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm_allocated: Option<i32>,

    /// Slurm nodes that are down. Absent while Slurm cannot be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm_down: Option<i32>,

    /// Slurm nodes that take no new job. Absent while Slurm cannot be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm_drain: Option<i32>,

    /// The `metadata.generation` this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The newest revision, as in the label `controller.kubernetes.io/hash` of its pods.
    // Always written, as the selector: upstream's definitions, which may be the installed ones, require both.
    pub node_set_hash: String,

    /// How often the name of a revision was taken by another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,

    /// What holds for this NodeSet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The start time of the scheduled update that the last reservation was made for, as the spec had it then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_start: Option<Timestamp>,

    /// The Kubernetes node each number is pinned to, if `pinToNode` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub ordinal_to_node: Option<BTreeMap<String, String>>,

    /// Slurm nodes whose Kubernetes nodes do not answer, and which those are. Their names are not used again: their jobs may
    /// still run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub cut_off: Option<BTreeMap<String, String>>,

    /// Label selector of the pods, for the scale subresource.
    pub selector: String,
}

/// A number of pods that is safe to work with: definitions without a maximum may be the installed ones.
pub(crate) fn bounded(replicas: i32) -> u32 {
    u32::try_from(replicas.clamp(0, MAX_REPLICAS)).unwrap_or(0)
}

impl NodeSet {
    /// The name its children are named after.
    pub fn child_names(&self) -> NodeSetName {
        NodeSetName::new(self.name_any())
    }

    /// Slurm's name for the set, which is also its feature and its partition.
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
    /// Number of pods that are wanted. It decides only with [`ScalingMode::StatefulSet`].
    pub fn replicas(&self) -> u32 {
        bounded(self.replicas.unwrap_or(DEFAULT_REPLICAS))
    }

    /// What decides how many pods there are.
    pub fn scaling_mode(&self) -> ScalingMode {
        self.scaling_mode.clone().unwrap_or_default()
    }

    /// What the template asks host names to begin with.
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

    /// Whether the pods use the network of their Kubernetes node, whose name is then Slurm's name for them.
    pub fn uses_host_network(&self) -> bool {
        self.pod_spec().is_some_and(|spec| spec.is_set("hostNetwork"))
    }

    /// The SSH settings, if SSH is wanted.
    pub fn wanted_ssh(&self) -> Option<&Ssh> {
        self.ssh.as_ref().filter(|ssh| ssh.enabled.unwrap_or(false))
    }

    /// The sssd.conf to use, with or without SSH.
    pub fn wanted_sssd(&self) -> Option<&SecretKeyRef> {
        self.ssh.as_ref()?.sssd_conf_ref.as_ref()
    }

    /// The rest of the partition's line, if a partition is wanted.
    pub fn wanted_partition(&self) -> Option<&str> {
        let partition = self.partition.as_ref().filter(|partition| partition.is_enabled())?;
        Some(partition.config.as_deref().unwrap_or_default())
    }

    /// The claims to make for every pod.
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

    /// How long a pod that is to leave waits for its jobs.
    pub fn drain(&self) -> Drain {
        self.drain.clone().unwrap_or_default()
    }

    /// Number of older revisions to keep.
    pub fn revision_history_limit(&self) -> usize {
        usize::try_from(self.revision_history_limit.unwrap_or(0)).unwrap_or(0)
    }

    /// What becomes of claims when the NodeSet is deleted.
    pub fn claims_when_deleted(&self) -> ClaimRetention {
        let policy = self.persistent_volume_claim_retention_policy.as_ref();
        policy
            .and_then(|policy| policy.when_deleted.clone())
            .unwrap_or_default()
    }

    /// What becomes of claims when the NodeSet is scaled in.
    pub fn claims_when_scaled(&self) -> ClaimRetention {
        let policy = self.persistent_volume_claim_retention_policy.as_ref();
        policy.and_then(|policy| policy.when_scaled.clone()).unwrap_or_default()
    }

    /// Seconds a pod must be ready before it counts as available.
    pub fn min_ready_seconds(&self) -> u32 {
        u32::try_from(self.min_ready_seconds.unwrap_or(0)).unwrap_or(0)
    }

    /// Digits of a pod's number.
    pub fn ordinal_padding(&self) -> usize {
        let given = self.ordinal_padding.unwrap_or(0).max(0);
        usize::try_from(given).map_or(MAX_ORDINAL_PADDING, |given| given.min(MAX_ORDINAL_PADDING))
    }

    /// Whether pods come back to the Kubernetes node they first ran on. It has a meaning only for numbered pods.
    pub fn pins_to_node(&self) -> bool {
        self.pin_to_node.unwrap_or(false) && self.scaling_mode() != ScalingMode::DaemonSet
    }

    /// Whether pods that run jobs are kept from being evicted.
    pub fn protects_workload(&self) -> bool {
        self.workload_disruption_protection.unwrap_or(true)
    }

    /// When to remove the Slurm node of a pod that vanished unplanned.
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
    fn a_partition_that_is_written_down_is_wanted() {
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
    fn what_is_absent_means_the_default_of_the_schema() {
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
    fn more_pods_than_slurm_has_nodes_are_never_worked_with() {
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
    fn digits_of_a_number_stay_within_reason() {
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
    fn a_word_of_another_release_is_kept() {
        let spec = nodeset(serde_json::json!({ "scalingMode": "Spiral" })).spec;
        assert_eq!(spec.scaling_mode(), ScalingMode::Other("Spiral".into()));
        assert_eq!(serde_json::to_value(&spec).unwrap()["scalingMode"], "Spiral");
    }
}
