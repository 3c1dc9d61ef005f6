//! Sets the nodes of lost workers down and deletes their pods; deletes records that nothing needs.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use slurm::agent::Reason;
use tracing::{debug, info, warn};

use super::{ApplyResult, COMMANDS_AT_ONCE, Executor, StepError};
use crate::{
    cluster::{Knowledge, NodeOrder},
    nodeset::plan::{Death, DownOrder, Effect, Evidence, Occupancy, Plan, WorkerLoss, death_of_node},
    runtime::Error,
    worker::ObjectId,
};

impl Executor<'_> {
    /// Returns whether all orders were executed.
    pub(super) async fn apply_losses(&self, plan: &Plan, applied: &mut ApplyResult) -> bool {
        let mut steps = Vec::new();
        for effect in &plan.effects {
            if let Effect::LoseWorker(loss) = effect {
                applied.ordered |= loss.down.is_some();
                steps.push(self.lose_worker(loss));
            }
        }
        applied.run(steps, COMMANDS_AT_ONCE).await
    }

    /// Slurm gets the order before the pod is deleted: the successor starts only afterwards, so the order never hits it.
    async fn lose_worker(&self, loss: &WorkerLoss) -> Result<(), StepError> {
        let WorkerLoss {
            pod,
            death,
            down,
            is_planned,
        } = loss;
        if let Some(name) = death.node() {
            // The caches may show a pod before its Kubernetes node.
            let nodes: Api<Node> = Api::all(self.ctx.client.clone());
            let node = nodes.get_opt(name).await.map_err(Error::other)?;
            if death_of_node(name, node.as_ref()).as_ref() != Some(death) {
                info!(nodeset = %self.key(), node = name, "Kubernetes node exists after all; keeping the worker");
                return Ok(());
            }
        }
        if let Some(DownOrder { node, reason, expect }) = down {
            let reason = reason.as_deref().map(Reason::of);
            let order = NodeOrder::Down { reason };
            self.command(node, &order, expect).await?;
            if !is_planned {
                let message = format!("Node {node} is down in Slurm: {}", death.message());
                self.warn("NodeLost", message);
            }
        }
        let Some(ObjectId { name, uid }) = pod else {
            return Ok(());
        };
        let message = format!("Replacing pod {name}: {}", death.message());
        self.pod_event(uid, "SuccessfulDelete", message);
        match death {
            Death::Ended => self.writer.delete::<Pod>(&self.namespace(), name, uid).await?,
            // No kubelet can confirm its end.
            Death::NodeGone { .. } | Death::OutOfService { .. } => {
                self.writer.delete_at_once::<Pod>(&self.namespace(), name, uid).await?;
            }
        }
        Ok(())
    }

    /// Deletes each record only if a fresh snapshot shows that no job is on the node or requests it.
    pub(super) async fn delete_records(&self, plan: &Plan, applied: &mut ApplyResult) {
        let records = plan.effects.iter().filter_map(|effect| match effect {
            Effect::DeleteRecord { node, expect } => Some((node, expect)),
            _ => None,
        });
        let mut records: Vec<_> = records.collect();
        if records.is_empty() {
            return;
        }
        let seen = match self.ctx.clusters.observe(&self.cluster()).await {
            Knowledge::Known(seen) => seen,
            Knowledge::Unknown { why } => {
                warn!(nodeset = %self.key(), %why, "Slurm does not answer; deleting no record");
                return;
            }
        };
        let evidence = Evidence::new(&seen);
        // Deleted records need no order.
        records.retain(|(node, _)| seen.nodes.contains_key(*node));
        for (node, expect) in records {
            match evidence.need(node) {
                Occupancy::Free { keep_record: None } => {
                    if applied
                        .take(self.command(node, &NodeOrder::Delete, expect).await)
                        .is_some()
                    {
                        let message = format!("Deleted node {node}, which has no pod, in Slurm");
                        self.event("DefunctSlurmNodePruned", message);
                    }
                }
                need => debug!(nodeset = %self.key(), node, ?need, "keeping record in Slurm"),
            }
        }
    }
}
