use api::Controller;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Pod, PodCondition},
};
use serde_json::{Value, json};

use super::*;
use crate::runtime::{
    Definitions, Events,
    fake::{FakeServer, Fault, Path, Seen},
    health::Health,
    hub::Hub,
    watch::{Sinks, watch_kind},
};

const CONFIG_MAP: &str = "/api/v1/namespaces/n/configmaps/a";
const STATEFUL_SET: &str = "/apis/apps/v1/namespaces/n/statefulsets/a";

/// A server, a writer, and caches that follow the server.
struct World {
    server: FakeServer,
    writer: Writer,
    context: Context,
    health: Health,
}

impl World {
    async fn new() -> Self {
        let server = FakeServer::new();
        let context = Context::for_tests(server.client(), Caches::default());
        let health = Health::default();
        let sinks = Sinks {
            caches: context.caches.clone(),
            hub: Hub::default(),
            health: health.clone(),
            events: Events::nowhere(),
            metrics: context.metrics.clone(),
        };
        let client = server.client();
        tokio::spawn(watch_kind::<ConfigMap>(
            client.clone(),
            None,
            Definitions::default(),
            sinks.clone(),
        ));
        tokio::spawn(watch_kind::<StatefulSet>(
            client.clone(),
            None,
            Definitions::default(),
            sinks.clone(),
        ));
        tokio::spawn(watch_kind::<Pod>(client, None, Definitions::default(), sinks));
        health.all_synced().await;
        let writer = Writer::new(&context, "controller");
        server.writes();
        Self {
            server,
            writer,
            context,
            health,
        }
    }

    /// The caches hold what the server has.
    async fn settle(&self) {
        crate::runtime::fake::a_moment().await;
        assert!(self.health.missing().is_empty());
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

#[tokio::test(start_paused = true)]
async fn applying_the_same_again_asks_nothing_of_the_server() {
    let world = World::new().await;
    let desired = config_map(json!({"a": "1"}));
    let made = world.writer.apply(&desired).await.unwrap();
    assert!(made.metadata.uid.is_some());
    assert_eq!(made.metadata.managed_fields, None);
    assert_eq!(world.writes(), ["create", "patch", "apply"]);
    world.settle().await;
    for _ in 0..3 {
        world.writer.apply(&desired).await.unwrap();
    }
    assert!(world.writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn after_a_start_each_object_is_confirmed_once() {
    let world = World::new().await;
    let desired = config_map(json!({"a": "1"}));
    world.writer.apply(&desired).await.unwrap();
    world.settle().await;
    world.writes();
    let version = world.stored(CONFIG_MAP)["metadata"]["resourceVersion"].clone();

    let started_again = Writer::new(&world.context, "controller");
    for _ in 0..3 {
        started_again.apply(&desired).await.unwrap();
    }
    assert_eq!(world.writes(), ["apply"]);
    assert_eq!(
        world.stored(CONFIG_MAP)["metadata"]["resourceVersion"],
        version,
        "and nothing changed by it"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_no_longer_desired_goes() {
    let world = World::new().await;
    world
        .writer
        .apply(&config_map(json!({"a": "1", "b": "1"})))
        .await
        .unwrap();
    world.settle().await;
    world.writer.apply(&config_map(json!({"a": "1"}))).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP)["data"], json!({"a": "1"}));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_longer_desired_goes_also_when_the_operator_was_away_meanwhile() {
    let world = World::new().await;
    let labelled: ConfigMap =
        serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "a", "labels": {"old": "1"}}})).unwrap();
    world.writer.apply(&labelled).await.unwrap();
    world.settle().await;
    let started_again = Writer::new(&world.context, "controller");
    let plain: ConfigMap = serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "a"}})).unwrap();
    started_again.apply(&plain).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP).pointer("/metadata/labels/old"), None);
}

#[tokio::test(start_paused = true)]
async fn what_somebody_edits_is_put_right() {
    let world = World::new().await;
    let desired = config_map(json!({"a": "1"}));
    world.writer.apply(&desired).await.unwrap();
    world.settle().await;
    world.by_hand(CONFIG_MAP, &json!({"data": {"a": "2"}}));
    world.settle().await;
    world.writer.apply(&desired).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP)["data"], json!({"a": "1"}));
}

