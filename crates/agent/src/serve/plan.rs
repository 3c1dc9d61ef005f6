//! Decides what to do with a push, and what to do next about slurmctld. Pure.

use std::time::Duration;

use slurm::Revision;
use slurm::agent::{Action, DaemonState, Refusal};
use slurm::conf::keys::Needs;
use slurm::conf::{Changes, Configuration};
use slurm::revision::{ControllerUid, Summary};
use tokio::time::Instant;

use super::partitions::PartitionPlan;
use super::rollout::Rollout;
use crate::control::State;

/// What to do with a push.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PushPlan {
    Reject(Refusal),
    /// The live bytes under a new number.
    Renumber,
    Apply,
    /// The live revision, sent again.
    Repeat,
}

pub(super) fn plan_push(live: Option<&Summary>, controller: &ControllerUid, pushed: &Revision) -> PushPlan {
    if pushed.controller != *controller {
        return PushPlan::Reject(Refusal::OtherController {
            detail: format!(
                "the revision is of Controller {} and this pod belongs to {controller}",
                pushed.controller
            ),
        });
    }
    // A volume or a directory may hold another Controller's files: any revision of this one replaces them.
    let Some(live) = live.filter(|live| live.controller == *controller) else {
        return PushPlan::Apply;
    };
    let same = live.digest == pushed.digest();
    match pushed.sequence.cmp(&live.sequence) {
        std::cmp::Ordering::Equal if same => PushPlan::Repeat,
        std::cmp::Ordering::Less | std::cmp::Ordering::Equal => PushPlan::Reject(Refusal::StaleSequence {
            live: Box::new(live.clone()),
        }),
        std::cmp::Ordering::Greater if same => PushPlan::Renumber,
        std::cmp::Ordering::Greater => PushPlan::Apply,
    }
}

/// Returns the smallest action that makes a change live, and a reconfigure where slurmctld's configuration is unknown.
/// slurmctld's hash of slurm.conf covers comments, so that a change of those takes a reconfigure, too.
pub(super) fn plan_action(change: Option<(&Configuration, &Configuration)>) -> Action {
    let Some((before, live)) = change else {
        return Action::Reconfigure;
    };
    match Changes::between(before, live).needs() {
        Needs::ControllerRestart | Needs::NodeRestart => Action::Restart,
        Needs::PartitionRpc if PartitionPlan::between(before, live).live_update.is_some() => Action::PartitionRpc,
        Needs::Nothing | Needs::PartitionRpc | Needs::Reconfigure => Action::Reconfigure,
    }
}

/// What makes slurmctld run with the live files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It runs with them.
    Verify,
    Reconfigure,
    /// The files it has read differ in partitions alone, which are updated one by one.
    Partitions,
    /// It has to save its state, stop, and start with the live files.
    Restart,
    /// It waits for its next start, which may happen now.
    Start,
    /// It cannot start with these files, and could with the previous ones.
    RollBack,
    Wait(&'static str),
}

/// slurmctld saves its state before it exits. One that has not exited after this time did not get the signal.
const RESTART_TIMEOUT: Duration = Duration::from_mins(1);

/// One failure may be transient; the second attempt comes 50 ms later.
const MAX_FAILED_STARTS: u32 = 2;

pub(super) const RESTARTING: &str = "slurmctld is restarting";

/// `live` is the name of the directory with the live files. A start with them is requested once, so that the back-off of a
/// slurmctld that dies of them grows.
pub(super) fn plan_next(state: &State, live: &str, rollout: &Rollout, action: Action, now: Instant) -> Next {
    let restarting = rollout
        .restarted
        .is_some_and(|since| now.saturating_duration_since(since) < RESTART_TIMEOUT);
    match state.daemon.state {
        _ if state.reconfiguring => Next::Wait("slurmctld is still busy with a reconfigure"),
        DaemonState::Ready if state.files.as_deref() == Some(live) => Next::Verify,
        DaemonState::Ready if restarting => Next::Wait(RESTARTING),
        DaemonState::Ready if action == Action::Restart => Next::Restart,
        DaemonState::Ready if action == Action::PartitionRpc => Next::Partitions,
        DaemonState::Ready => Next::Reconfigure,
        DaemonState::Down
            if rollout.healthy_before
                && state.failed_starts >= MAX_FAILED_STARTS
                && state.files.as_deref() == Some(live) =>
        {
            Next::RollBack
        }
        DaemonState::Down if !rollout.started => Next::Start,
        DaemonState::Down => Next::Wait("slurmctld does not run; its next start takes the new files"),
        DaemonState::Starting => Next::Wait("slurmctld is starting"),
        DaemonState::Stopping => Next::Wait("slurmctld is stopping; its next start takes the new files"),
        DaemonState::Unknown => Next::Wait("slurmctld's state is not known"),
    }
}

