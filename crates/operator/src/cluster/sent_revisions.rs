//! The revisions sent to slurmctld, and since when slurmctld runs with its last ones.
//!
//! From the moment slurmctld runs with a sent revision until Kubernetes has recorded it, that revision counts as the
//! accepted one. Slurm's state is compared with the revision slurmctld runs with. Compared with the one before, a state
//! that the newer revision keeps or drops would look like a manual change, and would be reverted.
//!
//! A decision based on Slurm's response must stay the same until the revision it led to is accepted; otherwise it would
//! be reverted halfway. It is therefore based on the revision that is accepted at the time, and not on the newest one:
//! an earlier response of Slurm may describe an earlier revision.

use std::sync::Arc;

use jiff::Timestamp;
use slurm::{Revision, revision::Digest};

use super::deliver::{LiveRevision, Report};

/// More revisions than can be in progress before the first of them is live, or live before the first of them is accepted.
const REMEMBERED: usize = 4;

/// The last revisions slurmctld ran with, each with the time since when that is known, newest last.
pub(crate) type Lives = Vec<(Digest, Timestamp)>;

/// A revision, and the record of what it was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentRevision {
    pub(crate) revision: Revision,
    /// In the format of the bundle's ConfigMap (`configuration/accepted.rs`).
    pub(crate) record: String,
}

/// The revision slurmctld was last known to run with, and its sequence, if this operator sent it.
pub(crate) type Served = Option<(LiveRevision, Arc<SentRevision>)>;

#[derive(Debug, Default)]
pub(super) struct Revisions {
    /// The last revisions that were sent, newest last.
    sent: Vec<(Digest, Arc<SentRevision>)>,
    served: Served,
    lives: Lives,
}

impl Revisions {
    pub(super) fn note_sent(&mut self, sent: SentRevision) {
        remember(&mut self.sent, sent.revision.digest(), Arc::new(sent));
    }

    /// Whether this operator made the revision. Only the last ones are remembered.
    pub(super) fn has_sent(&self, revision: Digest) -> bool {
        self.sent.iter().any(|(digest, _)| *digest == revision)
    }

    /// Records the live revision, unless a delivery is in progress.
    pub(super) fn note_live(&mut self, report: &Report, now: Timestamp) -> (Lives, Served) {
        if let Some(live) = report.live_at_rest() {
            let sent = self.sent.iter().find(|(digest, _)| *digest == live.digest);
            self.served = sent.map(|(_, sent)| (live, Arc::clone(sent)));
            remember(&mut self.lives, live.digest, now);
        }
        (self.lives.clone(), self.served.clone())
    }
}

/// Makes a revision the newest, unless it is already, and forgets the oldest.
fn remember<T>(revisions: &mut Vec<(Digest, T)>, digest: Digest, value: T) {
    if revisions.last().is_none_or(|(newest, _)| *newest != digest) {
        revisions.retain(|(other, _)| *other != digest);
        revisions.push((digest, value));
        revisions.drain(..revisions.len().saturating_sub(REMEMBERED));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use slurm::revision::ControllerUid;

    use super::*;
    use crate::cluster::deliver::State;

    fn sent(extra_conf: &str) -> SentRevision {
        let file = slurm::revision::File::config(extra_conf);
        let files = [(slurm::revision::FileName::new("slurm.conf").unwrap(), file)];
        SentRevision {
            revision: Revision {
                sequence: 0,
                controller: ControllerUid::new("uid").unwrap(),
                files: files.into(),
                closed_by_hand: BTreeSet::new(),
            },
            record: extra_conf.to_owned(),
        }
    }

    #[test]
    fn the_last_served_revision_is_known_while_the_next_is_being_delivered() {
        let revisions = std::cell::RefCell::new(Revisions::default());
        let report = |files: &str, state: State| Report {
            live: Some(LiveRevision {
                sequence: 7,
                digest: sent(files).revision.digest(),
            }),
            state,
            ..Report::default()
        };
        let served = |report: &Report| {
            let (_, served) = revisions.borrow_mut().note_live(report, Timestamp::UNIX_EPOCH);
            served.map(|(_, sent)| sent.record.clone())
        };
        assert_eq!(served(&report("a", State::Done)), None);
        revisions.borrow_mut().note_sent(sent("a"));
        revisions.borrow_mut().note_sent(sent("b"));
        assert_eq!(served(&report("a", State::Busy)), None);
        assert_eq!(served(&report("a", State::Done)).as_deref(), Some("a"));
        assert_eq!(served(&report("b", State::Busy)).as_deref(), Some("a"));
        assert_eq!(served(&report("b", State::Done)).as_deref(), Some("b"));
        // Sent by another operator.
        assert_eq!(served(&report("c", State::Done)), None);
    }

    #[test]
    fn a_revision_is_live_since_its_last_report_and_earlier_ones_are_remembered() {
        let mut revisions = Revisions::default();
        let mut lives = |report: &Report, now| revisions.note_live(report, now).0;
        let at = |second| Timestamp::from_second(second).unwrap();
        let of = |files: &str| Digest::of(files.as_bytes());
        let report = |files: &str, state: State| Report {
            live: Some(LiveRevision {
                sequence: 1,
                digest: of(files),
            }),
            state,
            ..Report::default()
        };
        assert_eq!(lives(&report("a", State::Busy), at(1)), []);
        assert_eq!(lives(&report("a", State::Done), at(2)), [(of("a"), at(2))]);
        assert_eq!(lives(&report("a", State::Done), at(3)), [(of("a"), at(2))]);
        let both = [(of("a"), at(2)), (of("b"), at(4))];
        assert_eq!(lives(&report("b", State::Done), at(4)), both);
        assert_eq!(lives(&report("a", State::Busy), at(5)), both);
        assert_eq!(
            lives(&report("a", State::Done), at(6)),
            [(of("b"), at(4)), (of("a"), at(6))]
        );
    }
}
