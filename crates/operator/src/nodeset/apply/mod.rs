//! Executes a plan.
//!
//! A step that fails does not stop the others; all failures are reported together.

mod departures;
mod jobs;
mod losses;
mod mirror;
mod pods;
mod reservation;
mod stale_jobs;

use std::{collections::BTreeSet, time::Duration};

use api::{Controller, NodeSet, keys};
use futures::{StreamExt, stream};
use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    core::v1::{ConfigMap, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

pub(super) use self::{jobs::EndRequests, reservation::ReservationRequests, stale_jobs::ReportedStaleJobs};
use super::{
    observe::Observed,
    plan::{Effect, Plan, RevisionPlan},
};
use crate::{
    runtime::{Context, Created, Error, Key, Writer, Written},
    template::metadata::owner,
    worker::{ObjectId, Worker},
};

/// Concurrent node commands: slurmctld processes them one by one anyway.
const COMMANDS_AT_ONCE: usize = 8;
/// A poll takes milliseconds, or a second with thousands of nodes.
const POLL_TIMEOUT: Duration = Duration::from_secs(3);

/// The result of a plan's steps.
#[derive(Debug, Default)]
pub(super) struct ApplyResult {
    /// Failures, for the condition.
    pub(super) problems: Vec<String>,
    /// Whether one of them is that another object has the name.
    pub(super) name_taken: bool,
    /// The first other failure, for the back-off.
    pub(super) error: Option<Error>,
    /// A node changed before an order arrived, so a new plan is needed.
    pub(super) changed: bool,
}

/// The result of an order to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderOutcome {
    Done,
    /// The node has changed since the order was planned, so nothing was done.
    Changed,
}

impl ApplyResult {
    /// Returns whether the order was executed.
    fn take_order(&mut self, result: Result<OrderOutcome, Error>) -> bool {
        let ordered = self.take(result);
        self.changed |= ordered == Some(OrderOutcome::Changed);
        ordered == Some(OrderOutcome::Done)
    }

    fn take<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.problems.push(error.to_string());
                if let Error::Taken { .. } = error {
                    self.name_taken = true;
                } else {
                    self.error.get_or_insert(error);
                }
                None
            }
        }
    }
}

/// Executes the effects of a plan.
pub(super) struct Executor<'a> {
    pub(super) ctx: &'a Context,
    pub(super) writer: &'a Writer,
    pub(super) observed: &'a Observed,
    pub(super) end_requests: &'a EndRequests,
    pub(super) reported_stale_jobs: &'a ReportedStaleJobs,
    pub(super) reservation_requests: &'a ReservationRequests,
}

