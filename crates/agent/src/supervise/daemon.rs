//! Tracks the daemon's main process and decides what the exit of a process means. No system calls.

use std::fmt;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use slurm::agent::DaemonState;
use tokio::time::Instant;

use super::arbitration::record::PreviousRun;
use super::backoff::Backoff;

/// How a process exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(Signal),
}

impl Exit {
    /// As a shell reports it: a signal is 128 and its number.
    pub fn code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal as i32,
        };
        u8::try_from(code).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "{signal}"),
        }
    }
}

/// What the supervisor does after the exit of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitAction {
    /// Nothing: it was an orphan, or the main process from before a reconfigure.
    Ignore,
    /// The process that was to replace the main process died; the main process continues with its old configuration.
    ReconfigureFailed,
    /// The main process died: restart it after this time.
    Restart(Duration),
    /// The main process stopped on request: exit with this code.
    Exit(u8),
}

/// What a notification with the main process means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    Known,
    /// The daemon has another main process, after a reconfigure that this supervisor did not send.
    Moved,
    /// The daemon has another main process: the reconfigure is done.
    Reconfigured,
}

/// How long after READY a daemon counts as ready. slurmctld sends READY after parsing slurm.conf and before acting on it, and
/// either dies or becomes primary within a second.
const READY_AFTER: Duration = Duration::from_secs(2);

/// Twice the minute for which a missing `Include` delays a reconfigure.
const RECONFIGURE_TIMEOUT: Duration = Duration::from_mins(2);

#[derive(Debug, Default)]
pub struct Daemon {
    main: Option<Running>,
    last_exit: Option<Exit>,
    pub previous_run: Option<PreviousRun>,
    pub stopping: bool,
    /// It was stopped in order to be restarted at once.
    restarting: bool,
    pub restarts: u64,
    backoff: Backoff,
    reconfigure: Option<Reconfigure>,
    /// The directory that was live when it started or was last reconfigured; `None` if it is not known.
    pub files: Option<String>,
    /// How often in a row it exited with these files before it was ready. A kill does not count.
    pub failed_starts: u32,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    pid: Pid,
    since: Instant,
    /// When it sent READY.
    ready: Option<Instant>,
    /// It reported that it is primary.
    primary: bool,
}

/// A reconfigure that has not ended.
#[derive(Debug)]
struct Reconfigure {
    since: Instant,
    files: Option<String>,
}

impl Daemon {
    pub fn main(&self) -> Option<Pid> {
        self.main.map(|running| running.pid)
    }

    pub fn is_reconfiguring(&self, now: Instant) -> bool {
        self.reconfigure
            .as_ref()
            .is_some_and(|reconfigure| now.saturating_duration_since(reconfigure.since) < RECONFIGURE_TIMEOUT)
    }

    /// As it reported itself.
    pub fn is_primary(&self) -> bool {
        self.main.is_some_and(|running| running.primary)
    }

    pub fn state(&self, now: Instant) -> DaemonState {
        match self.main {
            _ if self.stopping => DaemonState::Stopping,
            None => DaemonState::Down,
            Some(running) if running.is_ready(now) => DaemonState::Ready,
            Some(_) => DaemonState::Starting,
        }
    }

    pub fn started(&mut self, pid: Pid, files: Option<String>, now: Instant) {
        self.main = Some(Running {
            pid,
            since: now,
            ready: None,
            primary: false,
        });
        if self.files != files {
            self.failed_starts = 0;
        }
        self.files = files;
        self.reconfigure = None;
        self.restarting = false;
    }

    pub fn mark_ready(&mut self, now: Instant) {
        if let Some(running) = &mut self.main {
            running.ready.get_or_insert(now);
        }
    }

    /// Returns whether it was not primary before.
    pub fn mark_primary(&mut self) -> bool {
        self.main
            .as_mut()
            .is_some_and(|running| !std::mem::replace(&mut running.primary, true))
    }

    pub fn mark_standby(&mut self) {
        if let Some(running) = &mut self.main {
            running.primary = false;
        }
    }

