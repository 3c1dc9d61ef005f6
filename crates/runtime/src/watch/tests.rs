use std::time::Duration;

use api::NodeSet;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::*;
use kube::Api;

use crate::{
    Events, Object, Registry,
    fake::{FakeServer, Fault, Path, a_moment},
    registry::tests::registry,
};

fn create(server: &FakeServer, path: &str, object: Value) {
    server
        .edit(|store| store.create(&Path::parse(path), object, "test"))
        .unwrap();
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/n/configmaps";
const NODE_SETS: &str = "/apis/slinky.slurm.net/v1beta1/namespaces/n/nodesets";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

fn node_set(name: &str) -> Value {
    json!({"apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": {"name": name}, "spec": {"controllerRef": {"name": "c"}}})
}

fn names<K: Object>(registry: &Registry) -> Vec<String> {
    registry
        .cache::<K>()
        .all()
        .iter()
        .map(|object| object.meta().name.clone().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_restarted_watch_reports_what_was_deleted_in_the_meantime() {
    let server = FakeServer::new();
    create(&server, CONFIG_MAPS, config_map("a"));
    create(&server, CONFIG_MAPS, config_map("b"));
    let registry = registry();
    let context = Context::for_tests(server.client(), registry.clone());
    let mut signals = context.triggers.listen::<ConfigMap>();
    tokio::spawn(watch_kind(registry.cache::<ConfigMap>(), None, context.clone()));
    assert_eq!(context.health.missing(), ["ConfigMap"]);
    context.health.all_synced().await;
    assert_eq!(names::<ConfigMap>(&registry), ["a", "b"]);

    server
        .edit(|store| store.delete(&Path::parse(&format!("{CONFIG_MAPS}/a")), &Value::Null))
        .unwrap();
    server.cut_watches();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(names::<ConfigMap>(&registry), ["b"]);
    let mut deleted = Vec::new();
    while let Ok(Signal::Change(change)) = signals.try_recv() {
        let delta = change.delta::<ConfigMap>().unwrap();
        if delta.after.is_none() {
            deleted.push(delta.key().unwrap().name);
        }
    }
    assert_eq!(deleted, ["a"]);

    create(&server, CONFIG_MAPS, config_map("c"));
    a_moment().await;
    assert_eq!(names::<ConfigMap>(&registry), ["b", "c"], "the watch continues");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_decoded_does_not_block_its_kind() {
    let server = FakeServer::new();
    let mut bad = node_set("bad");
    bad["spec"]["replicas"] = json!("many");
    create(&server, NODE_SETS, bad);
    create(&server, NODE_SETS, node_set("good"));
    let (events, mut reported) = Events::recorded();
    let registry = registry();
    let context = Context {
        events,
        ..Context::for_tests(server.client(), registry.clone())
    };
    let mut watch = Watch::<NodeSet>::new(registry.cache(), None, context.clone());
    let api = Api::all(server.client());
    tokio::spawn(async move { watch.follow(watcher(api, watcher::Config::default())).await });
    context.health.all_synced().await;
    assert_eq!(names::<NodeSet>(&registry), ["good"]);
    let event = reported.try_recv().unwrap();
    assert_eq!(event.reason.as_deref(), Some("Undecodable"));
    assert_eq!(event.regarding.unwrap().name.as_deref(), Some("bad"));

    let cache = registry.cache::<NodeSet>();
    assert_eq!(cache.undecodable("n", "good"), None);
    assert!(cache.undecodable("n", "bad").unwrap().contains("many"));
    let path = Path::parse(&format!("{NODE_SETS}/bad"));
    let correct = |replicas: Value| {
        let change = json!({"spec": {"replicas": replicas}});
        server.edit(|store| store.merge(&path, &change, "test")).unwrap();
    };
    correct(json!(1));
    a_moment().await;
    assert_eq!(cache.undecodable("n", "bad"), None);
    assert_eq!(names::<NodeSet>(&registry), ["bad", "good"]);
    correct(json!("many"));
    a_moment().await;
    assert!(cache.undecodable("n", "bad").is_some());
    assert_eq!(
        names::<NodeSet>(&registry),
        ["bad", "good"],
        "the last good version stays"
    );
    server.edit(|store| store.delete(&path, &Value::Null)).unwrap();
    a_moment().await;
    assert_eq!(cache.undecodable("n", "bad"), None);
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_watched_while_its_definition_is_installed() {
    let server = FakeServer::new();
    create(&server, NODE_SETS, node_set("a"));
    let registry = registry();
    let context = Context::for_tests(server.client(), registry.clone());
    let definitions = context.definitions.clone();
    tokio::spawn(watch_kind(registry.cache::<NodeSet>(), None, context.clone()));
    a_moment().await;
    assert_eq!(context.health.missing(), ["NodeSet"], "not known yet");

    tokio::spawn(definitions.clone().follow(context.clone()));
    context.health.all_synced().await;
    assert!(
        names::<NodeSet>(&registry).is_empty(),
        "a definition that is missing is no reason to wait"
    );

    let definition = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "nodesets.slinky.slurm.net"}});
    create(&server, DEFINITIONS, definition);
    a_moment().await;
    assert_eq!(names::<NodeSet>(&registry), ["a"]);
    assert_eq!(definitions.outdated(), ["nodesets.slinky.slurm.net"]);

    let path = Path::parse(&format!("{DEFINITIONS}/nodesets.slinky.slurm.net"));
    server.edit(|store| store.delete(&path, &Value::Null)).unwrap();
    a_moment().await;
    assert!(names::<NodeSet>(&registry).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_gets_no_response_is_silent_after_ninety_seconds_and_recovers() {
    let server = FakeServer::new();
    let registry = registry();
    let context = Context::for_tests(server.client(), registry.clone());
    tokio::spawn(watch_kind(registry.cache::<ConfigMap>(), None, context.clone()));
    context.health.all_synced().await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(context.silent_watches().is_empty(), "a quiet watch is not silent");

    // The API server ends a watch after a minute; this one has lost its connection by then.
    let hang = || server.fail(Fault::Hang("watch"));
    (0..4).for_each(|_| hang());
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(context.silent_watches(), ["ConfigMap"]);
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert!(context.silent_watches().is_empty());
    create(&server, CONFIG_MAPS, config_map("a"));
    a_moment().await;
    assert_eq!(names::<ConfigMap>(&registry), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_dead_connection_is_noticed_within_thirty_seconds() {
    let server = FakeServer::new();
    let context = Context::for_tests(server.client(), registry());
    tokio::spawn(context.clone().heartbeat());
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(context.silent_watches().is_empty());
    // The fake takes the request of the version for a list.
    (0..4).for_each(|_| server.fail(Fault::Hang("list")));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(context.silent_watches(), ["API server"]);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(context.silent_watches().is_empty());
}
