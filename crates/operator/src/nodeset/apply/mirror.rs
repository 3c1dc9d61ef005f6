//! Writes the state of Slurm nodes to their pods and the other way round. Nothing here ends or moves a job.

use std::{collections::HashSet, time::Duration};

use api::keys::POD_CONDITION_PREFIX;
use futures::{StreamExt, stream};
use serde_json::json;
use slurm::NodeDescription;
use tracing::info;

use super::{ApplyResult, COMMANDS_AT_ONCE, Executor};
use crate::{
    cluster::{CommandError, NodeOrder},
    nodeset::mirror::{Mirror, MirrorMemory, PodChange, PodMemory, TopologyRequest, mirror, topology_refused},
    reason,
    runtime::Error,
    worker::Worker,
};

/// Concurrent requests. After a start there may be one for each pod.
const WRITES_AT_ONCE: usize = 16;
/// When to retry after a state could not be mirrored to a pod or a node.
const RETRY_AFTER: Duration = Duration::from_secs(15);

impl Executor<'_> {
    /// Mirrors states between pods and Slurm's nodes. Failures are among the complaints; the next reconcile retries them.
    pub(in crate::nodeset) async fn apply_mirror(&self, memory: &mut MirrorMemory) -> Mirror<'_> {
        let existing: HashSet<&str> = self.observed.workers().map(Worker::uid).collect();
        memory.retain(|uid, _| existing.contains(uid.as_str()));
        let mut mirror = mirror(self.observed, memory);
        for (worker, _) in &mirror.pod_writes {
            memory.entry(worker.uid().to_owned()).or_default().written = Some(self.observed.now);
        }
        let mut applied = ApplyResult::default();
        let writes = mirror.pod_writes.iter();
        let writes = writes.map(|(worker, change)| self.write_pod(*worker, change));
        applied.run(writes.collect(), WRITES_AT_ONCE).await;
        let updates = mirror.node_updates.iter();
        let updates: Vec<_> = updates
            .map(|(worker, description)| self.update_node(*worker, description))
            .collect();
        let responses: Vec<_> = stream::iter(updates).buffered(COMMANDS_AT_ONCE).collect().await;
        for ((worker, description), response) in mirror.node_updates.iter().zip(responses) {
            let memory = memory.entry(worker.uid().to_owned()).or_default();
            let problem = self.note(*worker, description, response, memory);
            applied.problems.extend(problem);
        }
        if !applied.problems.is_empty() {
            mirror.requeue = Some(mirror.requeue.unwrap_or(RETRY_AFTER).min(RETRY_AFTER));
            mirror.complaints.extend(applied.problems);
        }
        mirror
    }

    async fn write_pod(&self, worker: Worker<'_>, change: &PodChange) -> Result<(), Error> {
        match change {
            PodChange::Annotations(annotations) => self.annotate(&worker.id(), json!(annotations)).await,
            PodChange::Conditions(wanted) => {
                let (prefix, now) = (POD_CONDITION_PREFIX, self.observed.now);
                let written = self.writer.pod_conditions(worker.0, prefix, wanted, now);
                written.await.map(drop)
            }
        }
    }

    async fn update_node(&self, worker: Worker<'_>, description: &NodeDescription) -> Result<(), CommandError> {
        let node = worker.slurm_name().unwrap_or_default();
        info!(nodeset = %self.key, node, ?description, "describing node");
        let order = NodeOrder::Describe(description.clone());
        self.ctx.clusters.command(self.cluster, node, &order, None).await
    }

    fn note(
        &self,
        worker: Worker<'_>,
        description: &NodeDescription,
        response: Result<(), CommandError>,
        memory: &mut PodMemory,
    ) -> Option<String> {
        let node = worker.slurm_name().unwrap_or_default();
        // By the clock of the snapshots, so that an older snapshot is recognized.
        let at = self.ctx.clock.now();
        memory.updated = Some(at);
        let refused = match response {
            // A deleted node needs no description.
            Ok(()) | Err(CommandError::NotFound(_)) => None,
            Err(CommandError::Refused(words)) => Some(words),
            Err(error) => return Some(format!("cannot describe node {node}: {error}")),
        };
        let Some(place) = &description.topology else {
            return refused.map(|words| format!("Slurm refused to describe node {node}: {words}"));
        };
        let place = place.to_string();
        let complaint = refused.as_ref().map(|words| topology_refused(worker, &place, words));
        memory.topology = Some(TopologyRequest { place, at, refused });
        if let Some(complaint) = &complaint {
            self.warn(reason::TOPOLOGY_REFUSED, complaint);
        }
        complaint
    }
}
