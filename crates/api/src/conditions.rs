//! Conditions: what every kind says about its objects, in the form all Kubernetes tools read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::time::Timestamp;

/// The object does what its spec asks for.
pub const READY: &str = "Ready";
/// The operator is on the way to what the spec asks for.
pub const PROGRESSING: &str = "Progressing";
/// Something needs a person; what runs goes on running.
pub const DEGRADED: &str = "Degraded";
/// NodeSet: Slurm holds the reservation of a scheduled update.
pub const RESERVATION_CREATED: &str = "ReservationCreated";
/// Partition: Slurm still has it, and its line stays in slurm.conf until Slurm lets it go.
pub const PARTITION_RETAINED: &str = "PartitionRetained";
/// Partition: its slurmctld runs outside Kubernetes, with files of its own, and forgets it when it starts anew.
pub const NOT_PERSISTENT: &str = "NotPersistent";
/// Partition: somebody changed it in Slurm.
pub const DRIFTED: &str = "Drifted";
/// The installed definitions are older than this operator, whose newer fields are therefore off.
pub const CRDS_OUTDATED: &str = "CRDsOutdated";
/// A pod template or an override holds fields that core/v1 does not have.
pub const UNKNOWN_FIELDS: &str = "UnknownFields";

open_enum! {
    /// Whether a condition holds.
    pub enum ConditionStatus {
        /// It holds.
        True,
        /// It does not hold.
        False,
        /// It is not known.
        #[default]
        Unknown,
    }
}

/// One thing that can be said about an object, and whether it holds.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What is said, in CamelCase.
    #[serde(rename = "type")]
    #[schemars(extend(
        "maxLength" = 316,
        "pattern" = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
    ))]
    pub type_: String,

    /// Whether it holds.
    pub status: ConditionStatus,

    /// Why, as one word for programs.
    #[schemars(extend(
        "minLength" = 1,
        "maxLength" = 1024,
        "pattern" = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
    ))]
    pub reason: String,

    /// Why, and what to do about it, as a sentence for people.
    #[schemars(extend("maxLength" = 32768))]
    pub message: String,

    /// When the status last changed.
    pub last_transition_time: Timestamp,

    /// The `metadata.generation` this was said about.
    #[schemars(extend("minimum" = 0))]
    pub observed_generation: Option<i64>,
}
