//! Making workers, and looking after those that stay.

use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{Applied, Hands, at_once, read};
use crate::{
    nodeset::{
        build::is_made_for,
        plan::{Effect, Plan},
    },
    runtime::{Created, Error, Key, Written},
    template::metadata::owner,
};

/// Requests to the API server under way at once. Its own limit for one client is a few hundred.
const AT_ONCE: usize = 64;

impl Hands<'_> {
    pub(super) async fn apply_pods(&self, plan: &Plan, applied: &mut Applied) {
        let mut creations = Vec::new();
        for effect in &plan.effects {
            match effect {
                Effect::AdoptPod { pod } => {
                    let patch = json!({ "metadata": { "uid": pod.uid, "ownerReferences": [owner(self.nodeset())] } });
                    applied.take(self.writer.patch::<Pod>(&self.namespace(), &pod.name, patch).await);
                }
                Effect::MarkPod {
                    pod,
                    labels,
                    annotations,
                } => {
                    let marks = json!({ "metadata": { "uid": pod.uid, "labels": labels, "annotations": annotations } });
                    applied.take(self.writer.patch::<Pod>(&self.namespace(), &pod.name, marks).await);
                }
                Effect::OwnClaim { name, uid, owned } => {
                    applied.take(self.own_claim(name, uid, *owned).await);
                }
                Effect::CreatePod { pod, claims } => creations.push((pod.as_ref(), claims)),
                _ => {}
            }
        }
        self.create_pods(creations, plan.desired, applied).await;
    }

    /// The first alone and then all others: what the API server refuses anyway, it is asked for once and not 500 times.
    /// What it refuses on the way, because a quota is used up, ends the rest.
    async fn create_pods(&self, mut creations: Vec<(&Value, &Vec<Value>)>, desired: u32, applied: &mut Applied) {
        creations.retain(|(pod, _)| {
            let key = Key::new(self.namespace(), name_of(pod));
            applied.take(self.writer.check_contested::<Pod>(&key)).is_some()
        });
        let Some(((pod, claims), others)) = creations.split_first() else {
            return;
        };
        let message = format!("Creating {} Pod(s) to stabilize at {desired} replicas", creations.len());
        self.ctx.events.normal(self.nodeset(), "ScalingUp", message);
        let created = self.create_pod(pod, claims).await;
        let ends_all = is_refused(&created);
        applied.take(created);
        if ends_all {
            return;
        }
        let refused = &AtomicBool::new(false);
        let steps = others.iter().map(|(pod, claims)| async move {
            if refused.load(Ordering::Relaxed) {
                return Ok(());
            }
            let created = self.create_pod(pod, claims).await;
            refused.fetch_or(is_refused(&created), Ordering::Relaxed);
            created
        });
        for created in at_once(steps.collect(), AT_ONCE).await {
            applied.take(created);
        }
    }

    async fn create_pod(&self, pod: &Value, claims: &[Value]) -> Result<(), Error> {
        for claim in claims {
            self.create_claim(&read(claim)?).await?;
        }
        match self.writer.create_json::<Pod>(pod).await {
            Ok(Created::New(_)) => Ok(()),
            Ok(Created::Exists) => self.check_existing_pod(name_of(pod)).await,
            // A namespace on its way out takes nothing new, and everything in it goes: there is nothing to do about it.
            Err(error) if error.to_string().contains("is being terminated") => Ok(()),
            Err(error) => {
                self.ctx.events.warn(self.nodeset(), "FailedCreate", error.to_string());
                Err(error)
            }
        }
    }

    /// A pod of that name was there, though the caches did not show it as ours.
    async fn check_existing_pod(&self, name: &str) -> Result<(), Error> {
        let found = match self.ctx.caches.pods.get(&self.namespace(), name) {
            Some(found) => Pod::clone(&found),
            // Somebody else's pod has none of the labels by which pods are watched.
            None => self.writer.get(&self.namespace(), name).await?,
        };
        // One that looks like a worker of this NodeSet and has no owner is about to be adopted.
        if found.owner_references().is_empty() && is_made_for(self.nodeset(), &found) {
            return Ok(());
        }
        self.check_existing(&found)
    }

    /// Whether what is there in place of a new object is ours, or on its way out: the end of such an object wakes us.
    pub(super) fn check_existing<K: Written>(&self, found: &K) -> Result<(), Error> {
        if found.meta().deletion_timestamp.is_some() {
            return Ok(());
        }
        match self.writer.check_found(found, &[owner(self.nodeset())]) {
            Err(Error::Leftover { .. }) => Ok(()),
            result => result,
        }
    }

    async fn create_claim(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let name = claim.name_any();
        match self.ctx.caches.claims.get(&self.namespace(), &name) {
            Some(existing) if existing.metadata.deletion_timestamp.is_some() => Err(Error::other(format!(
                "claim {name} is being deleted; its pod is made when it is gone"
            ))),
            Some(_) => Ok(()),
            None => self.writer.create(claim).await.map(drop),
        }
    }

    async fn own_claim(&self, name: &str, uid: &str, owned: bool) -> Result<(), Error> {
        self.change_owners(name, Some(uid), |owners| {
            owners.retain(|owner| Some(&owner.uid) != self.nodeset().metadata.uid.as_ref());
            if owned {
                owners.push(owner(self.nodeset()));
            }
        })
        .await
    }

    pub(super) async fn change_owners(
        &self,
        name: &str,
        uid: Option<&str>,
        change: impl FnOnce(&mut Vec<OwnerReference>),
    ) -> Result<(), Error> {
        let Some(claim) = self.ctx.caches.claims.get(&self.namespace(), name) else {
            return Ok(());
        };
        if uid.is_some_and(|uid| claim.metadata.uid.as_deref() != Some(uid))
            || !is_made_for(self.nodeset(), claim.as_ref())
        {
            return Ok(());
        }
        let mut owners = claim.owner_references().to_vec();
        change(&mut owners);
        if owners == claim.owner_references() {
            return Ok(());
        }
        let patch = json!({ "metadata": {
            "uid": claim.metadata.uid,
            "resourceVersion": claim.metadata.resource_version,
            "ownerReferences": owners,
        } });
        self.writer
            .patch::<PersistentVolumeClaim>(&self.namespace(), name, patch)
            .await
            .map(drop)
    }
}

fn name_of(pod: &Value) -> &str {
    let name = pod.pointer("/metadata/name").and_then(Value::as_str);
    name.unwrap_or_default()
}

/// Whether the API server would refuse the next one too. A name that is taken is a matter of one pod.
fn is_refused(created: &Result<(), Error>) -> bool {
    created
        .as_ref()
        .is_err_and(|error| !matches!(error, Error::Taken { .. }))
}
