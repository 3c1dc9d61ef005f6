//! Partition: a partition across NodeSets and machines outside Kubernetes.

use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::{
    claims::LabelSelector, conditions::Condition, int_or_string::IntOrString, references::ObjectRef, time::Timestamp,
};

use SettingForm::{List, Number, NumberOrWord, State, Switch, Text};

/// API version of the kinds that upstream does not have.
pub const VERSION: &str = "v1alpha1";

/// Maximum of a priority: Slurm gives the two numbers above another meaning.
pub(crate) const MAX_PRIORITY: i64 = 65533;
/// Maximum length of a text in the spec. The API server bounds the cost of a rule by such limits.
const MAX_TEXT: u32 = 1024;
/// Maximum length of `config`.
const MAX_CONFIG: u32 = 4096;
/// Maximum length of a name in a list.
const MAX_NAME: u32 = 253;
/// Maximum number of items in a list.
const MAX_ITEMS: u32 = 1024;

/// Schema of an item of a list.
fn text(max_length: u32) -> Value {
    serde_json::json!({ "type": "string", "maxLength": max_length })
}

/// A partition of a Slurm cluster: which nodes belong to it and what its jobs may do. The operator writes it to
/// slurm.conf and changes it in the running slurmctld, so that it survives a restart.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "slinky.slurm.net",
    version = "v1alpha1",
    kind = "Partition",
    plural = "partitions",
    singular = "partition",
    shortname = "part",
    namespaced,
    status = "PartitionStatus",
    doc = "A partition of a Slurm cluster: which nodes belong to it and what its jobs may do.",
    derive = "Default",
    derive = "PartialEq",
    category = "slurm",
    schema = "disabled",
    printcolumn = r#"{"name": "PARTITION", "type": "string", "jsonPath": ".status.partitionName",
        "description": "Slurm's name of the partition."}"#,
    printcolumn = r#"{"name": "STATE", "type": "string", "jsonPath": ".status.state",
        "description": "State of the partition in Slurm."}"#,
    printcolumn = r#"{"name": "NODES", "type": "integer", "jsonPath": ".status.nodes.total",
        "description": "Slurm nodes of the partition."}"#,
    printcolumn = r#"{"name": "IDLE", "type": "integer", "jsonPath": ".status.nodes.idle",
        "description": "Slurm nodes without a job."}"#,
    printcolumn = r#"{"name": "RUNNING", "type": "integer", "jsonPath": ".status.jobs.running",
        "description": "Running jobs."}"#,
    printcolumn = r#"{"name": "PENDING", "type": "integer", "jsonPath": ".status.jobs.pending",
        "description": "Pending jobs."}"#,
    printcolumn = r#"{"name": "READY", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status",
        "description": "Whether Slurm has the partition as the object describes it."}"#,
    printcolumn = r#"{"name": "REASON", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason",
        "description": "Why it is or is not: see the message of condition Ready."}"#,
    printcolumn = r#"{"name": "CPUS", "type": "integer", "jsonPath": ".status.cpus.total", "priority": 1,
        "description": "CPUs of the nodes."}"#,
    printcolumn = r#"{"name": "MEMBERS", "type": "string", "jsonPath": ".status.members", "priority": 1,
        "description": "Value of Nodes= in slurm.conf."}"#,
    printcolumn = r#"{"name": "WAY", "type": "string", "jsonPath": ".status.applied.way", "priority": 1,
        "description": "How the last change was sent to slurmctld."}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct PartitionSpec {
    /// The Controller of the cluster. Immutable.
    pub controller_ref: ObjectRef,

    /// Slurm's name of the partition. Defaults to the name of the object. Immutable.
    #[schemars(extend("maxLength" = MAX_TEXT))]
    pub partition_name: Option<String>,

    /// NodeSets whose nodes belong to the partition, by the name of the object. Slurm's name of a NodeSet is accepted
    /// too, if it is unique.
    #[schemars(extend("maxItems" = MAX_ITEMS, "items" = text(MAX_NAME)))]
    pub node_sets: Option<Vec<String>>,

    /// Label selector of NodeSets whose nodes belong to the partition. Only NodeSets of the same Controller are
    /// selected; an empty selector selects all of them.
    pub node_set_selector: Option<LabelSelector>,

    /// Further nodes of the partition, for machines outside Kubernetes. Each entry is a Slurm hostlist: `ext[001-004]`.
    #[schemars(extend("maxItems" = MAX_ITEMS, "items" = text(MAX_TEXT)))]
    pub nodes: Option<Vec<String>>,

    /// Nodes of the NodeSets that do not belong to the partition. Each entry is a Slurm hostlist. The names stay
    /// excluded when the NodeSets are scaled.
    #[schemars(extend("maxItems" = MAX_ITEMS, "items" = text(MAX_TEXT)))]
    pub exclude_nodes: Option<Vec<String>>,

    /// State of the partition. `Up`: it accepts and starts jobs. `Drain`: it accepts no new jobs and starts queued
    /// ones. `Down`: it accepts new jobs and starts none. `Inactive`: it neither accepts nor starts jobs.
    #[schemars(extend("default" = "Up"))]
    pub state: Option<PartitionState>,

    /// Whether this is the default partition, for jobs that name none. A cluster has at most one.
    pub default: Option<bool>,

    /// Maximum run time of a job: minutes, or a time as Slurm writes it (`1-12:00:00`, `UNLIMITED`).
    pub max_time: Option<IntOrString>,

    /// Run time limit of a job that sets none: minutes, or a time as Slurm writes it.
    pub default_time: Option<IntOrString>,

    /// Minutes that a job may exceed its time limit, or `UNLIMITED`.
    pub over_time_limit: Option<IntOrString>,

    /// Seconds between the preemption of a job and its end.
    #[schemars(extend("minimum" = 0))]
    pub grace_time: Option<i64>,

    /// Priority tier. Jobs of a higher tier are scheduled first and may preempt jobs of a lower tier.
    #[schemars(extend("minimum" = 0, "maximum" = MAX_PRIORITY))]
    pub priority_tier: Option<i32>,

    /// Factor of the partition in a job's priority.
    #[schemars(extend("minimum" = 0, "maximum" = MAX_PRIORITY))]
    pub priority_job_factor: Option<i32>,

    /// How jobs of the partition are preempted: `OFF`, `CANCEL`, `REQUEUE`, `SUSPEND`, `GANG`, or a combination that
    /// Slurm allows.
    #[schemars(extend("maxLength" = MAX_TEXT))]
    pub preempt_mode: Option<String>,

    /// Whether jobs share resources: `NO`, `YES`, `FORCE`, `EXCLUSIVE`, also with a number (`YES:4`).
    #[schemars(extend("maxLength" = MAX_TEXT))]
    pub over_subscribe: Option<String>,

    /// Accounts that may use the partition. All others may not.
    #[schemars(extend("maxItems" = MAX_ITEMS, "items" = text(MAX_NAME)))]
    pub allow_accounts: Option<Vec<String>>,

    /// Accounts that may not use the partition.
    #[schemars(extend("maxItems" = MAX_ITEMS, "items" = text(MAX_NAME)))]
    pub deny_accounts: Option<Vec<String>>,

    /// Groups whose users may use the partition. All others may not.
    #[schemars(extend("maxItems" = MAX_ITEMS, "items" = text(MAX_NAME)))]
    pub allow_groups: Option<Vec<String>>,

    /// QOS that jobs may use in the partition. All others are denied.
    #[schemars(extend("maxItems" = MAX_ITEMS, "items" = text(MAX_NAME)))]
    pub allow_qos: Option<Vec<String>>,

    /// QOS that jobs may not use in the partition.
    #[schemars(extend("maxItems" = MAX_ITEMS, "items" = text(MAX_NAME)))]
    pub deny_qos: Option<Vec<String>>,

    /// QOS whose limits apply to the whole partition.
    #[schemars(extend("maxLength" = MAX_TEXT))]
    pub qos: Option<String>,

    /// Nodes from which jobs may be submitted. Each entry is a Slurm hostlist.
    #[schemars(extend("maxItems" = MAX_ITEMS, "items" = text(MAX_TEXT)))]
    pub allow_alloc_nodes: Option<Vec<String>>,

    /// Partition that gets the jobs while this one is not up.
    #[schemars(extend("maxLength" = MAX_TEXT))]
    pub alternate: Option<String>,

    /// Minimum number of nodes of a job.
    #[schemars(extend("minimum" = 0))]
    pub min_nodes: Option<i32>,

    /// Maximum number of nodes of a job, or `UNLIMITED`.
    pub max_nodes: Option<IntOrString>,

    /// Maximum number of CPUs of a node that jobs of the partition use, or `UNLIMITED`.
    #[serde(rename = "maxCPUsPerNode")]
    pub max_cpus_per_node: Option<IntOrString>,

    /// Default memory per CPU of a job, in megabytes.
    #[serde(rename = "defMemPerCPU")]
    #[schemars(extend("minimum" = 0))]
    pub def_mem_per_cpu: Option<i64>,

    /// Default memory per node of a job, in megabytes. Excludes `defMemPerCPU`.
    #[schemars(extend("minimum" = 0))]
    pub def_mem_per_node: Option<i64>,

    /// Maximum memory per CPU of a job, in megabytes.
    #[serde(rename = "maxMemPerCPU")]
    #[schemars(extend("minimum" = 0))]
    pub max_mem_per_cpu: Option<i64>,

    /// Maximum memory per node of a job, in megabytes. Excludes `maxMemPerCPU`.
    #[schemars(extend("minimum" = 0))]
    pub max_mem_per_node: Option<i64>,

    /// Default number of CPUs per GPU of a job.
    #[serde(rename = "defCpuPerGPU")]
    #[schemars(extend("minimum" = 0))]
    pub def_cpu_per_gpu: Option<i64>,

    /// Default memory per GPU of a job, in megabytes.
    #[serde(rename = "defMemPerGPU")]
    #[schemars(extend("minimum" = 0))]
    pub def_mem_per_gpu: Option<i64>,

    /// Billing weight of each resource: `CPU=1.0,Mem=0.25G,GRES/gpu=2.0`.
    #[serde(rename = "tresBillingWeights")]
    #[schemars(extend("maxLength" = MAX_TEXT))]
    pub tres_billing_weights: Option<String>,

    /// Whether the partition is hidden from users who may not use it.
    pub hidden: Option<bool>,

    /// Whether only root and SlurmUser may submit jobs.
    pub root_only: Option<bool>,

    /// Whether root may not run jobs in the partition.
    pub disable_root_jobs: Option<bool>,

    /// Whether a job needs a reservation.
    pub req_resv: Option<bool>,

    /// Whether jobs are started on the least loaded nodes first.
    pub lln: Option<bool>,

    /// Whether a node runs the jobs of one user only.
    pub exclusive_user: Option<bool>,

    /// Settings that have no field here, as in slurm.conf: `Key=Value` items separated by blanks. Write a value with
    /// blanks in double quotes; backslashes and number signs are rejected.
    #[schemars(extend("maxLength" = MAX_CONFIG))]
    pub config: Option<String>,

    /// What happens to jobs when the Partition is deleted. The partition stops accepting jobs in either case. `Wait`:
    /// the operator waits for running and pending jobs. `Cancel`: it cancels them.
    #[schemars(extend("default" = "Wait"))]
    pub deletion_policy: Option<PartitionDeletionPolicy>,

    /// What happens to a manual change in Slurm (`scontrol update`). `Revert`: the operator reverts it within seconds,
    /// but once per value; if the value is changed again, it is reported and left. A state that accepts fewer jobs than
    /// `state` is kept until the partition is resumed, and is written to slurm.conf. `RevertAll`: the operator
    /// reverts every change, the state too. `Report`: it reports every change and reverts none.
    #[schemars(extend("default" = "Revert"))]
    pub drift_policy: Option<DriftPolicy>,
}

