//! The log lines of upstream's `reconfigure` script, with its dates. Diagnostics and runbooks match them, so the agent prints
//! them to standard output besides its own log, and they do not change.

use std::path::Path;

use host::Host;
use jiff::Timestamp;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event<'a> {
    Start(&'a Path),
    Reconfiguring,
    Success,
    Failed,
}

pub(super) fn print(host: &Host, event: &Event<'_>) {
    host.print(&line(event, host.timestamp()));
}

fn line(event: &Event<'_>, now: Timestamp) -> String {
    let date = now.strftime("%a %b %d %H:%M:%S UTC %Y");
    match event {
        Event::Start(directory) => format!("[{date}] Start '{}' polling", directory.display()),
        Event::Reconfiguring => format!("[{date}] Reconfiguring Slurm..."),
        Event::Success => format!("[{date}] SUCCESS"),
        Event::Failed => format!("[{date}] Failed to reconfigure, try again..."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_those_of_the_script() {
        let now: Timestamp = "2026-01-09T10:00:05Z".parse().unwrap();
        for (event, expected) in [
            (
                Event::Start(Path::new("/etc/slurm")),
                "[Fri Jan 09 10:00:05 UTC 2026] Start '/etc/slurm' polling",
            ),
            (
                Event::Reconfiguring,
                "[Fri Jan 09 10:00:05 UTC 2026] Reconfiguring Slurm...",
            ),
            (Event::Success, "[Fri Jan 09 10:00:05 UTC 2026] SUCCESS"),
            (
                Event::Failed,
                "[Fri Jan 09 10:00:05 UTC 2026] Failed to reconfigure, try again...",
            ),
        ] {
            assert_eq!(line(&event, now), expected);
        }
    }
}
