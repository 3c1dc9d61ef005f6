//! slurm-operator: runs Slurm clusters on Kubernetes from declarative objects.
//!
//! * [`runtime`] is what every kind stands on: caches, queue, lease, writes, conditions, events, metrics.
//! * [`controller`], [`nodeset`], [`partition`], [`restapi`], [`loginset`], [`accounting`] and [`token`] are the kinds,
//!   each `observe → plan → build → apply → status`.
//! * [`access`] is how the operator reaches one cluster's Slurm.
//! * [`outside`] looks at slurmctlds that run elsewhere.
//! * [`defaults`] is what an object means that leaves something out.

pub mod access;
pub mod accounting;
pub mod cli;
pub mod controller;
pub mod defaults;
pub mod loginset;
pub mod logs;
pub mod nodeset;
pub mod outside;
pub mod partition;
pub mod restapi;
pub mod runtime;
pub mod token;

mod cluster_domain;
mod conf_server;
mod fault;
mod key_mismatch;
mod overlay;
mod quantity;
mod secret;
mod template;
#[cfg(test)]
mod testing;
