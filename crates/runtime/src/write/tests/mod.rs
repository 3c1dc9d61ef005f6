//! Tests of the writer against the fake API server.

mod applies;
mod owners;
mod pods;
mod requests;
mod takeover;

use api::Controller;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Pod, PodCondition},
};
use serde_json::{Value, json};

use super::*;
use crate::{
    fake::{FakeServer, Fault, Path, Seen},
    registry::tests::registry,
    watch::watch_kind,
};

const POD: &str = "/api/v1/namespaces/n/pods/p";
const CONFIG_MAP: &str = "/api/v1/namespaces/n/configmaps/a";
const STATEFUL_SET: &str = "/apis/apps/v1/namespaces/n/statefulsets/a";

/// A server, a writer, and caches that follow the server.
struct World {
    server: FakeServer,
    writer: Writer,
    context: Context,
}

impl World {
    async fn new() -> Self {
        let server = FakeServer::new();
        let context = Context::for_tests(server.client(), registry());
        let registry = &context.registry;
        tokio::spawn(watch_kind(registry.cache::<ConfigMap>(), None, context.clone()));
        tokio::spawn(watch_kind(registry.cache::<StatefulSet>(), None, context.clone()));
        tokio::spawn(watch_kind(registry.cache::<Pod>(), None, context.clone()));
        context.health.all_synced().await;
        let writer = Writer::new::<Controller>(&context);
        server.writes();
        Self {
            server,
            writer,
            context,
        }
    }

    /// The caches hold what the server has.
    async fn settle(&self) {
        crate::fake::a_moment().await;
        assert!(self.context.health.missing().is_empty());
    }

    fn writes(&self) -> Vec<&'static str> {
        self.server.writes().into_iter().map(|Seen { verb, .. }| verb).collect()
    }

    fn by_hand(&self, path: &str, change: &Value) {
        self.server
            .edit(|store| store.merge(&Path::parse(path), change, "kubectl-edit"))
            .unwrap();
    }

    fn stored(&self, path: &str) -> Value {
        self.server.store().get(&Path::parse(path)).unwrap()
    }
}

#[allow(clippy::needless_pass_by_value, reason = "tests read better with json!() in place")]
fn config_map(data: Value) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "a"}, "data": data})).unwrap()
}

fn owner(kind: &str, name: &str, uid: &str) -> Value {
    json!({"apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "name": name, "uid": uid, "controller": true})
}

/// A child of Controller `c` with this UID.
fn child(uid: &str) -> ConfigMap {
    let owner = owner("Controller", "c", uid);
    serde_json::from_value(
        json!({"metadata": {"namespace": "n", "name": "a", "ownerReferences": [owner]}, "data": {"a": "1"}}),
    )
    .unwrap()
}

fn stateful_set(env: &[&str]) -> StatefulSet {
    let env: Vec<Value> = env.iter().map(|name| json!({"name": name, "value": "x"})).collect();
    serde_json::from_value(json!({
        "metadata": {
            "namespace": "n", "name": "a", "labels": {"app.kubernetes.io/name": "slurmctld"},
            "ownerReferences": [owner("Controller", "c", "1")],
        },
        "spec": {"selector": {}, "serviceName": "s", "template": {"spec": {"containers": [{"name": "slurmctld", "env": env}]}}},
    }))
    .unwrap()
}
