//! Conditions of objects, as Kubernetes tools read them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::time::Timestamp;

/// The object is in the state that its spec describes.
pub const READY: &str = "Ready";
/// The operator is working towards the state that the spec describes.
pub const PROGRESSING: &str = "Progressing";
/// Something needs attention; what runs continues to run.
pub const DEGRADED: &str = "Degraded";
/// Controller: slurmctld runs with the newest configuration; its message names the revision.
pub const CONFIG_APPLIED: &str = "ConfigurationApplied";
/// Controller: slurmctld runs with a setting that is probably a mistake.
pub const CONFIG_DOUBTFUL: &str = "ConfigDoubtful";
/// Controller: slurmctld runs under the agent, which restarts it and keeps its last output.
pub const SUPERVISED: &str = "Supervised";
/// NodeSet: Slurm answers.
pub const SLURM_REACHABLE: &str = "SlurmReachable";
/// NodeSet: Slurm holds the reservation of a scheduled update.
pub const RESERVATION_CREATED: &str = "ReservationCreated";
/// Partition: it is being deleted and stays in slurm.conf until Slurm has deleted it.
pub const PARTITION_RETAINED: &str = "PartitionRetained";
/// Partition: its slurmctld is external, has its own files and loses the partition when it restarts.
pub const NOT_PERSISTENT: &str = "NotPersistent";
/// Partition: it was changed manually in Slurm.
pub const DRIFTED: &str = "Drifted";
/// The installed definitions are older than this operator, which therefore does not use newer fields.
pub const CRDS_OUTDATED: &str = "CRDsOutdated";
/// A pod template or an overlay has fields that core/v1 does not have.
pub const UNKNOWN_FIELDS: &str = "UnknownFields";

open_enum! {
    /// Status of a condition.
    pub enum ConditionStatus {
        /// The condition is true.
        True,
        /// The condition is false.
        False,
        /// The status is unknown.
        #[default]
        Unknown,
    }
}

/// One aspect of the state of an object.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, in CamelCase.
    #[serde(rename = "type")]
    #[schemars(extend(
        "maxLength" = 316,
        "pattern" = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
    ))]
    pub type_: String,

    /// Status of the condition.
    pub status: ConditionStatus,

    /// Reason in CamelCase, for programs.
    #[schemars(extend(
        "minLength" = 1,
        "maxLength" = 1024,
        "pattern" = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
    ))]
    pub reason: String,

    /// Explanation for people, with the remedy.
    #[schemars(extend("maxLength" = 32768))]
    pub message: String,

    /// Time of the last change of the status.
    pub last_transition_time: Timestamp,

    /// The `metadata.generation` that the condition describes.
    #[schemars(extend("minimum" = 0))]
    pub observed_generation: Option<i64>,
}
