use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    core::{DeserializeGuard, error_boundary::InvalidObject},
    runtime::watcher::Event,
};
use serde_json::json;

use super::*;
use crate::{Context, Registry, fake::FakeServer, watch::Watch};

fn config_map(namespace: &str, name: &str, version: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {
        "namespace": namespace, "name": name, "resourceVersion": version, "uid": format!("{namespace}/{name}"),
        "managedFields": [{"manager": "slurm-operator/controller", "operation": "Apply", "fieldsV1": {"f:data": {}}}],
    }}))
    .unwrap()
}

fn owned(name: &str, owners: &[(&str, bool)]) -> ConfigMap {
    let owners: Vec<_> = owners
        .iter()
        .map(|(uid, controller)| json!({"apiVersion": "v1", "kind": "K", "name": "o", "uid": uid, "controller": controller}))
        .collect();
    serde_json::from_value(json!({"metadata": {"namespace": "n", "name": name, "ownerReferences": owners}})).unwrap()
}

fn words(deltas: &[Delta<ConfigMap>]) -> Vec<String> {
    let word = |delta: &Delta<ConfigMap>| {
        let sign = match (&delta.before, &delta.after) {
            (None, _) => '+',
            (_, None) => '-',
            _ => '~',
        };
        format!("{sign}{}", delta.key().unwrap())
    };
    deltas.iter().map(word).collect()
}

fn names(objects: &[Arc<ConfigMap>]) -> Vec<String> {
    objects
        .iter()
        .map(|object| Key::of(object.as_ref()).to_string())
        .collect()
}

fn watch(namespace: Option<&str>) -> (Cache<ConfigMap>, Watch<ConfigMap>) {
    let cache = Cache::default();
    (cache.clone(), second_watch(cache, namespace))
}

fn second_watch(cache: Cache<ConfigMap>, namespace: Option<&str>) -> Watch<ConfigMap> {
    let context = Context::for_tests(FakeServer::new().client(), Registry::default());
    Watch::new(cache, namespace.map(str::to_owned), context)
}

fn valid(object: ConfigMap) -> DeserializeGuard<ConfigMap> {
    DeserializeGuard(Ok(object))
}

fn invalid(namespace: &str, name: &str) -> DeserializeGuard<ConfigMap> {
    DeserializeGuard(Err(InvalidObject {
        error: "data: expected a map".to_owned(),
        metadata: config_map(namespace, name, "9").metadata,
    }))
}

#[tokio::test]
async fn objects_come_by_namespace_and_name() {
    let (cache, mut watch) = watch(None);
    for (namespace, name) in [("b", "x"), ("a", "z"), ("a", "y")] {
        watch.store(Event::Apply(valid(config_map(namespace, name, "1"))));
    }
    assert_eq!(names(&cache.all()), ["a/y", "a/z", "b/x"]);
    assert_eq!(names(&cache.list("a")), ["a/y", "a/z"]);
    assert!(cache.get("a", "x").is_none());
    assert!(cache.list("c").is_empty());
}

#[tokio::test]
async fn an_object_missing_in_a_new_list_is_reported_as_deleted() {
    let (cache, mut watch) = watch(None);
    for name in ["a", "b", "c"] {
        watch.store(Event::Apply(valid(config_map("n", name, "1"))));
    }
    watch.store(Event::Init);
    assert_eq!(
        words(&watch.store(Event::InitApply(valid(config_map("n", "a", "1"))))),
        [""; 0],
        "nothing new"
    );
    assert_eq!(
        words(&watch.store(Event::InitApply(valid(config_map("n", "b", "2"))))),
        ["~n/b"]
    );
    assert_eq!(
        words(&watch.store(Event::InitApply(valid(config_map("n", "d", "3"))))),
        ["+n/d"]
    );
    assert_eq!(words(&watch.store(Event::InitDone)), ["-n/c"]);
    assert_eq!(names(&cache.all()), ["n/a", "n/b", "n/d"]);
}

#[tokio::test]
async fn an_incomplete_list_deletes_nothing() {
    let (cache, mut watch) = watch(None);
    watch.store(Event::Apply(valid(config_map("n", "a", "1"))));
    watch.store(Event::Init);
    watch.store(Event::InitApply(valid(config_map("n", "b", "1"))));
    watch.store(Event::Init);
    watch.store(Event::InitApply(valid(config_map("n", "a", "1"))));
    assert_eq!(words(&watch.store(Event::InitDone)), ["-n/b"]);
    assert_eq!(names(&cache.all()), ["n/a"]);
}