open_enum! {
    /// Whether a partition accepts and starts jobs.
    pub enum PartitionState {
        /// Accepts and starts jobs.
        #[default]
        Up,
        /// Accepts jobs and starts none.
        Down,
        /// Accepts no jobs and starts queued ones.
        Drain,
        /// Neither accepts nor starts jobs.
        Inactive,
    }
}

open_enum! {
    /// What happens to a partition's jobs when it is deleted.
    pub enum PartitionDeletionPolicy {
        /// The operator waits for them.
        #[default]
        Wait,
        /// The operator cancels them.
        Cancel,
    }
}

open_enum! {
    /// What happens to a manual change of a partition in Slurm.
    pub enum DriftPolicy {
        /// It is reverted once per value; a stricter state is kept.
        #[default]
        Revert,
        /// It is reported and left.
        Report,
        /// Every change is reverted.
        RevertAll,
    }
}

open_enum! {
    /// How a change of a partition was sent to slurmctld.
    pub enum PartitionWay {
        /// By Slurm's own protocol, for this partition alone.
        #[default]
        Rpc,
        /// By slurmrestd.
        Rest,
        /// By `scontrol`.
        Scontrol,
        /// slurmctld read its files again.
        Reconfigure,
        /// slurmctld was restarted.
        Restart,
    }
}