#[cfg(test)]
mod tests {
    use host::Host;
    use slurm::agent::Daemon;
    use slurm::revision::{File, FileName};
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::rollout::Steps;
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
            PushPlan::Reject(Refusal::StaleSequence {
                live: Box::new(live.clone()),
            })
        };
        assert_eq!(push(6, "y"), PushPlan::Apply);
        assert_eq!(push(6, "x"), PushPlan::Renumber);
        assert_eq!(push(5, "x"), PushPlan::Repeat);
        assert_eq!(push(5, "y"), stale());
        assert_eq!(push(4, "x"), stale());
        assert_eq!(push(4, "y"), stale());
    }

    #[test]
    fn another_controllers_revision_is_rejected_and_its_files_are_replaced() {
        let foreign = Revision {
            controller: uid("b"),
            ..revision(100, "x")
        };
        assert!(matches!(
            plan_push(None, &uid("a"), &foreign),
            PushPlan::Reject(Refusal::OtherController { .. })
        ));
        assert_eq!(
            plan_push(Some(&foreign.summary()), &uid("a"), &revision(1, "x")),
            PushPlan::Apply
        );
        assert_eq!(plan_push(None, &uid("a"), &revision(1, "x")), PushPlan::Apply);
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
                superseded: None,
            },
            files: files.map(str::to_owned),
            reconfiguring: false,
            failed_starts: 0,
        }
    }

    fn rollout() -> Rollout {
        Rollout::new(&Host::real(), Steps::begin(&Host::real()))
    }

    fn next(state: &State, rollout: &Rollout) -> Next {
        plan_next(state, "..1", rollout, Action::Reconfigure, Instant::now())
    }

    #[test]
    fn slurmctld_is_reconfigured_unless_it_runs_with_the_live_files() {
        let next = |files| next(&state(DaemonState::Ready, files), &rollout());
        assert_eq!(next(Some("..1")), Next::Verify);
        assert_eq!(next(Some("..0")), Next::Reconfigure);
        assert_eq!(next(None), Next::Reconfigure);
    }

    #[test]
    fn a_needed_restart_is_requested_once() {
        let mut rollout = rollout();
        let running = state(DaemonState::Ready, Some("..0"));
        assert_eq!(
            plan_next(&running, "..1", &rollout, Action::Restart, Instant::now()),
            Next::Restart
        );
        rollout.restarted = Some(Instant::now());
        assert_eq!(
            plan_next(&running, "..1", &rollout, Action::Restart, Instant::now()),
            Next::Wait(RESTARTING)
        );
        let done = state(DaemonState::Ready, Some("..1"));
        assert_eq!(
            plan_next(&done, "..1", &rollout, Action::Restart, Instant::now()),
            Next::Verify
        );
    }

    #[test]
    fn partitions_are_updated_in_a_slurmctld_that_has_read_other_ones() {
        let next = |state| plan_next(&state, "..1", &rollout(), Action::PartitionRpc, Instant::now());
        assert_eq!(next(state(DaemonState::Ready, Some("..0"))), Next::Partitions);
        assert_eq!(next(state(DaemonState::Ready, Some("..1"))), Next::Verify);
        assert_eq!(next(state(DaemonState::Down, Some("..0"))), Next::Start);
    }

    #[test]
    fn the_smallest_action_follows_from_the_change() {
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
        let mut rollout = rollout();
        let down = state(DaemonState::Down, None);
        assert_eq!(next(&down, &rollout), Next::Start);
        rollout.started = true;
        assert!(matches!(next(&down, &rollout), Next::Wait(_)));
    }

    #[test]
    fn files_that_a_healthy_slurmctld_cannot_start_with_are_rolled_back() {
        let mut rollout = rollout();
        rollout.started = true;
        let dead = |failed_starts, files| State {
            failed_starts,
            ..state(DaemonState::Down, files)
        };
        assert!(
            matches!(next(&dead(9, Some("..1")), &rollout), Next::Wait(_)),
            "it died before"
        );
        rollout.healthy_before = true;
        assert!(
            matches!(next(&dead(1, Some("..1")), &rollout), Next::Wait(_)),
            "it may be transient"
        );
        assert!(
            matches!(next(&dead(2, Some("..0")), &rollout), Next::Wait(_)),
            "of other files"
        );
        assert_eq!(next(&dead(2, Some("..1")), &rollout), Next::RollBack);
    }

    #[test]
    fn a_slurmctld_that_starts_stops_or_is_busy_is_left_alone() {
        for daemon in [DaemonState::Starting, DaemonState::Stopping, DaemonState::Unknown] {
            assert!(matches!(next(&state(daemon, None), &rollout()), Next::Wait(_)));
        }
        let busy = State {
            reconfiguring: true,
            ..state(DaemonState::Ready, Some("..1"))
        };
        assert!(matches!(next(&busy, &rollout()), Next::Wait(_)));
    }
}