#[tokio::test(start_paused = true)]
async fn what_somebody_takes_out_and_puts_back_is_ours_again() {
    let world = World::new().await;
    let desired = config_map(json!({"a": "1"}));
    world.writer.apply(&desired).await.unwrap();
    world.by_hand(CONFIG_MAP, &json!({"data": {"a": "2"}}));
    world.by_hand(CONFIG_MAP, &json!({"data": {"a": "1"}}));
    world.settle().await;
    world.writes();
    world.writer.apply(&desired).await.unwrap();
    assert_eq!(
        world.writes(),
        ["apply"],
        "the value is right, but it is not ours: we could not remove it later"
    );
    world.settle().await;
    world.writer.apply(&config_map(json!({}))).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP).pointer("/data/a"), None);
}

#[tokio::test(start_paused = true)]
async fn what_somebody_adds_where_all_is_ours_goes() {
    let world = World::new().await;
    let desired = stateful_set(&["A"]);
    world.writer.apply(&desired).await.unwrap();
    world.settle().await;
    world.by_hand(
        STATEFUL_SET,
        &json!({
            "metadata": {"labels": {"theirs": "1"}},
            "spec": {"template": {"spec": {"containers": [
                {"name": "spy"}, {"name": "slurmctld", "env": [{"name": "B"}, {"name": "A", "value": "x"}]},
            ]}}},
        }),
    );
    world.settle().await;
    world.writes();
    world.writer.apply(&desired).await.unwrap();
    let stored = world.stored(STATEFUL_SET);
    assert_eq!(
        stored.pointer("/spec/template/spec/containers"),
        Some(&json!([{"name": "slurmctld", "env": [{"name": "A", "value": "x"}]}]))
    );
    assert_eq!(
        stored.pointer("/metadata/labels/theirs"),
        Some(&json!("1")),
        "labels are everybody's"
    );
    assert!(world.writes().contains(&"patch"));
    world.settle().await;
    world.writer.apply(&desired).await.unwrap();
    assert!(world.writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_changed_while_we_looked_is_looked_at_again() {
    let world = World::new().await;
    let desired = config_map(json!({"a": "1"}));
    world.writer.apply(&desired).await.unwrap();
    world.settle().await;
    world.by_hand(CONFIG_MAP, &json!({"data": {"b": "1"}}));
    world.settle().await;
    world.by_hand(CONFIG_MAP, &json!({"data": {"c": "1"}}));
    world.writer.apply(&desired).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP)["data"], json!({"a": "1"}));
}

#[tokio::test(start_paused = true)]
async fn what_was_set_at_the_creation_can_be_removed_right_after_it() {
    let world = World::new().await;
    world
        .writer
        .apply(&config_map(json!({"a": "1", "b": "1"})))
        .await
        .unwrap();
    // The watch has not shown it yet.
    world.writer.apply(&config_map(json!({"a": "1"}))).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP)["data"], json!({"a": "1"}));
}

#[tokio::test(start_paused = true)]
async fn a_child_of_somebody_else_is_not_touched() {
    let world = World::new().await;
    let owned = |uid: &str| -> ConfigMap {
        let owner = owner("Controller", &format!("c{uid}"), uid);
        serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "a", "ownerReferences": [owner]}}))
            .unwrap()
    };
    world.writer.apply(&owned("1")).await.unwrap();
    world.settle().await;
    world.writes();
    let error = world.writer.apply(&owned("2")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "ConfigMap n/a already exists and belongs to Controller c1; it is left unchanged. Delete it if nobody needs it, \
         or give this object another name"
    );
    assert!(world.writes().is_empty());
}

