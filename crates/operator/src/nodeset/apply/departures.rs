//! Removes workers that leave. Running workers are deleted only here.

use std::collections::BTreeMap;

use api::keys::{annotations, labels};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use serde_json::{Value, json};
use slurm::AdminState;
use tracing::{info, warn};

use super::{ApplyResult, COMMANDS_AT_ONCE, Executor, OrderOutcome, at_once};
use crate::{
    cluster::{CommandError, Knowledge, NodeOrder},
    nodeset::plan::{Effect, Evidence, Occupancy, Plan, RecordAction, WorkerRemoval, in_force_from, reason_to_leave},
    runtime::Error,
    worker::{Cause, DRAIN_REASON, DRAINED, Leaving, ObjectId, Worker},
};

/// Workers removed in one reconcile, as in upstream; more would exceed its time.
const BURST: usize = 250;
/// Concurrent requests to the API server.
const WRITES_AT_ONCE: usize = 32;

impl Executor<'_> {
    pub(super) async fn apply_departures(&self, plan: &Plan, applied: &mut ApplyResult) {
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
            self.poll_now().await;
        }
    }

    /// Marks the workers that leave, and unmarks those that stay.
    async fn apply_choices(&self, plan: &Plan, applied: &mut ApplyResult) {
        let choices: Vec<(&ObjectId, Option<Leaving>)> = plan
            .effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::MarkLeaving { pod, leaving } => Some((pod, Some(*leaving))),
                Effect::UnmarkLeaving { pod } => Some((pod, None)),
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

    /// Returns the order of an effect that needs no proof.
    fn order<'a>(&'a self, effect: &'a Effect) -> Option<BoxFuture<'a, Result<OrderOutcome, Error>>> {
        match effect {
            Effect::DrainNode {
                pod,
                node,
                reason,
                is_noted,
                expect,
            } => Some(self.drain(pod, node, reason.as_deref(), *is_noted, expect).boxed()),
            Effect::UndrainNode { node, expect } => Some(self.command(node, &NodeOrder::Undrain, expect).boxed()),
            Effect::ResumeNode { node, expect } => Some(self.command(node, &NodeOrder::Resume, expect).boxed()),
            _ => None,
        }
    }

    /// Drains a node. The pod records the reason before the order, and the time after it.
    async fn drain(
        &self,
        pod: &ObjectId,
        node: &str,
        reason: Option<&str>,
        is_noted: bool,
        expect: &AdminState,
    ) -> Result<OrderOutcome, Error> {
        let recorded = self.worker(pod).and_then(Worker::drain_reason);
        if is_noted && reason.is_some() && reason != recorded {
            self.annotate(pod, &json!({ (DRAIN_REASON): reason })).await?;
        }
        let order = NodeOrder::Drain {
            reason: reason.map(str::to_owned),
        };
        let ordered = self.command(node, &order, expect).await?;
        // A drain that keeps an administrator's reason cannot be told from theirs.
        if is_noted && reason.is_some() && ordered == OrderOutcome::Done {
            let since = in_force_from(self.observed, self.ctx.clock.now());
            self.annotate(pod, &json!({ (DRAINED): since })).await?;
        }
        Ok(ordered)
    }

    async fn annotate(&self, pod: &ObjectId, annotations: &Value) -> Result<(), Error> {
        let patch = json!({ "metadata": { "uid": pod.uid, "annotations": annotations } });
        self.patch::<Pod>(&pod.name, patch).await
    }

    /// Sends an order that was planned on this state of the node.
    pub(super) async fn command(
        &self,
        node: &str,
        order: &NodeOrder,
        expect: &AdminState,
    ) -> Result<OrderOutcome, Error> {
        info!(nodeset = %self.key(), node, ?order, "sending node order");
        match self
            .ctx
            .clusters
            .command(&self.cluster(), node, order, Some(expect))
            .await
        {
            // The next poll shows the result before anything follows from it.
            Ok(()) | Err(CommandError::NotFound(_)) => Ok(OrderOutcome::Done),
            Err(CommandError::Changed(now)) => {
                info!(nodeset = %self.key(), node, ?order, %now, "node changed since the order was planned; planning again");
                Ok(OrderOutcome::Changed)
            }
            Err(error) => Err(Error::other(format!("cannot {} node {node}: {error}", verb(order)))),
        }
    }

    /// Executes the effects that need proof, each only if a fresh snapshot shows what the plan was made on.
    async fn apply_proven(&self, plan: &Plan, applied: &mut ApplyResult) {
        let removals = plan.effects.iter().filter_map(|effect| match effect {
            Effect::RemoveWorker(removal) => Some(removal),
            _ => None,
        });
        let removals: Vec<&WorkerRemoval> = removals.take(BURST).collect();
        let evictable: Vec<(&ObjectId, &str, &Occupancy)> = plan
            .effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Unprotect { pod, node, occupancy } => Some((pod, node.as_str(), occupancy)),
                _ => None,
            })
            .collect();
        if removals.is_empty() && evictable.is_empty() {
            return;
        }
        let seen = match self.ctx.clusters.observe(&self.cluster()).await {
            Knowledge::Known(seen) => seen,
            Knowledge::Unknown { why } => {
                warn!(nodeset = %self.key(), %why, "Slurm does not answer; removing nothing");
                applied
                    .problems
                    .push(format!("nothing is removed while Slurm cannot be asked: {why}"));
                return;
            }
        };
        let evidence = Evidence::new(&seen);
        let holds = |node: &str, occupancy: &Occupancy| evidence.occupancy(node) == *occupancy;
        let proven = removals
            .iter()
            .filter(|removal| holds(&removal.node, &removal.occupancy));
        let (of_slurm, of_pods): (Vec<_>, Vec<_>) = proven.partition(|removal| removal.record != RecordAction::Absent);
        for (removals, limit) in [(of_slurm, COMMANDS_AT_ONCE), (of_pods, WRITES_AT_ONCE)] {
            let steps = removals.into_iter().map(|removal| self.remove_worker(removal));
            for result in at_once(steps.collect(), limit).await {
                applied.take_order(result);
            }
        }
        for (pod, node, occupancy) in evictable {
            if holds(node, occupancy) {
                applied.take(self.unprotect(pod, node).await);
            }
        }
    }

    async fn write_choice(&self, pod: &ObjectId, leaving: Option<Leaving>) -> Result<(), Error> {
        let namespace = self.namespace();
        let marks = match leaving {
            // The drain will have this reason, which identifies it as the operator's.
            Some(leaving) => json!({
                (annotations::LEAVING): leaving.to_string(),
                (DRAIN_REASON): reason_to_leave(&namespace, &pod.name, leaving.cause),
            }),
            // The reason identifies the drain until that is reverted. A drain that was never in force needs none.
            None if self.worker(pod).and_then(Worker::drained_since).is_some() => {
                json!({ (annotations::LEAVING): null })
            }
            None => json!({ (annotations::LEAVING): null, (DRAIN_REASON): null }),
        };
        self.annotate(pod, &marks).await
    }

    async fn unprotect(&self, pod: &ObjectId, node: &str) -> Result<(), Error> {
        let patch = json!({ "metadata": { "uid": pod.uid, "labels": { (labels::POD_PROTECT): null } } });
        self.patch::<Pod>(&pod.name, patch).await?;
        let message = format!("Pod {} may be evicted: node {node} is drained and has no job", pod.name);
        self.pod_event(&pod.uid, "Evictable", message);
        Ok(())
    }

    async fn remove_worker(&self, removal: &WorkerRemoval) -> Result<OrderOutcome, Error> {
        let WorkerRemoval {
            pod,
            node,
            record,
            claims,
            ..
        } = removal;
        let outcome = match record {
            RecordAction::Absent => OrderOutcome::Done,
            RecordAction::Keep { expect, .. } => self.command(node, &NodeOrder::Drain { reason: None }, expect).await?,
            RecordAction::Delete { expect } => self.command(node, &NodeOrder::Delete, expect).await?,
        };
        if outcome == OrderOutcome::Changed {
            return Ok(outcome);
        }
        if let RecordAction::Keep { why, .. } = record {
            let message = format!("Slurm keeps its record of node {node}: {why}");
            self.event("NodeRecordKept", message);
        }
        for claim in claims {
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
        self.pod_event(
            &pod.uid,
            "SuccessfulDelete",
            format!("Removed pod {}, whose node had no job", pod.name),
        );
        Ok(OrderOutcome::Done)
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
