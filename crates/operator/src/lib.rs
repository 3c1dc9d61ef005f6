//! slurm-operator: runs Slurm clusters on Kubernetes from declarative objects.
//!
//! * [`runtime`] is the crate of that name (caches, queue, lease, writes, events, metrics) with the [`kinds`] and the
//!   [`context`] of this operator.
//! * [`controller`], [`nodeset`], [`partition`], [`restapi`], [`loginset`], [`accounting`] and [`token`] are the kinds,
//!   each `observe → plan → build → apply → status`.
//! * [`access`] is how the operator reaches one cluster's Slurm.
//! * [`outside`] looks at slurmctlds that run elsewhere.
//! * [`defaults`] are the values of fields that an object omits.

pub mod access;
pub mod cli;
pub mod conditions;
pub mod configuration_metrics;
pub mod context;
pub mod controller;
pub mod defaults;
pub mod kinds;
pub mod logs;
pub mod nodeset;
pub mod outside;
pub mod partition;
pub mod runtime;
pub mod service_monitor;

mod accounting;
mod cluster_domain;
mod conf_server;
mod fault;
mod fence;
mod key_mismatch;
mod kind;
mod loginset;
mod overlay;
mod references;
mod restapi;
mod secret;
mod template;
#[cfg(test)]
mod testing;
mod token;
