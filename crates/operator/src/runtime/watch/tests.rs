use std::time::Duration;

use api::NodeSet;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::*;
use crate::runtime::{
    Change,
    fake::{FakeServer, Path, a_moment},
};

fn sinks() -> Sinks {
    Sinks {
        caches: Caches::default(),
        hub: Hub::default(),
        health: Health::default(),
        events: Events::nowhere(),
        metrics: Metrics::new(),
    }
}

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

fn names<K: Cached>(sinks: &Sinks) -> Vec<String> {
    K::cache(&sinks.caches)
        .all()
        .iter()
        .map(|object| object.meta().name.clone().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_broke_reports_what_was_deleted_meanwhile() {
    let server = FakeServer::new();
    create(&server, CONFIG_MAPS, config_map("a"));
    create(&server, CONFIG_MAPS, config_map("b"));
    let sinks = sinks();
    let mut signals = sinks.hub.listen();
    tokio::spawn(watch_kind::<ConfigMap>(
        server.client(),
        None,
        Definitions::default(),
        sinks.clone(),
    ));
    assert_eq!(sinks.health.missing(), ["ConfigMap"]);
    sinks.health.all_synced().await;
    assert_eq!(names::<ConfigMap>(&sinks), ["a", "b"]);

    server
        .edit(|store| store.delete(&Path::parse(&format!("{CONFIG_MAPS}/a")), &Value::Null))
        .unwrap();
    server.cut_watches();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(names::<ConfigMap>(&sinks), ["b"]);
    let mut deleted = Vec::new();
    while let Ok(Signal::Change(change)) = signals.try_recv() {
        if let Change::ConfigMap(Delta { after: None, before }) = change {
            deleted.push(before.unwrap().metadata.name.clone().unwrap());
        }
    }
    assert_eq!(deleted, ["a"]);

    create(&server, CONFIG_MAPS, config_map("c"));
    a_moment().await;
    assert_eq!(names::<ConfigMap>(&sinks), ["b", "c"], "and it goes on");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_understood_does_not_block_its_kind() {
    let server = FakeServer::new();
    let mut bad = node_set("bad");
    bad["spec"]["replicas"] = json!("many");
    create(&server, NODE_SETS, bad);
    create(&server, NODE_SETS, node_set("good"));
    let (events, mut said) = Events::recorded();
    let sinks = Sinks { events, ..sinks() };
    let mut watch = Watch::<NodeSet>::new(None, sinks.clone());
    let api = Api::all(server.client());
    tokio::spawn(async move { watch.follow(watcher(api, watcher::Config::default())).await });
    sinks.health.all_synced().await;
    assert_eq!(names::<NodeSet>(&sinks), ["good"]);
    assert_eq!(sinks.caches.node_sets.undecodable("n")[0].0, "bad");
    let event = said.try_recv().unwrap();
    assert_eq!(event.reason.as_deref(), Some("Undecodable"));
    assert_eq!(event.regarding.unwrap().name.as_deref(), Some("bad"));
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_watched_from_when_its_definition_appears_until_it_goes() {
    let server = FakeServer::new();
    create(&server, NODE_SETS, node_set("a"));
    let sinks = sinks();
    let definitions = Definitions::default();
    tokio::spawn(watch_kind::<NodeSet>(
        server.client(),
        None,
        definitions.clone(),
        sinks.clone(),
    ));
    a_moment().await;
    assert_eq!(sinks.health.missing(), ["NodeSet"], "not known yet");

    tokio::spawn(
        definitions
            .clone()
            .follow(server.client(), sinks.hub.clone(), sinks.metrics.clone()),
    );
    sinks.health.all_synced().await;
    assert!(
        names::<NodeSet>(&sinks).is_empty(),
        "a definition that is missing is no reason to wait"
    );

    let definition = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "nodesets.slinky.slurm.net"}});
    create(&server, DEFINITIONS, definition);
    a_moment().await;
    assert_eq!(names::<NodeSet>(&sinks), ["a"]);
    assert_eq!(definitions.outdated(), ["nodesets.slinky.slurm.net"]);

    let path = Path::parse(&format!("{DEFINITIONS}/nodesets.slinky.slurm.net"));
    server.edit(|store| store.delete(&path, &Value::Null)).unwrap();
    a_moment().await;
    assert!(names::<NodeSet>(&sinks).is_empty());
}
