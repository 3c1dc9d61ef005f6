//! What to do next, decided from what is known. Pure.

use std::time::Duration;

use slurm::Revision;
use slurm::agent::{Action, DaemonState, Refusal};
use slurm::conf::keys::Needs;
use slurm::conf::{Changes, Configuration};
use slurm::revision::{ControllerUid, Summary};

use super::partitions::PartitionPlan;
use super::unsettled::Unsettled;
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

/// The smallest action that makes the change from one configuration to the other live; where nobody knows what slurmctld
/// has, a reconfigure makes all of it live that can be. slurmctld's own hash of slurm.conf covers comments, so even a
/// change of those takes one.
pub(super) fn plan_action(change: Option<(&Configuration, &Configuration)>) -> Action {
    let Some((before, live)) = change else {
        return Action::Reconfigure;
    };
    match Changes::between(before, live).needs() {
        Needs::ControllerRestart | Needs::NodeRestart => Action::Restart,
        Needs::PartitionRpc if PartitionPlan::between(before, live).by_rpc.is_some() => Action::PartitionRpc,
        Needs::Nothing | Needs::PartitionRpc | Needs::Reconfigure => Action::Reconfigure,
    }
}

/// What makes slurmctld run with what is live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It does.
    Settled,
    Reconfigure,
    /// It has read other files, which differ in partitions alone; those are told one by one.
    Partitions,
    /// It is to save its state, end, and start with the live files.
    Restart,
    /// It is between two lives, and the next one may begin now.
    Start,
    /// It cannot start with these files, and could with others.
    RollBack,
    Wait(&'static str),
}

/// slurmctld saves its state before it ends. One that has not ended after this has not heard.
const LONGEST_RESTART: Duration = Duration::from_mins(1);

/// Once may be an accident of the moment; the second attempt comes a twentieth of a second later.
const STILLBORN: u32 = 2;

pub(super) const RESTARTING: &str = "slurmctld is restarting";