    /// Takes a notification with the main process, which may be of a daemon that was taken for dead. `files` are the live ones.
    pub fn announced(&mut self, pid: Pid, files: Option<&str>, now: Instant) -> Announced {
        match &mut self.main {
            Some(running) if running.pid == pid => Announced::Known,
            // `since` stays: a re-execution does not start a new run.
            Some(running) => {
                running.pid = pid;
                // The new process notifies when it is primary.
                running.ready = Some(now);
                running.primary = true;
                if let Some(reconfigure) = self.reconfigure.take() {
                    self.files = reconfigure.files;
                    return Announced::Reconfigured;
                }
                // If the files changed since, it is unknown which ones it has read.
                self.files = self.files.take().filter(|known| Some(known.as_str()) == files);
                Announced::Moved
            }
            None => {
                self.started(pid, None, now);
                Announced::Moved
            }
        }
    }

    /// Begins a reconfigure and returns the process to signal. `None` if the daemon is not ready: a starting daemon dies of the
    /// signal, and reads the files anyway.
    pub fn reconfigure(&mut self, files: Option<String>, now: Instant) -> Option<Pid> {
        if self.is_reconfiguring(now) || self.state(now) != DaemonState::Ready {
            return None;
        }
        self.reconfigure = Some(Reconfigure { since: now, files });
        self.main()
    }

    /// Returns whether a reconfigure was under way.
    pub fn reconfigure_failed(&mut self) -> bool {
        let failed = self.reconfigure.take().is_some();
        if failed {
            // slurmctld 25.11 and 26.05 now serve the files on disk to the nodes, and act on the old ones.
            self.files = None;
        }
        failed
    }

    /// `own` is whether the process was one of the daemon's own, and not a script that it started.
    pub fn reaped(&mut self, pid: Pid, exit: Exit, own: bool, now: Instant) -> ExitAction {
        let Some(running) = self.main.filter(|running| running.pid == pid) else {
            let failed = own && exit != Exit::Code(0) && self.reconfigure_failed();
            return if failed {
                ExitAction::ReconfigureFailed
            } else {
                ExitAction::Ignore
            };
        };
        self.main = None;
        self.reconfigure = None;
        self.last_exit = Some(exit);
        self.previous_run = Some(PreviousRun {
            primary: running.primary,
            restarted: self.restarting,
        });
        self.failed_starts = match exit {
            Exit::Code(1..) if !running.is_ready(now) => self.failed_starts + 1,
            Exit::Code(_) => 0,
            Exit::Signal(_) => self.failed_starts,
        };
        if self.stopping {
            ExitAction::Exit(exit.code())
        } else if self.restarting {
            ExitAction::Restart(Duration::ZERO)
        } else {
            self.restarts += 1;
            ExitAction::Restart(self.backoff.after_run_of(now.saturating_duration_since(running.since)))
        }
    }

    /// Returns the wait after a daemon that could not be executed.
    pub fn failed_to_start(&mut self) -> Duration {
        self.backoff.after_run_of(Duration::ZERO)
    }

    /// Whether the main process has received a signal to stop, for good or for a restart.
    pub fn is_ending(&self) -> bool {
        self.stopping || self.restarting
    }

    /// Begins a restart on request and returns the process to signal.
    pub fn restart(&mut self) -> Option<Pid> {
        self.restarting = self.main.is_some();
        self.main()
    }

    /// Begins a stop. Without a process to wait for it returns the code to exit with, that of the last exit.
    pub fn stop(&mut self) -> Option<u8> {
        self.stopping = true;
        match self.main {
            Some(_) => None,
            None => Some(self.last_exit.map_or(0, Exit::code)),
        }
    }
}

