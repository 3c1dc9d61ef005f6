//! What Slurm is, for every other crate: its files, its names for things, and the way to talk to it. Nothing in
//! here knows of Kubernetes.
//!
//! * [`conf`] reads, writes and compares slurm.conf and its like (pure).
//! * [`hostlist`] turns `n[1-3,07-10]` into names and back (pure).
//! * [`node`], [`job`], [`partition`] and [`reservation`] are what Slurm reports, with the questions the operator asks of it
//!   (pure); [`describe`] is what it writes onto a node.
//! * [`answer`] decodes what slurmrestd and `scontrol --json` say (pure).
//! * [`revision`] is all files of a cluster's configuration together (pure).
//! * [`token`] signs the tokens Slurm accepts (pure).
//! * [`rest`] is the slurmrestd client.
//! * [`rpc`] is the client for slurmctld itself, in Slurm's own wire protocol.
//! * [`agent`] is what operator and agent say to each other, and the client for it.

#[macro_use]
mod checked_text;

pub mod agent;
pub mod answer;
pub mod conf;
pub mod describe;
pub mod hostlist;
pub mod job;
mod jws;
mod names;
pub mod node;
pub mod number;
pub mod partition;
pub mod reservation;
pub mod rest;
pub mod revision;
pub mod rpc;
pub mod token;
pub mod transport;

pub use answer::Answer;
pub use describe::{Line, NodeDescription, NodeFeatures};
pub use hostlist::Hostlist;
pub use job::{Job, JobHandle, JobState};
pub use node::{AdminState, Node, NodeState};
pub use number::Number;
pub use partition::Partition;
pub use reservation::{Reservation, ReservationName, ReservationRequest};
pub use revision::Revision;
