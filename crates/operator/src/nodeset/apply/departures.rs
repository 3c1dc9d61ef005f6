//! Letting workers go. Only this file deletes a worker that runs, and tells Slurm what to do.

use std::collections::BTreeMap;

use api::keys::{annotations, labels};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use serde_json::{Value, json};
use slurm::AdminState;
use tracing::{info, warn};

use super::{Applied, COMMANDS_AT_ONCE, Hands, Ordered, PATIENCE, at_once};
use crate::{
    cluster::{CommandError, Knowledge, NodeOrder},
    nodeset::plan::{Effect, Evidence, Plan, Record, Standing, in_force_from, reason_to_leave},
    runtime::Error,
    worker::{Cause, DRAIN_REASON, DRAINED, Leaving, ObjectId, Worker},
};

/// Workers removed in one go, as upstream's. More would not be done within one reconcile's time.
const BURST: usize = 250;
/// Writes under way at once.
const WRITES_AT_ONCE: usize = 32;

impl Hands<'_> {
    pub(super) async fn apply_departures(&self, plan: &Plan, applied: &mut Applied) {
        self.apply_choices(plan, applied).await;
        let orders: Vec<_> = plan.effects.iter().filter_map(|effect| self.order(effect)).collect();
        let ordered = !orders.is_empty();
        for result in at_once(orders, COMMANDS_AT_ONCE).await {
            applied.take_order(result);
        }
        self.apply_proven(plan, applied).await;
        let chosen = plan
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::MarkLeaving { .. }));
        if chosen || ordered || applied.changed {
            self.ctx.clusters.poll_now(&self.cluster(), PATIENCE).await;
        }
    }

    /// Writes down who goes and who stays after all.
    async fn apply_choices(&self, plan: &Plan, applied: &mut Applied) {
        let choices: Vec<(&ObjectId, Option<Leaving>)> = plan
            .effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::MarkLeaving { pod, leaving } => Some((pod, Some(*leaving))),
                Effect::Spare { pod } => Some((pod, None)),
                _ => None,
            })
            .collect();
        let steps: Vec<_> = choices
            .iter()
            .map(|(pod, leaving)| self.write_choice(pod, *leaving))
            .collect();
        for result in at_once(steps, WRITES_AT_ONCE).await {
            applied.take(result);
        }
        let mut marked: BTreeMap<Cause, Vec<&str>> = BTreeMap::new();
        for (pod, leaving) in choices {
            if let Some(leaving) = leaving {
                marked.entry(leaving.cause).or_default().push(&pod.uid);
            }
        }
        for (cause, pods) in marked {
            let count = pods.len();
            let (reason, message) = match cause {
                Cause::Update => {
                    let hash = plan.revision.as_ref().map_or("", |revision| revision.hash.as_str());
                    (
                        "RollingUpdate",
                        format!("Draining {count} Pod(s) to replace them by revision {hash}"),
                    )
                }
                Cause::ScaleIn => {
                    let message = format!("Draining {count} Pod(s) to stabilize at {} replicas", plan.desired);
                    ("ScalingDown", message)
                }
                cause => (
                    "ScalingDown",
                    format!("Draining {count} Pod(s) for {}", cause.purpose()),
                ),
            };
            self.ctx.events.normal_about(self.nodeset(), pods, reason, message);
        }
    }

    /// The order that a step without proof gives.
    fn order<'a>(&'a self, effect: &'a Effect) -> Option<BoxFuture<'a, Result<Ordered, Error>>> {
        let (node, order, expect) = match effect {
            Effect::DrainNode {
                pod,
                node,
                reason,
                is_noted,
                expect,
            } => return Some(self.drain(pod, node, reason.as_deref(), *is_noted, expect).boxed()),
            Effect::UndrainNode { node, expect, .. } => (node, NodeOrder::Undrain, expect),
            Effect::ResumeNode { node, expect, .. } => (node, NodeOrder::Resume, expect),
            _ => return None,
        };
        Some(async move { self.command(node, &order, expect).await }.boxed())
    }

    /// Before it, its pod says that this drain is ours; after it, since when it is in force.
    async fn drain(
        &self,
        pod: &ObjectId,
        node: &str,
        reason: Option<&str>,
        is_noted: bool,
        expect: &AdminState,
    ) -> Result<Ordered, Error> {
        let recorded = self.worker(pod).and_then(Worker::drain_reason);
        if is_noted && reason.is_some() && reason != recorded {
            self.annotate(pod, &json!({ (DRAIN_REASON): reason })).await?;
        }
        let order = NodeOrder::Drain {
            reason: reason.map(str::to_owned),
        };
        let ordered = self.command(node, &order, expect).await?;
        // A drain that keeps a person's reason is told from theirs by nobody.
        if is_noted && reason.is_some() && ordered == Ordered::Done {
            let since = in_force_from(self.observed, self.ctx.clock.now());
            self.annotate(pod, &json!({ (DRAINED): since })).await?;
        }
        Ok(ordered)
    }

    async fn annotate(&self, pod: &ObjectId, annotations: &Value) -> Result<(), Error> {
        let patch = json!({ "metadata": { "uid": pod.uid, "annotations": annotations } });
        self.writer
            .patch::<Pod>(&self.namespace(), &pod.name, patch)
            .await
            .map(drop)
    }

    /// Gives an order that was planned on this state of the node.
    pub(super) async fn command(&self, node: &str, order: &NodeOrder, expect: &AdminState) -> Result<Ordered, Error> {
        info!(nodeset = %self.key(), node, ?order, "Telling Slurm about a node");
        match self
            .ctx
            .clusters
            .command(&self.cluster(), node, order, Some(expect))
            .await
        {
            // It is looked at again before anything follows from it.
            Ok(()) | Err(CommandError::NotFound(_)) => Ok(Ordered::Done),
            Err(CommandError::Changed(now)) => {
                info!(nodeset = %self.key(), node, ?order, %now, "The node has changed since the order was planned; planning again");
                Ok(Ordered::Changed)
            }
            Err(error) => Err(Error::other(format!("cannot {} node {node}: {error}", verb(order)))),
        }
    }

    /// What needs proof: each step only if a look at Slurm that was begun just now shows what the plan was made on.
    async fn apply_proven(&self, plan: &Plan, applied: &mut Applied) {
        let removals: Vec<Removal<'_>> = plan.effects.iter().filter_map(Removal::of).take(BURST).collect();
        let evictable: Vec<(&ObjectId, &str, &Standing)> = plan
            .effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Unprotect { pod, node, standing } => Some((pod, node.as_str(), standing)),
                _ => None,
            })
            .collect();
        if removals.is_empty() && evictable.is_empty() {
            return;
        }
        let seen = match self.ctx.clusters.observe(&self.cluster()).await {
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
        let holds = |node: &str, standing: &Standing| evidence.standing(node) == *standing;
        let proven = removals.iter().filter(|removal| holds(removal.node, removal.standing));
        let (of_slurm, of_pods): (Vec<_>, Vec<_>) = proven.partition(|removal| *removal.record != Record::Absent);
        for (removals, limit) in [(of_slurm, COMMANDS_AT_ONCE), (of_pods, WRITES_AT_ONCE)] {
            let steps: Vec<_> = removals
                .into_iter()
                .map(|removal| self.remove_worker(removal))
                .collect();
            for result in at_once(steps, limit).await {
                applied.take_order(result);
            }
        }
        for (pod, node, standing) in evictable {
            if holds(node, standing) {
                applied.take(self.unprotect(pod, node).await);
            }
        }
    }

    async fn write_choice(&self, pod: &ObjectId, leaving: Option<Leaving>) -> Result<(), Error> {
        let namespace = self.namespace();
        let marks = match leaving {
            // Its drain will have this reason, by which it is known to be ours.
            Some(leaving) => json!({
                (annotations::LEAVING): leaving.to_string(),
                (DRAIN_REASON): reason_to_leave(&namespace, &pod.name, leaving.cause),
            }),
            // The reason tells whose drain it is until that is seen to be gone. One that was never in force has nothing to tell.
            None if self.worker(pod).and_then(Worker::drained_since).is_some() => {
                json!({ (annotations::LEAVING): null })
            }
            None => json!({ (annotations::LEAVING): null, (DRAIN_REASON): null }),
        };
        self.annotate(pod, &marks).await
    }

    async fn unprotect(&self, pod: &ObjectId, node: &str) -> Result<(), Error> {
        let patch = json!({ "metadata": { "uid": pod.uid, "labels": { (labels::POD_PROTECT): null } } });
        self.writer.patch::<Pod>(&self.namespace(), &pod.name, patch).await?;
        let message = format!("Pod {} may be evicted: node {node} is drained and has no job", pod.name);
        let about = [pod.uid.as_str()];
        self.ctx
            .events
            .normal_about(self.nodeset(), about, "Evictable", message);
        Ok(())
    }

    async fn remove_worker(&self, removal: &Removal<'_>) -> Result<Ordered, Error> {
        let Removal {
            pod,
            node,
            record,
            claims,
            ..
        } = removal;
        match record {
            Record::Absent => {}
            Record::Keep { why, expect } => {
                let order = NodeOrder::Drain { reason: None };
                if self.command(node, &order, expect).await? == Ordered::Changed {
                    return Ok(Ordered::Changed);
                }
                let message = format!("Slurm keeps its record of node {node}: {why}");
                self.ctx.events.normal(self.nodeset(), "NodeRecordKept", message);
            }
            Record::Delete { expect } => {
                if self.command(node, &NodeOrder::Delete, expect).await? == Ordered::Changed {
                    return Ok(Ordered::Changed);
                }
            }
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
        self.ctx.events.normal_about(
            self.nodeset(),
            [pod.uid.as_str()],
            "SuccessfulDelete",
            format!("Removed pod {}, whose node had no job", pod.name),
        );
        Ok(Ordered::Done)
    }
}

fn verb(order: &NodeOrder) -> &'static str {
    match order {
        NodeOrder::Drain { .. } => "drain",
        NodeOrder::Undrain => "undrain",
        NodeOrder::Delete => "delete",
        NodeOrder::Down { .. } => "set down",
        NodeOrder::Resume => "resume",
        NodeOrder::Describe(_) => "describe",
    }
}

#[derive(Debug)]
struct Removal<'a> {
    pod: &'a ObjectId,
    node: &'a str,
    standing: &'a Standing,
    record: &'a Record,
    claims: &'a [String],
}

impl<'a> Removal<'a> {
    fn of(effect: &'a Effect) -> Option<Self> {
        match effect {
            Effect::RemoveWorker {
                pod,
                node,
                standing,
                record,
                claims,
            } => Some(Self {
                pod,
                node,
                standing,
                record,
                claims,
            }),
            _ => None,
        }
    }
}