/// Observed state of a partition.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PartitionStatus {
    /// Slurm's name of the partition.
    pub partition_name: Option<String>,

    /// State of the partition in Slurm, as Slurm writes it. Absent while Slurm is unreachable.
    pub state: Option<String>,

    /// Members by their names in Slurm: NodeSets and nodes, and after `except` the excluded nodes.
    pub members: Option<String>,

    /// Line of the partition in slurm.conf.
    pub line: Option<String>,

    /// Nodes of the partition by state. Absent while Slurm is unreachable.
    pub nodes: Option<PartitionNodes>,

    /// CPUs of the partition's nodes. Absent while Slurm is unreachable.
    pub cpus: Option<PartitionCpus>,

    /// Jobs of the partition. Absent while Slurm is unreachable.
    pub jobs: Option<PartitionJobs>,

    /// The last change that slurmctld runs with.
    pub applied: Option<AppliedPartition>,

    /// Settings in which Slurm differs from what the operator last wrote, and settings reverted since then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drift: Vec<Drift>,

    /// Conditions of the Partition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` that this status describes.
    pub observed_generation: Option<i64>,
}

/// The nodes of a partition by state. A node counts once: as `down` if it is down, else as `drain`, `allocated` or
/// `idle`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PartitionNodes {
    /// Total number.
    pub total: i32,
    /// Nodes without a job.
    pub idle: i32,
    /// Nodes with a job, allocated in full or in part.
    pub allocated: i32,
    /// Nodes that accept no new job.
    pub drain: i32,
    /// Nodes that are down or do not respond.
    pub down: i32,
}

