//! Which process is the daemon, and what it means when a process ends. No system calls.

use std::fmt;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use slurm::agent::DaemonState;

use super::backoff::Backoff;
use super::standing::record::LastLife;

/// How a process ended.
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

/// What the end of a process means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Not the main process: an orphan, or the main process of before a reconfigure.
    Other,
    /// The process that was to take over is gone; the main process goes on as it was.
    ReconfigureFailed,
    /// The main process is gone and is wanted: start it again after this long.
    Restart(Duration),
    /// The main process was told to stop and has.
    Finished(u8),
}

/// What it means that the daemon names its main process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    Known,
    /// It moved to another process, as somebody else had told it to.
    Moved,
    /// It moved to another process, as we had told it to: the reconfigure is done.
    Reconfigured,
}

/// A daemon that has been alive for this long since it said READY is past reading its files. slurmctld says so after
/// parsing slurm.conf and before it acts on it, and either dies or is the primary within a second.
const SETTLED: Duration = Duration::from_secs(2);

/// An `Include` that is missing holds a reconfigure up for a minute. What has not ended after two never will.
const LONGEST_RECONFIGURE: Duration = Duration::from_mins(2);

#[derive(Debug, Default)]
pub struct Daemon {
    main: Option<Running>,
    last: Option<Exit>,
    last_life: Option<LastLife>,
    stopping: bool,
    /// Its end is wanted, and its next beginning at once.
    restarting: bool,
    restarts: u64,
    backoff: Backoff,
    attempt: Option<Attempt>,
    /// The files it runs with. `None` if that cannot be told.
    files: Option<String>,
    /// How often in a row it ended by itself before it was ready, always with these files.
    stillborn: u32,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    pid: Pid,
    since: Instant,
    /// When it said READY.
    ready: Option<Instant>,
    /// It said that it is in charge.
    primary: bool,
}

/// A reconfigure under way.
#[derive(Debug)]
struct Attempt {
    since: Instant,
    files: Option<String>,
}

impl Daemon {
    pub fn main(&self) -> Option<Pid> {
        self.main.map(|running| running.pid)
    }

    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    pub fn is_reconfiguring(&self, now: Instant) -> bool {
        self.attempt
            .as_ref()
            .is_some_and(|attempt| now.saturating_duration_since(attempt.since) < LONGEST_RECONFIGURE)
    }

    /// What it said of itself.
    pub fn is_in_charge(&self) -> bool {
        self.main.is_some_and(|running| running.primary)
    }

    pub fn last_life(&self) -> Option<LastLife> {
        self.last_life
    }

    /// Which files it runs with: the name they had when it started, or was last reconfigured.
    pub fn files(&self) -> Option<&str> {
        self.files.as_deref()
    }

    /// How often in a row it could not even start with [`files`](Self::files). Being killed does not count.
    pub fn stillborn(&self) -> u32 {
        self.stillborn
    }

    pub fn state(&self, now: Instant) -> DaemonState {
        match self.main {
            _ if self.stopping => DaemonState::Stopping,
            None => DaemonState::Down,
            Some(running) if running.is_settled(now) => DaemonState::Ready,
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
            self.stillborn = 0;
        }
        self.files = files;
        self.attempt = None;
        self.restarting = false;
    }

    pub fn said_ready(&mut self, now: Instant) {
        if let Some(running) = &mut self.main {
            running.ready.get_or_insert(now);
        }
    }

    /// True if that is news.
    pub fn said_primary(&mut self) -> bool {
        self.main
            .as_mut()
            .is_some_and(|running| !std::mem::replace(&mut running.primary, true))
    }

    pub fn said_standby(&mut self) {
        if let Some(running) = &mut self.main {
            running.primary = false;
        }
    }

    /// The daemon names its main process. One taken for dead may come back this way. `files` are those that lie there now.
    pub fn announced(&mut self, pid: Pid, files: Option<&str>, now: Instant) -> Announced {
        match &mut self.main {
            Some(running) if running.pid == pid => Announced::Known,
            // A re-execution does not make a daemon young again: it lives since its first process.
            Some(running) => {
                running.pid = pid;
                // The new process announces itself when it is in charge.
                running.ready = Some(now);
                running.primary = true;
                if let Some(attempt) = self.attempt.take() {
                    self.files = attempt.files;
                    return Announced::Reconfigured;
                }
                // If there are others since, nobody knows which of them it has read.
                self.files = self.files.take().filter(|known| Some(known.as_str()) == files);
                Announced::Moved
            }
            None => {
                self.started(pid, None, now);
                Announced::Moved
            }
        }
    }

    /// To whom the signal goes. `None` while there is nobody who would act on it: a daemon that starts dies of it, and
    /// reads the files anyway.
    pub fn reconfigure(&mut self, files: Option<String>, now: Instant) -> Option<Pid> {
        if self.is_reconfiguring(now) || self.state(now) != DaemonState::Ready {
            return None;
        }
        self.attempt = Some(Attempt { since: now, files });
        self.main()
    }

