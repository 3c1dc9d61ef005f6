//! Partition: a partition of its own, across NodeSets and machines outside Kubernetes.

use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    claims::LabelSelector, conditions::Condition, int_or_string::IntOrString, references::ObjectRef, time::Timestamp,
};

/// The version of the kinds that upstream does not have.
pub const VERSION: &str = "v1alpha1";

/// A partition of a Slurm cluster: which nodes belong to it and what its jobs may do. It stands in slurm.conf and is
/// changed in the running slurmctld, so that a restart changes nothing.
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
    schema = "disabled",
    printcolumn = r#"{"name": "PARTITION", "type": "string", "jsonPath": ".status.partitionName",
        "description": "Slurm's name of it."}"#,
    printcolumn = r#"{"name": "STATE", "type": "string", "jsonPath": ".status.state",
        "description": "Its state in Slurm."}"#,
    printcolumn = r#"{"name": "NODES", "type": "integer", "jsonPath": ".status.nodes.total",
        "description": "Slurm nodes in it."}"#,
    printcolumn = r#"{"name": "IDLE", "type": "integer", "jsonPath": ".status.nodes.idle",
        "description": "Slurm nodes without a job."}"#,
    printcolumn = r#"{"name": "RUNNING", "type": "integer", "jsonPath": ".status.jobs.running",
        "description": "Jobs that run in it."}"#,
    printcolumn = r#"{"name": "PENDING", "type": "integer", "jsonPath": ".status.jobs.pending",
        "description": "Jobs that wait for it."}"#,
    printcolumn = r#"{"name": "READY", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status",
        "description": "Whether Slurm has it as it is written here."}"#,
    printcolumn = r#"{"name": "CPUS", "type": "integer", "jsonPath": ".status.cpus.total", "priority": 1,
        "description": "CPUs of its nodes."}"#,
    printcolumn = r#"{"name": "MEMBERS", "type": "string", "jsonPath": ".status.members", "priority": 1,
        "description": "What Nodes= says in slurm.conf."}"#,
    printcolumn = r#"{"name": "WAY", "type": "string", "jsonPath": ".status.applied.way", "priority": 1,
        "description": "How the last change was made."}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.controllerRef.name == oldSelf.controllerRef.name",
    "message": "controllerRef cannot be changed: make another Partition and delete this one",
}]))]
pub struct PartitionSpec {
    /// The Controller of the cluster. It cannot be changed.
    pub controller_ref: ObjectRef,

    /// Slurm's name of it. Absent: the object's name. It cannot be changed.
    pub partition_name: Option<String>,

    /// NodeSets whose nodes belong to it, by the name of the object; Slurm's name of a NodeSet does too where only one has it.
    pub node_sets: Option<Vec<String>>,

    /// NodeSets of the same Controller whose nodes belong to it, by their labels. An empty one selects all.
    pub node_set_selector: Option<LabelSelector>,

    /// Nodes that belong to it by their names in Slurm, each entry a hostlist: `ext[001-004]`. For machines outside Kubernetes.
    pub nodes: Option<Vec<String>>,

    /// Nodes that do not belong to it though a NodeSet brings them, each entry a hostlist. Their names stay out however the
    /// NodeSets are scaled.
    pub exclude_nodes: Option<Vec<String>>,

    /// Whether jobs are taken and started. `Up`: both. `Drain`: no new jobs, those that wait are still started. `Down`: new jobs
    /// are taken and none is started. `Inactive`: neither.
    #[schemars(extend("default" = "Up"))]
    pub state: Option<PartitionState>,

    /// Jobs that name no partition come here. One partition of a cluster can have this.
    pub default: Option<bool>,

    /// The longest a job may run: minutes, or as Slurm writes it (`1-12:00:00`, `UNLIMITED`).
    pub max_time: Option<IntOrString>,

    /// How long a job may run that does not say: minutes, or as Slurm writes it.
    pub default_time: Option<IntOrString>,

    /// Minutes a job may run beyond its limit, or `UNLIMITED`.
    pub over_time_limit: Option<IntOrString>,

    /// Seconds a job has to end when it is preempted.
    #[schemars(extend("minimum" = 0))]
    pub grace_time: Option<i64>,

    /// Jobs of a higher tier are looked at first, and may preempt those of a lower one.
    #[schemars(extend("minimum" = 0, "maximum" = 65533))]
    pub priority_tier: Option<i32>,

    /// The partition's part in a job's priority.
    #[schemars(extend("minimum" = 0, "maximum" = 65533))]
    pub priority_job_factor: Option<i32>,

