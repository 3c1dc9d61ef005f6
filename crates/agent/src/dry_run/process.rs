//! The process of a dry run: started, listened to, killed with all it has started.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::{sleep, timeout};

use super::Error;
use crate::supervise::IN_CHARGE;
use crate::supervise::last_words::LastWords;
use crate::supervise::process::adopt_orphans;

const PROGRAM: &str = "slurmctld";

/// Lines are cut well before this where they are kept.
const LONGEST_LINE: u64 = 64 * 1024;

/// For what it started to end after a KILL: until the kernel gets to it.
const REAPING: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) enum Ended {
    /// It said that it would run, and was killed.
    InCharge,
    /// `None`: by a signal.
    Exited { code: Option<i32>, last_words: Vec<String> },
    /// It said neither yes nor no, and was killed.
    Stuck { last_words: Vec<String> },
}

impl Ended {
    pub(super) fn last_words(&self) -> &[String] {
        match self {
            Self::InCharge => &[],
            Self::Exited { last_words, .. } | Self::Stuck { last_words } => last_words,
        }
    }
}

/// On the files in a directory that is gone when it is.
pub(super) async fn run(directory: TempDir, patience: Duration) -> Result<Ended, Error> {
    let failed = |source| Error::Run {
        program: PROGRAM,
        source,
    };
    // Its helper outlives it for a moment, and whoever is the first process here may reap nobody but its own children.
    adopt_orphans().map_err(|error| Error::Environment { why: error.to_string() })?;
    let mut child = Command::new(PROGRAM)
        .args(["-D", "-c", "-f"])
        .arg(directory.path().join("slurm.conf"))
        // What tells the live one where its files, keys and service manager are.
        .env_remove("SLURM_CONF")
        .env_remove("SLURM_CONF_SERVER")
        .env_remove("SLURM_SACK_KEY")
        .env_remove("SLURM_SACK_JWKS")
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // Its helper (slurmscriptd) is in the same group.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let mut words = LastWords::default();
    let heard = match child.stderr.take() {
        Some(stderr) => timeout(patience, listen(stderr, &mut words, &mut child)).await,
        None => Ok(Ok(Heard::InCharge)),
    };
    if let Some(group) = group {
        // Gone already, if it ended by itself and had no helper yet.
        let _ = killpg(group, Signal::SIGKILL);
    }
    let ending = end(child, group, directory);
    if let Ok(Ok(Heard::InCharge)) = heard {
        // It has said all that it was asked, and the change goes on.
        tokio::spawn(ending);
        return Ok(Ended::InCharge);
    }
    ending.await.map_err(failed)?;
    let last_words = words.lines().collect();
    match heard {
        Err(_) => Ok(Ended::Stuck { last_words }),
        Ok(Ok(Heard::InCharge)) => Ok(Ended::InCharge),
        Ok(Ok(Heard::End(status))) => Ok(Ended::Exited {
            code: status.signal().is_none().then(|| status.code().unwrap_or_default()),
            last_words,
        }),
        Ok(Err(error)) => Err(failed(error)),
    }
}

/// Sees it gone, and then its files.
async fn end(mut child: Child, group: Option<Pid>, directory: TempDir) -> std::io::Result<()> {
    child.wait().await?;
    if let Some(group) = group {
        reap(group).await;
    }
    drop(directory);
    Ok(())
}

enum Heard {
    InCharge,
    End(ExitStatus),
}

async fn listen(stderr: ChildStderr, words: &mut LastWords, child: &mut Child) -> std::io::Result<Heard> {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line).await?;
        if read == 0 {
            return Ok(Heard::End(child.wait().await?));
        }
        words.push(&line);
        if String::from_utf8_lossy(&line).contains(IN_CHARGE) {
            return Ok(Heard::InCharge);
        }
    }
}

/// Its orphans come to us.
async fn reap(group: Pid) {
    let look = async {
        loop {
            match waitid(Id::PGid(group), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG) {
                Ok(WaitStatus::StillAlive) => sleep(Duration::from_millis(1)).await,
                Ok(_) | Err(Errno::EINTR) => {}
                // No child of ours is in the group any more.
                Err(_) => return,
            }
        }
    };
    let _ = timeout(REAPING, look).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_to_reap_is_no_wait() {
        // Of no process: numbers end at 2^22.
        timeout(Duration::from_millis(500), reap(Pid::from_raw(4_194_304)))
            .await
            .unwrap();
    }
}
