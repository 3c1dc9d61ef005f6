//! slurm-operator: runs Slurm clusters on Kubernetes from declarative objects.
//!
//! * [`runtime`] is what every kind stands on: caches, queue, lease, writes, conditions, events, metrics.
//! * [`controller`], [`nodeset`], [`partition`], [`restapi`], [`loginset`], [`accounting`] and [`token`] are the kinds,
//!   each `observe → plan → build → apply → status`.
//! * [`cluster`] is all that the operator keeps per Slurm cluster: what Slurm says, the way to it, what was sent.
//! * [`worker`] is typed access to a worker pod.
//! * [`defaults`] is what an object means that leaves something out.

pub mod accounting;
pub mod cli;
pub mod cluster;
mod configuration;
pub mod controller;
pub mod defaults;
pub mod loginset;
pub mod logs;
pub mod nodeset;
pub mod partition;
pub mod restapi;
pub mod runtime;
pub mod token;
pub mod worker;

mod cluster_domain;
mod conf_server;
mod fault;
mod finding;
mod key_mismatch;
mod layout;
mod overlay;
mod parent;
mod quantity;
mod reason;
mod secret;
mod template;
#[cfg(test)]
mod testing;
mod unix_time;
