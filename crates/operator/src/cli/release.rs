//! `slurm-operator release`: removes the operator's finalizers, so that clusters can be deleted without it.
//!
//! Only the operator removes its finalizers. Without it, every deleted NodeSet or Partition would stay for ever, and its
//! namespace with it. The chart runs this before it is uninstalled.

use std::time::Duration;

use anyhow::{Context as _, bail};
use api::{NodeSet, Partition, keys};
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::{NamespaceResourceScope, ObjectMeta},
};
use serde_json::json;
use tokio::time::{sleep, timeout};
use tracing_subscriber::filter::Targets;

use super::{
    block_on,
    flags::parse_log_level,
    run::{LEASE_NAME, listed},
};
use crate::runtime::{Reach as _, Written};

/// A pod has a grace period of 30 s, and its kubelet needs some more to report its end.
const STOP_TIMEOUT: Duration = Duration::from_secs(90);
/// The interval between two requests.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How often the objects are listed again after conflicts with other writers.
const ATTEMPTS: usize = 20;

/// Flags of `release`; each can also be given by the environment.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The operator's own namespace.
    #[arg(long, env = "POD_NAMESPACE", default_value = "default")]
    pub namespace: String,

    /// The operator's Deployment, which is deleted first: it would set its finalizers again.
    #[arg(long, default_value = "slurm-operator")]
    pub deployment: String,

    /// Name of the operator's Lease.
    #[arg(long, env = "LEADER_ELECT_NAME", default_value = LEASE_NAME)]
    pub leader_elect_name: String,

    /// Namespaces that the operator watched, separated by commas; all if empty.
    #[arg(long, env = "WATCH_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,

    /// Log level: a level, levels by module, or a number as in upstream's chart.
    #[arg(long, env = "LOG_LEVEL", default_value = "info", value_parser = parse_log_level)]
    pub log_level: Targets,
}

/// Stops the operator, then removes its finalizers from all objects.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    block_on(&arguments.log_level, |clients| release(clients.calls, arguments))
}

async fn release(client: Client, arguments: &Arguments) -> anyhow::Result<()> {
    stop_operator(&client, arguments).await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), &arguments.namespace);
    // Terms keep growing without the Lease: they are never lower than the clock.
    delete(&leases, &arguments.leader_elect_name, &DeleteParams::default()).await?;
    let mut namespaces: Vec<Option<String>> = listed(&arguments.namespaces).into_iter().map(Some).collect();
    if namespaces.is_empty() {
        namespaces.push(None);
    }
    for namespace in &namespaces {
        release_all::<NodeSet>(&client, namespace.as_deref(), keys::NODESET_FINALIZER).await?;
        release_all::<Partition>(&client, namespace.as_deref(), keys::PARTITION_FINALIZER).await?;
    }
    Ok(())
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Deletes the Deployment in the foreground: it is gone only when its pods are, so no process is left to write. That needs
/// permissions on one named object, works without a Lease too, and Helm accepts that it is gone.
async fn stop_operator(client: &Client, arguments: &Arguments) -> anyhow::Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), &arguments.namespace);
    let name = &arguments.deployment;
    tracing::info!(deployment = name, "stopping the operator");
    delete(&api, name, &DeleteParams::foreground()).await?;
    let deletion = async {
        while api.get_metadata_opt(name).await?.is_some() {
            sleep(POLL_INTERVAL).await;
        }
        Ok::<(), kube::Error>(())
    };
    let Ok(deleted) = timeout(STOP_TIMEOUT, deletion).await else {
        // Its node is unreachable. The process has most likely ended, and it loses its permissions with the release.
        tracing::warn!(
            deployment = name,
            "a pod of the operator does not end; continuing without it"
        );
        return Ok(());
    };
    deleted.with_context(|| format!("cannot read Deployment {name}"))
}

/// Deletes an object, if it exists.
async fn delete<K: Written>(api: &Api<K>, name: &str, parameters: &DeleteParams) -> anyhow::Result<()> {
    match api.delete(name, parameters).await {
        Err(error) if is_not_found(&error) => Ok(()),
        deleted => deleted
            .map(drop)
            .with_context(|| format!("cannot delete {} {name}", K::kind(&()))),
    }
}

/// Removes our finalizer until no object of the kind has it. Only metadata is read, so that an object with an invalid spec is
/// released too.
async fn release_all<K: Written>(client: &Client, namespace: Option<&str>, finalizer: &str) -> anyhow::Result<()> {
    let kind = K::kind(&());
    let api: Api<K> = NamespaceResourceScope::api(client.clone(), namespace);
    for _ in 0..ATTEMPTS {
        let mut held = match api.list_metadata(&ListParams::default()).await {
            // The kind is not installed.
            Err(error) if is_not_found(&error) => return Ok(()),
            list => list.with_context(|| format!("cannot list {kind}s"))?.items,
        };
        held.retain(|object| object.metadata.finalizers.iter().flatten().any(|set| set == finalizer));
        if held.is_empty() {
            return Ok(());
        }
        for object in held {
            release_one::<K>(client, object.metadata, finalizer).await?;
        }
        sleep(POLL_INTERVAL).await;
    }
    bail!("finalizer {finalizer} is set again and again; is another operator running?")
}

