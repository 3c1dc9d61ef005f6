//! Writes the state of Slurm nodes to their pods and the other way round. Nothing here ends or moves a job.

use std::{collections::HashMap, time::Duration};

use api::keys::POD_CONDITION_PREFIX;
use futures::{StreamExt, stream};
use serde_json::json;
use tracing::info;

use super::{ApplyResult, COMMANDS_AT_ONCE, Executor};
use crate::{
    cluster::{CommandError, NodeOrder},
    nodeset::mirror::{
        Mirror, MirrorMemory, NodeUpdate, PodChange, PodWrite, TopologyRequest, mirror, topology_refused,
    },
    reason,
    runtime::Error,
    worker::Worker,
};

/// Concurrent requests. After a start there may be one for each pod.
const WRITES_AT_ONCE: usize = 16;
/// When to retry after a state could not be mirrored to a pod or a node.
const RETRY_AFTER: Duration = Duration::from_secs(15);

type Workers<'a> = HashMap<&'a str, Worker<'a>>;

impl Executor<'_> {
    /// Mirrors states between pods and Slurm's nodes. Failures are among the complaints; the next reconcile retries them.
    pub(in crate::nodeset) async fn apply_mirror(&self, memory: &mut MirrorMemory) -> Mirror {
        let workers: Workers<'_> = self.observed.workers().map(|worker| (worker.uid(), worker)).collect();
        memory.keep(workers.keys().copied());
        let mut mirror = mirror(self.observed, memory);
        for PodWrite { pod, .. } in &mirror.writes {
            memory.of_mut(&pod.uid).written = Some(self.observed.now);
        }
        let mut applied = ApplyResult::default();
        let writes = mirror.writes.iter().map(|write| self.write_pod(write, &workers));
        applied.run(writes.collect(), WRITES_AT_ONCE).await;
        let updates: Vec<_> = mirror
            .node_updates
            .iter()
            .map(|update| self.update_node(update))
            .collect();
        let responses: Vec<_> = stream::iter(updates).buffered(COMMANDS_AT_ONCE).collect().await;
        for (update, response) in mirror.node_updates.iter().zip(responses) {
            applied.problems.extend(self.note(update, response, &workers, memory));
        }
        if !applied.problems.is_empty() {
            mirror.requeue = Some(mirror.requeue.unwrap_or(RETRY_AFTER).min(RETRY_AFTER));
            mirror.complaints.extend(applied.problems);
        }
        mirror
    }

    async fn write_pod(&self, PodWrite { pod, change }: &PodWrite, workers: &Workers<'_>) -> Result<(), Error> {
        match change {
            PodChange::Annotations(annotations) => self.annotate(pod, json!(annotations)).await,
            PodChange::Conditions(wanted) => {
                let Some(observed) = workers.get(pod.uid.as_str()) else {
                    return Ok(());
                };
                let now = self.observed.now;
                let written = self
                    .writer
                    .pod_conditions(observed.0, POD_CONDITION_PREFIX, wanted, now);
                written.await.map(drop)
            }
        }
    }

    async fn update_node(&self, NodeUpdate { node, description, .. }: &NodeUpdate) -> Result<(), CommandError> {
        info!(nodeset = %self.key(), node, ?description, "describing node");
        let order = NodeOrder::Describe(description.clone());
        self.ctx.clusters.command(&self.cluster(), node, &order, None).await
    }

    fn note(
        &self,
        update: &NodeUpdate,
        response: Result<(), CommandError>,
        workers: &Workers<'_>,
        memory: &mut MirrorMemory,
    ) -> Option<String> {
        let NodeUpdate { pod, node, description } = update;
        let memory = memory.of_mut(&pod.uid);
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
        let worker = workers.get(pod.uid.as_str());
        let complaint = refused.as_ref().zip(worker);
        let complaint = complaint.map(|(words, worker)| topology_refused(*worker, &place, words));
        memory.topology = Some(TopologyRequest { place, at, refused });
        if let Some(complaint) = &complaint {
            self.warn(reason::TOPOLOGY_REFUSED, complaint);
        }
        complaint
    }
}
