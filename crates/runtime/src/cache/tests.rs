use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    ResourceExt as _,
    core::{DeserializeGuard, error_boundary::InvalidObject},
    runtime::watcher::Event,
};
use serde_json::{Value, json};

use super::*;
use crate::{
    Context, Registry,
    fake::{FakeServer, Path},
    watch::Watch,
};

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

/// A cache of which only objects with the label `ours` are held without a need.
fn on_demand() -> Cache<Secret> {
    Cache::new(Rules {
        on_demand_unless: Some(|secret: &Secret| secret.labels().contains_key("ours")),
        ..Rules::default()
    })
}

fn secret(name: &str, version: u128, labels: &Value) -> Secret {
    let metadata = json!({"namespace": "n", "name": name, "resourceVersion": version.to_string(), "labels": labels});
    serde_json::from_value(json!({"metadata": metadata, "stringData": {"key": "value"}})).unwrap()
}

#[tokio::test]
async fn an_object_is_held_once_it_is_needed() {
    let server = FakeServer::new();
    let path = Path::parse("/api/v1/namespaces/n/secrets");
    let stored = server.edit(|store| {
        let secret = json!({"metadata": {"name": "foreign"}, "stringData": {"key": "value"}});
        store.create(&path, secret, "test").unwrap()
    });
    let stored: Secret = serde_json::from_value(stored).unwrap();
    let (cache, client, key) = (on_demand(), server.client(), Key::new("n", "foreign"));
    assert!(cache.insert_watched(secret("ours", 1, &json!({"ours": ""}))).is_some());
    cache.load(&client, &key).await.unwrap();
    assert_eq!(cache.all().len(), 1, "nothing is known of the foreign one yet");

    let delta = cache.insert_watched(stored.clone()).unwrap();
    assert_eq!(delta.key().unwrap(), key, "whoever waits for it is woken");
    assert!(cache.get("n", "foreign").is_none());
    let version = resource_version(&stored).unwrap();
    assert!(cache.has_seen("n", version));
    cache.load(&client, &key).await.unwrap();
    assert_eq!(cache.get("n", "foreign").unwrap().string_data, stored.string_data);

    // From now on the watch delivers it.
    let delta = cache
        .insert_watched(secret("foreign", version + 1, &json!(null)))
        .unwrap();
    assert!(delta.before.is_some());
    assert_eq!(
        resource_version(cache.get("n", "foreign").unwrap().as_ref()),
        Some(version + 1)
    );
    cache.remove(&stored);
    cache.load(&client, &key).await.unwrap();
    assert!(cache.get("n", "foreign").is_none(), "it was deleted");
}

#[tokio::test]
async fn an_object_that_changes_while_it_is_read_is_not_held_in_its_old_version() {
    let server = FakeServer::new();
    let path = Path::parse("/api/v1/namespaces/n/secrets");
    let secret_now = json!({"metadata": {"name": "a"}});
    server.edit(|store| store.create(&path, secret_now, "test")).unwrap();
    let (cache, key) = (on_demand(), Key::new("n", "a"));
    cache.insert_watched(secret("a", 99, &json!(null)));
    cache.load(&server.client(), &key).await.unwrap();
    assert!(cache.get("n", "a").is_none());
    // It is gone, and so is its name.
    cache.insert_watched(secret("gone", 99, &json!(null)));
    cache.load(&server.client(), &Key::new("n", "gone")).await.unwrap();
    assert!(!cache.read().names.contains_key(&Key::new("n", "gone")));
    cache.sweep(None, &HashSet::new());
    assert!(cache.read().names.is_empty());
}

/// cargo test -p slurm-operator-runtime --release -- --ignored foreign_secrets --nocapture
#[test]
#[ignore = "measures the memory of the process"]
fn ten_thousand_foreign_secrets_cost_less_than_20_mib() {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let cache = on_demand();
    let before = resident();
    for number in 0..10_000 {
        let mut secret = secret(&format!("foreign-{number}"), number, &json!(null));
        let data = k8s_openapi::ByteString(vec![1; 100_000]);
        secret.data = Some([("key".to_owned(), data)].into());
        cache.insert_watched(secret);
    }
    let cost = resident().saturating_sub(before);
    println!("{cost} kB");
    assert!(cost < 20 * 1024, "{cost} kB");
    assert_eq!(cache.read().names.len(), 10_000);
}
