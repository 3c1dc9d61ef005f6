//! What the agent beside slurmctld knows about keys: which `slurm.key` slurmctld has read, and whom it refuses for another.

use std::{sync::Weak, time::Duration};

use api::{Controller, NodeSet};
use slurm::agent::{self, InvalidToken, KeyDigest, Refusal, RefusedPeer};
use tokio::sync::watch;

use super::Shared;
use crate::runtime::Key;

/// How often the agent is asked. A mismatch is to be found within a minute, and the slowest of those who tell of it look every
/// fifteen seconds.
const EVERY: Duration = Duration::from_secs(10);

/// What an agent said about keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyReport {
    /// UID of the pod whose agent said it.
    pub pod: String,
    /// Its pod has another `jwt.key` than the operator. Then nothing else is known.
    pub has_other_jwt_key: bool,
    /// Which `slurm.key` its slurmctld has read, if that is known.
    pub slurm_key: Option<KeyDigest>,
    /// Who signs with another one.
    pub refused: Vec<RefusedPeer>,
}

impl KeyReport {
    /// What is known from an agent's answer; nothing from one that did not come.
    pub(super) fn of(pod: String, answer: Result<agent::Status, agent::Error>) -> Option<Self> {
        match answer {
            Ok(status) => {
                let slurmctld = status.slurmctld?;
                Some(Self {
                    pod,
                    has_other_jwt_key: false,
                    slurm_key: slurmctld.key,
                    refused: slurmctld.refused_peers,
                })
            }
            Err(agent::Error::Refused(Refusal::Token { detail })) => (detail == InvalidToken::Signature.to_string())
                .then(|| Self {
                    pod,
                    has_other_jwt_key: true,
                    ..Self::default()
                }),
            Err(_) => None,
        }
    }
}

/// Asks the agent of one cluster, and wakes the Controller and its NodeSets if they have something to tell. LoginSets and
/// Accountings look by themselves.
pub(super) async fn look_again_and_again(
    controller: Key,
    shared: Weak<Shared>,
    latest: watch::Sender<Option<KeyReport>>,
) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let told = shared.agent_status(&controller).await;
        let now = told.and_then(|(pod, answer)| KeyReport::of(pod, answer));
        let before = latest.send_replace(now.clone());
        if concerns(before.as_ref(), now.as_ref()) {
            for set in shared.node_sets_of(&controller) {
                shared.triggers.wake::<NodeSet>(Key::of(set.as_ref()));
            }
            shared.triggers.wake::<Controller>(controller.clone());
        }
        drop(shared);
        tokio::time::sleep(EVERY).await;
    }
}

/// Whether whoever tells of keys has to look: something is wrong, which may end by the clock, or was wrong before.
pub(super) fn concerns(before: Option<&KeyReport>, now: Option<&KeyReport>) -> bool {
    let key = |report: Option<&KeyReport>| report.map(|report| (report.has_other_jwt_key, report.slurm_key.clone()));
    let refuses = |report: Option<&KeyReport>| report.is_some_and(|report| !report.refused.is_empty());
    key(before) != key(now) || refuses(before) || refuses(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(refused: &[&str]) -> KeyReport {
        KeyReport {
            slurm_key: Some(KeyDigest::of(b"a")),
            refused: refused
                .iter()
                .map(|host| RefusedPeer {
                    host: (*host).to_owned(),
                    last: 1000,
                })
                .collect(),
            ..KeyReport::default()
        }
    }

    #[test]
    fn a_token_that_is_signed_with_another_key_tells_of_another_jwt_key() {
        let refused = |detail: String| Err(agent::Error::Refused(Refusal::Token { detail }));
        let told = KeyReport::of("uid".to_owned(), refused(InvalidToken::Signature.to_string()));
        assert!(told.is_some_and(|report| report.has_other_jwt_key));
        assert_eq!(
            KeyReport::of(String::new(), refused(InvalidToken::Time.to_string())),
            None,
            "a clock"
        );
        assert_eq!(
            KeyReport::of(String::new(), Err(agent::Error::Refused(Refusal::NotFound))),
            None
        );
    }

    #[test]
    fn at_rest_nobody_is_woken() {
        let (fine, bad) = (report(&[]), report(&["10.0.0.1"]));
        assert!(!concerns(Some(&fine), Some(&fine)) && !concerns(None, None));
        assert!(concerns(None, Some(&fine)), "it may be another key than the Secret's");
        assert!(
            concerns(Some(&fine), Some(&bad)) && concerns(Some(&bad), Some(&bad)) && concerns(Some(&bad), Some(&fine))
        );
    }
}