    /// How jobs of it are preempted: `OFF`, `CANCEL`, `REQUEUE`, `SUSPEND`, `GANG`, and what Slurm allows together.
    pub preempt_mode: Option<String>,

    /// Whether jobs share what they are given: `NO`, `YES`, `FORCE`, `EXCLUSIVE`, also with a number (`YES:4`).
    pub over_subscribe: Option<String>,

    /// Only these accounts.
    pub allow_accounts: Option<Vec<String>>,

    /// Not these accounts.
    pub deny_accounts: Option<Vec<String>>,

    /// Only users of these groups.
    pub allow_groups: Option<Vec<String>>,

    /// Only these QOS.
    pub allow_qos: Option<Vec<String>>,

    /// Not these QOS.
    pub deny_qos: Option<Vec<String>>,

    /// The QOS whose limits hold for the whole partition.
    pub qos: Option<String>,

    /// Only jobs submitted from these nodes, each entry a hostlist.
    pub allow_alloc_nodes: Option<Vec<String>>,

    /// The partition that takes jobs while this one is not up.
    pub alternate: Option<String>,

    /// The fewest nodes of a job.
    #[schemars(extend("minimum" = 0))]
    pub min_nodes: Option<i32>,

    /// The most nodes of a job: a number, or `UNLIMITED`.
    pub max_nodes: Option<IntOrString>,

    /// The most CPUs of a node that jobs of it use: a number, or `UNLIMITED`.
    #[serde(rename = "maxCPUsPerNode")]
    pub max_cpus_per_node: Option<IntOrString>,

    /// Megabytes per CPU of a job that does not say.
    #[serde(rename = "defMemPerCPU")]
    #[schemars(extend("minimum" = 0))]
    pub def_mem_per_cpu: Option<i64>,

    /// Megabytes per node of a job that does not say. Not beside `defMemPerCPU`.
    #[schemars(extend("minimum" = 0))]
    pub def_mem_per_node: Option<i64>,

    /// The most megabytes per CPU of a job.
    #[serde(rename = "maxMemPerCPU")]
    #[schemars(extend("minimum" = 0))]
    pub max_mem_per_cpu: Option<i64>,

    /// The most megabytes per node of a job. Not beside `maxMemPerCPU`.
    #[schemars(extend("minimum" = 0))]
    pub max_mem_per_node: Option<i64>,

    /// CPUs per GPU of a job that does not say.
    #[serde(rename = "defCpuPerGPU")]
    #[schemars(extend("minimum" = 0))]
    pub def_cpu_per_gpu: Option<i64>,

    /// Megabytes per GPU of a job that does not say.
    #[serde(rename = "defMemPerGPU")]
    #[schemars(extend("minimum" = 0))]
    pub def_mem_per_gpu: Option<i64>,

    /// What each resource costs: `CPU=1.0,Mem=0.25G,GRES/gpu=2.0`.
    #[serde(rename = "tresBillingWeights")]
    pub tres_billing_weights: Option<String>,

    /// Only those who may use it see it.
    pub hidden: Option<bool>,

    /// Only root and SlurmUser submit to it.
    pub root_only: Option<bool>,

    /// Root does not run jobs in it.
    pub disable_root_jobs: Option<bool>,

    /// A job needs a reservation.
    pub req_resv: Option<bool>,

    /// The least loaded nodes first.
    pub lln: Option<bool>,

    /// One user's jobs per node.
    pub exclusive_user: Option<bool>,

    /// What has no field here, as in slurm.conf: `Key=Value` items with blanks between them. A value with blanks is written in double
    /// quotes; backslashes and number signs are refused.
    // A second line could be any setting at all.
    #[schemars(extend("pattern" = r"^[^\n]*$"))]
    pub config: Option<String>,

    /// What becomes of its jobs when the Partition is deleted. It is closed first, whatever is said here. `Wait`: jobs are waited
    /// for, running and pending ones. `Cancel`: they are cancelled.
    #[schemars(extend("default" = "Wait"))]
    pub deletion_policy: Option<PartitionDeletionPolicy>,

    /// What happens when somebody changes it in Slurm (`scontrol update`). A state that takes fewer jobs than the one here stays until it is
    /// lifted, and is written into slurm.conf; with `RevertAll` it is put back. Other values are put back within seconds: with `Revert` once
    /// per value, then they are shown and left; with `RevertAll` always. `Report`: everything is shown and left.
    #[schemars(extend("default" = "Revert"))]
    pub drift_policy: Option<DriftPolicy>,
}

