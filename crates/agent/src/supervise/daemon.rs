//! Which process is the daemon, and what it means when a process ends. No system calls.

use std::fmt;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::backoff::Backoff;

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
    /// Not the main process: an orphan, the main process of before a reconfigure, or the child of one that failed.
    Other,
    /// The main process is gone and is wanted: start it again after this long.
    Restart(Duration),
    /// The main process was told to stop and has.
    Finished(u8),
}

#[derive(Debug, Default)]
pub struct Daemon {
    main: Option<Running>,
    last: Option<Exit>,
    stopping: bool,
    backoff: Backoff,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    pid: Pid,
    since: Instant,
}

impl Daemon {
    pub fn main(&self) -> Option<Pid> {
        self.main.map(|running| running.pid)
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    pub fn started(&mut self, pid: Pid, now: Instant) {
        self.main = Some(Running { pid, since: now });
    }

    /// The daemon names its main process; true when that is news. A daemon taken for dead may come back this way.
    pub fn announced(&mut self, pid: Pid, now: Instant) -> bool {
        match &mut self.main {
            Some(running) if running.pid == pid => false,
            // A re-execution does not make a daemon young again: it lives since its first process.
            Some(running) => {
                running.pid = pid;
                true
            }
            None => {
                self.started(pid, now);
                true
            }
        }
    }

    pub fn reaped(&mut self, pid: Pid, exit: Exit, now: Instant) -> Verdict {
        match self.main {
            Some(running) if running.pid == pid => {
                self.main = None;
                self.last = Some(exit);
                if self.stopping {
                    Verdict::Finished(exit.code())
                } else {
                    Verdict::Restart(self.backoff.after_life_of(now.saturating_duration_since(running.since)))
                }
            }
            _ => Verdict::Other,
        }
    }

    /// It could not even be executed.
    pub fn failed_to_start(&mut self) -> Duration {
        self.backoff.after_life_of(Duration::ZERO)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(n: i32) -> Pid {
        Pid::from_raw(n)
    }

    fn running(n: i32) -> (Daemon, Instant) {
        let now = Instant::now();
        let mut daemon = Daemon::default();
        daemon.started(pid(n), now);
        (daemon, now)
    }

    #[test]
    fn the_old_main_process_may_end_after_a_reconfigure() {
        let (mut daemon, now) = running(10);
        assert!(daemon.announced(pid(12), now));
        assert_eq!(daemon.reaped(pid(10), Exit::Code(0), now), Verdict::Other);
        assert_eq!(daemon.main(), Some(pid(12)));
    }

    #[test]
    fn the_child_of_a_failed_reconfigure_is_no_death() {
        let (mut daemon, now) = running(10);
        assert_eq!(daemon.reaped(pid(11), Exit::Code(1), now), Verdict::Other);
        assert_eq!(daemon.main(), Some(pid(10)));
    }

    #[test]
    fn a_dead_main_process_is_restarted_within_a_fifth_of_a_second() {
        for exit in [Exit::Code(0), Exit::Code(1), Exit::Signal(Signal::SIGKILL)] {
            let (mut daemon, now) = running(10);
            let Verdict::Restart(after) = daemon.reaped(pid(10), exit, now) else {
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
        assert_eq!(daemon.reaped(pid(10), Exit::Code(7), now), Verdict::Finished(7));
    }

    #[test]
    fn death_by_signal_is_reported_as_a_shell_does() {
        let (mut daemon, now) = running(10);
        daemon.stop();
        assert_eq!(
            daemon.reaped(pid(10), Exit::Signal(Signal::SIGKILL), now),
            Verdict::Finished(137)
        );
    }

    #[test]
    fn a_stop_between_two_lives_ends_at_once_with_the_last_code() {
        let (mut daemon, now) = running(10);
        daemon.reaped(pid(10), Exit::Code(3), now);
        assert_eq!(daemon.stop(), Some(3));
    }

    #[test]
    fn a_main_process_that_announces_itself_after_its_parent_died_is_followed() {
        let (mut daemon, now) = running(10);
        daemon.reaped(pid(10), Exit::Code(0), now);
        assert!(daemon.announced(pid(12), now));
        assert_eq!(daemon.main(), Some(pid(12)));
    }

    #[test]
    fn reconfigures_do_not_make_a_daemon_look_short_lived() {
        let (mut daemon, start) = running(10);
        let first = daemon.reaped(pid(10), Exit::Code(1), start);
        daemon.started(pid(11), start);
        let later = start + Duration::from_hours(1);
        daemon.announced(pid(12), later);
        assert_eq!(daemon.reaped(pid(12), Exit::Code(1), later), first);
    }
}
