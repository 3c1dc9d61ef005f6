//! Removes workers that leave or are lost, and their records in Slurm. Pods of workers are deleted only here.

use std::collections::BTreeMap;

use api::keys::{annotations, labels};
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::Api;
use serde_json::json;
use slurm::agent::Reason;
use tracing::{debug, info};

use super::{ApplyResult, COMMANDS_AT_ONCE, Executor, StepError};
use crate::{
    cluster::{CommandError, NodeOrder},
    nodeset::plan::{
        Effect, Evidence, Occupancy, Plan, PlannedOrder, WorkerLoss, WorkerRemoval, death_of_node, in_force_from,
        is_cordoned, reason_to_leave,
    },
    reason,
    runtime::Error,
    startup::startup_problem,
    worker::{Cause, DRAIN_REASON, DRAINED, Leaving, ObjectId, RESUMED, Worker},
};

/// Workers removed in one reconcile, as in upstream; more would exceed its time.
const BURST: usize = 250;
const WRITES_AT_ONCE: usize = 32;

impl Executor<'_> {
    /// Sets the nodes of lost workers down and deletes their pods. Returns whether all orders were executed.
    pub(super) async fn apply_losses(&self, plan: &Plan, applied: &mut ApplyResult) -> bool {
        let (mut steps, mut has_orders) = (Vec::new(), false);
        for effect in &plan.effects {
            if let Effect::LoseWorker(loss) = effect {
                has_orders |= loss.down.is_some();
                steps.push(self.lose_worker(loss));
            }
        }
        if !steps.is_empty()
            && let Err(wait) = self.check_watches()
        {
            applied.problems.push(wait.message());
            return false;
        }
        let count = steps.len();
        let executed = applied.run(steps, COMMANDS_AT_ONCE).await;
        applied.ordered |= has_orders && executed > 0;
        executed == count
    }

    /// Slurm gets the order before the pod is deleted: the successor starts only afterwards, so the order never hits it.
    async fn lose_worker(&self, loss: &WorkerLoss) -> Result<(), StepError> {
        let WorkerLoss {
            pod,
            death,
            down,
            is_planned,
        } = loss;
        if let Some(name) = &death.node {
            // The caches may show a pod before its Kubernetes node.
            let nodes: Api<Node> = Api::all(self.ctx.client.clone());
            let node = nodes.get_opt(name).await.map_err(Error::other)?;
            if death_of_node(name, node.as_ref()).as_ref() != Some(death) {
                info!(nodeset = %self.key, node = name, "Kubernetes node exists after all; keeping the worker");
                return Ok(());
            }
        }
        let observed = pod.as_ref().and_then(|pod| self.worker(pod));
        if let Some(Worker(observed)) = observed {
            // The order names the node, which may be the pod's successor by now.
            self.writer.check_unchanged(observed).await?;
        }
        if let Some(order) = down {
            if observed.is_none() && !self.has_no_pod(order).await? {
                return Ok(());
            }
            self.command(order).await?;
            if !is_planned {
                let message = format!("Node {} is down in Slurm: {}", order.node, death.message);
                self.warn(reason::NODE_LOST, message);
            }
        }
        let Some(observed) = observed else {
            return Ok(());
        };
        let message = format!("Replacing pod {}: {}", observed.name(), death.message);
        self.pod_event(observed.uid(), reason::SUCCESSFUL_DELETE, message);
        // No kubelet of a node that is gone can confirm its end.
        let grace_period = death.node.is_some().then_some(0);
        self.writer.delete_unchanged(observed.0, grace_period).await?;
        Ok(())
    }

    /// Whether the last pod of this node is gone by the API server, and no other has its name. The caches may be old, and an
    /// order by name must not hit a successor that they do not show.
    async fn has_no_pod(&self, order: &PlannedOrder) -> Result<bool, Error> {
        let record = self.observed.records.get(&order.node);
        let name = record.map_or("", |identity| identity.pod_name.as_str());
        let pods: Api<Pod> = Api::namespaced(self.ctx.client.clone(), &self.key.namespace);
        let found = pods.get_opt(name).await.map_err(Error::other)?;
        let found = found.filter(|found| Worker(found).slurm_name() == Some(&order.node));
        if let Some(found) = &found {
            info!(nodeset = %self.key, node = order.node, pod = Worker(found).name(), "node has a pod that the caches do not show; sending no order");
        }
        Ok(found.is_none())
    }

    /// Deletes each record only if a fresh snapshot shows that no job is on the node or requests it.
    pub(super) async fn delete_records(&self, plan: &Plan, applied: &mut ApplyResult) {
        let records = plan.effects.iter().filter_map(|effect| match effect {
            Effect::DeleteRecord(order) => Some(order),
            _ => None,
        });
        let mut records: Vec<&PlannedOrder> = records.collect();
        if records.is_empty() {
            return;
        }
        let Ok(seen) = self.fresh_snapshot().await else {
            return;
        };
        let evidence = Evidence::new(&seen);
        // Deleted records need no order.
        records.retain(|order| seen.nodes.contains_key(&order.node));
        for order in records {
            let node = &order.node;
            let need = evidence.need(node);
            if need != (Occupancy::Free { keep_record: None }) {
                debug!(nodeset = %self.key, node, ?need, "keeping record in Slurm");
                continue;
            }
            let is_free = applied.take(self.has_no_pod(order).await);
            if is_free == Some(true) && applied.take(self.command(order).await).is_some() {
                let message = format!("Deleted node {node}, which has no pod, in Slurm");
                self.event(reason::DEFUNCT_NODE_PRUNED, message);
            }
        }
    }

    pub(super) async fn apply_departures(&self, plan: &Plan, applied: &mut ApplyResult) {
        self.apply_choices(plan, applied).await;
        let mut orders = Vec::new();
        for effect in &plan.effects {
            if let Effect::OrderNode { order, note_on } = effect {
                orders.push(self.order(order, note_on.as_ref()));
            }
        }
        let executed = applied.run(orders, COMMANDS_AT_ONCE).await;
        applied.ordered |= executed > 0;
        self.apply_proven(plan, applied).await;
    }

    /// Marks the workers that leave, and unmarks those that stay.
    async fn apply_choices(&self, plan: &Plan, applied: &mut ApplyResult) {
        let mut steps = Vec::new();
        let mut marked: BTreeMap<Cause, Vec<&str>> = BTreeMap::new();
        for effect in &plan.effects {
            if let Effect::MarkLeaving { pod, leaving } = effect {
                steps.push(self.write_choice(pod, *leaving));
                if let Some(leaving) = leaving {
                    marked.entry(leaving.cause).or_default().push(&pod.uid);
                }
            }
        }
        applied.ordered |= !marked.is_empty();
        applied.run(steps, WRITES_AT_ONCE).await;
        for (cause, pods) in marked {
            let (reason, purpose) = match cause {
                Cause::Update => {
                    let hash = plan.revision.as_ref().map_or("", |revision| revision.hash.as_str());
                    (reason::ROLLING_UPDATE, format!("to replace them by revision {hash}"))
                }
                Cause::ScaleIn => (
                    reason::SCALING_DOWN,
                    format!("to stabilize at {} replicas", plan.desired),
                ),
                cause => (reason::SCALING_DOWN, format!("for {}", cause.purpose())),
            };
            let verb = if cause == Cause::PowerDown {
                "Removing"
            } else {
                "Draining"
            };
            let message = format!("{verb} {} Pod(s) {purpose}", pods.len());
            self.ctx.events.normal_about(self.nodeset(), pods, reason, message);
        }
    }

    /// Sends an order that needs no proof. The reason and the time of a drain are noted on the pod, if given.
    async fn order(&self, order: &PlannedOrder, note_on: Option<&ObjectId>) -> Result<(), StepError> {
        match (note_on, &order.order) {
            (Some(pod), NodeOrder::Drain { reason }) => {
                if reason.as_ref().map(Reason::as_str) != self.worker(pod).and_then(Worker::drain_reason) {
                    self.annotate(pod, json!({ (DRAIN_REASON): reason })).await?;
                }
                self.command(order).await?;
                let since = in_force_from(self.observed, self.ctx.clock.now());
                self.annotate(pod, json!({ (DRAINED): since })).await?;
            }
            (Some(pod), NodeOrder::Undrain) => {
                // Also if the cache does not show them yet. With them, the next leader would take this for a resume by a person.
                let mut over = json!({ (DRAINED): null, (RESUMED): null });
                // That a person resumed a node which is still cordoned stands after a drain for something else.
                if let (Some(worker), Some(over)) = (self.worker(pod), over.as_object_mut())
                    && is_cordoned(self.observed, worker)
                {
                    over.remove(RESUMED);
                }
                self.annotate(pod, over).await?;
                self.command(order).await?;
            }
            _ => self.command(order).await?,
        }
        if order.order == NodeOrder::PowerDown {
            let mut workers = self.observed.workers();
            let worker = workers.find(|worker| worker.slurm_name() == Some(&order.node));
            let why = worker.and_then(|worker| startup_problem(worker.0));
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            let message = format!(
                "Node {} did not register in Slurm in time, so Slurm requeues its jobs{why}",
                order.node
            );
            self.warn(reason::PODS_DO_NOT_START, message);
        }
        Ok(())
    }

    pub(super) async fn command(&self, order: &PlannedOrder) -> Result<(), StepError> {
        let PlannedOrder { node, order, expect } = order;
        info!(nodeset = %self.key, node, ?order, "sending node order");
        let clusters = &self.ctx.clusters;
        match clusters.command(self.cluster, node, order, Some(expect)).await {
            // The next poll shows the result before anything follows from it.
            Ok(()) | Err(CommandError::NotFound(_)) => Ok(()),
            Err(CommandError::Changed(now)) => {
                info!(nodeset = %self.key, node, ?order, %now, "node changed since the order was planned; planning again");
                Err(StepError::Changed)
            }
            Err(error) => {
                let message = Error::other(format!("cannot {} node {node}: {error}", verb(order)));
                Err(match error {
                    CommandError::Unclear(_) => StepError::Unclear(message),
                    _ => StepError::Failed(message),
                })
            }
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
        let seen = match self.fresh_snapshot().await {
            Ok(seen) => seen,
            Err(wait) => return applied.problems.push(wait.message()),
        };
        let evidence = Evidence::new(&seen);
        let holds = |node: &str, occupancy: &Occupancy| evidence.occupancy(node) == *occupancy;
        removals.retain(|removal| holds(&removal.node, &removal.occupancy));
        let (of_slurm, of_pods): (Vec<_>, Vec<_>) = removals.into_iter().partition(|removal| removal.order.is_some());
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
        let marks = match leaving {
            // The drain will have this reason, which identifies it as the operator's.
            Some(leaving) => json!({
                (annotations::LEAVING): leaving.to_string(),
                (DRAIN_REASON): reason_to_leave(&self.key.namespace, &pod.name, leaving.cause),
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
        self.pod_event(&pod.uid, reason::EVICTABLE, message);
        Ok(())
    }

    async fn remove_worker(&self, removal: &WorkerRemoval) -> Result<(), StepError> {
        let WorkerRemoval { pod, node, .. } = removal;
        let Some(Worker(observed)) = self.worker(pod) else {
            return Ok(());
        };
        self.writer.check_unchanged(observed).await?;
        if let Some(order) = &removal.order {
            self.command(order).await?;
        }
        if let Some(why) = &removal.keep_record {
            let message = format!("Slurm keeps its record of node {node}: {why}");
            self.event(reason::NODE_RECORD_KEPT, message);
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
        self.writer.delete_unchanged(observed, None).await?;
        let message = format!("Removed pod {}, whose node had no job", pod.name);
        self.pod_event(&pod.uid, reason::SUCCESSFUL_DELETE, message);
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
        NodeOrder::Create { .. } => "create",
        NodeOrder::PowerUp => "power up",
        NodeOrder::PowerDown => "power down",
    }
}

#[cfg(test)]
mod tests {
    use api::NodeSet;

    use super::*;
    use crate::{
        nodeset::fixture::{NAMESPACE, controller, nodeset, observed_exactly, slurm_key, unknown, with, worker},
        runtime::{
            Caches, Context, Key, Writer,
            fake::{FakeServer, Path},
        },
    };

    #[tokio::test]
    async fn the_record_of_a_drain_is_gone_before_the_drain_though_the_cache_does_not_show_it() {
        let set = nodeset(&json!({ "replicas": 1 }));
        let objects = vec![controller(), slurm_key(), set, worker(0)];
        let observed = observed_exactly("compute", objects.clone(), unknown());
        let server = FakeServer::new();
        let noted = with(
            worker(0),
            &[(
                "/metadata/annotations/nodeset.slinky.slurm.net~1drained",
                json!("2026-01-01T00:59:10Z"),
            )],
        );
        let path = Path::parse("/api/v1/namespaces/slurm/pods/");
        let created = server.edit(|store| store.create(&path, noted, "operator-b").unwrap());
        let ctx = Context::for_tests(server.client(), Caches::of(objects));
        let executor = Executor {
            ctx: &ctx,
            writer: &Writer::new::<NodeSet>(&ctx),
            observed: &observed,
            key: &Key::new(NAMESPACE, "compute"),
            cluster: &Key::new(NAMESPACE, "slurm"),
        };
        let node = json!({ "name": "compute-0", "state": ["IDLE", "DRAIN", "DYNAMIC_NORM"] });
        let order = PlannedOrder::new(&serde_json::from_value(node).unwrap(), NodeOrder::Undrain);
        let pod = ObjectId {
            name: "compute-0".to_owned(),
            uid: created["metadata"]["uid"].as_str().unwrap().to_owned(),
        };
        assert!(executor.order(&order, Some(&pod)).await.is_err(), "there is no Slurm");
        let path = Path::parse("/api/v1/namespaces/slurm/pods/compute-0");
        let pod = server.edit(|store| store.get(&path).unwrap());
        assert_eq!(pod["metadata"]["annotations"].get(DRAINED), None, "{pod}");
    }
}