open_enum! {
    /// Whether a partition takes jobs and starts them.
    pub enum PartitionState {
        /// Takes jobs and starts them.
        #[default]
        Up,
        /// Takes jobs and starts none.
        Down,
        /// Takes no jobs and starts those that wait.
        Drain,
        /// Neither takes nor starts jobs.
        Inactive,
    }
}

open_enum! {
    /// What becomes of a partition's jobs when it is deleted.
    pub enum PartitionDeletionPolicy {
        /// They are waited for.
        #[default]
        Wait,
        /// They are cancelled.
        Cancel,
    }
}

open_enum! {
    /// What happens when somebody changes a partition in Slurm.
    pub enum DriftPolicy {
        /// It is put back once per value; a stricter state stays.
        #[default]
        Revert,
        /// It is shown and left.
        Report,
        /// Everything is put back.
        RevertAll,
    }
}

open_enum! {
    /// How a change of a partition went to slurmctld.
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
        /// slurmctld was started anew.
        Restart,
    }
}

/// What is known about a partition.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PartitionStatus {
    /// Slurm's name of it.
    pub partition_name: Option<String>,

    /// Its state in Slurm, in Slurm's word. Absent while Slurm cannot be asked.
    pub state: Option<String>,

    /// What `Nodes=` says in slurm.conf.
    pub members: Option<String>,

    /// Its line in slurm.conf.
    pub line: Option<String>,

    /// Its nodes by state. Absent while Slurm cannot be asked.
    pub nodes: Option<PartitionNodes>,

    /// The CPUs of its nodes. Absent while Slurm cannot be asked.
    pub cpus: Option<PartitionCpus>,

    /// Its jobs. Absent while Slurm cannot be asked.
    pub jobs: Option<PartitionJobs>,

    /// The last change that slurmctld has.
    pub applied: Option<AppliedPartition>,

    /// Where Slurm differs from what was last written to it, and what was put back since then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drift: Vec<Drift>,

    /// What holds for this Partition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` this status is about.
    pub observed_generation: Option<i64>,
}

/// The nodes of a partition by state. A node counts once, in the first of the states from below that it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PartitionNodes {
    /// All of them.
    pub total: i32,
    /// Without a job.
    pub idle: i32,
    /// With a job, full or in part.
    pub allocated: i32,
    /// Taking no new job.
    pub drain: i32,
    /// Down, or not answering.
    pub down: i32,
}

/// The CPUs of a partition's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PartitionCpus {
    /// All of them.
    pub total: i64,
    /// In use by jobs.
    pub allocated: i64,
    /// Free, on nodes that take jobs.
    pub idle: i64,
}

/// The jobs of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PartitionJobs {
    /// Started and not ended.
    pub running: i32,
    /// Waiting.
    pub pending: i32,
}

/// A change of a partition that slurmctld has.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AppliedPartition {
    /// The `metadata.generation` that slurmctld has.
    pub generation: i64,
    /// Number of the configuration's revision that brought it; see the Controller's `status.configuration`.
    pub sequence: Option<i64>,
    /// When that was.
    pub time: Timestamp,
    /// How it went there.
    pub way: PartitionWay,
    /// From the arrival in slurmctld's pod to the end.
    pub milliseconds: Option<i64>,
}

/// One setting that somebody changed in Slurm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Drift {
    /// The key, as in slurm.conf.
    pub key: String,
    /// What was written to Slurm.
    pub wanted: String,
    /// What somebody set in Slurm.
    pub live: String,
    /// Since when this is known.
    pub since: Timestamp,
    /// What was done about it. `Kept`: it stays, and stands in slurm.conf too. `Reverted`: it was put back. `Reported`: nothing.
    pub settled: DriftSettled,
}

open_enum! {
    /// What was done about a difference.
    pub enum DriftSettled {
        /// Nothing.
        #[default]
        Reported,
        /// It was put back.
        Reverted,
        /// It stays, and stands in slurm.conf too.
        Kept,
    }
}

impl Partition {
    /// Slurm's name of it.
    pub fn slurm_name(&self) -> String {
        let given = self.spec.partition_name.clone().filter(|name| !name.is_empty());
        given.unwrap_or_else(|| self.name_any())
    }
}

impl PartitionState {
    /// Slurm's word for it.
    pub fn slurm_word(&self) -> String {
        self.as_str().to_ascii_uppercase()
    }
}

impl PartitionSpec {
    /// The state that is asked for.
    pub fn state(&self) -> PartitionState {
        self.state.clone().unwrap_or_default()
    }

    /// What becomes of its jobs when it is deleted.
    pub fn deletion_policy(&self) -> PartitionDeletionPolicy {
        self.deletion_policy.clone().unwrap_or_default()
    }

