//! Workers that are lost: Slurm is told, and their pods make room. And records that nobody needs.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use slurm::AdminState;
use tracing::{debug, info, warn};

use super::{Applied, COMMANDS_AT_ONCE, Hands, Ordered, PATIENCE, at_once};
use crate::{
    cluster::{Knowledge, NodeOrder},
    nodeset::plan::{Death, Down, Effect, Evidence, Plan, death_of_node},
    runtime::Error,
    worker::ObjectId,
};

impl Hands<'_> {
    /// Whether everything that Slurm has to know was said.
    pub(super) async fn apply_losses(&self, plan: &Plan, applied: &mut Applied) -> bool {
        let mut told = true;
        let losses: Vec<_> = plan
            .effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::LoseWorker {
                    pod,
                    death,
                    down,
                    by_plan,
                } => Some(self.lose_worker(pod.as_ref(), death, down.as_ref(), *by_plan)),
                _ => None,
            })
            .collect();
        for result in at_once(losses, COMMANDS_AT_ONCE).await {
            told &= applied.take_order(result);
        }
        let is_told = |effect: &Effect| matches!(effect, Effect::LoseWorker { down: Some(_), .. });
        if plan.effects.iter().any(is_told) {
            self.ctx.clusters.poll_now(&self.cluster(), PATIENCE).await;
        }
        told
    }

    /// First Slurm, then the pod: a successor comes only when it is gone, so that what Slurm is told is never about the
    /// successor.
    async fn lose_worker(
        &self,
        pod: Option<&ObjectId>,
        death: &Death,
        down: Option<&Down>,
        by_plan: bool,
    ) -> Result<Ordered, Error> {
        if let Some(name) = death.node() {
            // The caches may show a pod before they show the node it was put on.
            let nodes: Api<Node> = Api::all(self.ctx.client.clone());
            let node = nodes.get_opt(name).await.map_err(Error::other)?;
            if death_of_node(name, node.as_ref()).as_ref() != Some(death) {
                info!(nodeset = %self.key(), node = name, "Kubernetes node is there after all");
                return Ok(Ordered::Done);
            }
        }
        if let Some(Down { node, reason, expect }) = down {
            let order = NodeOrder::Down { reason: reason.clone() };
            if self.command(node, &order, expect).await? == Ordered::Changed {
                return Ok(Ordered::Changed);
            }
            if !by_plan {
                let message = format!("Node {node} is down in Slurm: {}", death.message());
                self.ctx.events.warn(self.nodeset(), "NodeLost", message);
            }
        }
        let Some(ObjectId { name, uid }) = pod else {
            return Ok(Ordered::Done);
        };
        let message = format!("Replacing pod {name}: {}", death.message());
        let about = [uid.as_str()];
        self.ctx
            .events
            .normal_about(self.nodeset(), about, "SuccessfulDelete", message);
        match death {
            Death::Ended => self.writer.delete::<Pod>(&self.namespace(), name, uid).await?,
            // Nobody is there who could confirm its end.
            Death::NodeGone { .. } | Death::OutOfService { .. } => {
                self.writer.delete_at_once::<Pod>(&self.namespace(), name, uid).await?;
            }
        }
        Ok(Ordered::Done)
    }

    /// Each only if a look at Slurm that was begun just now shows that no job is there or asks for it.
    pub(super) async fn delete_records(&self, plan: &Plan, applied: &mut Applied) {
        let records: Vec<(&str, &AdminState)> = plan
            .effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::DeleteRecord { node, expect } => Some((node.as_str(), expect)),
                _ => None,
            })
            .collect();
        if records.is_empty() {
            return;
        }
        let seen = match self.ctx.clusters.observe(&self.cluster()).await {
            Knowledge::Known(seen) => seen,
            Knowledge::Unknown { why } => {
                warn!(nodeset = %self.key(), %why, "Slurm does not answer; no record is removed");
                return;
            }
        };
        let evidence = Evidence::new(&seen);
        // What is gone by now needs no order.
        let records = records.into_iter().filter(|(node, _)| seen.nodes.contains_key(*node));
        for (node, expect) in records {
            match evidence.need(node) {
                None => {
                    if applied.take_order(self.command(node, &NodeOrder::Delete, expect).await) {
                        let message = format!("Removed node {node}, which has no pod any more, from Slurm");
                        self.ctx
                            .events
                            .normal(self.nodeset(), "DefunctSlurmNodePruned", message);
                    }
                }
                Some(need) => debug!(nodeset = %self.key(), node, %need, "Slurm keeps its record"),
            }
        }
    }
}