/// The CPUs of a partition's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PartitionCpus {
    /// Total number.
    pub total: i64,
    /// CPUs allocated to jobs.
    pub allocated: i64,
    /// Free CPUs of nodes that accept jobs.
    pub idle: i64,
}

/// The jobs of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PartitionJobs {
    /// Running jobs.
    pub running: i32,
    /// Waiting.
    pub pending: i32,
}

/// A change of a partition that slurmctld runs with.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AppliedPartition {
    /// The `metadata.generation` that slurmctld runs with.
    pub generation: i64,
    /// Number of the configuration revision that contains it; see `status.configuration` of the Controller.
    pub sequence: Option<i64>,
    /// Time of the change.
    pub time: Timestamp,
    /// How it was sent.
    pub way: PartitionWay,
    /// Duration from the arrival in slurmctld's pod to the end.
    pub milliseconds: Option<i64>,
}

/// A manual change of one setting in Slurm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Drift {
    /// The key, as in slurm.conf.
    pub key: String,
    /// Value that the operator wrote to Slurm.
    pub wanted: String,
    /// Value that was set in Slurm.
    pub live: String,
    /// Time at which the operator observed it.
    pub since: Timestamp,
    /// What the operator did. `Kept`: it kept the value and wrote it to slurm.conf. `Reverted`: it reverted the change.
    /// `Reported`: nothing.
    pub settled: DriftSettled,
}

open_enum! {
    /// What the operator did about a manual change.
    pub enum DriftSettled {
        /// Nothing.
        #[default]
        Reported,
        /// It reverted the change.
        Reverted,
        /// It kept the value and wrote it to slurm.conf.
        Kept,
    }
}

impl Partition {
    /// Slurm's name of the partition.
    pub fn slurm_name(&self) -> String {
        let given = self.spec.partition_name.clone().filter(|name| !name.is_empty());
        given.unwrap_or_else(|| self.name_any())
    }
}

impl PartitionState {
    /// The state as Slurm writes it.
    pub fn slurm_word(&self) -> String {
        self.as_str().to_ascii_uppercase()
    }
}

impl PartitionSpec {
    /// The desired state.
    pub fn state(&self) -> PartitionState {
        self.state.clone().unwrap_or_default()
    }

    /// What happens to its jobs when it is deleted.
    pub fn deletion_policy(&self) -> PartitionDeletionPolicy {
        self.deletion_policy.clone().unwrap_or_default()
    }

    /// What happens to a manual change in Slurm.
    pub fn drift_policy(&self) -> DriftPolicy {
        self.drift_policy.clone().unwrap_or_default()
    }

    /// The settings that have a field and are set, each with the name of the field, Slurm's key and the value in
    /// slurm.conf. State and members are not included.
    pub fn settings(&self) -> Vec<Setting> {
        let spec = serde_json::to_value(self).unwrap_or_default();
        let text = |value: &Value| match value {
            Value::Bool(on) => if *on { "YES" } else { "NO" }.to_owned(),
            Value::String(text) => text.clone(),
            Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
            other => other.to_string(),
        };
        let fields = SETTING_FIELDS.iter().filter(|field| field.form != State);
        fields
            .filter_map(|field| {
                Some(Setting {
                    field: field.name,
                    key: field.key,
                    value: text(spec.get(field.name)?),
                })
            })
            .collect()
    }
}

