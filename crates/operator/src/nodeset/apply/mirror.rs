//! Writes the state of Slurm nodes to their pods and the other way round. Nothing here ends or moves a job.

use std::collections::HashMap;

use api::keys::POD_CONDITION_PREFIX;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use slurm::NodeDescription;
use tracing::info;

use super::{COMMANDS_AT_ONCE, Executor, at_once};
use crate::{
    cluster::{CommandError, NodeOrder},
    nodeset::mirror::{Mirror, MirrorMemory, NodeUpdate, PodChange, PodWrite, TopologyRequest, topology_refused},
    runtime::Error,
    worker::Worker,
};

/// Concurrent requests. After a start there may be one for each pod.
const WRITES_AT_ONCE: usize = 16;

/// Workers by UID.
type Workers<'a> = HashMap<&'a str, Worker<'a>>;

impl Executor<'_> {
    /// Returns the failures, for the condition. The next reconcile retries them.
    pub(in crate::nodeset) async fn apply_mirror(&self, mirror: &Mirror, memory: &mut MirrorMemory) -> Vec<String> {
        let now = self.observed.now;
        for PodWrite { pod, .. } in &mirror.writes {
            memory.of_mut(&pod.uid).written = Some(now);
        }
        let workers: Workers<'_> = self.observed.workers().map(|worker| (worker.uid(), worker)).collect();
        let writes: Vec<_> = mirror
            .writes
            .iter()
            .map(|write| self.write_pod(write, &workers))
            .collect();
        let mut problems: Vec<String> = at_once(writes, WRITES_AT_ONCE)
            .await
            .into_iter()
            .filter_map(|result| result.err().map(|error| error.to_string()))
            .collect();
        let node_updates: Vec<_> = mirror
            .node_updates
            .iter()
            .map(|update| self.update_node(update))
            .collect();
        let responses: Vec<_> = stream::iter(node_updates).buffered(COMMANDS_AT_ONCE).collect().await;
        for (update, response) in mirror.node_updates.iter().zip(responses) {
            problems.extend(self.note(update, response, &workers, memory));
        }
        problems
    }

    async fn write_pod(&self, PodWrite { pod, change }: &PodWrite, workers: &Workers<'_>) -> Result<(), Error> {
        match change {
            PodChange::Annotations(annotations) => {
                let patch = json!({ "metadata": { "uid": pod.uid, "annotations": annotations } });
                self.patch::<Pod>(&pod.name, patch).await
            }
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
        let NodeDescription { topology, .. } = description;
        match topology {
            Some(place) => {
                let place = place.to_string();
                let complaint = refused.as_ref().and_then(|words| {
                    let worker = workers.get(pod.uid.as_str())?;
                    Some(topology_refused(*worker, &place, words))
                });
                memory.topology = Some(TopologyRequest { place, at, refused });
                if let Some(complaint) = &complaint {
                    self.warn("TopologyRefused", complaint.clone());
                }
                complaint
            }
            None => refused.map(|words| format!("Slurm refused to describe node {node}: {words}")),
        }
    }
}
