//! Letting workers go. Only this file deletes a worker that runs, and tells Slurm what to do.

use std::time::Duration;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use serde_json::json;
use tracing::{info, warn};

use super::{Applied, Hands, at_once};
use crate::{
    access::{CommandError, Knowledge, NodeOrder},
    nodeset::{
        VICTIM,
        plan::{Effect, Evidence, ObjectId, Plan, Standing},
    },
    runtime::Error,
};

/// Workers removed in one go, as upstream's. More would not be done within one reconcile's time.
const BURST: usize = 250;
/// Node commands under way at once: slurmctld takes them one by one anyway.
const COMMANDS_AT_ONCE: usize = 8;
/// How long a look at Slurm after a command may take: it is milliseconds, or a second with thousands of nodes.
const PATIENCE: Duration = Duration::from_secs(3);

impl Hands<'_> {
    pub(super) async fn apply_departures(&self, plan: &Plan, applied: &mut Applied) {
        let mut removals = Vec::new();
        let mut drains = Vec::new();
        let mut marked = 0_usize;
        for effect in &plan.effects {
            match effect {
                Effect::MarkVictim { pod } => {
                    let patch = json!({ "metadata": { "uid": pod.uid, "annotations": { VICTIM: format!("{:.0}", self.observed.now) } } });
                    applied.take(self.writer.patch::<Pod>(&self.namespace(), &pod.name, patch).await);
                    marked += 1;
                }
                Effect::SpareVictim { pod, undrain } => {
                    applied.take(self.spare(pod, undrain.as_deref()).await);
                }
                Effect::DrainNode { node, reason, .. } => drains.push((node.as_str(), reason.as_str())),
                Effect::RemoveWorker {
                    pod,
                    node,
                    standing,
                    claims,
                } if removals.len() < BURST => {
                    removals.push(Removal {
                        pod,
                        node,
                        standing,
                        claims,
                    });
                }
                _ => {}
            }
        }
        if marked > 0 {
            let message = format!("Draining {marked} Pod(s) to stabilize at {} replicas", plan.desired);
            self.ctx.events.normal(self.nodeset(), "ScalingDown", message);
        }
        let steps: Vec<_> = drains.iter().map(|(node, reason)| self.drain(node, reason)).collect();
        for result in at_once(steps, COMMANDS_AT_ONCE).await {
            applied.take(result);
        }
        self.remove_workers(&removals, applied).await;
        if marked > 0 || !drains.is_empty() {
            self.ctx.access.look_now(&self.cluster(), PATIENCE).await;
        }
    }

    async fn drain(&self, node: &str, reason: &str) -> Result<(), Error> {
        info!(nodeset = %self.key(), node, reason, "Draining node");
        let order = NodeOrder::Drain {
            reason: reason.to_owned(),
        };
        match self.ctx.access.command(&self.cluster(), node, &order).await {
            // It is looked at again before anything follows from it.
            Ok(()) | Err(CommandError::NotFound(_)) => Ok(()),
            Err(error) => Err(Error::other(format!("cannot drain node {node}: {error}"))),
        }
    }

    async fn spare(&self, pod: &ObjectId, undrain: Option<&str>) -> Result<(), Error> {
        if let Some(node) = undrain {
            info!(nodeset = %self.key(), node, "Undraining node, which may stay");
            match self
                .ctx
                .access
                .command(&self.cluster(), node, &NodeOrder::Undrain)
                .await
            {
                Ok(()) | Err(CommandError::NotFound(_)) => {}
                Err(error) => return Err(Error::other(format!("cannot undrain node {node}: {error}"))),
            }
        }
        let patch = json!({ "metadata": { "uid": pod.uid, "annotations": { VICTIM: null } } });
        self.writer
            .patch::<Pod>(&self.namespace(), &pod.name, patch)
            .await
            .map(drop)
    }

    /// Removes workers, each only if a look at Slurm that was begun just now shows what the plan was made on.
    async fn remove_workers(&self, removals: &[Removal<'_>], applied: &mut Applied) {
        if removals.is_empty() {
            return;
        }
        let seen = match self.ctx.access.observe(&self.cluster()).await {
            Knowledge::Known(seen) => seen,
            Knowledge::Unknown { why } => {
                warn!(nodeset = %self.key(), %why, "Slurm does not answer; nothing is removed");
                applied
                    .problems
                    .push(format!("nothing is removed while Slurm cannot be asked: {why}"));
                return;
            }
        };
        let evidence = Evidence::new(&seen);
        let proven = removals
            .iter()
            .filter(|removal| evidence.standing(removal.node) == *removal.standing);
        let steps: Vec<_> = proven.map(|removal| self.remove_worker(removal)).collect();
        for result in at_once(steps, COMMANDS_AT_ONCE).await {
            applied.take(result);
        }
    }

    async fn remove_worker(&self, removal: &Removal<'_>) -> Result<(), Error> {
        let Removal {
            pod,
            node,
            standing,
            claims,
        } = removal;
        match standing {
            Standing::Absent => {}
            Standing::Proven { keep_record: Some(why) } => {
                let message = format!("Slurm keeps its record of node {node}: {why}");
                self.ctx.events.normal(self.nodeset(), "NodeRecordKept", message);
            }
            Standing::Proven { keep_record: None } => {
                info!(nodeset = %self.key(), node, "Deleting node from Slurm");
                match self.ctx.access.command(&self.cluster(), node, &NodeOrder::Delete).await {
                    Ok(()) | Err(CommandError::NotFound(_)) => {}
                    Err(error) => return Err(Error::other(format!("cannot delete node {node} from Slurm: {error}"))),
                }
            }
            // No plan has these.
            Standing::Undrained { .. } | Standing::Busy { .. } | Standing::Unclear { .. } => return Ok(()),
        }
        for claim in *claims {
            self.change_owners(claim, None, |owners| {
                owners.retain(|owner| Some(&owner.uid) != self.nodeset().metadata.uid.as_ref());
                if !owners.iter().any(|owner| owner.uid == pod.uid) {
                    owners.push(OwnerReference {
                        api_version: "v1".to_owned(),
                        kind: "Pod".to_owned(),
                        name: pod.name.clone(),
                        uid: pod.uid.clone(),
                        ..OwnerReference::default()
                    });
                }
            })
            .await?;
        }
        self.writer
            .delete::<Pod>(&self.namespace(), &pod.name, &pod.uid)
            .await?;
        self.ctx.events.normal(
            self.nodeset(),
            "SuccessfulDelete",
            format!("Removed pod {}, whose node had no job", pod.name),
        );
        Ok(())
    }
}

#[derive(Debug)]
struct Removal<'a> {
    pod: &'a ObjectId,
    node: &'a str,
    standing: &'a Standing,
    claims: &'a [String],
}
