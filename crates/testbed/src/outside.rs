//! Machines outside Kubernetes, on the cluster's network and with Slurm's programs, as on bare metal.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use crate::cluster::{Cluster, plug_in};
use crate::command;
use crate::namespaces::{Namespaces, wait_ready};
use crate::network;
use crate::node;
use crate::process::Process;

/// A machine outside Kubernetes. It is powered off and removed when this is dropped.
#[derive(Debug)]
pub struct Outside {
    place: Namespaces,
    pub name: String,
    pub address: String,
    folder: PathBuf,
    logs: PathBuf,
}

impl Outside {
    /// Boots machine number `index`. It resolves its own name and no others.
    pub fn boot(cluster: &Cluster, index: u8, name: &str) -> Result<Self> {
        let machine = cluster.machine()?;
        // A killed test may have left the files of its machine.
        let own = format!("{name}-{}", std::process::id());
        let folder = cluster.layout.root().join("outside").join(own);
        // A node's copy exists as long as the cluster.
        let lower = slurm_root(&cluster.layout.node(&node::name(1)).join("lib/containerd"))?;
        let init = crate::init_command(&[
            "outside-init",
            name,
            &index.to_string(),
            &lower.display().to_string(),
            &folder.display().to_string(),
        ])?;
        let log = cluster.layout.log(name, "init");
        let place = Namespaces::create(Some(machine), &init, None, &log)?;
        let outside = Self {
            place,
            name: name.to_owned(),
            address: network::outside_address(index),
            folder,
            logs: cluster.layout.logs().join(name),
        };
        plug_in(machine, place, &network::outside_port(index))?;
        wait_ready(name, place.init, &log, || outside.path("/run/ready").exists())?;
        outside.write("/etc/resolv.conf", 0o644, "")?;
        let hosts = format!("127.0.0.1 localhost\n{} {name}\n", outside.address);
        outside.write("/etc/hosts", 0o644, hosts)?;
        Ok(outside)
    }

    /// Runs a shell command.
    pub fn run(&self, line: &str) -> Result<String> {
        command::output(self.place.command("bash").args(["-c", line]))
    }

    /// Starts a daemon in the foreground; its output goes to a log of that name.
    pub fn start(&self, name: &str, line: &str) -> Result<Process> {
        let words = ["-c".to_owned(), format!("exec {line}")];
        self.place.start("bash", &words, &self.log(name))
    }

    /// Path of a daemon's log.
    pub fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    /// Writes a file owned by root.
    pub fn write(&self, path: &str, mode: u32, content: impl AsRef<[u8]>) -> Result<()> {
        let inside = self.path(path);
        fs::write(&inside, content).with_context(|| format!("cannot write {path} of {}", self.name))?;
        fs::set_permissions(&inside, fs::Permissions::from_mode(mode))?;
        Ok(())
    }

    /// A path of the machine, seen from the host.
    fn path(&self, path: &str) -> PathBuf {
        let root = format!("/proc/{}/root", self.place.init.pid);
        Path::new(&root).join(path.trim_start_matches('/'))
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        if std::env::var_os("TESTBED_KEEP").is_some() {
            return;
        }
        let off = self.place.init.end(Signal::SIGKILL, Duration::from_secs(10));
        if let Err(error) = off.and_then(|()| Ok(fs::remove_dir_all(&self.folder)?)) {
            eprintln!("cannot remove machine {}: {error:#}", self.name);
        }
    }
}

/// The unpacked layer that all images of Slurm share. It is read-only.
fn slurm_root(store: &Path) -> Result<PathBuf> {
    let snapshots = store.join("io.containerd.snapshotter.v1.overlayfs/snapshots");
    fs::read_dir(&snapshots)
        .with_context(|| format!("no layers in {}", snapshots.display()))?
        .flatten()
        .map(|layer| layer.path().join("fs"))
        // A link that is dangling on the host.
        .find(|root| root.join("usr/sbin/slurmctld").is_symlink())
        .context("no layer of the images holds slurmctld")
}
