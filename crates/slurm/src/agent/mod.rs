//! The protocol between the operator and the agent in a slurmctld pod: HTTP with JSON, from the operator to the pod's address.
//!
//! Each request carries a [token](Claims), signed with the cluster's JWT key for one pod, path and body. Each response carries a
//! proof, signed with the same key, so that a new owner of a deleted pod's address cannot report "no jobs". Commands also carry
//! a [`Fence`].
//!
//! Agents are as old as their pod while operators are upgraded, so this protocol is supported for two releases: readers ignore
//! unknown fields, and unknown values are `Unknown`, which never means success.

mod bundle_key;
pub mod candidate;
mod client;
mod command;
mod error;
mod fence;
mod key;
mod message;
mod token;

pub use bundle_key::{BundleKey, MAX_SIGNATURE, SIGNATURE_FILE, SignedBundle};
pub use candidate::Candidate;
pub use client::{Client, Options};
pub use command::{
    InvalidNodeName, InvalidReason, JobAction, JobCommand, NodeAction, NodeCommand, NodeName, PartitionCommand, Reason,
    ReservationCommand,
};
pub use error::Error;
pub use fence::Fence;
pub use key::{AgentKey, EmptyKey, KeyDigest};
pub use message::{
    Action, Checked, Commanded, Daemon, DaemonState, KeptState, Outcome, PROTOCOL, PartitionInUse, Phase, Pushed,
    RETRY_DRY_RUN, Refusal, Refused, RefusedPeer, Restored, Status, StepTime, Superseded, UpdateChannel,
};
pub use token::{Claims, InvalidToken, Request};

/// Close to Slurm's own ports (6817 to 6820).
pub const DEFAULT_PORT: u16 = 6822;

/// The port's name in the pod.
pub const PORT_NAME: &str = "agent";

/// The paths of the requests.
pub mod path {
    /// GET: [`Status`](super::Status). PUT: a bundle, response: [`Pushed`](super::Pushed).
    pub const REVISION: &str = "/v1/revision";
    /// PUT: a bundle to check without making it live, response: [`Checked`](super::Checked).
    pub const CHECK: &str = "/v1/check";
    /// GET: the output of `scontrol show nodes --json`.
    pub const NODES: &str = "/v1/nodes";
    /// GET: the output of `squeue --json`.
    pub const JOBS: &str = "/v1/jobs";
    /// GET: the output of `scontrol show config --json`; of a Slurm before 26.05, the times in its text.
    pub const CONFIG: &str = "/v1/config";
    /// GET: the output of `sacctmgr show qos --json`.
    pub const QOS: &str = "/v1/qos";
    /// POST: a [`NodeCommand`](super::NodeCommand), response: [`Commanded`](super::Commanded).
    pub const NODE: &str = "/v1/node";
    /// POST: a [`PartitionCommand`](super::PartitionCommand), response: [`Restored`](super::Restored).
    pub const PARTITION: &str = "/v1/partition";
    /// POST: a [`JobCommand`](super::JobCommand).
    pub const JOB: &str = "/v1/job";
    /// GET: the output of `scontrol show reservation --json`.
    pub const RESERVATIONS: &str = "/v1/reservations";
    /// GET: all partitions.
    pub const PARTITIONS: &str = "/v1/partitions";
    /// POST: a [`ReservationCommand`](super::ReservationCommand).
    pub const RESERVATION: &str = "/v1/reservation";
    /// GET without a token: whether the agent runs.
    pub const HEALTHZ: &str = "/healthz";
    /// GET without a token: whether the files in /etc/slurm are those of a revision.
    pub const READYZ: &str = "/readyz";
}

/// The header with the operator's [`PROTOCOL`]. Operators of protocol 1 do not send it.
pub const PROTOCOL_HEADER: &str = "slurm-agent-protocol";

/// The header with the [proof](AgentKey::prove) of a response.
pub const PROOF_HEADER: &str = "slurm-agent-proof";
