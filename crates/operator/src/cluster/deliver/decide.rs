//! Decides the next step from the agent's status. Pure.

use std::collections::{BTreeMap, BTreeSet};

use api::configuration::RejectedBy;
use slurm::{
    agent::{Phase, Refused, Status},
    revision::{Digest, check_jump, next_sequence},
};
use tokio::time::Instant;

use super::{Goal, LiveRevision, MOST_REFUSALS, Rejection, State, Wanted};

/// The number of lines of slurmctld's last output that fit into a condition.
const MAX_LINES: usize = 5;

/// What the delivery task remembers between two steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Revisions that were rejected.
    pub(crate) refused: BTreeMap<Digest, Rejection>,
    /// When each revision that counts as rejected is tried again.
    pub(crate) retry_at: BTreeMap<Digest, Instant>,
    /// Revisions that were due to be tried again, and how often. What the agent reports about earlier attempts does not count any
    /// more.
    pub(crate) expired: BTreeMap<Digest, u32>,
    /// A push whose result is not known.
    pub(crate) open: Option<LiveRevision>,
    /// How often a dry run of these revisions did not end.
    pub(crate) stuck: BTreeMap<Digest, u32>,
    /// The revision that was last sent by a ConfigMap.
    pub(crate) sent: Option<LiveRevision>,
    /// The highest sequence that was tried.
    pub(crate) highest: u64,
}