/// `live` is the name of the directory with the live files. A start with them is asked for once, so that a slurmctld that
/// dies of them is started ever more slowly.
pub(super) fn plan_next(state: &State, live: &str, unsettled: &Unsettled, action: Action) -> Next {
    let restarting = unsettled
        .restarted
        .is_some_and(|since| since.elapsed() < LONGEST_RESTART);
    match state.daemon.state {
        _ if state.reconfiguring => Next::Wait("slurmctld is still busy with a reconfigure"),
        DaemonState::Ready if state.files.as_deref() == Some(live) => Next::Settled,
        DaemonState::Ready if restarting => Next::Wait(RESTARTING),
        DaemonState::Ready if action == Action::Restart => Next::Restart,
        DaemonState::Ready if action == Action::PartitionRpc => Next::Partitions,
        DaemonState::Ready => Next::Reconfigure,
        DaemonState::Down
            if unsettled.healthy_before && state.stillborn >= STILLBORN && state.files.as_deref() == Some(live) =>
        {
            Next::RollBack
        }
        DaemonState::Down if !unsettled.started => Next::Start,
        DaemonState::Down => Next::Wait("slurmctld does not run; its next start takes the new files"),
        DaemonState::Starting => Next::Wait("slurmctld is starting"),
        DaemonState::Stopping => Next::Wait("slurmctld is stopping; its next start takes the new files"),
        DaemonState::Unknown => Next::Wait("slurmctld's state is not known"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Instant;

    use slurm::agent::Daemon;
    use slurm::revision::{File, FileName};

    use super::super::steps::Steps;
    use super::*;

    fn uid(text: &str) -> ControllerUid {
        ControllerUid::new(text).unwrap()
    }

    fn revision(sequence: u64, text: &str) -> Revision {
        Revision {
            sequence,
            controller: uid("a"),
            files: BTreeMap::from([(FileName::new("slurm.conf").unwrap(), File::config(text))]),
            closed_by_hand: BTreeSet::new(),
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
                key: None,
                refused_peers: vec![],
            },
            files: files.map(str::to_owned),
            reconfiguring: false,
            stillborn: 0,
        }
    }

    fn unsettled() -> Unsettled {
        Unsettled::new(Steps::begin())
    }

    fn next(state: &State, unsettled: &Unsettled) -> Next {
        plan_next(state, "..1", unsettled, Action::Reconfigure)
    }

    #[test]
    fn slurmctld_is_reconfigured_unless_it_runs_with_what_is_live() {
        let next = |files| next(&state(DaemonState::Ready, files), &unsettled());
        assert_eq!(next(Some("..1")), Next::Settled);
        assert_eq!(next(Some("..0")), Next::Reconfigure);
        assert_eq!(next(None), Next::Reconfigure);
    }

    #[test]
    fn a_slurmctld_that_needs_a_restart_is_told_once() {
        let mut unsettled = unsettled();
        let running = state(DaemonState::Ready, Some("..0"));
        assert_eq!(plan_next(&running, "..1", &unsettled, Action::Restart), Next::Restart);
        unsettled.restarted = Some(Instant::now());
        assert_eq!(
            plan_next(&running, "..1", &unsettled, Action::Restart),
            Next::Wait(RESTARTING)
        );
        let done = state(DaemonState::Ready, Some("..1"));
        assert_eq!(plan_next(&done, "..1", &unsettled, Action::Restart), Next::Settled);
    }

    #[test]
    fn partitions_are_told_to_a_slurmctld_that_has_read_others() {
        let next = |state| plan_next(&state, "..1", &unsettled(), Action::PartitionRpc);
        assert_eq!(next(state(DaemonState::Ready, Some("..0"))), Next::Partitions);
        assert_eq!(next(state(DaemonState::Ready, Some("..1"))), Next::Settled);
        assert_eq!(next(state(DaemonState::Down, Some("..0"))), Next::Start);
    }

    #[test]
    fn the_smallest_action_is_by_what_changed() {
        let conf = |text: &str| Configuration::parse([("slurm.conf", text.as_bytes())]);
        let live = conf("ClusterName=a\nSlurmctldPort=6817\n");
        for (new, expected) in [
            (
                "ClusterName=a\nSlurmctldPort=6817\nPartitionName=p Nodes=ALL\n",
                Action::PartitionRpc,
            ),
            (
                "ClusterName=a\nSlurmctldPort=6817\nPartitionName=p Nodes=ALL AllocNodes=x\n",
                Action::Reconfigure,
            ),
            ("# why\nClusterName=a\nSlurmctldPort=6817\n", Action::Reconfigure),
            ("ClusterName=a\nSlurmctldPort=6827\n", Action::Restart),
        ] {
            assert_eq!(plan_action(Some((&live, &conf(new)))), expected, "{new}");
        }
        assert_eq!(plan_action(None), Action::Reconfigure);
    }

    #[test]
    fn a_slurmctld_that_is_down_is_started_once_and_then_waited_for() {
        let mut unsettled = unsettled();
        let down = state(DaemonState::Down, None);
        assert_eq!(next(&down, &unsettled), Next::Start);
        unsettled.started = true;
        assert!(matches!(next(&down, &unsettled), Next::Wait(_)));
    }

    #[test]
    fn files_that_a_healthy_slurmctld_cannot_start_with_go_back() {
        let mut unsettled = unsettled();
        unsettled.started = true;
        let dead = |stillborn, files| State {
            stillborn,
            ..state(DaemonState::Down, files)
        };
        assert!(
            matches!(next(&dead(9, Some("..1")), &unsettled), Next::Wait(_)),
            "it died before"
        );
        unsettled.healthy_before = true;
        assert!(
            matches!(next(&dead(1, Some("..1")), &unsettled), Next::Wait(_)),
            "an accident"
        );
        assert!(
            matches!(next(&dead(2, Some("..0")), &unsettled), Next::Wait(_)),
            "of others"
        );
        assert_eq!(next(&dead(2, Some("..1")), &unsettled), Next::RollBack);
    }

    #[test]
    fn a_slurmctld_that_starts_stops_or_is_busy_is_left_alone() {
        for daemon in [DaemonState::Starting, DaemonState::Stopping, DaemonState::Unknown] {
            assert!(matches!(next(&state(daemon, None), &unsettled()), Next::Wait(_)));
        }
        let busy = State {
            reconfiguring: true,
            ..state(DaemonState::Ready, Some("..1"))
        };
        assert!(matches!(next(&busy, &unsettled()), Next::Wait(_)));
    }
}
