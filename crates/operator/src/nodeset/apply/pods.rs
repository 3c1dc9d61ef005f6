//! Creates workers, and patches those that stay.

use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::{
    api::core::v1::{Node, PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{ApplyResult, Executor, read};
use crate::{
    nodeset::{
        build::is_made_for,
        plan::{Effect, Plan, last_places, may_run_unseen},
    },
    reason,
    runtime::{Error, Key, Written},
    template::metadata::owner,
};

/// Concurrent requests; the API server's limit for one client is a few hundred.
const CONCURRENT_REQUESTS: usize = 64;

impl Executor<'_> {
    pub(super) async fn apply_pods(&self, plan: &Plan, applied: &mut ApplyResult) {
        let mut creations = Vec::new();
        for effect in &plan.effects {
            match effect {
                Effect::AdoptPod { pod } => {
                    let owners = json!({ "ownerReferences": [owner(self.nodeset())] });
                    applied.take(self.patch_pod(pod, owners).await);
                }
                Effect::MarkPod {
                    pod,
                    labels,
                    annotations,
                } => {
                    let marks = json!({ "labels": labels, "annotations": annotations });
                    applied.take(self.patch_pod(pod, marks).await);
                }
                Effect::OwnClaim { name, uid, owned } => {
                    let owner = owned.then(|| owner(self.nodeset()));
                    applied.take(self.own_claim(name, Some(uid), owner).await);
                }
                Effect::CreatePod { pod, claims } => creations.push((pod.as_ref(), claims)),
                _ => {}
            }
        }
        self.create_pods(creations, plan.desired, applied).await;
    }

    /// Creates the first pod alone and then the others, so that a general rejection costs one request and not 500. A later
    /// rejection, such as an exhausted quota, skips the rest.
    async fn create_pods(&self, mut creations: Vec<(&Value, &Vec<Value>)>, desired: u32, applied: &mut ApplyResult) {
        creations.retain(|(pod, _)| {
            let key = Key::new(&self.key.namespace, name_of(pod));
            applied.take(self.writer.check_contested::<Pod>(&key)).is_some()
        });
        let mut wanted = Vec::new();
        for creation in creations {
            if applied.take(self.check_last_places(creation.0).await).is_some() {
                wanted.push(creation);
            }
        }
        let creations = wanted;
        let Some((first, others)) = creations.split_at_checked(1) else {
            return;
        };
        let message = format!("Creating {} Pod(s) to stabilize at {desired} replicas", creations.len());
        self.event(reason::SCALING_UP, message);
        let rejected = AtomicBool::new(false);
        for creations in [first, others] {
            let steps = creations
                .iter()
                .map(|(pod, claims)| self.create_pod(pod, claims, &rejected));
            applied.run(steps.collect(), CONCURRENT_REQUESTS).await;
        }
    }

    /// Checks by the API server that the last worker of this name does not run unseen: the cache may not show yet that its
    /// Kubernetes node is unreachable.
    async fn check_last_places(&self, pod: &Value) -> Result<(), Error> {
        let hostname = pod.pointer("/spec/hostname").and_then(Value::as_str);
        for name in last_places(self.observed, hostname.unwrap_or_default()) {
            let nodes: Api<Node> = Api::all(self.ctx.client.clone());
            let node = nodes.get_opt(name).await.map_err(Error::other)?;
            if node.is_some_and(|node| may_run_unseen(&node, self.ctx.clock.now())) {
                return Err(Error::other(format!(
                    "pod {} is not created while its last worker may run on Kubernetes node {name}, which is unreachable or has just \
                     reconnected",
                    name_of(pod)
                )));
            }
        }
        Ok(())
    }

    async fn create_pod(&self, pod: &Value, claims: &[Value], rejected: &AtomicBool) -> Result<(), Error> {
        if rejected.load(Ordering::Relaxed) {
            return Ok(());
        }
        let created = self.create_with_claims(pod, claims).await;
        created.inspect_err(|error| {
            // A taken name concerns one pod.
            let is_general = !matches!(error, Error::Taken { .. });
            rejected.fetch_or(is_general, Ordering::Relaxed);
        })
    }

    async fn create_with_claims(&self, pod: &Value, claims: &[Value]) -> Result<(), Error> {
        for claim in claims {
            self.create_claim(&read(claim)?).await?;
        }
        match self.writer.create_json::<Pod>(pod).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => self.check_existing_pod(name_of(pod)).await,
            // A terminating namespace accepts nothing new, and everything in it is deleted.
            Err(error) if error.to_string().contains("is being terminated") => Ok(()),
            Err(error) => {
                self.warn(reason::FAILED_CREATE, error.to_string());
                Err(error)
            }
        }
    }

    /// Checks a pod of that name that the caches did not show as ours.
    async fn check_existing_pod(&self, name: &str) -> Result<(), Error> {
        let found = match self.ctx.caches.pods.get(&self.key.namespace, name) {
            Some(found) => Pod::clone(&found),
            // A foreign pod has none of the labels by which pods are watched.
            None => self.writer.get(&self.key.namespace, name).await?,
        };
        // A pod that matches this NodeSet and has no owner is about to be adopted.
        if found.owner_references().is_empty() && is_made_for(self.nodeset(), &found) {
            return Ok(());
        }
        self.check_existing(&found)
    }

    /// Checks that the existing object in place of a new one is ours or terminating; its deletion triggers a reconcile.
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
        match self.ctx.caches.claims.get(&self.key.namespace, &name) {
            Some(existing) if existing.metadata.deletion_timestamp.is_some() => Err(Error::other(format!(
                "claim {name} is being deleted; its pod is created afterwards"
            ))),
            Some(_) => Ok(()),
            None => self.writer.create(claim).await.map(drop),
        }
    }

    /// Replaces the NodeSet among the owners of its claim by `owner`, if given.
    pub(super) async fn own_claim(
        &self,
        name: &str,
        uid: Option<&String>,
        owner: Option<OwnerReference>,
    ) -> Result<(), Error> {
        let Some(claim) = self.ctx.caches.claims.get(&self.key.namespace, name) else {
            return Ok(());
        };
        let is_another = uid.is_some() && claim.metadata.uid.as_ref() != uid;
        if is_another || !is_made_for(self.nodeset(), claim.as_ref()) {
            return Ok(());
        }
        let mut owners = claim.owner_references().to_vec();
        owners.retain(|owner| Some(&owner.uid) != self.nodeset().metadata.uid.as_ref());
        owners.extend(owner.filter(|new| !owners.iter().any(|owner| owner.uid == new.uid)));
        if owners == claim.owner_references() {
            return Ok(());
        }
        self.patch_unchanged(claim.as_ref(), json!({ "ownerReferences": owners }))
            .await
    }
}

