//! Sets of namespaces (mount, network, pid, hostname, ipc), each held by the process that is pid 1 in it. When that
//! process is killed the kernel ends everything inside, so nothing of a cluster can outlive it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::command::last_lines;
use crate::process::{Process, only_child};

pub(crate) const ALL: [&str; 5] = ["--mount", "--net", "--pid", "--uts", "--ipc"];

#[derive(Clone, Copy, Debug)]
pub struct Namespaces {
    pub init: Process,
}

impl Namespaces {
    /// Creates namespaces around `init` (program and arguments), inside `parent` or else on the host.
    pub fn create(parent: Option<Self>, init: &[String], stdin: Option<OwnedFd>, log: &Path) -> Result<Self> {
        // A node sees what is mounted later in the machine (volumes), while the machine shows the host nothing.
        let propagation = if parent.is_some() { "slave" } else { "private" };
        let mut command = match parent {
            Some(parent) => parent.command("unshare"),
            None => Command::new("unshare"),
        };
        command
            .args(ALL)
            .args([
                "--fork",
                "--kill-child=SIGKILL",
                "--mount-proc",
                "--propagation",
                propagation,
                "--",
            ])
            .args(init);
        let outer = start(command, stdin, log)?;
        // Inside a parent, nsenter forks unshare, which forks init.
        let unshare = if parent.is_some() {
            only_child(outer)?.pid.try_into()?
        } else {
            outer
        };
        let init = only_child(unshare).with_context(|| format!("see {}", log.display()))?;
        Ok(Self { init })
    }

    /// A command to run inside.
    pub fn command(self, program: &str) -> Command {
        self.enter(&ALL, program)
    }

    /// A command to run with the network of these namespaces and the host's files.
    pub fn network_command(self, program: &str) -> Command {
        self.enter(&["--net"], program)
    }

    fn enter(self, namespaces: &[&str], program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg("--target")
            .arg(self.init.pid.to_string())
            .args(namespaces)
            .arg("--")
            .arg(program);
        command
    }

    /// Starts a program inside that outlives this process; its output goes to `log`.
    pub fn start(self, program: &str, arguments: &[String], log: &Path) -> Result<Process> {
        let mut command = self.command(program);
        command.args(arguments);
        only_child(start(command, None, log)?)
            .with_context(|| format!("{program} did not start, see {}", log.display()))
    }
}

fn start(mut command: Command, stdin: Option<OwnedFd>, log: &Path) -> Result<u32> {
    if let Some(folder) = log.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let output = File::options().create(true).append(true).open(log)?;
    let child = command
        .stdin(stdin.map_or_else(Stdio::null, Stdio::from))
        .stdout(output.try_clone()?)
        .stderr(output)
        // For Go programs: memory is available, processors are scarce.
        .env("GOGC", "300")
        // Keeps a terminal's Ctrl-C away from the cluster.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
    Ok(child.id())
}

/// Waits until `ready` returns true. Fails when the process dies or after a timeout, with the last lines of the log.
pub fn wait_ready(name: &str, process: Process, log: &Path, mut ready: impl FnMut() -> bool) -> Result<()> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(2);
    while !ready() {
        let dead = !process.is_alive();
        if dead || std::time::Instant::now() > deadline {
            let why = if dead {
                "ended"
            } else {
                "is not ready after two minutes"
            };
            let words = std::fs::read_to_string(log).unwrap_or_default();
            bail!(
                "{name} {why}; its last lines:\n{}\nits log: {}",
                last_lines(&words, 15),
                log.display()
            );
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Ok(())
}
