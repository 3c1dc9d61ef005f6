//! The client of slurmrestd: what the operator reads from a cluster, and a few commands.
//!
//! It uses plain HTTP, as slurmrestd does inside a cluster. See [`Error`] for what each failure means to the caller.

mod body;
mod client;
mod error;
mod node_update;
mod observation;
mod partition_commands;
mod partition_update;
mod reservation_update;
mod version;

pub use client::{Client, Options};
pub use error::Error;
pub use node_update::{NodeCommand, NodeUpdate};
pub use observation::{Observation, Process};
pub use version::ApiVersion;