/// What may be in a child's place, and whether it is in the cache.
fn strangers() -> [(&'static str, Value, bool); 5] {
    let set = |meta: Value| {
        let mut object =
            json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "a"}, "spec": {"replicas": 7}});
        json_patch::merge(&mut object["metadata"], &meta);
        object
    };
    let ours = json!({"app.kubernetes.io/name": "slurmctld"});
    [
        ("has no owner", set(json!({})), false),
        ("has no owner", set(json!({"labels": ours})), true),
        (
            "belongs to Helm release web",
            set(json!({"annotations": {"meta.helm.sh/release-name": "web"}})),
            false,
        ),
        (
            "belongs to Deployment d",
            set(
                json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "9", "controller": true}]}),
            ),
            false,
        ),
        (
            "belongs to Accounting c",
            set(json!({"ownerReferences": [owner("Accounting", "c", "9")]})),
            true,
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_not_ours_is_left_alone_and_its_place_taken_when_it_is_gone() {
    for (whose, stranger, cached) in strangers() {
        let mut world = World::new().await;
        let (trigger, mut inbox) = crate::runtime::Trigger::new();
        world.writer.trigger = trigger;
        let path = Path::parse(STATEFUL_SET);
        let stored = world
            .server
            .edit(|store| store.create(&path, stranger, "kubectl-create"))
            .unwrap();
        world.settle().await;
        world.writes();
        let desired = stateful_set(&["A"]);
        for _ in 0..3 {
            let error = world.writer.apply(&desired).await.unwrap_err();
            assert_eq!(error.label(), "taken");
            assert!(error.to_string().contains(whose), "{error}");
        }
        let asked: &[&str] = if cached { &[] } else { &["create"] };
        assert_eq!(world.writes(), asked, "{whose}: once, and not at every look");
        assert_eq!(world.stored(STATEFUL_SET), stored);
        let cache = &world.context.caches.stateful_sets;
        world.writer.prune(cache, "1", &BTreeSet::new()).await.unwrap();
        assert_eq!(world.stored(STATEFUL_SET), stored);

        // Its end is told by the watch, also of an object that is not in the cache.
        world.server.edit(|store| store.delete(&path, &json!({}))).unwrap();
        world.settle().await;
        assert_eq!(inbox.try_recv().unwrap(), Key::new("n", "c"), "{whose}");
        world.writer.apply(&desired).await.unwrap();
        assert_eq!(world.stored(STATEFUL_SET)["metadata"]["ownerReferences"][0]["uid"], "1");
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_taken_is_tried_again_after_a_while() {
    let world = World::new().await;
    let path = Path::parse(STATEFUL_SET);
    let stranger = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "a"}});
    world
        .server
        .edit(|store| store.create(&path, stranger, "kubectl-create"))
        .unwrap();
    world.settle().await;
    let desired = stateful_set(&["A"]);
    world.writer.apply(&desired).await.unwrap_err();
    world.writes();
    tokio::time::sleep(TAKEN_AGAIN).await;
    world.writer.apply(&desired).await.unwrap_err();
    assert_eq!(world.writes(), ["create"]);
}

#[tokio::test(start_paused = true)]
async fn what_another_leader_made_is_ours_though_the_watch_has_not_shown_it() {
    let world = World::new().await;
    let blind = Context::for_tests(world.server.client(), Caches::default());
    let desired = child("1");
    world.writer.apply(&desired).await.unwrap();
    world.by_hand(CONFIG_MAP, &json!({"data": {"a": "2"}}));
    let made = Writer::new(&blind, "controller").apply(&desired).await.unwrap();
    assert_eq!(made.data.unwrap()["a"], "1");
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_died_after_the_creation_goes_on_where_it_was() {
    let world = World::new().await;
    world.server.fail(Fault::Refuse("patch", 500));
    world.writer.apply(&child("1")).await.unwrap_err();
    world.settle().await;
    let mut desired = child("1");
    desired.data = None;
    Writer::new(&world.context, "controller").apply(&desired).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP).pointer("/data/a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_child_of_an_earlier_owner_of_the_same_name_is_waited_for() {
    let world = World::new().await;
    world.writer.apply(&child("1")).await.unwrap();
    world.settle().await;
    let before = world.stored(CONFIG_MAP);
    let error = world.writer.apply(&child("2")).await.unwrap_err();
    assert_eq!(error.label(), "leftover");
    assert_eq!(world.stored(CONFIG_MAP), before);

    world
        .server
        .edit(|store| store.delete(&Path::parse(CONFIG_MAP), &json!({})))
        .unwrap();
    world.settle().await;
    world.writer.apply(&child("2")).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP)["metadata"]["ownerReferences"][0]["uid"], "2");
}

#[tokio::test(start_paused = true)]
async fn a_child_that_lost_its_owner_is_given_it_back() {
    let world = World::new().await;
    world.writer.apply(&child("1")).await.unwrap();
    world.by_hand(CONFIG_MAP, &json!({"metadata": {"ownerReferences": null}}));
    world.settle().await;
    world.writer.apply(&child("1")).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP)["metadata"]["ownerReferences"][0]["uid"], "1");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_came_in_the_place_of_ours_unseen_is_not_touched() {
    let world = World::new().await;
    world.writer.apply(&child("1")).await.unwrap();
    world.settle().await;
    let path = Path::parse(CONFIG_MAP);
    let stranger = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"theirs": "1"}});
    let stored = world.server.edit(|store| {
        store.delete(&path, &json!({})).unwrap();
        store.create(&path, stranger, "kubectl-create").unwrap()
    });
    let mut desired = child("1");
    desired.data = Some([("a".to_owned(), "2".to_owned())].into());
    let error = world.writer.apply(&desired).await.unwrap_err();
    assert_eq!(error.label(), "conflict");
    let cache = &world.context.caches.config_maps;
    world.writer.prune(cache, "1", &BTreeSet::new()).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP), stored);
}

