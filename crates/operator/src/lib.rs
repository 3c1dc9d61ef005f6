//! slurm-operator: runs Slurm clusters on Kubernetes from declarative objects.
//!
//! * [`runtime`] is the crate of that name (caches, queue, lease, writes, events, metrics) with the [`kinds`] and the
//!   [`context`] of this operator.
//! * [`controller`], [`nodeset`], [`partition`], [`restapi`], [`loginset`], [`accounting`] and [`token`] are the kinds,
//!   each `observe → plan → build → apply → status`.
//! * [`cluster`] is everything the operator keeps per Slurm cluster: its task, its connections and what it knows.
//! * [`configuration`] decides which files slurmctld is to run with.
//! * [`worker`] is typed access to a worker pod.
//! * [`webhook`] judges objects when people write them.
//! * [`defaults`] are the values of fields that an object omits.

#![warn(clippy::disallowed_methods)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod cli;
pub mod cluster;
pub mod conditions;
pub mod configuration_metrics;
pub mod context;
pub mod controller;
pub mod defaults;
pub mod finding;
pub mod kinds;
pub mod logs;
pub mod nodeset;
pub mod partition;
pub mod runtime;
pub mod service_monitor;
pub mod slurm_release;
pub mod worker;

mod accounting;
mod cluster_domain;
mod conf_server;
mod configuration;
mod fence;
mod key_mismatch;
mod kind;
mod layout;
mod loginset;
mod overlay;
mod parent;
mod reason;
mod references;
mod restapi;
mod secret;
mod startup;
mod template;
#[cfg(test)]
mod testing;
mod token;
mod unix_time;
mod webhook;