#[tokio::test]
async fn a_list_of_one_namespace_does_not_affect_another() {
    let (cache, mut first) = watch(Some("a"));
    let mut second = second_watch(cache.clone(), Some("b"));
    first.store(Event::Apply(valid(config_map("a", "x", "1"))));
    second.store(Event::Init);
    assert!(second.store(Event::InitDone).is_empty());
    assert_eq!(names(&cache.all()), ["a/x"]);
}

#[tokio::test]
async fn a_recreated_object_is_one_change_with_both_sides() {
    let (_, mut watch) = watch(None);
    watch.store(Event::Apply(valid(config_map("n", "a", "1"))));
    let mut other = config_map("n", "a", "2");
    other.metadata.uid = Some("other".to_owned());
    let deltas = watch.store(Event::Apply(valid(other)));
    assert_eq!(deltas[0].before.as_ref().unwrap().metadata.uid.as_deref(), Some("n/a"));
    assert_eq!(deltas[0].after.as_ref().unwrap().metadata.uid.as_deref(), Some("other"));
}

#[tokio::test]
async fn an_object_that_cannot_be_decoded_keeps_its_last_good_version() {
    let (cache, mut watch) = watch(None);
    watch.store(Event::Apply(valid(config_map("n", "a", "1"))));
    assert!(watch.store(Event::Apply(invalid("n", "a"))).is_empty());
    assert!(watch.store(Event::Apply(invalid("n", "b"))).is_empty());
    assert_eq!(names(&cache.all()), ["n/a"]);

    watch.store(Event::Apply(valid(config_map("n", "b", "10"))));
    assert_eq!(names(&cache.all()), ["n/a", "n/b"]);
    assert_eq!(words(&watch.store(Event::Delete(invalid("n", "a")))), ["-n/a"]);
}

#[tokio::test]
async fn a_list_with_an_undecodable_object_does_not_delete_it() {
    let (cache, mut watch) = watch(None);
    watch.store(Event::Apply(valid(config_map("n", "a", "1"))));
    watch.store(Event::Init);
    watch.store(Event::InitApply(invalid("n", "a")));
    assert!(watch.store(Event::InitDone).is_empty());
    assert_eq!(names(&cache.all()), ["n/a"]);
    watch.store(Event::Init);
    assert_eq!(words(&watch.store(Event::InitDone)), ["-n/a"]);
}

#[tokio::test]
async fn children_are_found_by_the_uid_of_their_controller() {
    let (cache, mut watch) = watch(None);
    watch.store(Event::Apply(valid(owned("b", &[("1", true)]))));
    watch.store(Event::Apply(valid(owned("a", &[("1", true), ("2", false)]))));
    assert_eq!(names(&cache.owned_by("1")), ["n/a", "n/b"]);
    assert!(cache.owned_by("2").is_empty());

    watch.store(Event::Apply(valid(owned("a", &[("2", true)]))));
    assert_eq!(names(&cache.owned_by("1")), ["n/b"]);
    assert_eq!(names(&cache.owned_by("2")), ["n/a"]);

    watch.store(Event::Delete(valid(owned("b", &[("1", true)]))));
    assert!(cache.owned_by("1").is_empty());
}

#[tokio::test]
async fn managed_fields_are_reduced_to_a_hash_of_ours() {
    let (cache, mut watch) = watch(None);
    watch.store(Event::Apply(valid(config_map("n", "a", "1"))));
    assert_eq!(cache.get("n", "a").unwrap().metadata.managed_fields, None);
    let key = Key::new("n", "a");
    assert!(cache.field_set(&key, "slurm-operator/controller").is_some());
    assert_eq!(cache.field_set(&key, "slurm-operator/nodeset"), None);
}

#[tokio::test]
async fn a_write_is_seen_when_its_version_or_a_later_one_is() {
    let (cache, mut watch) = watch(None);
    watch.store(Event::Apply(valid(config_map("n", "a", "9"))));
    assert!(!cache.has_seen("n", 10), "numbers, not words");
    watch.store(Event::Apply(valid(config_map("n", "other", "11"))));
    assert!(cache.has_seen("n", 10));
    assert_eq!(resource_version(&config_map("n", "a", "opaque")), None);
}
