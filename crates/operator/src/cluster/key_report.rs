//! The agent's report about keys: the `slurm.key` that slurmctld has read, and the peers it refuses for another one. The same response
//! shows whether the pod is one that does not start slurmctld any more.

use std::time::Duration;

use runtime::Key;
use slurm::agent::{self, InvalidToken, KeyDigest, Refusal, RefusedPeer, Superseded};

use super::{Cluster, Follower};

/// A mismatch must be found within a minute, and the slowest reconciler that reports it polls every 15 s.
const INTERVAL: Duration = Duration::from_secs(10);

/// An agent's report about keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyReport {
    /// UID of the pod whose agent reported.
    pub pod: String,
    /// The pod has another `jwt.key` than the operator. Then nothing else is known.
    pub has_other_jwt_key: bool,
    /// The `slurm.key` that its slurmctld has read, if known.
    pub slurm_key: Option<KeyDigest>,
    /// Peers that sign with another key.
    pub refused: Vec<RefusedPeer>,
    /// A later pod of its name has its state volume, so that its slurmctld never starts again.
    pub superseded: Option<Superseded>,
}

impl KeyReport {
    /// Interprets the response of an agent. Returns `None` if it did not respond.
    pub(crate) fn of(pod: String, answer: Result<agent::Status, agent::Error>) -> Option<Self> {
        match answer {
            Ok(status) => status.slurmctld.map(|slurmctld| Self {
                pod,
                has_other_jwt_key: false,
                slurm_key: slurmctld.key,
                refused: slurmctld.refused_peers,
                superseded: slurmctld.superseded,
            }),
            Err(agent::Error::Refused(Refusal::Token { detail })) if detail == InvalidToken::Signature.to_string() => {
                Some(Self {
                    pod,
                    has_other_jwt_key: true,
                    ..Self::default()
                })
            }
            Err(_) => None,
        }
    }
}

/// Polls the agent of one cluster, and wakes the Controller and its NodeSets when they have something to report. LoginSets
/// and Accountings poll by themselves.
pub(super) async fn run(cluster: &Cluster) {
    loop {
        let status = cluster.agent_status().await;
        let now = status.and_then(|(pod, answer)| KeyReport::of(pod, answer));
        let before = cluster.key_report.send_replace(now.clone());
        if is_relevant(before.as_ref(), now.as_ref()) {
            for set in cluster.node_sets() {
                cluster.wake(Follower::NodeSet(Key::of(set.as_ref())));
            }
            cluster.wake(Follower::Controller);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Whether reconcilers that use the report must run: something is or was wrong, which may end by the clock.
pub(crate) fn is_relevant(before: Option<&KeyReport>, now: Option<&KeyReport>) -> bool {
    let key = |report: Option<&KeyReport>| report.map(|report| (report.has_other_jwt_key, report.slurm_key.clone()));
    let refuses = |report: Option<&KeyReport>| report.is_some_and(|report| !report.refused.is_empty());
    let superseded = |report: Option<&KeyReport>| report.and_then(|report| report.superseded.clone());
    superseded(before) != superseded(now) || key(before) != key(now) || refuses(before) || refuses(now)
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
    fn a_signature_error_means_that_the_pod_has_another_jwt_key() {
        let refused = |detail: String| Err(agent::Error::Refused(Refusal::Token { detail }));
        let report = KeyReport::of("uid".to_owned(), refused(InvalidToken::Signature.to_string()));
        assert!(report.is_some_and(|report| report.has_other_jwt_key));
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
    fn a_pod_that_does_not_start_slurmctld_any_more_wakes_its_controller() {
        let superseded = |responds| KeyReport {
            superseded: Some(Superseded {
                by: "later".to_owned(),
                responds,
            }),
            ..report(&[])
        };
        assert!(is_relevant(Some(&report(&[])), Some(&superseded(true))));
        assert!(is_relevant(Some(&superseded(true)), Some(&superseded(false))));
        assert!(!is_relevant(Some(&superseded(true)), Some(&superseded(true))));
    }

    #[test]
    fn no_reconciler_is_woken_while_nothing_changes() {
        let (fine, bad) = (report(&[]), report(&["10.0.0.1"]));
        assert!(!is_relevant(Some(&fine), Some(&fine)) && !is_relevant(None, None));
        assert!(
            is_relevant(None, Some(&fine)),
            "it may be another key than the Secret's"
        );
        assert!(
            is_relevant(Some(&fine), Some(&bad))
                && is_relevant(Some(&bad), Some(&bad))
                && is_relevant(Some(&bad), Some(&fine))
        );
    }
}
