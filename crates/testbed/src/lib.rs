//! A real Kubernetes with real Slurm images on one machine, for experiments and tests.
//!
//! From the ground up: `ground` (is the machine fit), `kubernetes` and `image` (what is built once), `namespaces`, `init`,
//! `network`, `cgroups` (what a node is made of), `control_plane` and `node` (what runs where), `cluster` (its life),
//! `outside` (machines beside it), `faults` (how it is hurt), `policies` (what its network forbids), `inside` and `reading` (how it is looked into), `rights` (what the
//! operator was allowed and did), `harness` (how tests use it).

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

mod cgroups;
pub mod cluster;
pub mod command;
pub mod containerd;
pub mod control_plane;
#[cfg(test)]
mod examples;
pub mod faults;
pub mod ground;
pub mod harness;
pub mod image;
mod image_store;
pub mod images;
pub mod init;
mod inside;
pub mod kubernetes;
mod lock;
pub mod namespaces;
pub mod network;
pub mod node;
pub mod outside;
pub mod paths;
pub mod pki;
pub mod policies;
pub mod process;
mod reading;
pub mod rights;
pub mod slurm_release;
pub mod steps;
pub mod volumes;

/// A binary of this workspace, beside the running one (a test runs from a folder below).
pub fn sibling(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().context("this program has no folder")?;
    let found = folder
        .ancestors()
        .take(2)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    match found {
        Some(path) => Ok(path),
        None => bail!(
            "no {name} beside {}; `cargo build --workspace` builds it",
            own.display()
        ),
    }
}

/// The `testbed` program, which is also pid 1 inside the namespaces.
pub(crate) fn own_binary() -> Result<String> {
    Ok(sibling("testbed")?.display().to_string())
}

pub(crate) fn init_command(arguments: &[&str]) -> Result<Vec<String>> {
    Ok(std::iter::once(own_binary()?)
        .chain(arguments.iter().map(|&argument| argument.to_owned()))
        .collect())
}

/// Sixteen hexadecimal digits of a hash, for names in the cache.
pub(crate) fn short_name(hash: sha2::Sha256) -> String {
    let bytes: [u8; 32] = sha2::Digest::finalize(hash).into();
    let first = bytes.first_chunk::<8>().map_or(0, |chunk| u64::from_be_bytes(*chunk));
    format!("{first:016x}")
}
