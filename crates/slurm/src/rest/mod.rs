//! The client of slurmrestd: what the operator reads from a cluster, and a few commands.
//!
//! It uses plain HTTP, as slurmrestd does inside a cluster. See [`Error`] for what each failure means to the caller.

mod body;
mod client;
mod error;
mod observation;
mod partition_commands;
mod partition_update;

pub use body::render_node;
pub use client::{ApiVersion, Client, Options};
pub use error::Error;
pub use observation::{Observation, Process};
