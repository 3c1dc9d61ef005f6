//! Carries a plan out.
//!
//! One step that fails does not keep the others from being taken; all failures are told together.

mod departures;
mod inherited;
mod jobs;
mod losses;
mod mirror;
mod pods;
mod reservation;

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

pub(super) use self::{inherited::Disinherited, jobs::Told, reservation::Asked};
use super::{
    observe::Observed,
    plan::{Effect, Plan, RevisionPlan},
};
use crate::{
    runtime::{Context, Created, Error, Key, Writer, Written},
    template::metadata::owner,
    worker::{ObjectId, Worker},
};

/// Node commands under way at once: slurmctld takes them one by one anyway.
const COMMANDS_AT_ONCE: usize = 8;
/// How long a look at Slurm after a command may take: it is milliseconds, or a second with thousands of nodes.
const PATIENCE: Duration = Duration::from_secs(3);

/// What became of a plan.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// What failed, for the condition.
    pub(super) problems: Vec<String>,
    /// Whether one of them is a name that somebody else's object has.
    pub(super) name_taken: bool,
    /// The first other failure, for the backoff.
    pub(super) error: Option<Error>,
    /// Somebody changed a node before an order of ours got there, so that there is another plan to make.
    pub(super) changed: bool,
}

/// What became of an order to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ordered {
    Done,
    /// Somebody has changed the node since the order was planned. Nothing was done.
    Changed,
}

impl Applied {
    /// Whether the order was carried out.
    fn take_order(&mut self, result: Result<Ordered, Error>) -> bool {
        let ordered = self.take(result);
        self.changed |= ordered == Some(Ordered::Changed);
        ordered == Some(Ordered::Done)
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

/// What an executor works with.
pub(super) struct Hands<'a> {
    pub(super) ctx: &'a Context,
    pub(super) writer: &'a Writer,
    pub(super) observed: &'a Observed,
    pub(super) told: &'a Told,
    pub(super) disinherited: &'a Disinherited,
    pub(super) asked: &'a Asked,
}

impl Hands<'_> {
    pub(super) async fn apply(&self, plan: &Plan) -> Applied {
        let mut applied = Applied::default();
        for effect in &plan.effects {
            if let Effect::AddFinalizer = effect {
                applied.take(self.add_finalizer().await);
                if applied.error.is_some() {
                    // What is made now could never be cleared away.
                    return applied;
                }
            }
        }
        self.apply_children(plan, &mut applied).await;
        if let Some(revision) = &plan.revision {
            self.apply_revision(revision, &mut applied).await;
        }
        let told = self.apply_losses(plan, &mut applied).await;
        self.delete_records(plan, &mut applied).await;
        // What Slurm may yet come to hear about a worker that is gone must not be about its successor.
        if told {
            self.apply_pods(plan, &mut applied).await;
        }
        // First: Slurm deletes no node that is reserved.
        self.apply_reservation(plan, &mut applied).await;
        self.apply_departures(plan, &mut applied).await;
        self.apply_ends(plan, &mut applied).await;
        self.apply_inherited(plan, &mut applied).await;
        for effect in &plan.effects {
            if let Effect::RemoveFinalizer { because } = effect {
                applied.take(self.remove_finalizer(because.as_deref()).await);
            }
        }
        applied
    }

    async fn apply_children(&self, plan: &Plan, applied: &mut Applied) {
        if let Some(service) = &plan.service {
            applied.take(self.apply_shared::<Service>(service).await);
        }
        if let Some(budget) = &plan.budget {
            applied.take(self.apply_shared::<PodDisruptionBudget>(budget).await);
        }
        if plan.refused.is_some() || plan.revision.is_none() {
            return;
        }
        let mut keep = BTreeSet::new();
        if let Some(ssh) = &plan.ssh_config
            && let Some(made) = applied.take(self.apply_child::<ConfigMap>(ssh).await)
        {
            keep.insert(made.name_any());
        }
        // A failed apply must not turn into a removal.
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

    /// What all NodeSets of a Controller have together: it may have been the Controller's before.
    async fn apply_shared<K: Written>(&self, child: &Value) -> Result<K, Error> {
        let controller = self.observed.controller.as_deref().map(owner);
        self.writer.apply_shared::<K>(&read(child)?, controller).await
    }

    async fn apply_revision(&self, plan: &RevisionPlan, applied: &mut Applied) {
        if let Some(revision) = &plan.create {
            applied.take(self.create_revision(revision).await);
        }
        if let Some((name, number)) = &plan.renumber {
            let patch = json!({ "revision": number });
            applied.take(
                self.writer
                    .patch::<ControllerRevision>(&self.namespace(), name, patch)
                    .await,
            );
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
            // The cache holds only revisions with an owner. One that lost its own is ours by its name and content.
            let found: ControllerRevision = self.writer.look(&self.namespace(), &revision.name_any()).await?;
            if !found.owner_references().is_empty() || found.data != revision.data {
                return self.check_existing(&found);
            }
            let patch = json!({ "metadata": {
                "uid": found.uid(),
                "resourceVersion": found.resource_version(),
                "ownerReferences": [owner(self.nodeset())],
                "labels": revision.labels(),
            } });
            self.writer
                .patch::<ControllerRevision>(&self.namespace(), &revision.name_any(), patch)
                .await?;
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
            self.ctx.events.warn(self.nodeset(), "WorkersLetGo", because);
        }
        let mut finalizers = self.nodeset().finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != keys::NODESET_FINALIZER);
        self.write_finalizers(finalizers).await
    }

    async fn write_finalizers(&self, finalizers: Vec<String>) -> Result<(), Error> {
        let meta = &self.nodeset().metadata;
        // The list is written whole, so nobody may have changed it meanwhile.
        let patch = json!({ "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "finalizers": finalizers,
        } });
        self.writer
            .patch::<NodeSet>(&self.namespace(), &self.nodeset().name_any(), patch)
            .await
            .map(drop)
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

    pub(super) fn cluster(&self) -> Key {
        let controller: Option<&Controller> = self.observed.controller.as_deref();
        let name = controller.map_or_else(
            || self.nodeset().spec.controller_ref.name.clone(),
            ResourceExt::name_any,
        );
        Key::new(self.namespace(), name)
    }

    /// The worker in this pod, as it was observed.
    fn worker(&self, pod: &ObjectId) -> Option<Worker<'_>> {
        self.observed.workers().find(|worker| worker.uid() == pod.uid)
    }
}

/// Takes these steps, so many at a time.
async fn at_once<T>(steps: Vec<impl Future<Output = Result<T, Error>>>, limit: usize) -> Vec<Result<T, Error>> {
    stream::iter(steps).buffer_unordered(limit).collect().await
}

fn read<K: DeserializeOwned>(object: &Value) -> Result<K, Error> {
    serde_json::from_value(object.clone())
        .map_err(|error| Error::other(format!("our own object cannot be read: {error}")))
}
