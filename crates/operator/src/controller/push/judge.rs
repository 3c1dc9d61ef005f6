//! What to do next by what the agent says is live. Pure.

use slurm::{
    agent::{Phase, Refused, Status},
    revision::Digest,
};

use super::{Live, State, Wanted};

/// The most of slurmctld's last words that fit well into a condition.
const LONGEST_WORDS: usize = 5;

/// What the actor remembers between two steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// What slurmctld refused last, and why.
    pub(super) refused: Option<(Digest, String)>,
    /// The highest sequence that was tried.
    pub(super) highest: u64,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing, until something else is wanted.
    Rest(State),
    /// Ask again after a while.
    Ask(State),
    /// Push under this sequence.
    Push { sequence: u64 },
}

/// Decides by what the agent says is live.
pub(super) fn judge(wanted: &Wanted, status: &Status, memory: &Memory) -> Next {
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
    if let Some((digest, why)) = memory.refused.as_ref().filter(|(digest, _)| *digest == wanted.digest) {
        return Next::Rest(State::Refused {
            digest: *digest,
            why: why.clone(),
        });
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

pub(super) fn refusal_of(refused: &Refused) -> String {
    let Refused { reason, last_words, .. } = refused;
    if last_words.is_empty() {
        reason.clone()
    } else {
        format!("{reason}: {}", quote(last_words))
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use slurm::{
        agent::{Daemon, DaemonState, Fence},
        revision::{ControllerUid, Summary},
    };

    use super::{super::JwtKey, *};
    use crate::controller::pods::Target;

    fn digest(of: &str) -> Digest {
        Digest::of(of.as_bytes())
    }

    fn wanted(files: &str, floor: u64) -> Wanted {
        Wanted {
            files: Arc::default(),
            digest: digest(files),
            controller: ControllerUid::new("uid").unwrap(),
            target: Target {
                pod: "slurm-controller-0".to_owned(),
                uid: "pod".to_owned(),
                address: "10.0.0.1:6822".parse().unwrap(),
            },
            floor,
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
            }),
            rolled_back: None,
            fence: Fence::default(),
        }
    }

    #[test]
    fn the_same_bytes_are_not_pushed_again() {
        let next = judge(
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
            let memory = Memory { highest, refused: None };
            let next = judge(&wanted("b", floor), &status(live, Phase::Verified), &memory);
            assert_eq!(next, Next::Push { sequence: expected });
        }
        let mut rolled_back = status(Some((7, "a")), Phase::Verified);
        rolled_back.rolled_back = Some(Refused {
            sequence: 12,
            reason: "no".to_owned(),
            last_words: vec![],
        });
        assert_eq!(
            judge(&wanted("b", 0), &rolled_back, &Memory::default()),
            Next::Push { sequence: 13 }
        );
    }

    #[test]
    fn what_slurmctld_refused_waits_for_something_else_to_be_wanted() {
        let memory = Memory {
            refused: Some((digest("b"), "unknown key".to_owned())),
            highest: 8,
        };
        let live = status(Some((7, "a")), Phase::Verified);
        let Next::Rest(State::Refused { why, .. }) = judge(&wanted("b", 7), &live, &memory) else {
            panic!("it is pushed again")
        };
        assert_eq!(why, "unknown key");
        assert_eq!(judge(&wanted("c", 7), &live, &memory), Next::Push { sequence: 9 });
    }

    #[test]
    fn a_revision_that_slurmctld_has_not_taken_is_asked_for_and_not_pushed() {
        for phase in [Phase::Swapped, Phase::Reconfiguring, Phase::Unknown] {
            let next = judge(&wanted("a", 0), &status(Some((7, "a")), phase), &Memory::default());
            let Next::Ask(State::Waiting { why }) = next else {
                panic!("{next:?}")
            };
            assert!(why.ends_with("fatal: no"), "{why}");
        }
    }

    #[test]
    fn nothing_is_pushed_while_files_go_back() {
        let next = judge(
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
