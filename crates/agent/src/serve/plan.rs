//! What to do next, decided from what is known. Pure.

use slurm::Revision;
use slurm::agent::{DaemonState, Refusal};
use slurm::revision::{ControllerUid, Summary};

use crate::control::State;

/// What a push asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Refuse(Refusal),
    /// The very bytes that are live: only the number moves on.
    Renumber,
    Apply,
    /// The push that is live, sent again.
    Repeat,
}

pub(super) fn plan_push(live: Option<&Summary>, controller: &ControllerUid, pushed: &Revision) -> Verdict {
    if pushed.controller != *controller {
        return Verdict::Refuse(Refusal::OtherController {
            detail: format!(
                "the revision is of Controller {} and this pod belongs to {controller}",
                pushed.controller
            ),
        });
    }
    // Another Controller's files, as a volume or a directory may hold: any revision of ours comes after them.
    let Some(live) = live.filter(|live| live.controller == *controller) else {
        return Verdict::Apply;
    };
    let same = live.digest == pushed.digest();
    match pushed.sequence.cmp(&live.sequence) {
        std::cmp::Ordering::Equal if same => Verdict::Repeat,
        std::cmp::Ordering::Less | std::cmp::Ordering::Equal => Verdict::Refuse(Refusal::StaleSequence {
            live: Box::new(live.clone()),
        }),
        std::cmp::Ordering::Greater if same => Verdict::Renumber,
        std::cmp::Ordering::Greater => Verdict::Apply,
    }
}

/// What makes slurmctld run with what is live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It does.
    Settled,
    Reconfigure,
    /// It is between two lives, and the next one may begin now.
    Start,
    Wait(&'static str),
}

/// `live` is the name of the directory with the live files; `started` whether a start with them was already asked for, so
/// that a slurmctld that dies of them is started ever more slowly.
pub(super) fn plan_next(state: &State, live: &str, started: bool) -> Next {
    match state.daemon.state {
        _ if state.reconfiguring => Next::Wait("slurmctld is still busy with a reconfigure"),
        DaemonState::Ready if state.files.as_deref() == Some(live) => Next::Settled,
        DaemonState::Ready => Next::Reconfigure,
        DaemonState::Down if !started => Next::Start,
        DaemonState::Down => Next::Wait("slurmctld does not run; its next start takes the new files"),
        DaemonState::Starting => Next::Wait("slurmctld is starting"),
        DaemonState::Stopping => Next::Wait("slurmctld is stopping; its next start takes the new files"),
        DaemonState::Unknown => Next::Wait("slurmctld's state is not known"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use slurm::agent::Daemon;
    use slurm::revision::{File, FileName};

    use super::*;

    fn uid(text: &str) -> ControllerUid {
        ControllerUid::new(text).unwrap()
    }

    fn revision(sequence: u64, text: &str) -> Revision {
        Revision {
            sequence,
            controller: uid("a"),
            files: BTreeMap::from([(FileName::new("slurm.conf").unwrap(), File::config(text))]),
        }
    }

    #[test]
    fn only_a_higher_number_of_this_controller_goes_live() {
        let live = revision(5, "x").summary();
        let push = |sequence, text| plan_push(Some(&live), &uid("a"), &revision(sequence, text));
        let stale = || {
            Verdict::Refuse(Refusal::StaleSequence {
                live: Box::new(live.clone()),
            })
        };
        assert_eq!(push(6, "y"), Verdict::Apply);
        assert_eq!(push(6, "x"), Verdict::Renumber);
        assert_eq!(push(5, "x"), Verdict::Repeat);
        assert_eq!(push(5, "y"), stale());
        assert_eq!(push(4, "x"), stale());
        assert_eq!(push(4, "y"), stale());
    }

    #[test]
    fn another_controllers_revision_is_refused_and_its_files_are_replaced() {
        let foreign = Revision {
            controller: uid("b"),
            ..revision(100, "x")
        };
        assert!(matches!(
            plan_push(None, &uid("a"), &foreign),
            Verdict::Refuse(Refusal::OtherController { .. })
        ));
        assert_eq!(
            plan_push(Some(&foreign.summary()), &uid("a"), &revision(1, "x")),
            Verdict::Apply
        );
        assert_eq!(plan_push(None, &uid("a"), &revision(1, "x")), Verdict::Apply);
    }

    fn state(state: DaemonState, files: Option<&str>) -> State {
        State {
            daemon: Daemon {
                state,
                pid: None,
                since: None,
                restarts: 0,
                last_words: vec![],
            },
            files: files.map(str::to_owned),
            reconfiguring: false,
        }
    }

    #[test]
    fn slurmctld_is_reconfigured_unless_it_runs_with_what_is_live() {
        let next = |files| plan_next(&state(DaemonState::Ready, files), "..1", false);
        assert_eq!(next(Some("..1")), Next::Settled);
        assert_eq!(next(Some("..0")), Next::Reconfigure);
        assert_eq!(next(None), Next::Reconfigure);
    }

    #[test]
    fn a_slurmctld_that_is_down_is_started_once_and_then_waited_for() {
        let next = |started| plan_next(&state(DaemonState::Down, None), "..1", started);
        assert_eq!(next(false), Next::Start);
        assert!(matches!(next(true), Next::Wait(_)));
    }

    #[test]
    fn a_slurmctld_that_starts_stops_or_is_busy_is_left_alone() {
        for daemon in [DaemonState::Starting, DaemonState::Stopping, DaemonState::Unknown] {
            assert!(matches!(plan_next(&state(daemon, None), "..1", false), Next::Wait(_)));
        }
        let busy = State {
            reconfiguring: true,
            ..state(DaemonState::Ready, Some("..1"))
        };
        assert!(matches!(plan_next(&busy, "..1", false), Next::Wait(_)));
    }
}