impl Memory {
    /// Forgets the rejections that are due, and returns them.
    pub(crate) fn expire(&mut self, now: Instant) -> BTreeSet<Digest> {
        let due: BTreeSet<Digest> = self
            .retry_at
            .extract_if(.., |_, at| *at <= now)
            .map(|(due, _)| due)
            .collect();
        self.refused.retain(|digest, _| !due.contains(digest));
        if self.expired.len() >= MOST_REFUSALS {
            self.expired.clear();
        }
        for digest in &due {
            *self.expired.entry(*digest).or_default() += 1;
        }
        due
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing, until another revision is wanted or a rejected one is due.
    Idle(State),
    /// Poll again after a while.
    Poll(State),
    /// Push with this sequence.
    Push { sequence: u64 },
}

/// Decides the next step from the agent's status.
pub(crate) fn decide(wanted: &Wanted, status: &Status, memory: &Memory) -> Next {
    let live = status.live.as_ref().map(LiveRevision::from);
    if live.is_some_and(|live| live.digest == wanted.digest) {
        return match status.phase {
            Phase::Verified => Next::Idle(State::Done),
            phase => Next::Poll(State::Waiting {
                why: waiting_for(phase, status),
            }),
        };
    }
    if status.phase == Phase::RollingBack {
        return Next::Poll(State::Busy);
    }
    let refused = memory.refused.get(&wanted.digest).cloned();
    let refused = refused
        .or_else(|| refused_meanwhile(wanted, status, memory))
        .or_else(|| refused_before(wanted, status).filter(|_| !memory.expired.contains_key(&wanted.digest)));
    if let Some(rejection) = refused {
        return Next::Idle(State::Refused(rejection));
    }
    let rolled_back = status.rolled_back.as_ref().map_or(0, |refused| refused.sequence);
    let live = live.map_or(0, |live| live.sequence);
    // Another leader pushed the live revision, and this one does not have its record: Kubernetes' data was restored from a
    // backup, or the caches are old. The reconciler first reads the partitions' states from Slurm.
    if status.phase == Phase::Verified && live > wanted.known.max(memory.highest) {
        return Next::Poll(State::Busy);
    }
    if wanted.goal == Goal::Confirmed {
        return Next::Poll(State::Busy);
    }
    let highest = wanted.floor.max(memory.highest).max(live).max(rolled_back);
    match choose_sequence(highest, status.live.is_some().then_some(live)) {
        Ok(sequence) => Next::Push { sequence },
        Err(why) => Next::Poll(State::Failed { why }),
    }
}

/// The sequence of the next revision, or why there is none. `live` is the sequence of the agent's live revision.
fn choose_sequence(highest: u64, live: Option<u64>) -> Result<u64, String> {
    let plausible = live.map_or(Ok(()), |live| check_jump(highest, live));
    let next = plausible.and_then(|()| next_sequence(highest));
    next.map_err(|implausible| {
        format!(
            "{implausible}; it comes from the ConfigMap of the bundle or of the candidate, or from the state volume: if a person or \
             program wrote there, delete the two ConfigMaps, which the operator creates again; if the live revision itself has it, \
             also delete slurmctld's pod and the directory .slurm-operator on the state volume"
        )
    })
}

/// A revision that the agent rolled back without a waiting caller, for an earlier leader, or when its pod started.
fn refused_meanwhile(wanted: &Wanted, status: &Status, memory: &Memory) -> Option<Rejection> {
    let refused = status.rolled_back.as_ref()?;
    let tried = wanted.tried(refused.sequence);
    // An older agent reports the sequence only; its digest is known from `memory` or from the status.
    let is_same = refused.digest == Some(tried.digest) || wanted.rejected == Some(tried);
    let is_known = is_same && !memory.expired.contains_key(&tried.digest);
    (is_known || memory.open == Some(tried)).then(|| Rejection::of(tried, RejectedBy::Slurmctld, describe(refused)))
}

/// A revision that a dry run of this agent rejected for an earlier leader: it would be rejected again.
pub(crate) fn refused_before(wanted: &Wanted, status: &Status) -> Option<Rejection> {
    let refused = status.refused.iter().rev();
    let mut same = refused.filter(|refused| refused.digest == Some(wanted.digest));
    same.next().map(|refused| {
        let tried = wanted.tried(refused.sequence);
        Rejection::of(tried, RejectedBy::DryRun, describe(refused))
    })
}

/// All revisions that this slurmctld is known to have rejected for any leader, and its messages.
pub(crate) fn refusals_of(status: &Status) -> impl Iterator<Item = (Digest, String)> {
    let live = status.live.as_ref().map(|live| live.digest);
    let refused = status.refused.iter().chain(&status.rolled_back);
    let rejected = refused.filter_map(|refused| Some((refused.digest?, describe(refused))));
    rejected.filter(move |(digest, _)| Some(*digest) != live)
}

fn waiting_for(phase: Phase, status: &Status) -> String {
    let Some(daemon) = &status.slurmctld else {
        return format!("{phase}; slurmctld does not run under the agent, or its supervisor does not answer");
    };
    match daemon.last_words.as_slice() {
        [] => format!("{phase}; slurmctld is {:?}", daemon.state).to_lowercase(),
        lines => format!("{phase}; last output of slurmctld: {}", quote(lines)),
    }
}

fn quote(lines: &[String]) -> String {
    let (_, last) = lines.split_at(lines.len().saturating_sub(MAX_LINES));
    last.join(" / ")
}

pub(crate) fn describe(Refused { reason, last_words, .. }: &Refused) -> String {
    if last_words.is_empty() {
        reason.clone()
    } else {
        format!("{reason}: {}", quote(last_words))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use slurm::{
        agent::{Daemon, DaemonState, Fence},
        revision::{ControllerUid, Summary},
    };

    use super::{super::JwtKey, *};
    use crate::cluster::pods::Target;

    fn digest(of: &str) -> Digest {
        Digest::of(of.as_bytes())
    }

    fn wanted(files: &str, floor: u64) -> Wanted {
        Wanted {
            goal: Goal::Live,
            files: Arc::default(),
            closed_by_hand: Arc::default(),
            digest: digest(files),
            controller: ControllerUid::new("uid").unwrap(),
            target: Target {
                pod: "slurm-controller-0".to_owned(),
                uid: "pod".to_owned(),
                address: "10.0.0.1:6822".parse().unwrap(),
                takes_candidates: true,
            },
            standbys: vec![],
            floor,
            known: u64::MAX,
            rejected: None,
            jwt_key: JwtKey(vec![1]),
        }
    }

    fn status(live: Option<(u64, &str)>, phase: Phase) -> Status {
        Status {
            protocol: 1,
            agent: "0.1.0".to_owned(),
            live: live.map(|(sequence, files)| Summary {
                sequence,
                controller: ControllerUid::new("uid").unwrap(),
                digest: digest(files),
                files: BTreeMap::new(),
            }),
            phase,
            slurmctld: Some(Daemon {
                state: DaemonState::Down,
                pid: None,
                since: None,
                restarts: 3,
                last_words: vec!["fatal: no".to_owned()],
                key: None,
                refused_peers: vec![],
                superseded: None,
            }),
            rolled_back: None,
            refused: vec![],
            fence: Fence::default(),
        }
    }

    #[test]
    fn the_same_bytes_are_not_pushed_again() {
        let next = decide(
            &wanted("a", 3),
            &status(Some((7, "a")), Phase::Verified),
            &Memory::default(),
        );
        assert_eq!(next, Next::Idle(State::Done));
    }

    #[test]
    fn a_sequence_is_higher_than_any_the_agent_or_kubernetes_knows() {
        for (floor, live, highest, expected) in [
            (3, Some((7, "a")), 0, 8),
            (9, Some((7, "a")), 0, 10),
            (0, None, 0, 1),
            (1, Some((2, "a")), 5, 6),
        ] {
            let memory = Memory {
                highest,
                ..Memory::default()
            };
            let next = decide(&wanted("b", floor), &status(live, Phase::Verified), &memory);
            assert_eq!(next, Next::Push { sequence: expected });
        }
        let mut rolled_back = status(Some((7, "a")), Phase::Verified);
        rolled_back.rolled_back = Some(Refused {
            sequence: 12,
            digest: None,
            reason: "no".to_owned(),
            last_words: vec![],
        });
        assert_eq!(
            decide(&wanted("b", 0), &rolled_back, &Memory::default()),
            Next::Push { sequence: 13 }
        );
    }

    #[test]
    fn no_revision_gets_a_sequence_that_cannot_have_been_reached() {
        let next = |floor, live: Option<u64>| {
            let live = status(live.map(|live| (live, "a")), Phase::Verified);
            let memory = Memory {
                highest: u64::MAX,
                ..Memory::default()
            };
            let wanted = Wanted {
                known: u64::MAX,
                ..wanted("b", floor)
            };
            let memory = if floor == 0 { memory } else { Memory::default() };
            decide(&wanted, &live, &memory)
        };
        assert_eq!(next(1_000_000, Some(7)), Next::Push { sequence: 1_000_001 });
        for (floor, live) in [
            (2_000_000, Some(7)),
            (u64::MAX, Some(7)),
            (u64::MAX, None),
            (1, Some(u64::MAX)),
            (0, Some(7)),
        ] {
            let Next::Poll(State::Failed { why }) = next(floor, live) else {
                panic!("{floor} {live:?}")
            };
            assert!(why.contains("delete the two ConfigMaps"), "{why}");
        }
    }

    #[test]
    fn nothing_is_pushed_before_the_agents_own_list_of_jobs_has_confirmed_it() {
        let wanted = Wanted {
            goal: Goal::Confirmed,
            ..wanted("b", 3)
        };
        let next = |live| decide(&wanted, &status(Some((6, live)), Phase::Verified), &Memory::default());
        assert_eq!(next("a"), Next::Poll(State::Busy));
        assert_eq!(next("b"), Next::Idle(State::Done), "it is live already");
    }

    #[test]
    fn nothing_is_pushed_over_a_live_revision_whose_manual_states_are_not_known() {
        let next = |known, highest, phase| {
            let wanted = Wanted {
                known,
                ..wanted("b", 3)
            };
            let memory = Memory {
                highest,
                ..Memory::default()
            };
            decide(&wanted, &status(Some((6, "a")), phase), &memory)
        };
        let push = Next::Push { sequence: 7 };
        assert_eq!(next(3, 0, Phase::Verified), Next::Poll(State::Busy));
        assert_eq!(next(6, 0, Phase::Verified), push);
        // This operator pushed it.
        assert_eq!(next(3, 6, Phase::Verified), push);
        // slurmctld does not run with it, and may need other files.
        assert_eq!(next(3, 0, Phase::Swapped), push);
    }

    #[test]
    fn a_rejected_revision_is_not_pushed_until_another_is_wanted() {
        let rejection = Rejection {
            sequence: 8,
            digest: digest("b"),
            by: RejectedBy::DryRun,
            why: "unknown key".to_owned(),
        };
        let memory = Memory {
            refused: BTreeMap::from([(rejection.digest, rejection.clone())]),
            highest: 8,
            ..Memory::default()
        };
        let live = status(Some((7, "a")), Phase::Verified);
        assert_eq!(
            decide(&wanted("b", 7), &live, &memory),
            Next::Idle(State::Refused(rejection))
        );
        assert_eq!(decide(&wanted("c", 7), &live, &memory), Next::Push { sequence: 9 });
    }

    #[test]
    fn a_revision_rolled_back_without_a_waiting_caller_is_not_pushed_again() {
        let mut agent = status(Some((7, "a")), Phase::Verified);
        agent.rolled_back = Some(Refused {
            sequence: 8,
            digest: None,
            reason: "no".to_owned(),
            last_words: vec!["fatal: Nonsense".to_owned()],
        });
        let tried = |files| LiveRevision {
            sequence: 8,
            digest: digest(files),
        };
        let refused = Next::Idle(State::Refused(Rejection {
            sequence: 8,
            digest: digest("b"),
            by: RejectedBy::Slurmctld,
            why: "no: fatal: Nonsense".to_owned(),
        }));
        // The operator's own push, whose response was lost.
        let memory = Memory {
            open: Some(tried("b")),
            highest: 8,
            ..Memory::default()
        };
        assert_eq!(decide(&wanted("b", 7), &agent, &memory), refused);
        // The push of an earlier leader, from the status it wrote.
        let mut after_another = wanted("b", 7);
        after_another.rejected = Some(tried("b"));
        assert_eq!(decide(&after_another, &agent, &Memory::default()), refused);
        // A pod started with it and rolled back: it was never pushed, and the agent reports its digest.
        let mut fallen_back = agent.clone();
        if let Some(refused) = &mut fallen_back.rolled_back {
            refused.digest = Some(digest("b"));
        }
        assert_eq!(decide(&wanted("b", 7), &fallen_back, &Memory::default()), refused);
        assert_eq!(
            decide(&wanted("c", 7), &fallen_back, &Memory::default()),
            Next::Push { sequence: 9 }
        );
        // Other files, or another sequence, were not rejected.
        after_another.rejected = Some(tried("c"));
        assert_eq!(
            decide(&after_another, &agent, &Memory::default()),
            Next::Push { sequence: 9 }
        );
        after_another.rejected = Some(LiveRevision {
            sequence: 5,
            digest: digest("b"),
        });
        assert_eq!(
            decide(&after_another, &agent, &Memory::default()),
            Next::Push { sequence: 9 }
        );
    }

    #[test]
    fn a_revision_that_a_dry_run_rejected_for_an_earlier_leader_is_not_tried_again() {
        let mut agent = status(Some((7, "a")), Phase::Verified);
        let refused = |sequence, files| Refused {
            sequence,
            digest: Some(digest(files)),
            reason: "no".to_owned(),
            last_words: vec!["fatal: Nonsense".to_owned()],
        };
        agent.refused = vec![refused(8, "b"), refused(9, "c")];
        for (files, sequence) in [("b", 8), ("c", 9)] {
            assert_eq!(
                decide(&wanted(files, 7), &agent, &Memory::default()),
                Next::Idle(State::Refused(Rejection {
                    sequence,
                    digest: digest(files),
                    by: RejectedBy::DryRun,
                    why: "no: fatal: Nonsense".to_owned(),
                }))
            );
        }
        assert_eq!(
            decide(&wanted("d", 9), &agent, &Memory::default()),
            Next::Push { sequence: 10 }
        );
    }

    #[test]
    fn a_rejected_revision_is_tried_again_when_it_is_due() {
        let refused = |sequence| Refused {
            sequence,
            digest: Some(digest("b")),
            reason: "no".to_owned(),
            last_words: vec![],
        };
        let mut agent = status(Some((7, "a")), Phase::Verified);
        agent.refused = vec![refused(8)];
        agent.rolled_back = Some(refused(8));
        let (now, second) = (Instant::now(), std::time::Duration::from_secs(1));
        let rejection = Rejection::of(wanted("b", 7).tried(8), RejectedBy::DryRun, "no".to_owned());
        let mut memory = Memory {
            refused: BTreeMap::from([(digest("b"), rejection)]),
            retry_at: BTreeMap::from([(digest("b"), now + second)]),
            highest: 8,
            ..Memory::default()
        };
        assert_eq!(memory.expire(now), BTreeSet::new());
        let mut wanted = wanted("b", 7);
        wanted.rejected = Some(wanted.tried(8));
        let next = decide(&wanted, &agent, &memory);
        assert!(matches!(next, Next::Idle(State::Refused(_))), "{next:?}");
        assert_eq!(memory.expire(now + second), BTreeSet::from([digest("b")]));
        assert_eq!(decide(&wanted, &agent, &memory), Next::Push { sequence: 9 });
        // The push's response was lost, and the agent has rolled back again.
        memory.open = Some(wanted.tried(9));
        agent.rolled_back = Some(refused(9));
        let next = decide(&wanted, &agent, &memory);
        assert!(matches!(next, Next::Idle(State::Refused(_))), "{next:?}");
    }

    #[test]
    fn all_rejections_but_that_of_the_live_revision_are_reported() {
        let mut agent = status(Some((7, "a")), Phase::Verified);
        let refused = |files: Option<&str>| Refused {
            sequence: 8,
            digest: files.map(digest),
            reason: "no".to_owned(),
            last_words: vec!["fatal: Nonsense".to_owned()],
        };
        agent.refused = vec![refused(Some("a")), refused(Some("b"))];
        agent.rolled_back = Some(refused(Some("c")));
        let known: Vec<(Digest, String)> = refusals_of(&agent).collect();
        let message = "no: fatal: Nonsense".to_owned();
        assert_eq!(known, [(digest("b"), message.clone()), (digest("c"), message)]);
        agent.rolled_back = Some(refused(None));
        assert_eq!(refusals_of(&agent).count(), 1);
    }

    #[test]
    fn a_live_revision_that_slurmctld_has_not_applied_is_polled_and_not_pushed() {
        for phase in [Phase::Swapped, Phase::Reconfiguring, Phase::Unknown] {
            let next = decide(&wanted("a", 0), &status(Some((7, "a")), phase), &Memory::default());
            let Next::Poll(State::Waiting { why }) = next else {
                panic!("{next:?}")
            };
            assert!(why.ends_with("fatal: no"), "{why}");
        }
    }

    #[test]
    fn nothing_is_pushed_during_a_rollback() {
        let next = decide(
            &wanted("b", 0),
            &status(Some((7, "a")), Phase::RollingBack),
            &Memory::default(),
        );
        assert_eq!(next, Next::Poll(State::Busy));
    }

    #[test]
    fn the_key_is_not_printed() {
        assert!(!format!("{:?}", wanted("a", 0)).contains("[1]"));
    }
}
