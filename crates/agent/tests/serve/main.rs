//! `slurm-agent prepare`, `supervise` and `serve` as in a pod, with the operator's own client on one side and a daemon that
//! behaves as slurmctld does under `--systemd` on the other.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]
mod access;
mod clock;
mod commands;
#[path = "../fake_daemon/mod.rs"]
mod fake_daemon;
mod fake_scontrol;
mod hung_volume;
mod partitions;
mod pod;
mod push;
mod resume;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use slurm::agent::{
    Action, AgentKey, BundleKey, Candidate, Client, DaemonState, Error, Fence, JobAction, JobCommand, NodeAction,
    NodeCommand, NodeName, Options, Outcome, Phase, Pushed, Reason, Refusal, ReservationCommand, SIGNATURE_FILE,
    Status, UpdateChannel,
};
use slurm::revision::{ControllerUid, File, FileName};
use slurm::{AdminState, JobHandle, ReservationName, ReservationRequest, Revision};
use slurm_agent::config_dir::ConfigDir;
use slurm_agent::store::Store;
use tempfile::TempDir;
use tokio::time::sleep;

use access::get;
use pod::*;

#[test]
fn the_daemon() {
    if let Some(directory) = std::env::var_os("FAKE_DAEMON") {
        fake_daemon::main(&PathBuf::from(directory));
    }
}

#[tokio::test]
async fn the_scontrol() {
    fake_scontrol::main().await;
}