impl Running {
    fn is_ready(self, now: Instant) -> bool {
        self.ready
            .is_some_and(|since| self.primary || now.saturating_duration_since(since) >= READY_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(n: i32) -> Pid {
        Pid::from_raw(n)
    }

    fn running(n: i32) -> (Daemon, Instant) {
        let now = Instant::now();
        let mut daemon = Daemon::default();
        daemon.started(pid(n), Some("old".to_owned()), now);
        daemon.mark_ready(now);
        daemon.mark_primary();
        (daemon, now)
    }

    #[test]
    fn the_old_main_process_may_exit_after_a_reconfigure() {
        let (mut daemon, now) = running(10);
        assert_eq!(daemon.announced(pid(12), Some("old"), now), Announced::Moved);
        assert_eq!(daemon.reaped(pid(10), Exit::Code(0), true, now), ExitAction::Ignore);
        assert_eq!(daemon.main(), Some(pid(12)));
    }

    #[test]
    fn the_exit_of_another_process_is_ignored() {
        let (mut daemon, now) = running(10);
        assert_eq!(daemon.reaped(pid(11), Exit::Code(1), true, now), ExitAction::Ignore);
        assert_eq!(daemon.main(), Some(pid(10)));
        assert_eq!(daemon.files.as_deref(), Some("old"));
    }

    #[test]
    fn a_reconfigure_ends_with_a_new_main_process_that_has_the_new_files() {
        let (mut daemon, now) = running(10);
        assert_eq!(daemon.reconfigure(Some("new".to_owned()), now), Some(pid(10)));
        assert_eq!(daemon.announced(pid(12), Some("new"), now), Announced::Reconfigured);
        assert_eq!(daemon.files.as_deref(), Some("new"));
        assert_eq!(daemon.state(now), DaemonState::Ready);
        // The exit of its predecessor is ignored.
        assert_eq!(daemon.reaped(pid(10), Exit::Code(0), true, now), ExitAction::Ignore);
    }

    #[test]
    fn a_reconfigure_fails_when_one_of_the_daemons_own_processes_dies() {
        let (mut daemon, now) = running(10);
        daemon.reconfigure(Some("new".to_owned()), now);
        // A reconfigure kills a prolog.
        let killed = Exit::Signal(Signal::SIGKILL);
        assert_eq!(daemon.reaped(pid(20), killed, false, now), ExitAction::Ignore);
        assert_eq!(daemon.reaped(pid(21), Exit::Code(0), true, now), ExitAction::Ignore);
        assert!(daemon.is_reconfiguring(now));
        assert_eq!(
            daemon.reaped(pid(12), Exit::Code(1), true, now),
            ExitAction::ReconfigureFailed
        );
        assert_eq!(daemon.main(), Some(pid(10)));
        assert_eq!(daemon.files.as_deref(), None, "it serves other files than it runs with");
        assert!(!daemon.reconfigure_failed(), "it is reported once");
    }

    #[test]
    fn a_daemon_that_is_not_ready_is_not_signalled() {
        let now = Instant::now();
        let mut daemon = Daemon::default();
        assert_eq!(daemon.reconfigure(None, now), None);
        daemon.started(pid(10), None, now);
        assert_eq!(daemon.reconfigure(None, now), None);
        daemon.mark_ready(now);
        assert_eq!(daemon.reconfigure(None, now), None, "it has yet to act on its files");
        assert_eq!(daemon.reconfigure(None, now + READY_AFTER), Some(pid(10)));
        assert_eq!(daemon.reconfigure(None, now + READY_AFTER), None, "one at a time");
        assert_eq!(
            daemon.reconfigure(None, now + READY_AFTER + RECONFIGURE_TIMEOUT),
            Some(pid(10))
        );
    }

    #[test]
    fn a_daemon_is_ready_when_it_is_primary_or_some_time_after_its_notification() {
        let now = Instant::now();
        let mut daemon = Daemon::default();
        assert_eq!(daemon.state(now), DaemonState::Down);
        daemon.started(pid(10), None, now);
        assert_eq!(daemon.state(now + READY_AFTER), DaemonState::Starting);
        daemon.mark_ready(now);
        assert_eq!(daemon.state(now), DaemonState::Starting);
        assert_eq!(daemon.state(now + READY_AFTER), DaemonState::Ready);
        daemon.mark_primary();
        assert_eq!(daemon.state(now), DaemonState::Ready);
        daemon.stop();
        assert_eq!(daemon.state(now), DaemonState::Stopping);
    }

    #[test]
    fn after_a_foreign_reconfigure_the_files_are_known_only_if_they_did_not_change() {
        let (mut daemon, now) = running(10);
        daemon.announced(pid(11), Some("old"), now);
        assert_eq!(daemon.files.as_deref(), Some("old"));
        daemon.announced(pid(12), Some("new"), now);
        assert_eq!(daemon.files.as_deref(), None);
    }

    #[test]
    fn a_process_that_takes_over_from_one_that_was_told_to_stop_has_to_stop_too() {
        let (mut daemon, now) = running(10);
        assert!(!daemon.is_ending());
        daemon.restart();
        daemon.announced(pid(11), Some("old"), now);
        assert!(daemon.is_ending(), "the signal went to its predecessor");
        daemon.reaped(pid(11), Exit::Code(0), true, now);
        daemon.started(pid(12), None, now);
        assert!(!daemon.is_ending());
    }

    #[test]
    fn a_requested_restart_is_immediate_and_not_counted() {
        let (mut daemon, now) = running(10);
        assert_eq!(daemon.restart(), Some(pid(10)));
        assert_eq!(
            daemon.reaped(pid(10), Exit::Code(0), true, now),
            ExitAction::Restart(Duration::ZERO)
        );
        assert_eq!(daemon.restarts, 0);
        daemon.started(pid(11), None, now);
        daemon.reaped(pid(11), Exit::Code(1), true, now);
        assert_eq!(daemon.restarts, 1);
    }

    #[test]
    fn the_end_of_the_previous_run_is_known() {
        let (mut daemon, now) = running(10);
        assert!(daemon.is_primary() && daemon.previous_run.is_none());
        daemon.reaped(pid(10), Exit::Signal(Signal::SIGKILL), true, now);
        let previous = |primary, restarted| Some(PreviousRun { primary, restarted });
        assert_eq!(daemon.previous_run, previous(true, false));
        daemon.started(pid(11), None, now);
        assert!(
            daemon.mark_primary() && !daemon.mark_primary(),
            "the first report counts"
        );
        daemon.mark_standby();
        assert!(!daemon.is_primary());
        daemon.restart();
        daemon.reaped(pid(11), Exit::Code(0), true, now);
        assert_eq!(daemon.previous_run, previous(false, true));
    }

    #[test]
    fn a_daemon_that_cannot_start_with_its_files_is_counted() {
        let now = Instant::now();
        let mut daemon = Daemon::default();
        let mut run = |files: &str, ready: bool, exit: Exit| {
            daemon.started(pid(10), Some(files.to_owned()), now);
            if ready {
                daemon.mark_ready(now);
                daemon.mark_primary();
            }
            daemon.reaped(pid(10), exit, true, now);
            daemon.failed_starts
        };
        assert_eq!(run("a", false, Exit::Code(1)), 1);
        assert_eq!(
            run("a", false, Exit::Signal(Signal::SIGKILL)),
            1,
            "not because of its files"
        );
        assert_eq!(run("a", false, Exit::Code(1)), 2);
        assert_eq!(run("b", false, Exit::Code(1)), 1, "other files");
        assert_eq!(run("b", true, Exit::Code(1)), 0, "it can start with them");
    }

    #[test]
    fn a_dead_main_process_is_restarted_within_a_fifth_of_a_second() {
        for exit in [Exit::Code(0), Exit::Code(1), Exit::Signal(Signal::SIGKILL)] {
            let (mut daemon, now) = running(10);
            let ExitAction::Restart(after) = daemon.reaped(pid(10), exit, true, now) else {
                panic!("no restart after {exit}")
            };
            assert!(after < Duration::from_millis(200));
            assert_eq!(daemon.main(), None);
        }
    }

    #[test]
    fn a_stopped_daemon_is_not_restarted_and_its_code_is_kept() {
        let (mut daemon, now) = running(10);
        assert_eq!(daemon.stop(), None);
        assert_eq!(daemon.reaped(pid(10), Exit::Code(7), true, now), ExitAction::Exit(7));
    }

    #[test]
    fn a_signal_is_reported_as_a_shell_does() {
        let (mut daemon, now) = running(10);
        daemon.stop();
        assert_eq!(
            daemon.reaped(pid(10), Exit::Signal(Signal::SIGKILL), true, now),
            ExitAction::Exit(137)
        );
    }

    #[test]
    fn a_stop_between_two_runs_exits_at_once_with_the_last_code() {
        let (mut daemon, now) = running(10);
        daemon.reaped(pid(10), Exit::Code(3), true, now);
        assert_eq!(daemon.stop(), Some(3));
    }

    #[test]
    fn a_main_process_that_notifies_after_its_parent_died_is_followed() {
        let (mut daemon, now) = running(10);
        daemon.reaped(pid(10), Exit::Code(0), true, now);
        assert_eq!(daemon.announced(pid(12), Some("old"), now), Announced::Moved);
        assert_eq!(daemon.main(), Some(pid(12)));
    }

    #[test]
    fn reconfigures_do_not_make_a_daemon_look_short_lived() {
        let (mut daemon, start) = running(10);
        let first = daemon.reaped(pid(10), Exit::Code(1), true, start);
        daemon.started(pid(11), None, start);
        let later = start + Duration::from_hours(1);
        daemon.announced(pid(12), None, later);
        assert_eq!(daemon.reaped(pid(12), Exit::Code(1), true, later), first);
    }
}
