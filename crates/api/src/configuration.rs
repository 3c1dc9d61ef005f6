//! What is said about the configuration of a cluster: which revision is wanted, which one slurmctld runs with, and how it
//! came there.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::time::Timestamp;

/// Where a cluster's configuration stands. A revision is all files together; `<name>-history` holds the last ones.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationStatus {
    /// What the Controller and everything it refers to ask for.
    pub wanted: Option<WantedRevision>,

    /// What slurmctld runs with, by its own word.
    pub applied: Option<AppliedRevision>,

    /// What was refused last, until everything that is asked for is live.
    pub rejected: Option<RejectedRevision>,

    /// What is not in the wanted revision as its owners wrote it, but as it was when it was last good.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_inputs: Vec<HeldInput>,

    /// How the wanted revision goes, or went, to slurmctld.
    pub delivery: Option<Delivery>,

    /// Nodes that have not taken the last change over yet, or did not answer Slurm when it was made, as a Slurm hostlist. A change
    /// does not wait for them.
    pub lagging_nodes: Option<String>,

    /// Standby slurmctld that do not have what the active one runs with. A change does not wait for them; they get it when they can.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lagging_standbys: Vec<LaggingStandby>,

    /// The last change that the agent was asked for.
    pub last_change: Option<ConfigurationChange>,
}

/// A revision that slurmctld is to run with.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WantedRevision {
    /// Its number, once it has been given one.
    pub sequence: Option<i64>,

    /// SHA-256 over all files.
    pub digest: String,
}

/// A revision that slurmctld runs with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AppliedRevision {
    /// Its number.
    pub sequence: i64,

    /// SHA-256 over all files.
    pub digest: String,

    /// Since when this is known.
    pub time: Timestamp,
}

/// A revision that was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RejectedRevision {
    /// Its number.
    pub sequence: i64,

    /// SHA-256 over all files.
    pub digest: String,

    /// When it was refused.
    pub time: Timestamp,

    /// `DryRun`: before anything live was touched. `Slurmctld`: by slurmctld itself, and the revision before is back.
    /// `Agent`: it could not be read.
    pub by: RejectedBy,

    /// Slurm's own words.
    pub reason: String,
}

/// A part of the configuration that waits, while the rest goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HeldInput {
    /// The field it stands in.
    pub source: String,

    /// Why, as one word for programs.
    pub reason: String,

    /// What is wrong and what to do, or what it waits for.
    pub message: String,
}

/// A standby slurmctld that does not have what the active one runs with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LaggingStandby {
    /// Its pod.
    pub pod: String,

    /// Why.
    pub message: String,
}

/// One change of the configuration, from its arrival in slurmctld's pod to its end.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationChange {
    /// The revision's number.
    pub sequence: i64,

    /// When it ended.
    pub time: Timestamp,

    /// What slurmctld was made to do.
    pub action: Option<ConfigurationAction>,

    /// From the arrival in the pod to the end.
    pub milliseconds: i64,

    /// How long each step took, in the order of the steps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<ConfigurationStep>,
}

/// How long one step of a change took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationStep {
    /// What the revision was by the end of it: `staged`, `checked`, `swapped`, `verified`.
    pub step: String,

    /// How long it took.
    pub milliseconds: i64,
}

open_enum! {
    /// Who refused a revision.
    pub enum RejectedBy {
        /// A slurmctld that was started with it on the side.
        #[default]
        DryRun,
        /// The live slurmctld.
        Slurmctld,
        /// The agent, which could not read it.
        Agent,
    }
}

open_enum! {
    /// How a revision goes to slurmctld.
    pub enum Delivery {
        /// Pushed to the agent beside slurmctld.
        #[default]
        Agent,
        /// By a ConfigMap that the agent takes it from, since the agent could not be reached.
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
        /// Nothing had to be done.
        #[default]
        Nothing,
        /// slurmctld was told which partitions are different.
        PartitionRpc,
        /// slurmctld read its files again.
        Reconfigure,
        /// slurmctld was started anew.
        Restart,
    }
}