#[tokio::test(start_paused = true)]
async fn what_was_the_controllers_before_is_shared() {
    let world = World::new().await;
    world.writer.apply(&child("1")).await.unwrap();
    world.settle().await;
    let shared: ConfigMap =
        serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "a", "ownerReferences": [
            {"apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "s", "uid": "5"},
        ]}}))
        .unwrap();
    assert_eq!(world.writer.apply(&shared).await.unwrap_err().label(), "taken");
    let controller = serde_json::from_value(owner("Controller", "c", "1")).unwrap();
    world.writer.apply_shared(&shared, Some(controller)).await.unwrap();
    let references = &world.stored(CONFIG_MAP)["metadata"]["ownerReferences"];
    assert!(
        references.as_array().unwrap().iter().any(|owner| owner["uid"] == "5"),
        "{references}"
    );
}

#[tokio::test(start_paused = true)]
async fn creating_what_exists_is_an_outcome() {
    let world = World::new().await;
    let object = config_map(json!({"key": "first"}));
    assert!(matches!(world.writer.create(&object).await.unwrap(), Created::New(_)));
    assert_eq!(
        world
            .writer
            .create(&config_map(json!({"key": "second"})))
            .await
            .unwrap(),
        Created::Exists
    );
    assert_eq!(world.stored(CONFIG_MAP)["data"], json!({"key": "first"}));
}