/// The form of the value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingForm {
    Switch,
    Text,
    Number,
    /// A number, or one of Slurm's words.
    NumberOrWord,
    List,
    State,
}

/// A field of the spec that is a setting in slurm.conf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingField {
    /// Under `spec`.
    pub name: &'static str,
    /// Slurm's key.
    pub key: &'static str,
    pub form: SettingForm,
}

const fn field(name: &'static str, key: &'static str, form: SettingForm) -> SettingField {
    SettingField { name, key, form }
}

/// The settings that have a field of their own.
pub const SETTING_FIELDS: [SettingField; 34] = [
    field("state", "State", State),
    field("default", "Default", Switch),
    field("maxTime", "MaxTime", NumberOrWord),
    field("defaultTime", "DefaultTime", NumberOrWord),
    field("overTimeLimit", "OverTimeLimit", NumberOrWord),
    field("graceTime", "GraceTime", Number),
    field("priorityTier", "PriorityTier", Number),
    field("priorityJobFactor", "PriorityJobFactor", Number),
    field("preemptMode", "PreemptMode", Text),
    field("overSubscribe", "OverSubscribe", Text),
    field("allowAccounts", "AllowAccounts", List),
    field("denyAccounts", "DenyAccounts", List),
    field("allowGroups", "AllowGroups", List),
    field("allowQos", "AllowQos", List),
    field("denyQos", "DenyQos", List),
    field("qos", "QOS", Text),
    field("allowAllocNodes", "AllocNodes", List),
    field("alternate", "Alternate", Text),
    field("minNodes", "MinNodes", Number),
    field("maxNodes", "MaxNodes", NumberOrWord),
    field("maxCPUsPerNode", "MaxCPUsPerNode", NumberOrWord),
    field("defMemPerCPU", "DefMemPerCPU", Number),
    field("defMemPerNode", "DefMemPerNode", Number),
    field("maxMemPerCPU", "MaxMemPerCPU", Number),
    field("maxMemPerNode", "MaxMemPerNode", Number),
    field("defCpuPerGPU", "DefCpuPerGPU", Number),
    field("defMemPerGPU", "DefMemPerGPU", Number),
    field("tresBillingWeights", "TRESBillingWeights", Text),
    field("hidden", "Hidden", Switch),
    field("rootOnly", "RootOnly", Switch),
    field("disableRootJobs", "DisableRootJobs", Switch),
    field("reqResv", "ReqResv", Switch),
    field("lln", "LLN", Switch),
    field("exclusiveUser", "ExclusiveUser", Switch),
];

/// A setting of a partition that has a field of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The field under `spec`.
    pub field: &'static str,
    /// Slurm's key.
    pub key: &'static str,
    /// The value as in slurm.conf.
    pub value: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(spec: serde_json::Value) -> Partition {
        Partition::new("gpu-long", serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn the_partition_is_named_after_the_object_by_default() {
        let plain = partition(serde_json::json!({ "controllerRef": { "name": "slurm" } }));
        assert_eq!(plain.slurm_name(), "gpu-long");
        let named = serde_json::json!({ "controllerRef": { "name": "slurm" }, "partitionName": "gpuLong" });
        assert_eq!(partition(named).slurm_name(), "gpuLong");
    }

    #[test]
    fn settings_are_rendered_as_in_slurm_conf() {
        let spec = partition(serde_json::json!({
            "controllerRef": { "name": "slurm" },
            "default": true, "hidden": false, "maxTime": 60, "defaultTime": "1-00:00:00",
            "allowAccounts": ["a", "b"], "maxCPUsPerNode": 4, "defMemPerCPU": 100, "tresBillingWeights": "CPU=1.0",
        }))
        .spec;
        let said: Vec<String> = spec
            .settings()
            .iter()
            .map(|setting| format!("{}={}", setting.key, setting.value))
            .collect();
        let expected = "Default=YES MaxTime=60 DefaultTime=1-00:00:00 AllowAccounts=a,b MaxCPUsPerNode=4 DefMemPerCPU=100 \
                        TRESBillingWeights=CPU=1.0 Hidden=NO";
        assert_eq!(said.join(" "), expected);
    }
}