    /// What happens when somebody changes it in Slurm.
    pub fn drift_policy(&self) -> DriftPolicy {
        self.drift_policy.clone().unwrap_or_default()
    }

    /// The settings that have a field and are given, each with the field's name, Slurm's key and the value in slurm.conf. State
    /// and members are not among them.
    pub fn settings(&self) -> Vec<Setting> {
        let text = |value: &Option<String>| value.clone();
        let number = |value: Option<i64>| value.map(|number| number.to_string());
        let either = |value: &Option<IntOrString>| value.as_ref().map(ToString::to_string);
        let list = |value: &Option<Vec<String>>| value.as_ref().map(|items| items.join(","));
        let switch = |value: Option<bool>| value.map(|on| if on { "YES" } else { "NO" }.to_owned());
        [
            ("default", "Default", switch(self.default)),
            ("maxTime", "MaxTime", either(&self.max_time)),
            ("defaultTime", "DefaultTime", either(&self.default_time)),
            ("overTimeLimit", "OverTimeLimit", either(&self.over_time_limit)),
            ("graceTime", "GraceTime", number(self.grace_time)),
            (
                "priorityTier",
                "PriorityTier",
                number(self.priority_tier.map(i64::from)),
            ),
            (
                "priorityJobFactor",
                "PriorityJobFactor",
                number(self.priority_job_factor.map(i64::from)),
            ),
            ("preemptMode", "PreemptMode", text(&self.preempt_mode)),
            ("overSubscribe", "OverSubscribe", text(&self.over_subscribe)),
            ("allowAccounts", "AllowAccounts", list(&self.allow_accounts)),
            ("denyAccounts", "DenyAccounts", list(&self.deny_accounts)),
            ("allowGroups", "AllowGroups", list(&self.allow_groups)),
            ("allowQos", "AllowQos", list(&self.allow_qos)),
            ("denyQos", "DenyQos", list(&self.deny_qos)),
            ("qos", "QOS", text(&self.qos)),
            ("allowAllocNodes", "AllocNodes", list(&self.allow_alloc_nodes)),
            ("alternate", "Alternate", text(&self.alternate)),
            ("minNodes", "MinNodes", number(self.min_nodes.map(i64::from))),
            ("maxNodes", "MaxNodes", either(&self.max_nodes)),
            ("maxCPUsPerNode", "MaxCPUsPerNode", either(&self.max_cpus_per_node)),
            ("defMemPerCPU", "DefMemPerCPU", number(self.def_mem_per_cpu)),
            ("defMemPerNode", "DefMemPerNode", number(self.def_mem_per_node)),
            ("maxMemPerCPU", "MaxMemPerCPU", number(self.max_mem_per_cpu)),
            ("maxMemPerNode", "MaxMemPerNode", number(self.max_mem_per_node)),
            ("defCpuPerGPU", "DefCpuPerGPU", number(self.def_cpu_per_gpu)),
            ("defMemPerGPU", "DefMemPerGPU", number(self.def_mem_per_gpu)),
            (
                "tresBillingWeights",
                "TRESBillingWeights",
                text(&self.tres_billing_weights),
            ),
            ("hidden", "Hidden", switch(self.hidden)),
            ("rootOnly", "RootOnly", switch(self.root_only)),
            ("disableRootJobs", "DisableRootJobs", switch(self.disable_root_jobs)),
            ("reqResv", "ReqResv", switch(self.req_resv)),
            ("lln", "LLN", switch(self.lln)),
            ("exclusiveUser", "ExclusiveUser", switch(self.exclusive_user)),
        ]
        .into_iter()
        .filter_map(|(field, key, value)| {
            Some(Setting {
                field,
                key,
                value: value?,
            })
        })
        .collect()
    }
}

/// A setting of a partition that has a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The field under `spec`.
    pub field: &'static str,
    /// Slurm's key.
    pub key: &'static str,
    /// The value as it stands in slurm.conf.
    pub value: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(spec: serde_json::Value) -> Partition {
        Partition::new("gpu-long", serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn slurm_knows_it_by_the_objects_name_unless_it_says() {
        let plain = partition(serde_json::json!({ "controllerRef": { "name": "slurm" } }));
        assert_eq!(plain.slurm_name(), "gpu-long");
        let named = serde_json::json!({ "controllerRef": { "name": "slurm" }, "partitionName": "gpuLong" });
        assert_eq!(partition(named).slurm_name(), "gpuLong");
    }

    #[test]
    fn settings_stand_in_slurms_words() {
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
