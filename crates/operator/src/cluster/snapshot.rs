//! Everything known about one cluster at one time, and the memory it is made from.

use std::sync::Arc;

use api::Controller;
use slurm::{agent::Superseded, revision::Digest};

use super::{
    Cluster, Knowledge, Seen,
    deliver::Report,
    external::View,
    lagging::{Lagging, NodeStarts},
    lock,
    partition_reports::PartitionReports,
    sent_revisions::{Lives, Revisions, Served},
};
use crate::partition::rules::manual_state::ManualStates;

/// Everything known about one cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// Slurm's last response about nodes, jobs and partitions.
    pub(crate) knowledge: Knowledge,
    /// The progress of the delivery of the configuration.
    pub(crate) report: Report,
    /// The revisions slurmctld ran with, each with the time since when that is known.
    pub(crate) lives: Lives,
    pub(crate) served: Served,
    /// This operator made the live revision.
    pub(crate) is_live_own: bool,
    /// The manual states that were found when Slurm last responded with those of the accepted revision.
    pub(crate) manual_states: Option<ManualStates>,
    /// The address of an external slurmctld, and the result of the last poll. The end of the first poll wakes the Controller.
    pub(crate) external: Option<(String, Option<Arc<View>>)>,
    /// Nodes that have not applied the last change.
    pub(crate) lagging: Lagging,
    /// The UID of the pod whose agent last reported, if a later pod of its name has its state volume.
    pub(crate) superseded: Option<(String, Superseded)>,
}

impl Snapshot {
    /// Slurm's last response, if slurmctld ran with this revision and with nothing newer at that time.
    pub(crate) fn since(&self, revision: Digest) -> Option<&Seen> {
        let mut lives = self.lives.iter().skip_while(|(digest, _)| *digest != revision);
        let (_, since) = lives.next()?;
        // A newer revision is not accepted yet; what was read since it went live describes that one.
        let until = lives.next().map(|(_, at)| *at);
        let is_about_it = |seen: &&Seen| seen.at > *since && until.is_none_or(|until| seen.at < until);
        self.knowledge.known().filter(is_about_it)
    }
}

/// What a cluster remembers between two reconciles of its Controller.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) revisions: Revisions,
    pub(super) node_starts: NodeStarts,
    pub(super) partitions: PartitionReports,
    pub(super) manual_states: Option<ManualStates>,
    /// Whether slurmctld hides records from users without privileges. `None` until the Controller has been reconciled.
    pub(super) hides_records: Option<bool>,
}

impl Cluster {
    pub(super) fn snapshot(&self, controller: &Controller, knowledge: Knowledge) -> Snapshot {
        let report = self.report();
        let mut memory = lock(&self.memory);
        let (lives, served) = memory.revisions.note_live(&report, self.now());
        let is_live_own = report.live.is_some_and(|live| memory.revisions.has_sent(live.digest));
        // Slurm is polled on behalf of NodeSets only.
        let lagging = (!self.node_sets().is_empty()).then(|| {
            let status = controller.status.as_ref();
            let status = status.and_then(|status| status.configuration.as_ref());
            memory.node_starts.find_lagging(status, &report, &knowledge)
        });
        let reported = self.key_report.borrow().clone();
        let external = self.external.borrow();
        let external = external.as_ref();
        Snapshot {
            knowledge,
            report,
            lives,
            served,
            is_live_own,
            manual_states: memory.manual_states.clone(),
            external: external.map(|external| (external.address.clone(), external.view())),
            lagging: lagging.unwrap_or_default(),
            superseded: reported.and_then(|reported| Some((reported.pod, reported.superseded?))),
        }
    }
}