impl Executor<'_> {
    fn instant(&self) -> Instant {
        self.ctx.clock.host().instant()
    }

    pub(super) async fn apply(&self, plan: &Plan) -> ApplyResult {
        let mut applied = ApplyResult::default();
        for effect in &plan.effects {
            if let Effect::AddFinalizer = effect {
                applied.take(self.add_finalizer().await);
                if applied.error.is_some() {
                    // What is created without the finalizer could never be cleaned up.
                    return applied;
                }
            }
        }
        self.apply_children(plan, &mut applied).await;
        if let Some(revision) = &plan.revision {
            self.apply_revision(revision, &mut applied).await;
        }
        let done = self.apply_losses(plan, &mut applied).await;
        self.delete_records(plan, &mut applied).await;
        // A delayed order about a dead worker must not hit its successor.
        if done {
            self.apply_pods(plan, &mut applied).await;
        }
        // Slurm deletes no reserved node, so the reservation changes first.
        self.apply_reservation(plan, &mut applied).await;
        self.apply_departures(plan, &mut applied).await;
        self.apply_ends(plan, &mut applied).await;
        self.apply_stale_jobs(plan, &mut applied).await;
        for effect in &plan.effects {
            if let Effect::RemoveFinalizer { because } = effect {
                applied.take(self.remove_finalizer(because.as_deref()).await);
            }
        }
        applied
    }

    async fn apply_children(&self, plan: &Plan, applied: &mut ApplyResult) {
        if let Some(service) = &plan.service {
            applied.take(self.apply_shared::<Service>(service).await);
        }
        if let Some(budget) = &plan.budget {
            applied.take(self.apply_shared::<PodDisruptionBudget>(budget).await);
        }
        if plan.rejection.is_some() || plan.revision.is_none() {
            return;
        }
        let mut keep = BTreeSet::new();
        if let Some(ssh) = &plan.ssh_config
            && let Some(made) = applied.take(self.apply_child::<ConfigMap>(ssh).await)
        {
            keep.insert(made.name_any());
        }
        // A failed apply must not cause a deletion.
        if plan.ssh_config.is_none() || !keep.is_empty() {
            let uid = self.nodeset().uid().unwrap_or_default();
            applied.take(
                self.writer
                    .prune::<ConfigMap>(&self.ctx.caches.config_maps, &uid, &keep)
                    .await,
            );
        }
    }

    async fn apply_child<K: Written>(&self, child: &Value) -> Result<K, Error> {
        self.writer.apply::<K>(&read(child)?).await
    }

    /// Applies an object that all NodeSets of a Controller share; the Controller may have owned it before.
    async fn apply_shared<K: Written>(&self, child: &Value) -> Result<K, Error> {
        let controller = self.observed.controller.as_deref().map(owner);
        self.writer.apply_shared::<K>(&read(child)?, controller).await
    }

    async fn apply_revision(&self, plan: &RevisionPlan, applied: &mut ApplyResult) {
        if let Some(revision) = &plan.create {
            applied.take(self.create_revision(revision).await);
        }
        if let Some((name, number)) = &plan.renumber {
            let patch = json!({ "revision": number });
            applied.take(self.patch::<ControllerRevision>(name, patch).await);
        }
        for ObjectId { name, uid } in &plan.delete {
            applied.take(
                self.writer
                    .delete::<ControllerRevision>(&self.namespace(), name, uid)
                    .await,
            );
        }
    }

    async fn create_revision(&self, revision: &Value) -> Result<(), Error> {
        let revision: ControllerRevision = read(revision)?;
        if let Created::Exists = self.writer.create(&revision).await? {
            // The cache holds only revisions with an owner. A revision that lost its owner is ours by its name and content.
            let found: ControllerRevision = self.writer.get(&self.namespace(), &revision.name_any()).await?;
            if !found.owner_references().is_empty() || found.data != revision.data {
                return self.check_existing(&found);
            }
            let patch = json!({ "metadata": {
                "uid": found.uid(),
                "resourceVersion": found.resource_version(),
                "ownerReferences": [owner(self.nodeset())],
                "labels": revision.labels(),
            } });
            self.patch::<ControllerRevision>(&revision.name_any(), patch).await?;
        }
        Ok(())
    }

    async fn add_finalizer(&self) -> Result<(), Error> {
        let mut finalizers = self.nodeset().finalizers().to_vec();
        finalizers.push(keys::NODESET_FINALIZER.to_owned());
        self.write_finalizers(finalizers).await
    }

    async fn remove_finalizer(&self, because: Option<&str>) -> Result<(), Error> {
        if let Some(because) = because {
            self.warn("WorkersLetGo", because);
        }
        let mut finalizers = self.nodeset().finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != keys::NODESET_FINALIZER);
        self.write_finalizers(finalizers).await
    }

    async fn write_finalizers(&self, finalizers: Vec<String>) -> Result<(), Error> {
        let meta = &self.nodeset().metadata;
        // The whole list is written, so it must not have changed meanwhile.
        let patch = json!({ "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "finalizers": finalizers,
        } });
        self.patch::<NodeSet>(&self.nodeset().name_any(), patch).await
    }

    fn nodeset(&self) -> &NodeSet {
        &self.observed.nodeset
    }

    fn namespace(&self) -> String {
        self.nodeset().namespace().unwrap_or_default()
    }

    fn key(&self) -> Key {
        Key::of(self.nodeset())
    }

    /// Polls Slurm, so that the next plan sees the result of the orders.
    async fn poll_now(&self) {
        self.ctx.clusters.poll_now(&self.cluster(), POLL_TIMEOUT).await;
    }

    fn event(&self, reason: &'static str, message: impl Into<String>) {
        self.ctx.events.normal(self.nodeset(), reason, message);
    }

    fn warn(&self, reason: &'static str, message: impl Into<String>) {
        self.ctx.events.warn(self.nodeset(), reason, message);
    }

    /// Records an event that is also about a pod.
    fn pod_event(&self, uid: &str, reason: &'static str, message: String) {
        self.ctx.events.normal_about(self.nodeset(), [uid], reason, message);
    }

    async fn patch<K: Written>(&self, name: &str, patch: Value) -> Result<(), Error> {
        self.writer.patch::<K>(&self.namespace(), name, patch).await.map(drop)
    }

    pub(super) fn cluster(&self) -> Key {
        let controller: Option<&Controller> = self.observed.controller.as_deref();
        let name = controller.map_or_else(
            || self.nodeset().spec.controller_ref.name.clone(),
            ResourceExt::name_any,
        );
        Key::new(self.namespace(), name)
    }

    fn worker(&self, pod: &ObjectId) -> Option<Worker<'_>> {
        self.observed.workers().find(|worker| worker.uid() == pod.uid)
    }
}

/// Runs futures, `limit` at a time.
async fn at_once<T>(steps: Vec<impl Future<Output = Result<T, Error>>>, limit: usize) -> Vec<Result<T, Error>> {
    stream::iter(steps).buffer_unordered(limit).collect().await
}

fn read<K: DeserializeOwned>(object: &Value) -> Result<K, Error> {
    serde_json::from_value(object.clone())
        .map_err(|error| Error::other(format!("the planned object does not deserialize: {error}")))
}