    /// It said so itself, or its new process died. True if that is news.
    pub fn reconfigure_failed(&mut self) -> bool {
        let news = self.attempt.take().is_some();
        if news {
            // slurmctld 25.11 and 26.05 serve to the nodes what lies on disk now, and act on what they had.
            self.files = None;
        }
        news
    }

    /// `own` is whether the process was one of the daemon's own, and not a script it had started.
    pub fn reaped(&mut self, pid: Pid, exit: Exit, own: bool, now: Instant) -> Verdict {
        let Some(running) = self.main.filter(|running| running.pid == pid) else {
            let failed = own && exit != Exit::Code(0) && self.reconfigure_failed();
            return if failed {
                Verdict::ReconfigureFailed
            } else {
                Verdict::Other
            };
        };
        self.main = None;
        self.attempt = None;
        self.last = Some(exit);
        self.last_life = Some(LastLife {
            in_charge: running.primary,
            wanted: self.restarting,
        });
        self.stillborn = match exit {
            Exit::Code(1..) if !running.is_settled(now) => self.stillborn + 1,
            Exit::Code(_) => 0,
            Exit::Signal(_) => self.stillborn,
        };
        if self.stopping {
            Verdict::Finished(exit.code())
        } else if self.restarting {
            Verdict::Restart(Duration::ZERO)
        } else {
            self.restarts += 1;
            Verdict::Restart(self.backoff.after_life_of(now.saturating_duration_since(running.since)))
        }
    }

    /// It could not even be executed.
    pub fn failed_to_start(&mut self) -> Duration {
        self.backoff.after_life_of(Duration::ZERO)
    }

    /// From now on its end is wanted, and a new beginning. To whom the signal goes, if there is anybody.
    pub fn restart(&mut self) -> Option<Pid> {
        self.restarting = self.main.is_some();
        self.main()
    }

    /// From now on its end is wanted. With no process to wait for, the code to exit with: that of its last end.
    pub fn stop(&mut self) -> Option<u8> {
        self.stopping = true;
        match self.main {
            Some(_) => None,
            None => Some(self.last.map_or(0, Exit::code)),
        }
    }
}

impl Running {
    fn is_settled(self, now: Instant) -> bool {
        self.ready
            .is_some_and(|since| self.primary || now.saturating_duration_since(since) >= SETTLED)
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
        daemon.said_ready(now);
        daemon.said_primary();
        (daemon, now)
    }

    #[test]
    fn the_old_main_process_may_end_after_a_reconfigure() {
        let (mut daemon, now) = running(10);
        assert_eq!(daemon.announced(pid(12), Some("old"), now), Announced::Moved);
        assert_eq!(daemon.reaped(pid(10), Exit::Code(0), true, now), Verdict::Other);
        assert_eq!(daemon.main(), Some(pid(12)));
    }

    #[test]
    fn the_child_of_a_failed_reconfigure_is_no_death() {
        let (mut daemon, now) = running(10);
        assert_eq!(daemon.reaped(pid(11), Exit::Code(1), true, now), Verdict::Other);
        assert_eq!(daemon.main(), Some(pid(10)));
        assert_eq!(daemon.files(), Some("old"));
    }

    #[test]
    fn a_reconfigure_ends_with_a_new_main_process_that_has_the_new_files() {
        let (mut daemon, now) = running(10);
        assert_eq!(daemon.reconfigure(Some("new".to_owned()), now), Some(pid(10)));
        assert_eq!(daemon.announced(pid(12), Some("new"), now), Announced::Reconfigured);
        assert_eq!(daemon.files(), Some("new"));
        assert_eq!(daemon.state(now), DaemonState::Ready);
        // Its predecessor's end means nothing.
        assert_eq!(daemon.reaped(pid(10), Exit::Code(0), true, now), Verdict::Other);
    }

    #[test]
    fn a_reconfigure_fails_with_the_death_of_a_process_of_the_daemons_own() {
        let (mut daemon, now) = running(10);
        daemon.reconfigure(Some("new".to_owned()), now);
        // A prolog that a reconfigure kills.
        let killed = Exit::Signal(Signal::SIGKILL);
        assert_eq!(daemon.reaped(pid(20), killed, false, now), Verdict::Other);
        assert_eq!(daemon.reaped(pid(21), Exit::Code(0), true, now), Verdict::Other);
        assert!(daemon.is_reconfiguring(now));
        assert_eq!(
            daemon.reaped(pid(12), Exit::Code(1), true, now),
            Verdict::ReconfigureFailed
        );
        assert_eq!(daemon.main(), Some(pid(10)));
        assert_eq!(daemon.files(), None, "what it serves is no longer what it runs with");
        assert!(!daemon.reconfigure_failed(), "it is told once");
    }

    #[test]
    fn nobody_is_signalled_who_would_die_of_it() {
        let now = Instant::now();
        let mut daemon = Daemon::default();
        assert_eq!(daemon.reconfigure(None, now), None);
        daemon.started(pid(10), None, now);
        assert_eq!(daemon.reconfigure(None, now), None);
        daemon.said_ready(now);
        assert_eq!(daemon.reconfigure(None, now), None, "it has yet to act on its files");
        assert_eq!(daemon.reconfigure(None, now + SETTLED), Some(pid(10)));
        assert_eq!(daemon.reconfigure(None, now + SETTLED), None, "one at a time");
        assert_eq!(
            daemon.reconfigure(None, now + SETTLED + LONGEST_RECONFIGURE),
            Some(pid(10))
        );
    }

