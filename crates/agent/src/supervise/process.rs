//! Starts and reaps processes.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::fchown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use host::Host;
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpid};
use thiserror::Error;
use tokio::net::unix::pipe::Receiver;

use super::daemon::Exit;
use super::user::User;

/// How much the kernel keeps of a program's name (`TASK_COMM_LEN` without the final NUL).
const COMM_LENGTH: usize = 15;

#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot become the parent of orphaned processes: {0}")]
    Subreaper(#[source] Errno),
    #[error("cannot make a pipe for the daemon's standard error: {0}")]
    Pipe(#[source] io::Error),
    #[error("cannot run {command:?}: {source}")]
    Launch { command: OsString, source: io::Error },
}

/// Makes this process the parent of orphans, which PID 1 is anyway: a reconfigured daemon is a grandchild whose parent has
/// exited.
pub fn adopt_orphans() -> Result<(), Error> {
    if getpid().as_raw() == 1 {
        return Ok(());
    }
    set_child_subreaper(true).map_err(Error::Subreaper)
}

/// Starts the daemon.
#[derive(Debug)]
pub struct Launcher {
    program: OsString,
    arguments: Vec<OsString>,
    user: Option<User>,
    notify: PathBuf,
    // One pipe for all runs of the daemon: job steps of an earlier one may still write to it, and must not get a SIGPIPE.
    reader: PipeReader,
    writer: PipeWriter,
}

impl Launcher {
    pub fn new(command: &[OsString], user: Option<User>, notify: &Path) -> Result<Self, Error> {
        let (reader, writer) = io::pipe().map_err(Error::Pipe)?;
        if let Some(user) = user {
            // The daemon may have to open a log file named /dev/stderr.
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

    /// The standard error of all the daemon's processes.
    pub fn stderr(&self) -> io::Result<Receiver> {
        Receiver::from_owned_fd(OwnedFd::from(self.reader.try_clone()?))
    }

    /// Reads what is in the pipe. The receiver of [`Launcher::stderr`], which made the pipe non-blocking, may not have seen it yet.
    pub fn read_pending(&self, chunk: &mut [u8]) -> io::Result<usize> {
        (&self.reader).read(chunk)
    }

    /// Returns whether a process of this name is one of the daemon's own. Debian's slurmctld is named `slurmctld-wlm` after it
    /// has re-executed itself.
    pub fn is_own(&self, name: &str) -> bool {
        let program = Path::new(&self.program)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let kept: String = program.chars().take(COMM_LENGTH).collect();
        !kept.is_empty() && name.starts_with(&kept)
    }

    /// `extra` is an argument for this run only.
    pub fn launch(&self, extra: Option<&str>) -> Result<Pid, Error> {
        let failed = |source| Error::Launch {
            command: self.program.clone(),
            source,
        };
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .args(extra)
            .env("NOTIFY_SOCKET", &self.notify);
        command.stderr(self.writer.try_clone().map_err(failed)?);
        if let Some(User { uid, gid }) = self.user {
            // The standard library drops the supplementary groups along with root.
            command.uid(uid).gid(gid);
        }
        let child = command.spawn().map_err(failed)?;
        // Process IDs are positive and below 2^22.
        Ok(Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)))
    }
}

/// A child that has exited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub pid: Pid,
    pub exit: Exit,
    /// It was one of the daemon's own processes, and not a script that it started.
    pub own: bool,
}

/// Reaps every child that has exited.
pub fn reap_all(host: &Host, launcher: &Launcher) -> Vec<Ended> {
    let mut ended = Vec::new();
    loop {
        // Its name is gone once it is reaped.
        let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let status = match waitid(Id::All, peek) {
            Err(Errno::EINTR) => continue,
            // These arguments allow only "no children"; the next SIGCHLD handles anything else.
            Err(_) | Ok(WaitStatus::StillAlive) => return ended,
            Ok(status) => status,
        };
        let Some(pid) = status.pid() else { return ended };
        let comm = format!("/proc/{pid}/comm");
        let name = host.files().read_text(Path::new(&comm)).unwrap_or_default();
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
            own: launcher.is_own(name.trim_end()),
        });
    }
}
