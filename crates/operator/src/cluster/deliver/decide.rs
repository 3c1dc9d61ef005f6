//! What to do next by what the agent says is live. Pure.

use std::collections::BTreeMap;

use api::configuration::RejectedBy;
use slurm::{
    agent::{Phase, Refused, Status},
    revision::Digest,
};

use super::{Live, Rejection, State, Wanted};

/// The most of slurmctld's last words that fit well into a condition.
const LONGEST_WORDS: usize = 5;

/// What the actor remembers between two steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// What was refused.
    pub(crate) refused: BTreeMap<Digest, Rejection>,
    /// A push whose end is not known.
    pub(crate) open: Option<Live>,
    /// How often a dry run of these came to no end.
    pub(crate) stuck: BTreeMap<Digest, u32>,
    /// What was last sent by a ConfigMap.
    pub(crate) sent: Option<Live>,
    /// The highest sequence that was tried.
    pub(crate) highest: u64,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing, until something else is wanted.
    Rest(State),
    /// Ask again after a while.
    Ask(State),
    /// Push under this sequence.
    Push { sequence: u64 },
}

/// Decides by what the agent says is live.
pub(crate) fn decide(wanted: &Wanted, status: &Status, memory: &Memory) -> Next {
    let live = status.live.as_ref().map(Live::from);
    if live.is_some_and(|live| live.digest == wanted.digest) {
        return match status.phase {
            Phase::Verified => Next::Rest(State::Done),
            phase => Next::Ask(State::Waiting {
                why: waiting_for(phase, status),
            }),
        };
    }
    if status.phase == Phase::RollingBack {
        return Next::Ask(State::Busy);
    }
    let refused = memory.refused.get(&wanted.digest).cloned();
    let refused = refused
        .or_else(|| refused_meanwhile(wanted, status, memory))
        .or_else(|| refused_before(wanted, status));
    if let Some(rejection) = refused {
        return Next::Rest(State::Refused(rejection));
    }
    let rolled_back = status
        .rolled_back
        .as_ref()
        .map_or(0, |rolled_back| rolled_back.sequence);
    let highest = [
        live.map_or(0, |live| live.sequence),
        wanted.floor,
        rolled_back,
        memory.highest,
    ];
    Next::Push {
        sequence: highest.into_iter().max().unwrap_or_default() + 1,
    }
}

/// What the agent rolled back while nobody waited for its answer, for a leader before this one, or when its pod started.
fn refused_meanwhile(wanted: &Wanted, status: &Status, memory: &Memory) -> Option<Rejection> {
    let refused = status.rolled_back.as_ref()?;
    // An agent of before tells the number only; which files had it we know ourselves.
    let told = refused.digest.map(|digest| Live {
        sequence: refused.sequence,
        digest,
    });
    let tried = [told, memory.open, wanted.rejected].into_iter().flatten();
    let mut same = tried.filter(|tried| tried.sequence == refused.sequence && tried.digest == wanted.digest);
    same.next()
        .map(|tried| rejection_of(refused, tried, RejectedBy::Slurmctld))
}

/// What a dry run of this agent refused for a leader before this one: it would say the same again.
pub(crate) fn refused_before(wanted: &Wanted, status: &Status) -> Option<Rejection> {
    let refused = status.refused.iter().rev();
    let mut same = refused.filter(|refused| refused.digest == Some(wanted.digest));
    same.next().map(|refused| {
        let tried = Live {
            sequence: refused.sequence,
            digest: wanted.digest,
        };
        rejection_of(refused, tried, RejectedBy::DryRun)
    })
}

/// Everything that this slurmctld is known to have refused, of whichever leader, and its words.
pub(crate) fn refusals_of(status: &Status) -> impl Iterator<Item = (Digest, String)> {
    let live = status.live.as_ref().map(|live| live.digest);
    let refused = status.refused.iter().chain(&status.rolled_back);
    let told = refused.filter_map(|refused| Some((refused.digest?, words_of(refused))));
    told.filter(move |(digest, _)| Some(*digest) != live)
}

fn waiting_for(phase: Phase, status: &Status) -> String {
    let Some(daemon) = &status.slurmctld else {
        return format!("{phase}; slurmctld does not run under the agent, or its supervisor does not answer");
    };
    match daemon.last_words.as_slice() {
        [] => format!("{phase}; slurmctld is {:?}", daemon.state).to_lowercase(),
        words => format!("{phase}; slurmctld's last words: {}", quote(words)),
    }
}

