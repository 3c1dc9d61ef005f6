//! Processes that the test bed started. Each is identified by pid *and* start time, so that a reused pid is not
//! mistaken for it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::paths;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    /// Clock ticks after boot, field 22 of /proc/PID/stat.
    started: u64,
}

impl Process {
    pub fn of(pid: i32) -> Result<Self> {
        let started = start_time(pid).with_context(|| format!("process {pid} is gone"))?;
        Ok(Self { pid, started })
    }

    /// The process recorded in `file`, if there is such a record.
    pub fn recorded(file: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(file).ok()?).ok()
    }

    /// The process that was the first in a control group whose path has `name` in it.
    pub fn first_in_cgroup(name: &str) -> Option<Self> {
        let of = |pid: i32| {
            let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
            groups.contains(name).then(|| Self::of(pid).ok())?
        };
        let pids = fs::read_dir("/proc").ok()?.flatten();
        let inside = pids.filter_map(|entry| of(entry.file_name().to_str()?.parse().ok()?));
        inside.min_by_key(|process| (process.started, process.pid))
    }

    /// The process of this program that has `argument` on its command line.
    pub fn with_argument(program: &str, argument: &str) -> Option<Self> {
        let of = |pid: i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let mut words = line.split(|byte| *byte == 0);
            let is_program = words.next()? == program.as_bytes();
            (is_program && words.any(|word| word == argument.as_bytes())).then(|| Self::of(pid).ok())?
        };
        let mut pids = fs::read_dir("/proc").ok()?.flatten();
        pids.find_map(|entry| of(entry.file_name().to_str()?.parse().ok()?))
    }

    pub fn record(self, file: &Path) -> Result<()> {
        paths::write(file, serde_json::to_vec(&self)?)
    }

    pub fn is_alive(self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    pub fn parent(self) -> Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        Self::of(parse_parent(&stat).context("/proc does not name a parent")?)
    }

    /// Does nothing if the process has exited.
    pub fn signal(self, signal: Signal) -> Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid), signal) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot signal process {}", self.pid)),
        }
    }

    /// Ends the process with `signal`, and with SIGKILL if it is still there after `timeout`.
    pub fn end(self, signal: Signal, timeout: Duration) -> Result<()> {
        self.signal(signal)?;
        if self.wait_gone(timeout) {
            return Ok(());
        }
        self.signal(Signal::SIGKILL)?;
        if self.wait_gone(Duration::from_secs(10)) {
            return Ok(());
        }
        bail!("process {} did not exit, not even after SIGKILL", self.pid)
    }

    fn wait_gone(self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

/// None if the process has exited or is a zombie.
fn start_time(pid: i32) -> Option<u64> {
    parse_start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_start_time(stat: &str) -> Option<u64> {
    // The second field, the name of the command, may contain blanks and parentheses.
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn parse_parent(stat: &str) -> Option<i32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The only child of `pid`, waited for briefly: nsenter and unshare fork once, then wait for what they started.
pub fn only_child(pid: u32) -> Result<Process> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        if let Some(child) = children.split_whitespace().next() {
            return Process::of(child.parse()?);
        }
        if Instant::now() >= deadline || start_time(pid.try_into()?).is_none() {
            bail!("process {pid} has no child");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_parsed_after_a_name_with_blanks_and_parentheses() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 11 22";
        assert_eq!(parse_start_time(stat), Some(987_654));
    }

    #[test]
    fn the_parent_follows_the_state() {
        assert_eq!(parse_parent("42 (a) b (c)) S 17 42 42 0"), Some(17));
        let me = Process::of(std::process::id().try_into().unwrap()).unwrap();
        assert!(me.parent().unwrap().is_alive());
    }

    #[test]
    fn a_zombie_counts_as_gone() {
        let stat = "42 (x) Z 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 11 22";
        assert_eq!(parse_start_time(stat), None);
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let me = Process::of(std::process::id().try_into().unwrap()).unwrap();
        assert!(me.is_alive());
        assert!(
            !Process {
                started: me.started + 1,
                ..me
            }
            .is_alive()
        );
    }
}
