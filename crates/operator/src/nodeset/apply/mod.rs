//! Executes a plan.
//!
//! A step that fails does not stop the others; all failures are reported together.

mod departures;
mod jobs;
mod mirror;
mod pods;
mod records;
mod reservation;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::{NodeSet, keys};
use futures::{StreamExt, stream};
use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    core::v1::{ConfigMap, Pod, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

pub(super) use self::{
    jobs::{EndRequests, ReportedStaleJobs},
    reservation::LastReservation,
};
use super::{
    Memory,
    observe::Observed,
    plan::{Effect, Plan, RevisionPlan, Wait},
};
use crate::{
    cluster::{Knowledge, Seen},
    reason,
    runtime::{Context, Error, Key, Writer, Written},
    template::{fields, metadata::owner, set},
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
    /// Slurm has carried out orders, or may have, so a poll is needed. A refused order does not count: the poll would wake the
    /// NodeSet, which would send the order again at once.
    ordered: bool,
}

/// Why a step was not executed.
#[derive(Debug)]
enum StepError {
    /// The node has changed since the order was planned.
    Changed,
    /// The order may have been carried out.
    Unclear(Error),
    Failed(Error),
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl ApplyResult {
    fn take<T>(&mut self, result: Result<T, impl Into<StepError>>) -> Option<T> {
        let result = result.map_err(Into::into);
        self.ordered |= matches!(result, Err(StepError::Unclear(_)));
        match result {
            Ok(value) => return Some(value),
            Err(StepError::Changed) => self.changed = true,
            Err(StepError::Unclear(error) | StepError::Failed(error)) => {
                // A new plan is made on the object as it is now.
                if !matches!(error, Error::Conflict { .. }) {
                    self.problems.push(error.to_string());
                }
                if let Error::Taken { .. } = error {
                    self.name_taken = true;
                } else {
                    self.error.get_or_insert(error);
                }
            }
        }
        None
    }

    /// Runs steps, `limit` at a time. Returns how many of them were executed.
    async fn run<E: Into<StepError>>(
        &mut self,
        steps: Vec<impl Future<Output = Result<(), E>>>,
        limit: usize,
    ) -> usize {
        let results: Vec<_> = stream::iter(steps).buffer_unordered(limit).collect().await;
        let executed = results.into_iter().filter_map(|result| self.take(result));
        executed.count()
    }
}

pub(super) struct Executor<'a> {
    pub(super) ctx: &'a Context,
    pub(super) writer: &'a Writer,
    pub(super) observed: &'a Observed,
    pub(super) key: &'a Key,
    /// Of the Controller.
    pub(super) cluster: &'a Key,
}

impl Executor<'_> {
    fn instant(&self) -> Instant {
        self.ctx.clock.host().instant()
    }

    pub(super) async fn apply(&self, plan: &Plan, memory: &mut Memory) -> ApplyResult {
        let mut applied = ApplyResult::default();
        if plan.effects.contains(&Effect::AddFinalizer) {
            applied.take(self.set_finalizer(true).await);
            if applied.error.is_some() {
                // What is created without the finalizer could never be cleaned up.
                return applied;
            }
        }
        self.apply_children(plan, &mut applied).await;
        if let Some(revision) = &plan.revision {
            self.apply_revision(revision, &mut applied).await;
        }
        let done = self.apply_losses(plan, &mut applied).await;
        self.delete_records(plan, &mut applied).await;
        self.create_records(plan, &mut applied).await;
        // A delayed order about a dead worker must not hit its successor.
        if done {
            self.apply_pods(plan, &mut applied).await;
        }
        // Slurm deletes no reserved node, so the reservation changes first.
        self.apply_reservation(plan, &mut memory.reservation, &mut applied)
            .await;
        self.apply_departures(plan, &mut applied).await;
        self.apply_ends(plan, &mut memory.end_requests, &mut applied).await;
        self.apply_stale_jobs(plan, &mut memory.stale_jobs, &mut applied).await;
        if applied.ordered || applied.changed {
            // So that the next plan sees the result of the orders.
            memory.ordered = Some(self.ctx.clusters.poll_now(self.cluster, POLL_TIMEOUT).await);
        }
        for effect in &plan.effects {
            if let Effect::RemoveFinalizer { because } = effect {
                if let Some(because) = because {
                    self.warn(reason::WORKERS_LET_GO, because);
                }
                applied.take(self.set_finalizer(false).await);
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
            && let Some(made) = applied.take(self.apply_config_map(ssh).await)
        {
            keep.insert(made.name_any());
        }
        // A failed apply must not cause a deletion.
        if plan.ssh_config.is_none() || !keep.is_empty() {
            let (existing, uid) = (&self.ctx.caches.config_maps, self.nodeset().uid().unwrap_or_default());
            applied.take(self.writer.prune(existing, &uid, &keep).await);
        }
    }

    async fn apply_config_map(&self, child: &Value) -> Result<ConfigMap, Error> {
        self.writer.apply(&read(child)?).await
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
            let deleted = self.writer.delete::<ControllerRevision>(&self.key.namespace, name, uid);
            applied.take(deleted.await);
        }
    }

    async fn create_revision(&self, revision: &Value) -> Result<(), Error> {
        let revision: ControllerRevision = read(revision)?;
        if self.writer.create(&revision).await?.is_none() {
            // The cache holds only revisions with an owner. A revision that lost its owner is ours by its name and content.
            let found: ControllerRevision = self.writer.get(&self.key.namespace, &revision.name_any()).await?;
            if !found.owner_references().is_empty() || found.data != revision.data {
                return self.check_existing(&found);
            }
            let metadata = json!({ "ownerReferences": [owner(self.nodeset())], "labels": revision.labels() });
            self.patch_unchanged(&found, metadata).await?;
        }
        Ok(())
    }

    async fn set_finalizer(&self, wanted: bool) -> Result<(), Error> {
        let mut finalizers = self.nodeset().finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != keys::NODESET_FINALIZER);
        if wanted {
            finalizers.push(keys::NODESET_FINALIZER.to_owned());
        }
        self.patch_unchanged(self.nodeset(), json!({ "finalizers": finalizers }))
            .await
    }

    /// Reads Slurm again, for effects that need proof; without an answer they wait.
    async fn fresh_snapshot(&self) -> Result<Arc<Seen>, Wait> {
        self.check_watches()?;
        match self.ctx.clusters.observe(self.cluster).await {
            Knowledge::Known(seen) => Ok(seen),
            Knowledge::Unknown { why } => {
                warn!(nodeset = %self.key, %why, "Slurm does not answer; skipping the steps that need proof");
                Err(Wait::SlurmUnknown { why })
            }
        }
    }

    /// A pod that a silent watch has not delivered may be the worker of a record, or the successor of a lost one.
    fn check_watches(&self) -> Result<(), Wait> {
        let silent = self.ctx.silent_watches();
        if silent.is_empty() {
            return Ok(());
        }
        let why = format!("the API server does not respond to the watch of {}", silent.join(", "));
        Err(Wait::Other(why))
    }

    fn nodeset(&self) -> &NodeSet {
        &self.observed.nodeset
    }

    fn event(&self, reason: &'static str, message: impl Into<String>) {
        self.ctx.events.normal(self.nodeset(), reason, message);
    }

    fn warn(&self, reason: &'static str, message: impl Into<String>) {
        self.ctx.events.warn(self.nodeset(), reason, message);
    }

    fn pod_event(&self, uid: &str, reason: &'static str, message: String) {
        self.ctx.events.normal_about(self.nodeset(), [uid], reason, message);
    }

    async fn patch<K: Written>(&self, name: &str, patch: Value) -> Result<(), Error> {
        self.writer.patch::<K>(&self.key.namespace, name, patch).await
    }

    /// Merges fields into the metadata of an object. Lists are written whole, so it must not have changed since it was read.
    async fn patch_unchanged<K: Written>(&self, object: &K, metadata: Value) -> Result<(), Error> {
        let mut metadata = fields(metadata);
        set(&mut metadata, "uid", object.meta().uid.clone());
        set(&mut metadata, "resourceVersion", object.meta().resource_version.clone());
        self.patch::<K>(&object.name_any(), json!({ "metadata": metadata }))
            .await
    }

    async fn patch_pod(&self, pod: &ObjectId, metadata: Value) -> Result<(), Error> {
        let mut metadata = fields(metadata);
        set(&mut metadata, "uid", pod.uid.as_str());
        self.patch::<Pod>(&pod.name, json!({ "metadata": metadata })).await
    }

    async fn annotate(&self, pod: &ObjectId, annotations: Value) -> Result<(), Error> {
        self.patch_pod(pod, json!({ "annotations": annotations })).await
    }

    fn worker(&self, pod: &ObjectId) -> Option<Worker<'_>> {
        self.observed.workers().find(|worker| worker.uid() == pod.uid)
    }
}

fn read<K: DeserializeOwned>(object: &Value) -> Result<K, Error> {
    serde_json::from_value(object.clone())
        .map_err(|error| Error::other(format!("the planned object does not deserialize: {error}")))
}