    #[test]
    fn a_daemon_is_ready_when_it_is_in_charge_or_has_lived_for_a_while() {
        let now = Instant::now();
        let mut daemon = Daemon::default();
        assert_eq!(daemon.state(now), DaemonState::Down);
        daemon.started(pid(10), None, now);
        assert_eq!(daemon.state(now + SETTLED), DaemonState::Starting);
        daemon.said_ready(now);
        assert_eq!(daemon.state(now), DaemonState::Starting);
        assert_eq!(daemon.state(now + SETTLED), DaemonState::Ready);
        daemon.said_primary();
        assert_eq!(daemon.state(now), DaemonState::Ready);
        daemon.stop();
        assert_eq!(daemon.state(now), DaemonState::Stopping);
    }

    #[test]
    fn after_somebody_elses_reconfigure_the_files_are_known_only_if_they_did_not_change() {
        let (mut daemon, now) = running(10);
        daemon.announced(pid(11), Some("old"), now);
        assert_eq!(daemon.files(), Some("old"));
        daemon.announced(pid(12), Some("new"), now);
        assert_eq!(daemon.files(), None);
    }

    #[test]
    fn a_wanted_restart_is_at_once_and_no_death() {
        let (mut daemon, now) = running(10);
        assert_eq!(daemon.restart(), Some(pid(10)));
        assert_eq!(
            daemon.reaped(pid(10), Exit::Code(0), true, now),
            Verdict::Restart(Duration::ZERO)
        );
        assert_eq!(daemon.restarts(), 0);
        daemon.started(pid(11), None, now);
        daemon.reaped(pid(11), Exit::Code(1), true, now);
        assert_eq!(daemon.restarts(), 1);
    }

    #[test]
    fn how_its_last_life_ended_is_known() {
        let (mut daemon, now) = running(10);
        assert!(daemon.is_in_charge() && daemon.last_life().is_none());
        daemon.reaped(pid(10), Exit::Signal(Signal::SIGKILL), true, now);
        let life = |in_charge, wanted| Some(LastLife { in_charge, wanted });
        assert_eq!(daemon.last_life(), life(true, false));
        daemon.started(pid(11), None, now);
        assert!(daemon.said_primary() && !daemon.said_primary(), "it is news once");
        daemon.said_standby();
        assert!(!daemon.is_in_charge());
        daemon.restart();
        daemon.reaped(pid(11), Exit::Code(0), true, now);
        assert_eq!(daemon.last_life(), life(false, true));
    }

    #[test]
    fn a_daemon_that_cannot_start_with_its_files_is_counted() {
        let now = Instant::now();
        let mut daemon = Daemon::default();
        let mut life = |files: &str, ready: bool, exit: Exit| {
            daemon.started(pid(10), Some(files.to_owned()), now);
            if ready {
                daemon.said_ready(now);
                daemon.said_primary();
            }
            daemon.reaped(pid(10), exit, true, now);
            daemon.stillborn()
        };
        assert_eq!(life("a", false, Exit::Code(1)), 1);
        assert_eq!(life("a", false, Exit::Signal(Signal::SIGKILL)), 1, "not of its files");
        assert_eq!(life("a", false, Exit::Code(1)), 2);
        assert_eq!(life("b", false, Exit::Code(1)), 1, "others");
        assert_eq!(life("b", true, Exit::Code(1)), 0, "they are good for a start");
    }

    #[test]
    fn a_dead_main_process_is_restarted_within_a_fifth_of_a_second() {
        for exit in [Exit::Code(0), Exit::Code(1), Exit::Signal(Signal::SIGKILL)] {
            let (mut daemon, now) = running(10);
            let Verdict::Restart(after) = daemon.reaped(pid(10), exit, true, now) else {
                panic!("no restart after {exit}")
            };
            assert!(after < Duration::from_millis(200));
            assert_eq!(daemon.main(), None);
        }
    }

    #[test]
    fn a_daemon_told_to_stop_is_not_restarted_and_its_code_is_kept() {
        let (mut daemon, now) = running(10);
        assert_eq!(daemon.stop(), None);
        assert_eq!(daemon.reaped(pid(10), Exit::Code(7), true, now), Verdict::Finished(7));
    }

    #[test]
    fn death_by_signal_is_reported_as_a_shell_does() {
        let (mut daemon, now) = running(10);
        daemon.stop();
        assert_eq!(
            daemon.reaped(pid(10), Exit::Signal(Signal::SIGKILL), true, now),
            Verdict::Finished(137)
        );
    }

    #[test]
    fn a_stop_between_two_lives_ends_at_once_with_the_last_code() {
        let (mut daemon, now) = running(10);
        daemon.reaped(pid(10), Exit::Code(3), true, now);
        assert_eq!(daemon.stop(), Some(3));
    }

    #[test]
    fn a_main_process_that_announces_itself_after_its_parent_died_is_followed() {
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