async fn release_one<K: Written>(client: &Client, meta: ObjectMeta, finalizer: &str) -> anyhow::Result<()> {
    let kind = K::kind(&());
    let (namespace, name) = (meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default());
    tracing::info!(namespace, %kind, name, "releasing");
    let mut finalizers = meta.finalizers.unwrap_or_default();
    finalizers.retain(|set| set != finalizer);
    // The whole list is written, so it must not have changed in the meantime.
    let patch = json!({ "metadata": {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "finalizers": finalizers,
    } });
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
    match api.patch_metadata(&name, &parameters, &patch).await {
        // The object is gone or has changed: the next list shows it.
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        patched => patched
            .map(drop)
            .with_context(|| format!("cannot release {kind} {namespace}/{name}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{
        cli::{Cli, Command},
        runtime::fake::{FakeServer, Fault, Path},
    };

    const THEIRS: &str = "example.com/theirs";

    fn put(server: &FakeServer, path: &str, object: serde_json::Value) {
        server
            .edit(|store| store.create(&Path::parse(path), object, "test"))
            .unwrap();
    }

    /// An operator in namespace `slinky`, and a NodeSet in each of two others; `b`'s spec makes no sense.
    fn cluster() -> FakeServer {
        let server = FakeServer::new();
        put(
            &server,
            "/apis/apps/v1/namespaces/slinky/deployments",
            json!({"metadata": {"name": "slurm-operator"}}),
        );
        put(
            &server,
            "/apis/coordination.k8s.io/v1/namespaces/slinky/leases",
            json!({"metadata": {"name": LEASE_NAME}}),
        );
        for (namespace, spec) in [("a", json!({})), ("b", json!({"replicas": "many"}))] {
            let metadata = json!({"name": "compute", "finalizers": [THEIRS, keys::NODESET_FINALIZER]});
            let path = format!("/apis/slinky.slurm.net/v1beta1/namespaces/{namespace}/nodesets");
            put(&server, &path, json!({"metadata": metadata, "spec": spec}));
        }
        let metadata = json!({"name": "long", "finalizers": [keys::PARTITION_FINALIZER]});
        let path = "/apis/slinky.slurm.net/v1alpha1/namespaces/a/partitions";
        put(&server, path, json!({"metadata": metadata, "spec": {}}));
        server.writes();
        server
    }

    fn finalizers(server: &FakeServer, namespace: &str) -> serde_json::Value {
        let path = format!("/apis/slinky.slurm.net/v1beta1/namespaces/{namespace}/nodesets/compute");
        server.store().get(&Path::parse(&path)).unwrap()["metadata"]["finalizers"].clone()
    }

    async fn release(server: &FakeServer, flags: &[&str]) -> anyhow::Result<()> {
        let all = ["slurm-operator", "release", "--namespace=slinky"].iter().chain(flags);
        let Command::Release(arguments) = Cli::try_parse_from(all).unwrap().command else {
            panic!("another command");
        };
        super::release(server.client(), &arguments).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_operator_is_stopped_first_then_its_finalizers_are_removed_and_nothing_else() {
        let server = cluster();
        release(&server, &[]).await.unwrap();
        let writes = server.writes();
        let writes: Vec<_> = writes.iter().map(|seen| (seen.verb, seen.path.as_str())).collect();
        assert_eq!(
            writes,
            [
                ("delete", "/apis/apps/v1/namespaces/slinky/deployments/slurm-operator"),
                (
                    "delete",
                    "/apis/coordination.k8s.io/v1/namespaces/slinky/leases/slurm-operator.slinky.slurm.net"
                ),
                ("merge", "/apis/slinky.slurm.net/v1beta1/namespaces/a/nodesets/compute"),
                ("merge", "/apis/slinky.slurm.net/v1beta1/namespaces/b/nodesets/compute"),
                ("merge", "/apis/slinky.slurm.net/v1alpha1/namespaces/a/partitions/long"),
            ]
        );
        assert_eq!(finalizers(&server, "a"), json!([THEIRS]));
        assert_eq!(finalizers(&server, "b"), json!([THEIRS]));
        release(&server, &[]).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_that_the_operator_did_not_look_after_are_left_alone() {
        let server = cluster();
        release(&server, &["--namespaces=b,"]).await.unwrap();
        assert_eq!(finalizers(&server, "a"), json!([THEIRS, keys::NODESET_FINALIZER]));
        assert_eq!(finalizers(&server, "b"), json!([THEIRS]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_nodeset_that_changes_in_the_meantime_is_released_too() {
        let server = cluster();
        server.fail(Fault::Refuse("merge", 409));
        release(&server, &[]).await.unwrap();
        assert_eq!(finalizers(&server, "a"), json!([THEIRS]));
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_kind_there_is_nothing_to_release() {
        let server = cluster();
        server.fail(Fault::Refuse("list", 404));
        release(&server, &[]).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_cannot_be_released_is_named() {
        let server = cluster();
        server.fail(Fault::Refuse("merge", 403));
        let error = release(&server, &[]).await.unwrap_err();
        assert!(format!("{error:#}").contains("NodeSet a/compute"), "{error:#}");
    }
}
