//! The revisions sent to slurmctld. From the moment slurmctld runs with one until Kubernetes has recorded it, the sent
//! revision counts as the accepted one.
//!
//! Slurm's state is compared with the revision slurmctld runs with. Compared with the one before, a state that the
//! newer revision keeps or drops would look like a manual change, and would be reverted.

use std::sync::Arc;

use slurm::{Revision, revision::Digest};

use super::deliver::{LiveRevision, Report};

/// More revisions than can be in progress before the first of them is live.
const REMEMBERED: usize = 4;

/// A revision, and the record of what it was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentRevision {
    pub(crate) revision: Revision,
    /// In the format of the bundle's ConfigMap (`configuration/accepted.rs`).
    pub(crate) record: String,
}

/// The last revisions that were sent, newest last.
#[derive(Debug, Default)]
pub(crate) struct SentRevisions {
    all: Vec<(Digest, Arc<SentRevision>)>,
    served: Option<(LiveRevision, Arc<SentRevision>)>,
}

impl SentRevisions {
    pub(crate) fn note(&mut self, sent: SentRevision) {
        let digest = sent.revision.digest();
        if self.all.last().is_some_and(|(last, _)| *last == digest) {
            return;
        }
        self.all.retain(|(other, _)| *other != digest);
        self.all.push((digest, Arc::new(sent)));
        let surplus = self.all.len().saturating_sub(REMEMBERED);
        self.all.drain(..surplus);
    }

    /// The revision slurmctld was last known to run with, and its sequence, if this operator sent it.
    pub(crate) fn served(&mut self, report: &Report) -> Option<(LiveRevision, Arc<SentRevision>)> {
        if let Some(live) = report.live_at_rest() {
            let sent = self.all.iter().find(|(digest, _)| *digest == live.digest);
            self.served = sent.map(|(_, sent)| (live, Arc::clone(sent)));
        }
        self.served.clone()
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
        let revisions = std::cell::RefCell::new(SentRevisions::default());
        let report = |files: &str, state: State| Report {
            live: Some(LiveRevision {
                sequence: 7,
                digest: sent(files).revision.digest(),
            }),
            state,
            ..Report::default()
        };
        let served = |report: &Report| {
            let served = revisions.borrow_mut().served(report);
            served.map(|(_, sent)| sent.record.clone())
        };
        assert_eq!(served(&report("a", State::Done)), None);
        revisions.borrow_mut().note(sent("a"));
        revisions.borrow_mut().note(sent("b"));
        assert_eq!(served(&report("a", State::Busy)), None);
        assert_eq!(served(&report("a", State::Done)).as_deref(), Some("a"));
        assert_eq!(served(&report("b", State::Busy)).as_deref(), Some("a"));
        assert_eq!(served(&report("b", State::Done)).as_deref(), Some("b"));
        // Sent by another operator.
        assert_eq!(served(&report("c", State::Done)), None);
    }
}
