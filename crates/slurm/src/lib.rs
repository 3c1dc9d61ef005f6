//! Slurm's files, its names and its protocols. Nothing in this crate knows of Kubernetes.
//!
//! * [`conf`] reads, writes and compares slurm.conf and similar files (pure).
//! * [`hostlist`] expands and compresses `n[1-3,07-10]` (pure).
//! * [`node`], [`job`], [`partition`] and [`reservation`] are what Slurm reports, with predicates (pure); [`describe`] is what the
//!   operator writes to a node.
//! * [`answer`] decodes the JSON of slurmrestd and `scontrol --json` (pure).
//! * [`revision`] is all files of a cluster's configuration together (pure).
//! * [`token`] signs the tokens that Slurm accepts (pure).
//! * [`rest`] is the client of slurmrestd.
//! * [`rpc`] is the client of slurmctld, in Slurm's own protocol.
//! * [`agent`] is the protocol between operator and agent, and the client for it.
//! * [`transport`] is one request and one response, for the three clients.

#![warn(clippy::disallowed_methods)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

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
mod remote_clock;
pub mod reservation;
pub mod rest;
pub mod revision;
pub mod rpc;
pub mod token;
pub mod transport;

pub use answer::Answer;
pub use describe::{NodeDescription, NodeFeatures, SingleLine};
pub use hostlist::Hostlist;
pub use job::{Job, JobHandle, JobState};
pub use node::{AdminState, Node, NodeState};
pub use number::Number;
pub use partition::Partition;
pub use reservation::{Reservation, ReservationName, ReservationRequest};
pub use revision::Revision;