fn name_of(pod: &Value) -> &str {
    let name = pod.pointer("/metadata/name").and_then(Value::as_str);
    name.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use api::NodeSet;
    use serde_json::json;

    use super::*;
    use crate::{
        nodeset::fixture::{NAMESPACE, controller, host, nodeset, observed_exactly, slurm_key, unknown, with},
        runtime::{
            Caches, Context, Writer,
            fake::{FakeServer, Path},
        },
    };

    #[tokio::test]
    async fn no_pod_is_created_while_its_last_worker_may_run_on_a_node_that_only_the_cache_shows_as_ready() {
        let status = json!({ "nodeSetHash": "", "cutOff": { "compute-0": "k1" } });
        let set = with(nodeset(&json!({ "replicas": 1 })), &[("/status", status)]);
        let objects = vec![controller(), slurm_key(), set, host("k1")];
        let observed = observed_exactly("compute", objects.clone(), unknown());
        let away = with(host("k1"), &[("/status/conditions/0/status", json!("Unknown"))]);
        let pod = json!({ "metadata": { "name": "compute-0" }, "spec": { "hostname": "compute-0" } });
        let other = json!({ "metadata": { "name": "compute-1" }, "spec": { "hostname": "compute-1" } });
        for (node, may_be_created) in [(host("k1"), true), (away, false)] {
            let server = FakeServer::new();
            let path = Path::parse("/api/v1/nodes/");
            server.edit(|store| drop(store.create(&path, node, "kcm").unwrap()));
            let ctx = Context::for_tests(server.client(), Caches::of(objects.clone()));
            let executor = Executor {
                ctx: &ctx,
                writer: &Writer::new::<NodeSet>(&ctx),
                observed: &observed,
                key: &Key::new(NAMESPACE, "compute"),
                cluster: &Key::new(NAMESPACE, "slurm"),
            };
            assert_eq!(executor.check_last_places(&pod).await.is_ok(), may_be_created);
            assert!(executor.check_last_places(&other).await.is_ok(), "it never ran there");
        }
    }
}
