//! What runs inside a Slurm pod, in one static binary that fits any image.
//!
//! * [`install`] and [`prepare`] run before anything starts: the binary for the other containers, the files for Slurm.
//! * [`supervise`] is around a daemon, [`serve`] beside slurmctld; [`control`] is what they say to each other.
//! * [`check`] is for people: would slurmctld run with these files?
//! * [`dry_run`] lets another slurmctld say whether it would run with a set of files.
//! * [`config_dir`] is /etc/slurm, [`store`] the revisions on the state volume, [`journal`] how
//!   far the last ones came.

pub mod check;
pub mod cli;
pub mod config_dir;
pub mod control;
pub mod dry_run;
mod durable;
mod fail_point;
pub mod install;
pub mod journal;
pub mod pause;
pub mod prepare;
pub mod serve;
pub mod store;
pub mod supervise;
