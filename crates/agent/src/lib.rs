//! The agent in a Slurm pod: one static binary that runs in any image.
//!
//! * [`install`] and [`prepare`] are init containers: they provide the binary to other containers, and the files to Slurm.
//! * [`supervise`] runs a daemon, [`serve`] runs beside slurmctld; [`control`] is the protocol between them.
//! * [`check`] is for people: it checks whether slurmctld would run with a set of files.
//! * [`dry_run`] starts a second slurmctld with a set of files.
//! * [`config_dir`] is /etc/slurm, [`store`] the revisions on the state volume, [`journal`] the last steps of changes.
//!
//! Clock, randomness, files, sockets, tasks and threads come from the [`host::Host`] that `main` creates; child processes do not.

#![warn(clippy::disallowed_methods)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod check;
pub mod cli;
pub mod config_dir;
pub mod control;
pub mod dry_run;
mod fail_point;
pub mod install;
pub mod journal;
pub mod pause;
pub mod prepare;
pub mod serve;
pub mod store;
pub mod supervise;