#[tokio::test(start_paused = true)]
async fn only_the_object_that_was_meant_is_deleted() {
    let world = World::new().await;
    let made = world.writer.apply(&config_map(json!({}))).await.unwrap();
    world.writer.delete::<ConfigMap>("n", "a", "another").await.unwrap();
    world.stored(CONFIG_MAP);
    world
        .writer
        .delete::<ConfigMap>("n", "a", &made.metadata.uid.unwrap())
        .await
        .unwrap();
    assert!(world.server.store().get(&Path::parse(CONFIG_MAP)).is_err());
    world.writer.delete::<ConfigMap>("n", "a", "gone").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pruning_deletes_the_owners_children_that_are_not_kept() {
    let world = World::new().await;
    for (name, owner) in [("keep", "1"), ("drop", "1"), ("other", "2")] {
        let owner = json!({"apiVersion": "v1", "kind": "K", "name": "o", "uid": owner, "controller": true});
        let child: ConfigMap =
            serde_json::from_value(json!({"metadata": {"namespace": "n", "name": name, "ownerReferences": [owner]}}))
                .unwrap();
        world.writer.apply(&child).await.unwrap();
    }
    world.settle().await;
    let keep = BTreeSet::from(["keep".to_owned()]);
    let cache = &world.context.caches.config_maps;
    assert_eq!(world.writer.prune(cache, "1", &keep).await.unwrap(), 1);
    world.settle().await;
    let left: Vec<String> = cache
        .all()
        .iter()
        .map(|object| object.metadata.name.clone().unwrap())
        .collect();
    assert_eq!(left, ["keep", "other"]);
    assert_eq!(world.writer.prune(cache, "1", &keep).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_status_is_written_only_if_it_differs() {
    let world = World::new().await;
    let path = Path::parse("/apis/slinky.slurm.net/v1beta1/namespaces/n/controllers/c");
    let object =
        json!({"apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "metadata": {"name": "c"}, "spec": {}});
    let stored = world.server.edit(|store| store.create(&path, object, "user")).unwrap();
    let observed: Controller = serde_json::from_value(stored).unwrap();
    let status = json!({"conditions": []});
    world.writes();
    assert!(world.writer.status(&observed, status.clone()).await.unwrap());
    let stored = world.server.store().get(&path).unwrap();
    assert_eq!(stored["status"], status);
    let observed: Controller = serde_json::from_value(stored).unwrap();
    assert!(!world.writer.status(&observed, status).await.unwrap());
    assert_eq!(world.writes(), ["merge"]);

    let gone = Controller {
        metadata: kube::core::ObjectMeta {
            uid: Some("another".to_owned()),
            ..observed.metadata.clone()
        },
        ..observed
    };
    assert!(
        !world.writer.status(&gone, json!({"x": 1})).await.unwrap(),
        "another object of that name has its own"
    );
}

#[tokio::test(start_paused = true)]
async fn a_field_the_server_does_not_take_is_sent_once() {
    let world = World::new().await;
    world.server.edit(|store| store.drop_field("/data/new"));
    let desired = config_map(json!({"a": "1", "new": "1"}));
    world.writer.apply(&desired).await.unwrap();
    world.settle().await;
    world.writes();
    world.writer.apply(&desired).await.unwrap();
    assert!(world.writes().is_empty());
    world.by_hand(CONFIG_MAP, &json!({"data": {"a": "2"}}));
    world.settle().await;
    world.writer.apply(&desired).await.unwrap();
    assert_eq!(
        world.stored(CONFIG_MAP)["data"],
        json!({"a": "1"}),
        "other differences are seen all the same"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_an_error_with_a_name() {
    let world = World::new().await;
    world.server.fail(Fault::Hang("apply"));
    let error = world.writer.apply(&config_map(json!({}))).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot apply ConfigMap n/a: no answer within 20s");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_what_kind_it_is() {
    let world = World::new().await;
    world.server.fail(Fault::Refuse("apply", 403));
    let error = world.writer.apply(&config_map(json!({}))).await.unwrap_err();
    assert_eq!(error.label(), "api");
    world.server.fail(Fault::Refuse("apply", 422));
    let error = world.writer.apply(&config_map(json!({}))).await.unwrap_err();
    assert_eq!(error.label(), "refused");
}

#[test]
fn a_field_that_cannot_change_is_told_from_other_refusals() {
    let read = |code: u16, reason: &str, message: &str| {
        let status = kube::core::Status {
            code,
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..kube::core::Status::default()
        };
        refusal::read(
            "apply",
            "StatefulSet",
            &Key::new("n", "a"),
            kube::Error::Api(Box::new(status)),
        )
        .label()
    };
    let statefulset = "StatefulSet.apps \"a\" is invalid: spec: Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden";
    assert_eq!(read(422, "Invalid", statefulset), "immutable");
    assert_eq!(
        read(
            422,
            "Invalid",
            "Service \"a\" is invalid: spec.clusterIPs[0]: Invalid value: may not change once set"
        ),
        "immutable"
    );
    assert_eq!(read(422, "Invalid", "spec.ports: Required value"), "refused");
    assert_eq!(
        read(
            422,
            "Invalid",
            "Pod \"a\" is invalid: metadata.uid: Invalid value: \"1\": field is immutable"
        ),
        "conflict"
    );
    assert_eq!(read(409, "Conflict", "the object has been modified"), "conflict");
    assert_eq!(read(409, "AlreadyExists", ""), "api");
    assert_eq!(read(500, "InternalError", ""), "api");
}

const POD: &str = "/api/v1/namespaces/n/pods/p";

/// A pod that the kubelet calls ready, as the caches hold it.
async fn ready_pod(world: &World) -> Arc<Pod> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "labels": {"app.kubernetes.io/name": "slurmd"}},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let path = Path::parse("/api/v1/namespaces/n/pods");
    world.server.edit(|store| store.create(&path, pod, "kubelet")).unwrap();
    cached_pod(world).await
}

async fn cached_pod(world: &World) -> Arc<Pod> {
    world.settle().await;
    world.context.caches.pods.get("n", "p").unwrap()
}

fn slurm_conditions(types: &[&str]) -> Vec<PodCondition> {
    let made = types.iter().map(|type_| PodCondition {
        type_: format!("SlurmNodeState{type_}"),
        status: "True".to_owned(),
        ..PodCondition::default()
    });
    made.collect()
}

/// Types and statuses, as the server has them.
fn stored_conditions(world: &World) -> Vec<(String, String)> {
    let pod: Pod = serde_json::from_value(world.stored(POD)).unwrap();
    let conditions = pod.status.unwrap().conditions.unwrap();
    conditions
        .into_iter()
        .map(|condition| (condition.type_, condition.status))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn conditions_of_a_pod_are_written_beside_the_kubelets() {
    let world = World::new().await;
    let pod = ready_pod(&world).await;
    let write = |pod: Arc<Pod>, types: &'static [&'static str]| {
        let writer = world.writer.clone();
        async move {
            let (wanted, now) = (slurm_conditions(types), jiff::Timestamp::UNIX_EPOCH);
            writer
                .pod_conditions(&pod, "SlurmNodeState", &wanted, now)
                .await
                .unwrap()
        }
    };
    let pair = |type_: &str, status: &str| (type_.to_owned(), status.to_owned());

    let kubelet = Path::parse(&format!("{POD}/status"));
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    world
        .server
        .edit(|store| store.strategic_merge(&kubelet, &not_ready, "kubelet"))
        .unwrap();
    assert!(write(pod, &["Idle", "Drain"]).await);
    assert_eq!(
        stored_conditions(&world),
        [
            pair("Ready", "False"),
            pair("SlurmNodeStateIdle", "True"),
            pair("SlurmNodeStateDrain", "True")
        ],
        "what the kubelet said after we looked stays"
    );

    let pod = cached_pod(&world).await;
    world.writes();
    assert!(!write(pod.clone(), &["Drain", "Idle"]).await);
    assert!(world.writes().is_empty());

    assert!(write(pod, &["Idle"]).await);
    assert_eq!(
        stored_conditions(&world),
        [pair("Ready", "False"), pair("SlurmNodeStateIdle", "True")]
    );
}

#[tokio::test(start_paused = true)]
async fn another_pod_of_the_same_name_gets_no_conditions() {
    let world = World::new().await;
    let pod = ready_pod(&world).await;
    world
        .server
        .edit(|store| store.delete(&Path::parse(POD), &json!({})))
        .unwrap();
    let now = jiff::Timestamp::UNIX_EPOCH;
    let wanted = slurm_conditions(&["Idle"]);
    let write = || world.writer.pod_conditions(&pod, "SlurmNodeState", &wanted, now);
    assert!(!write().await.unwrap());
    ready_pod(&world).await;
    assert!(!write().await.unwrap());
    assert_eq!(stored_conditions(&world).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn fields_newer_than_our_types_reach_the_server() {
    let world = World::new().await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "n", "name": "p"},
        "spec": {"containers": [{"name": "slurmd", "fromTheFuture": true}], "fromTheFuture": {"a": 1}},
    });
    let made = world.writer.create_json::<Pod>(&pod).await.unwrap();
    assert!(matches!(made, Created::New(_)));
    assert_eq!(world.stored(POD)["spec"], pod["spec"]);
    assert_eq!(world.writer.create_json::<Pod>(&pod).await.unwrap(), Created::Exists);
}

/// As upstream made it: with a variable and a label that we do not want, and a strategy.
fn make_upstreams(world: &World) {
    let mut object = serde_json::to_value(stateful_set(&["A", "OLD"])).unwrap();
    object["metadata"]["labels"]["theirs"] = "1".into();
    object["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
    let path = Path::parse("/apis/apps/v1/namespaces/n/statefulsets");
    world
        .server
        .edit(|store| store.create(&path, object, "manager"))
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_upstream_wrote_is_ours_to_remove() {
    let world = World::new().await;
    make_upstreams(&world);
    world.by_hand(STATEFUL_SET, &json!({"metadata": {"annotations": {"note": "mine"}}}));
    world.settle().await;
    let desired = stateful_set(&["A"]);
    world.writer.apply(&desired).await.unwrap();
    assert_eq!(world.writes(), ["patch", "apply"], "the fields first, then all at once");
    let stored = world.stored(STATEFUL_SET);
    assert_eq!(stored.pointer("/metadata/labels/theirs"), None);
    assert_eq!(stored.pointer("/spec/updateStrategy/type"), None);
    assert_eq!(
        stored.pointer("/spec/template/spec/containers/0/env"),
        Some(&json!([{"name": "A", "value": "x"}]))
    );
    assert_eq!(stored.pointer("/metadata/annotations/note"), Some(&json!("mine")));
    world.settle().await;
    world.writer.apply(&desired).await.unwrap();
    assert!(world.writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_died_while_it_took_over_goes_on_where_it_was() {
    let world = World::new().await;
    make_upstreams(&world);
    world.settle().await;
    world.server.fail(Fault::Refuse("apply", 500));
    let desired = stateful_set(&["A"]);
    world.writer.apply(&desired).await.unwrap_err();
    world.settle().await;
    Writer::new(&world.context, "controller").apply(&desired).await.unwrap();
    assert_eq!(world.stored(STATEFUL_SET).pointer("/metadata/labels/theirs"), None);
}
