//! Everything known about one cluster at one time, and the memory it is made from.

use std::sync::Arc;

use api::Controller;
use slurm::revision::Digest;

use super::{
    Cluster, Knowledge, Seen,
    deliver::{LiveRevision, Report},
    external::View,
    lagging::{Lagging, NodeStarts},
    live_since::{LiveSince, Lives},
    lock,
    partition_reports::AllReports,
    sent_revisions::{SentRevision, SentRevisions},
};

/// Everything known about one cluster.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// Slurm's last response about nodes, jobs and partitions.
    pub(crate) knowledge: Knowledge,
    /// The progress of the delivery of the configuration.
    pub(crate) report: Report,
    /// The revisions slurmctld ran with, each with the time since when that is known.
    pub(crate) lives: Lives,
    /// The revision slurmctld was last known to run with, if this operator sent it.
    pub(crate) served: Option<(LiveRevision, Arc<SentRevision>)>,
    /// The last poll of an external slurmctld.
    pub(crate) external: ExternalState,
    /// Nodes that have not applied the last change.
    pub(crate) lagging: Lagging,
}

/// The state of an external slurmctld.
#[derive(Clone, Debug, Default)]
pub(crate) enum ExternalState {
    /// slurmctld runs in a pod, or the Controller does not name an address.
    #[default]
    None,
    /// The first poll is under way; its end wakes the Controller.
    Polling {
        address: String,
    },
    Polled(Arc<View>),
}

/// Nothing is known yet.
impl Default for Snapshot {
    fn default() -> Self {
        Self {
            knowledge: Knowledge::unknown("Slurm has not been polled yet"),
            report: Report::default(),
            lives: Lives::default(),
            served: None,
            external: ExternalState::None,
            lagging: Lagging::default(),
        }
    }
}

impl Snapshot {
    /// Slurm's last response, if slurmctld ran with this revision and with nothing newer at that time.
    pub(crate) fn since(&self, revision: Digest) -> Option<&Seen> {
        let index = self.lives.iter().position(|(digest, _)| *digest == revision)?;
        let (_, since) = self.lives.get(index)?;
        // A newer revision is not accepted yet; what was read since it went live describes that one.
        let until = self.lives.get(index + 1).map(|(_, at)| *at);
        let is_about_it = |seen: &&Seen| seen.at > *since && until.is_none_or(|until| seen.at < until);
        self.knowledge.known().filter(is_about_it)
    }
}

/// What a cluster remembers between two reconciles of its Controller.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) live_since: LiveSince,
    pub(super) sent: SentRevisions,
    pub(super) node_starts: NodeStarts,
    pub(super) partitions: AllReports,
}

impl Cluster {
    pub(super) fn snapshot(&self, controller: &Controller, knowledge: Knowledge) -> Snapshot {
        let report = self.delivery.report();
        let mut memory = lock(&self.memory);
        Snapshot {
            lives: memory.live_since.note(&report, self.now()),
            served: memory.sent.served(&report),
            lagging: if self.node_sets().is_empty() {
                // Slurm is polled on behalf of NodeSets only.
                Lagging::default()
            } else {
                let status = controller
                    .status
                    .as_ref()
                    .and_then(|status| status.configuration.as_ref());
                memory.node_starts.find_lagging(status, &report, &knowledge)
            },
            external: match self.external.borrow().as_ref() {
                None => ExternalState::None,
                Some(external) => match external.view() {
                    None => ExternalState::Polling {
                        address: external.address.clone(),
                    },
                    Some(view) => ExternalState::Polled(view),
                },
            },
            report,
            knowledge,
        }
    }
}
