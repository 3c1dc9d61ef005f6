//! Writes each side's view where the other side sees it. Nothing here ends or moves a job.

use std::collections::HashMap;

use api::keys::POD_CONDITION_PREFIX;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use slurm::NodeDescription;
use tracing::info;

use super::{COMMANDS_AT_ONCE, Hands, at_once};
use crate::{
    cluster::{CommandError, NodeOrder},
    nodeset::mirror::{Asked, Memory, Mirror, PodChange, PodWrite, Telling, refused_place},
    runtime::Error,
    worker::Worker,
};

/// Requests under way at once. After a start there may be one for each pod of the set.
const WRITES_AT_ONCE: usize = 16;

/// By UID.
type Workers<'a> = HashMap<&'a str, Worker<'a>>;

impl Hands<'_> {
    /// What failed, for the condition. The rest is done all the same, and what failed is tried again at the next look.
    pub(in crate::nodeset) async fn apply_mirror(&self, mirror: &Mirror, memory: &mut Memory) -> Vec<String> {
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
        let tellings: Vec<_> = mirror.tellings.iter().map(|telling| self.tell(telling)).collect();
        let answers: Vec<_> = stream::iter(tellings).buffered(COMMANDS_AT_ONCE).collect().await;
        for (telling, answer) in mirror.tellings.iter().zip(answers) {
            problems.extend(self.note(telling, answer, &workers, memory));
        }
        problems
    }

    async fn write_pod(&self, PodWrite { pod, change }: &PodWrite, workers: &Workers<'_>) -> Result<(), Error> {
        match change {
            PodChange::Annotations(annotations) => {
                let patch = json!({ "metadata": { "uid": pod.uid, "annotations": annotations } });
                let patched = self.writer.patch::<Pod>(&self.namespace(), &pod.name, patch).await;
                patched.map(drop)
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

    async fn tell(&self, Telling { node, description, .. }: &Telling) -> Result<(), CommandError> {
        info!(nodeset = %self.key(), node, ?description, "Describing node");
        let order = NodeOrder::Describe(description.clone());
        self.ctx.clusters.command(&self.cluster(), node, &order, None).await
    }

    fn note(
        &self,
        telling: &Telling,
        answer: Result<(), CommandError>,
        workers: &Workers<'_>,
        memory: &mut Memory,
    ) -> Option<String> {
        let Telling { pod, node, description } = telling;
        let memory = memory.of_mut(&pod.uid);
        // By the clock of the looks, so that one that was begun before this is known to be old.
        let at = self.ctx.clock.now();
        memory.told = Some(at);
        let refused = match answer {
            // A node that is gone needs no description.
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
                    Some(refused_place(*worker, &place, words))
                });
                memory.topology = Some(Asked { place, at, refused });
                if let Some(complaint) = &complaint {
                    self.ctx
                        .events
                        .warn(self.nodeset(), "TopologyRefused", complaint.clone());
                }
                complaint
            }
            None => refused.map(|words| format!("Slurm refused to describe node {node}: {words}")),
        }
    }
}
