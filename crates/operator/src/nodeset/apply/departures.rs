//! Removes workers that leave. Running workers are deleted only here.

use std::collections::BTreeMap;

use api::keys::{annotations, labels};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use serde_json::json;
use slurm::{AdminState, agent::Reason};
use tracing::{info, warn};

use super::{ApplyResult, COMMANDS_AT_ONCE, Executor, StepError};
use crate::{
    cluster::{CommandError, Knowledge, NodeOrder},
    nodeset::plan::{Effect, Evidence, Occupancy, Plan, RecordAction, WorkerRemoval, in_force_from, reason_to_leave},
    runtime::Error,
    worker::{Cause, DRAIN_REASON, DRAINED, Leaving, ObjectId, Worker},
};

/// Workers removed in one reconcile, as in upstream; more would exceed its time.
const BURST: usize = 250;
const WRITES_AT_ONCE: usize = 32;

impl Executor<'_> {
    pub(super) async fn apply_departures(&self, plan: &Plan, applied: &mut ApplyResult) {
        self.apply_choices(plan, applied).await;
        let mut orders = Vec::new();
        for effect in &plan.effects {
            if let Effect::DrainNode { .. } | Effect::UndrainNode { .. } | Effect::ResumeNode { .. } = effect {
                applied.ordered = true;
                orders.push(self.order(effect));
            }
        }
        applied.run(orders, COMMANDS_AT_ONCE).await;
        self.apply_proven(plan, applied).await;
    }

    /// Marks the workers that leave, and unmarks those that stay.
    async fn apply_choices(&self, plan: &Plan, applied: &mut ApplyResult) {
        let mut steps = Vec::new();
        let mut marked: BTreeMap<Cause, Vec<&str>> = BTreeMap::new();
        for effect in &plan.effects {
            match effect {
                Effect::MarkLeaving { pod, leaving } => {
                    steps.push(self.write_choice(pod, Some(*leaving)));
                    marked.entry(leaving.cause).or_default().push(&pod.uid);
                }
                Effect::UnmarkLeaving { pod } => steps.push(self.write_choice(pod, None)),
                _ => {}
            }
        }
        applied.ordered |= !marked.is_empty();
        applied.run(steps, WRITES_AT_ONCE).await;
        for (cause, pods) in marked {
            let (reason, purpose) = match cause {
                Cause::Update => {
                    let hash = plan.revision.as_ref().map_or("", |revision| revision.hash.as_str());
                    ("RollingUpdate", format!("to replace them by revision {hash}"))
                }
                Cause::ScaleIn => ("ScalingDown", format!("to stabilize at {} replicas", plan.desired)),
                cause => ("ScalingDown", format!("for {}", cause.purpose())),
            };
            let message = format!("Draining {} Pod(s) {purpose}", pods.len());
            self.ctx.events.normal_about(self.nodeset(), pods, reason, message);
        }
    }

    /// Sends the order of an effect that needs no proof.
    async fn order(&self, effect: &Effect) -> Result<(), StepError> {
        match effect {
            Effect::DrainNode {
                pod,
                node,
                reason,
                is_noted,
                expect,
            } => {
                // A drain that keeps an administrator's reason cannot be told from theirs.
                let noted = reason.as_deref().filter(|_| *is_noted);
                if noted.is_some() && noted != self.worker(pod).and_then(Worker::drain_reason) {
                    self.annotate(pod, json!({ (DRAIN_REASON): noted })).await?;
                }
                let reason = reason.as_deref().map(Reason::of);
                self.command(node, &NodeOrder::Drain { reason }, expect).await?;
                if noted.is_some() {
                    let since = in_force_from(self.observed, self.ctx.clock.now());
                    self.annotate(pod, json!({ (DRAINED): since })).await?;
                }
                Ok(())
            }
            Effect::UndrainNode { node, expect } => self.command(node, &NodeOrder::Undrain, expect).await,
            Effect::ResumeNode { node, expect } => self.command(node, &NodeOrder::Resume, expect).await,
            _ => Ok(()),
        }
    }

    /// Sends an order that was planned on this state of the node.
    pub(super) async fn command(&self, node: &str, order: &NodeOrder, expect: &AdminState) -> Result<(), StepError> {
        info!(nodeset = %self.key(), node, ?order, "sending node order");
        let clusters = &self.ctx.clusters;
        match clusters.command(&self.cluster(), node, order, Some(expect)).await {
            // The next poll shows the result before anything follows from it.
            Ok(()) | Err(CommandError::NotFound(_)) => Ok(()),
            Err(CommandError::Changed(now)) => {
                info!(nodeset = %self.key(), node, ?order, %now, "node changed since the order was planned; planning again");
                Err(StepError::Changed)
            }
            Err(error) => Err(Error::other(format!("cannot {} node {node}: {error}", verb(order))).into()),
        }
    }

    /// Executes the effects that need proof, each only if a fresh snapshot shows what the plan was made on.
    async fn apply_proven(&self, plan: &Plan, applied: &mut ApplyResult) {
        let (mut removals, mut evictable) = (Vec::new(), Vec::new());
        for effect in &plan.effects {
            match effect {
                Effect::RemoveWorker(removal) => removals.push(removal),
                Effect::Unprotect { pod, node, occupancy } => evictable.push((pod, node, occupancy)),
                _ => {}
            }
        }
        removals.truncate(BURST);
        if removals.is_empty() && evictable.is_empty() {
            return;
        }
        let seen = match self.ctx.clusters.observe(&self.cluster()).await {
            Knowledge::Known(seen) => seen,
            Knowledge::Unknown { why } => {
                warn!(nodeset = %self.key(), %why, "Slurm does not answer; removing nothing");
                let problem = format!("nothing is removed while Slurm cannot be asked: {why}");
                applied.problems.push(problem);
                return;
            }
        };
        let evidence = Evidence::new(&seen);
        let holds = |node: &str, occupancy: &Occupancy| evidence.occupancy(node) == *occupancy;
        removals.retain(|removal| holds(&removal.node, &removal.occupancy));
        let has_record = |removal: &&WorkerRemoval| removal.record != RecordAction::Absent;
        let (of_slurm, of_pods): (Vec<_>, Vec<_>) = removals.into_iter().partition(has_record);
        for (removals, limit) in [(of_slurm, COMMANDS_AT_ONCE), (of_pods, WRITES_AT_ONCE)] {
            let steps = removals.into_iter().map(|removal| self.remove_worker(removal));
            applied.run(steps.collect(), limit).await;
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
        self.annotate(pod, marks).await
    }

    async fn unprotect(&self, pod: &ObjectId, node: &str) -> Result<(), Error> {
        let labels = json!({ (labels::POD_PROTECT): null });
        self.patch_pod(pod, json!({ "labels": labels })).await?;
        let message = format!("Pod {} may be evicted: node {node} is drained and has no job", pod.name);
        self.pod_event(&pod.uid, "Evictable", message);
        Ok(())
    }

    async fn remove_worker(&self, removal: &WorkerRemoval) -> Result<(), StepError> {
        let WorkerRemoval { pod, node, .. } = removal;
        match &removal.record {
            RecordAction::Absent => {}
            RecordAction::Keep { expect, why } => {
                self.command(node, &NodeOrder::Drain { reason: None }, expect).await?;
                let message = format!("Slurm keeps its record of node {node}: {why}");
                self.event("NodeRecordKept", message);
            }
            RecordAction::Delete { expect } => self.command(node, &NodeOrder::Delete, expect).await?,
        }
        for claim in &removal.claims {
            let owner = OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                ..OwnerReference::default()
            };
            self.own_claim(claim, None, Some(owner)).await?;
        }
        let namespace = self.namespace();
        self.writer.delete::<Pod>(&namespace, &pod.name, &pod.uid).await?;
        let message = format!("Removed pod {}, whose node had no job", pod.name);
        self.pod_event(&pod.uid, "SuccessfulDelete", message);
        Ok(())
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
