//! What runs inside a Slurm pod, in one static binary that fits any image.
//!
//! * [`install`] and [`prepare`] run before anything starts: the binary for the other containers, the files for Slurm.
//! * [`supervise`] is around a daemon, [`serve`] beside slurmctld; [`control`] is what they say to each other.
//! * [`config_dir`] is /etc/slurm, [`store`] the revisions on the state volume.

pub mod cli;
pub mod config_dir;
pub mod control;
mod durable;
pub mod install;
pub mod pause;
pub mod prepare;
pub mod serve;
pub mod store;
pub mod supervise;
