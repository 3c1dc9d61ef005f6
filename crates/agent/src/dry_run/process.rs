//! The process of a dry run, and the processes it starts.

use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::Duration;

use host::{Host, Process, Program, TemporaryDirectory};
use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::time::{sleep, timeout};

use super::Error;
use crate::supervise::PRIMARY;
use crate::supervise::process::adopt_orphans;
use crate::supervise::stderr_tail::StderrTail;

/// 64 times what is kept of a line.
const LONGEST_LINE: u64 = 64 * 1024;

/// The kernel ends a killed process within milliseconds.
const REAP_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) enum Ended {
    /// It became primary and was killed.
    Primary,
    /// It exited; without a code if a signal ended it.
    Exited(Option<i32>),
    /// It neither became primary nor exited, and was killed.
    Stuck,
}

/// Runs slurmctld on the files in a directory, which is removed afterwards.
pub(super) async fn run(
    host: &Host,
    directory: TemporaryDirectory,
    tail: &mut StderrTail,
    limit: Duration,
) -> Result<Ended, Error> {
    // slurmscriptd outlives slurmctld for a moment, and the pod's first process may not reap it.
    adopt_orphans().map_err(|error| Error::Environment {
        reason: error.to_string(),
    })?;
    let words = ["slurmctld", "-D", "-c", "-f"].map(OsString::from);
    let conf = directory.path().join("slurm.conf").into_os_string();
    // slurmscriptd is in the same group.
    let mut child = host.start(Program {
        words: words.into_iter().chain([conf]).collect(),
        // They name the live slurmctld's files, keys and service manager.
        without: vec![
            "SLURM_CONF",
            "SLURM_CONF_SERVER",
            "SLURM_SACK_KEY",
            "SLURM_SACK_JWKS",
            "NOTIFY_SOCKET",
        ],
    })?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let observed = match child.stderr() {
        Some(stderr) => timeout(limit, listen(stderr, tail, &mut *child)).await,
        None => Ok(Ok(None)),
    };
    child.kill();
    let ending = end(child, group, directory);
    if let Ok(Ok(None)) = observed {
        // The verdict is known: the change does not wait for the rest.
        let ending = async { drop(ending.await) };
        host.spawn("dry-run", ending).detach();
        return Ok(Ended::Primary);
    }
    ending.await?;
    let Ok(observed) = observed else {
        return Ok(Ended::Stuck);
    };
    Ok(observed?.map_or(Ended::Primary, |status| Ended::Exited(status.code())))
}

/// Waits for the process and its children, and then removes the files.
async fn end(mut child: Box<dyn Process>, group: Option<Pid>, directory: TemporaryDirectory) -> std::io::Result<()> {
    child.wait().await?;
    if let Some(group) = group {
        reap(group).await;
    }
    drop(directory);
    Ok(())
}

/// Returns the status of an exit; `None` once slurmctld is primary.
async fn listen(
    stderr: impl AsyncRead + Unpin,
    tail: &mut StderrTail,
    child: &mut dyn Process,
) -> std::io::Result<Option<ExitStatus>> {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line).await?;
        if read == 0 {
            return child.wait().await.map(Some);
        }
        tail.push(&line);
        if String::from_utf8_lossy(&line).contains(PRIMARY) {
            return Ok(None);
        }
    }
}

/// Reaps the orphans of the group, which became our children.
async fn reap(group: Pid) {
    let reap_all = async {
        loop {
            match waitid(Id::PGid(group), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG) {
                Ok(WaitStatus::StillAlive) => sleep(Duration::from_millis(1)).await,
                Ok(_) | Err(Errno::EINTR) => {}
                // No child is left in the group.
                Err(_) => return,
            }
        }
    };
    let _ = timeout(REAP_TIMEOUT, reap_all).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_empty_group_is_not_waited_for() {
        // No process has this number: they end at 2^22.
        timeout(Duration::from_millis(500), reap(Pid::from_raw(4_194_304)))
            .await
            .unwrap();
    }
}
