//! Starting, signalling and reaping processes.

use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::fchown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fmt, fs};

use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpid};
use thiserror::Error;
use tokio::net::unix::pipe::Receiver;

use super::daemon::Exit;
use super::user::User;

/// Of a program's name, in bytes (`TASK_COMM_LEN` less its end).
const KERNEL_KEEPS: usize = 15;

#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot become the parent of orphaned processes: {0}")]
    Subreaper(#[source] Errno),
    #[error("cannot make a pipe for the daemon's standard error: {0}")]
    Pipe(#[source] io::Error),
    #[error("cannot run {command:?}: {source}")]
    Launch { command: OsString, source: io::Error },
}

/// A reconfigured daemon is a grandchild whose parent has ended: it must come to us, as it comes to a PID 1 by itself.
pub fn adopt_orphans() -> Result<(), Error> {
    if getpid().as_raw() == 1 {
        return Ok(());
    }
    set_child_subreaper(true).map_err(Error::Subreaper)
}

/// Starts the daemon, the same way each time.
#[derive(Debug)]
pub struct Launcher {
    program: OsString,
    arguments: Vec<OsString>,
    user: Option<User>,
    notify: PathBuf,
    // One pipe for all lives of the daemon: job steps of an earlier one may still hold it, and must not die of writing.
    reader: PipeReader,
    writer: PipeWriter,
}

impl Launcher {
    pub fn new(command: &[OsString], user: Option<User>, notify: &Path) -> Result<Self, Error> {
        let (reader, writer) = io::pipe().map_err(Error::Pipe)?;
        if let Some(user) = user {
            // So that a log file named /dev/stderr can be opened by the daemon.
            fchown(&writer, Some(user.uid), Some(user.gid)).map_err(Error::Pipe)?;
        }
        let (program, arguments) = command.split_first().unzip();
        Ok(Self {
            program: program.cloned().unwrap_or_default(),
            arguments: arguments.map(<[OsString]>::to_vec).unwrap_or_default(),
            user,
            notify: notify.to_owned(),
            reader,
            writer,
        })
    }

    /// What all the daemon's processes write to standard error.
    pub fn stderr(&self) -> io::Result<Receiver> {
        Receiver::from_owned_fd(OwnedFd::from(self.reader.try_clone()?))
    }

    /// What has been written and not yet been read. Asks the kernel, where the receiver would answer from what it last
    /// heard of the pipe; [`Launcher::stderr`] has made it non-blocking.
    pub fn read_waiting(&self, chunk: &mut [u8]) -> io::Result<usize> {
        (&self.reader).read(chunk)
    }

    /// Whether a process of this name is one of the daemon's own. Debian's slurmctld goes on as `slurmctld-wlm` when it has
    /// executed itself anew.
    pub fn is_own(&self, name: &str) -> bool {
        let program = Path::new(&self.program)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let kept: String = program.chars().take(KERNEL_KEEPS).collect();
        !kept.is_empty() && name.starts_with(&kept)
    }

    /// `more` is for this life only.
    pub fn launch(&self, more: Option<&str>) -> Result<Pid, Error> {
        let failed = |source| Error::Launch {
            command: self.program.clone(),
            source,
        };
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .args(more)
            .env("NOTIFY_SOCKET", &self.notify);
        command.stderr(self.writer.try_clone().map_err(failed)?);
        if let Some(User { uid, gid }) = self.user {
            // The standard library drops the supplementary groups along with root.
            command.uid(uid).gid(gid);
        }
        let child = command.spawn().map_err(failed)?;
        // Process numbers are positive and below 2^22.
        Ok(Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)))
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.program.display())?;
        for argument in &self.arguments {
            write!(f, " {}", OsStr::display(argument))?;
        }
        Ok(())
    }
}

pub fn is_alive(pid: Pid) -> bool {
    kill(pid, None).is_ok()
}

pub fn send(pid: Pid, signal: Signal) -> Result<(), Errno> {
    kill(pid, signal)
}

/// A child that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub pid: Pid,
    pub exit: Exit,
    /// Its program's name, cut to the 15 bytes the kernel keeps.
    pub name: String,
}

/// Every child that has ended and not been waited for.
pub fn reap_all() -> Vec<Ended> {
    let mut ended = Vec::new();
    loop {
        // Looked at before it is reaped: its name goes with it.
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let status = match waitid(Id::All, look) {
            Err(Errno::EINTR) => continue,
            // No other error than "no children" exists for these arguments; the rest is left to the next SIGCHLD.
            Err(_) | Ok(WaitStatus::StillAlive) => return ended,
            Ok(status) => status,
        };
        let Some(pid) = status.pid() else { return ended };
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_err() {
            return ended;
        }
        let exit = match status {
            WaitStatus::Exited(_, code) => Exit::Code(code),
            WaitStatus::Signaled(_, signal, _) => Exit::Signal(signal),
            _ => continue,
        };
        ended.push(Ended {
            pid,
            exit,
            name: name.trim_end().to_owned(),
        });
    }
}
