//! What the operator and the agent in a slurmctld pod say to each other: HTTP with JSON, from the operator to the pod's own
//! address.
//!
//! Each request carries a [token](Claims) made from the cluster's JWT key for this one pod, path and body; each answer
//! carries a proof made from the same key, so that nobody who was given the address of a pod that is gone can say "no
//! jobs". What changes something also carries a [`Fence`].
//!
//! Agents are as old as their pod and operators are replaced under them, so this protocol is kept for two releases:
//! readers pass over fields they do not know, and values they do not know are `Unknown`, which never means success.

pub mod candidate;
mod client;
mod command;
mod error;
mod fence;
mod key;
mod message;
mod token;

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
    Refusal, Refused, RefusedPeer, Restored, Status, StepTime, Way,
};
pub use token::{Claims, InvalidToken, Request};

/// Next to Slurm's own ports (6817 to 6820) and none of them.
pub const DEFAULT_PORT: u16 = 6822;

/// The port's name in the pod.
pub const PORT_NAME: &str = "agent";

/// Where things are.
pub mod path {
    /// GET: [`Status`](super::Status). PUT: a bundle, answered by [`Pushed`](super::Pushed).
    pub const REVISION: &str = "/v1/revision";
    /// PUT: a bundle to try on the side, answered by [`Checked`](super::Checked).
    pub const CHECK: &str = "/v1/check";
    /// GET: what `scontrol show nodes --json` prints.
    pub const NODES: &str = "/v1/nodes";
    /// GET: what `squeue --json` prints.
    pub const JOBS: &str = "/v1/jobs";
    /// GET: what `scontrol show config --json` prints.
    pub const CONFIG: &str = "/v1/config";
    /// GET: what `sacctmgr show qos --json` prints.
    pub const QOS: &str = "/v1/qos";
    /// POST: a [`NodeCommand`](super::NodeCommand), answered by [`Commanded`](super::Commanded).
    pub const NODE: &str = "/v1/node";
    /// POST: a [`PartitionCommand`](super::PartitionCommand), answered by [`Restored`](super::Restored).
    pub const PARTITION: &str = "/v1/partition";
    /// POST: a [`JobCommand`](super::JobCommand).
    pub const JOB: &str = "/v1/job";
    /// GET: what `scontrol show reservation --json` prints.
    pub const RESERVATIONS: &str = "/v1/reservations";
    /// GET: all partitions.
    pub const PARTITIONS: &str = "/v1/partitions";
    /// POST: a [`ReservationCommand`](super::ReservationCommand).
    pub const RESERVATION: &str = "/v1/reservation";
    /// GET without a token: the agent runs.
    pub const HEALTHZ: &str = "/healthz";
    /// GET without a token: the files in /etc/slurm are those of a revision.
    pub const READYZ: &str = "/readyz";
}

/// Carries an answer's [proof](AgentKey::prove).
pub const PROOF_HEADER: &str = "slurm-agent-proof";
