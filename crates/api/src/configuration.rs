//! The status of a cluster's configuration: the desired revision, the one that slurmctld runs with, and how it was
//! delivered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::time::Timestamp;

/// State of a cluster's configuration. A revision consists of all files; ConfigMap `<name>-history` holds the last
/// revisions.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationStatus {
    /// The desired revision, from the Controller and the objects it refers to.
    pub wanted: Option<WantedRevision>,

    /// The revision that slurmctld reports it runs with.
    pub applied: Option<AppliedRevision>,

    /// The revision that was rejected last. Absent when the desired revision is live.
    pub rejected: Option<RejectedRevision>,

    /// Inputs that the desired revision contains in their last good version.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_inputs: Vec<HeldInput>,

    /// How the desired revision is delivered to slurmctld.
    pub delivery: Option<Delivery>,

    /// Nodes that have not loaded the last change yet or did not respond to Slurm when it was made, as a Slurm
    /// hostlist. A change does not wait for them.
    pub lagging_nodes: Option<String>,

    /// Standby slurmctld without the revision of the active one. A change does not wait for them; the operator delivers
    /// it when they respond.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lagging_standbys: Vec<LaggingStandby>,

    /// The last change that was requested from the agent.
    pub last_change: Option<ConfigurationChange>,
}

/// A desired revision.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WantedRevision {
    /// Number of the revision, once it has one.
    pub sequence: Option<i64>,

    /// SHA-256 digest of all files.
    pub digest: String,
}

/// A revision that slurmctld runs with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AppliedRevision {
    /// Number of the revision.
    pub sequence: i64,

    /// SHA-256 digest of all files.
    pub digest: String,

    /// Time at which the operator observed it.
    pub time: Timestamp,
}

/// A rejected revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RejectedRevision {
    /// Number of the revision.
    pub sequence: i64,

    /// SHA-256 digest of all files.
    pub digest: String,

    /// Time of the rejection.
    pub time: Timestamp,

    /// What rejected it. `DryRun`: a test run, before anything live was changed. `Slurmctld`: the live slurmctld, and
    /// the agent rolled back. `Agent`: the agent, which could not read it.
    pub by: RejectedBy,

    /// Error message of Slurm.
    pub reason: String,
}

/// A part of the configuration that is held at its last good version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HeldInput {
    /// Field that holds the input.
    pub source: String,

    /// Reason in CamelCase, for programs.
    pub reason: String,

    /// What is wrong and how to correct it, or what it waits for.
    pub message: String,
}

/// A standby slurmctld without the revision of the active one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LaggingStandby {
    /// Name of the pod.
    pub pod: String,

    /// Why.
    pub message: String,
}

/// A change of the configuration.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationChange {
    /// Number of the revision.
    pub sequence: i64,

    /// Time at which it ended.
    pub time: Timestamp,

    /// What made the revision live.
    pub action: Option<ConfigurationAction>,

    /// Duration from the arrival in the pod to the end.
    pub milliseconds: i64,

    /// Duration of each step, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<ConfigurationStep>,
}

/// Duration of one step of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationStep {
    /// State of the revision after the step: `staged`, `checked`, `swapped`, `verified`.
    pub step: String,

    /// Duration of the step.
    pub milliseconds: i64,
}

open_enum! {
    /// What rejected a revision.
    pub enum RejectedBy {
        /// A test run of slurmctld.
        #[default]
        DryRun,
        /// The live slurmctld.
        Slurmctld,
        /// The agent, which could not read it.
        Agent,
    }
}

open_enum! {
    /// How a revision is delivered to slurmctld.
    pub enum Delivery {
        /// Pushed to the agent beside slurmctld.
        #[default]
        Agent,
        /// By a ConfigMap that the agent reads, because the operator cannot reach the agent.
        ConfigMap,
        /// With a restart of slurmctld's pod.
        Restart,
        /// Written for slurmctld's pod to start from.
        Written,
    }
}

open_enum! {
    /// What made a revision live.
    pub enum ConfigurationAction {
        /// No action was necessary.
        #[default]
        Nothing,
        /// The changed partitions were sent to slurmctld.
        PartitionRpc,
        /// slurmctld read its files again.
        Reconfigure,
        /// slurmctld was restarted.
        Restart,
    }
}