fn quote(words: &[String]) -> String {
    let (_, last) = words.split_at(words.len().saturating_sub(LONGEST_WORDS));
    last.join(" / ")
}

pub(crate) fn rejection_of(refused: &Refused, tried: Live, by: RejectedBy) -> Rejection {
    Rejection {
        sequence: tried.sequence,
        digest: tried.digest,
        by,
        why: words_of(refused),
    }
}

pub(crate) fn words_of(Refused { reason, last_words, .. }: &Refused) -> String {
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

    use super::{
        super::{Goal, JwtKey},
        *,
    };
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
        assert_eq!(next, Next::Rest(State::Done));
    }

    #[test]
    fn a_sequence_is_above_everything_the_agent_and_kubernetes_know() {
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
    fn what_slurmctld_refused_waits_for_something_else_to_be_wanted() {
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
            Next::Rest(State::Refused(rejection))
        );
        assert_eq!(decide(&wanted("c", 7), &live, &memory), Next::Push { sequence: 9 });
    }

    #[test]
    fn what_was_rolled_back_while_nobody_waited_is_not_pushed_again() {
        let mut agent = status(Some((7, "a")), Phase::Verified);
        agent.rolled_back = Some(Refused {
            sequence: 8,
            digest: None,
            reason: "no".to_owned(),
            last_words: vec!["fatal: Nonsense".to_owned()],
        });
        let tried = |files| Live {
            sequence: 8,
            digest: digest(files),
        };
        let refused = Next::Rest(State::Refused(Rejection {
            sequence: 8,
            digest: digest("b"),
            by: RejectedBy::Slurmctld,
            why: "no: fatal: Nonsense".to_owned(),
        }));
        // Our own push, whose answer was lost.
        let memory = Memory {
            open: Some(tried("b")),
            highest: 8,
            ..Memory::default()
        };
        assert_eq!(decide(&wanted("b", 7), &agent, &memory), refused);
        // That of a leader before, by what it wrote down.
        let mut after_another = wanted("b", 7);
        after_another.rejected = Some(tried("b"));
        assert_eq!(decide(&after_another, &agent, &Memory::default()), refused);
        // What a pod started with and fell back from: nobody pushed it, and the agent tells which files it were.
        let mut fallen_back = agent.clone();
        if let Some(refused) = &mut fallen_back.rolled_back {
            refused.digest = Some(digest("b"));
        }
        assert_eq!(decide(&wanted("b", 7), &fallen_back, &Memory::default()), refused);
        assert_eq!(
            decide(&wanted("c", 7), &fallen_back, &Memory::default()),
            Next::Push { sequence: 9 }
        );
        // Other files, or another number, were not refused.
        after_another.rejected = Some(tried("c"));
        assert_eq!(
            decide(&after_another, &agent, &Memory::default()),
            Next::Push { sequence: 9 }
        );
        after_another.rejected = Some(Live {
            sequence: 5,
            digest: digest("b"),
        });
        assert_eq!(
            decide(&after_another, &agent, &Memory::default()),
            Next::Push { sequence: 9 }
        );
    }

    #[test]
    fn what_a_dry_run_refused_for_a_leader_before_is_not_tried_again() {
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
                Next::Rest(State::Refused(Rejection {
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
    fn all_that_was_refused_is_known_at_once_but_for_what_is_live() {
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
        let words = "no: fatal: Nonsense".to_owned();
        assert_eq!(known, [(digest("b"), words.clone()), (digest("c"), words)]);
        agent.rolled_back = Some(refused(None));
        assert_eq!(refusals_of(&agent).count(), 1);
    }

    #[test]
    fn a_revision_that_slurmctld_has_not_taken_is_asked_for_and_not_pushed() {
        for phase in [Phase::Swapped, Phase::Reconfiguring, Phase::Unknown] {
            let next = decide(&wanted("a", 0), &status(Some((7, "a")), phase), &Memory::default());
            let Next::Ask(State::Waiting { why }) = next else {
                panic!("{next:?}")
            };
            assert!(why.ends_with("fatal: no"), "{why}");
        }
    }

    #[test]
    fn nothing_is_pushed_while_files_go_back() {
        let next = decide(
            &wanted("b", 0),
            &status(Some((7, "a")), Phase::RollingBack),
            &Memory::default(),
        );
        assert_eq!(next, Next::Ask(State::Busy));
    }

    #[test]
    fn no_key_is_shown() {
        assert!(!format!("{:?}", wanted("a", 0)).contains("[1]"));
    }
}
