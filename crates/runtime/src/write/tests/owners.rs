//! Which existing objects an apply changes.

use super::*;
use crate::Signal;

#[tokio::test(start_paused = true)]
async fn a_child_of_another_owner_is_not_changed() {
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
        "ConfigMap n/a already exists and belongs to Controller c1; it is left unchanged. Delete it if it is not needed, \
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
async fn a_foreign_object_is_left_unchanged_and_replaced_when_it_is_gone() {
    for (whose, stranger, cached) in strangers() {
        let world = World::new().await;
        let mut signals = world.context.triggers.listen::<Controller>();
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
        let cache = &world.context.registry.cache::<StatefulSet>();
        world.writer.prune(cache, "1", &BTreeSet::new()).await.unwrap();
        assert_eq!(world.stored(STATEFUL_SET), stored);

        // The watch reports the deletion, also of an object that is not in the cache.
        world.server.edit(|store| store.delete(&path, &json!({}))).unwrap();
        world.settle().await;
        let mut signals = std::iter::from_fn(|| signals.try_recv().ok());
        let woken = signals.find_map(|signal| match signal {
            Signal::Wake(key) => Some(key),
            _ => None,
        });
        assert_eq!(woken, Some(Key::new("n", "c")), "{whose}");
        world.writer.apply(&desired).await.unwrap();
        assert_eq!(world.stored(STATEFUL_SET)["metadata"]["ownerReferences"][0]["uid"], "1");
    }
}

#[tokio::test(start_paused = true)]
async fn a_taken_name_is_retried_after_a_while() {
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
    tokio::time::sleep(TAKEN_RETRY).await;
    world.writer.apply(&desired).await.unwrap_err();
    assert_eq!(world.writes(), ["create"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_of_another_leader_is_ours_before_the_watch_delivers_it() {
    let world = World::new().await;
    let blind = Context::for_tests(world.server.client(), registry());
    let desired = child("1");
    world.writer.apply(&desired).await.unwrap();
    world.by_hand(CONFIG_MAP, &json!({"data": {"a": "2"}}));
    let made = Writer::new::<Controller>(&blind).apply(&desired).await.unwrap();
    assert_eq!(made.data.unwrap()["a"], "1");
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_died_after_the_create_continues() {
    let world = World::new().await;
    world.server.fail(Fault::Refuse("patch", 500));
    world.writer.apply(&child("1")).await.unwrap_err();
    world.settle().await;
    let mut desired = child("1");
    desired.data = None;
    Writer::new::<Controller>(&world.context).apply(&desired).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP).pointer("/data/a"), None);
}

#[tokio::test(start_paused = true)]
async fn the_deletion_of_an_earlier_owners_child_is_awaited() {
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
async fn a_lost_owner_reference_is_restored() {
    let world = World::new().await;
    world.writer.apply(&child("1")).await.unwrap();
    world.by_hand(CONFIG_MAP, &json!({"metadata": {"ownerReferences": null}}));
    world.settle().await;
    world.writer.apply(&child("1")).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP)["metadata"]["ownerReferences"][0]["uid"], "1");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_replaced_ours_unnoticed_is_not_changed() {
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
    let cache = &world.context.registry.cache::<ConfigMap>();
    world.writer.prune(cache, "1", &BTreeSet::new()).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP), stored);
}

#[tokio::test(start_paused = true)]
async fn a_child_of_the_controller_can_become_shared() {
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
