//! Fields of the upstream operator.

use super::*;

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
async fn upstreams_fields_are_ours_to_remove() {
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
async fn an_operator_that_died_during_the_takeover_continues() {
    let world = World::new().await;
    make_upstreams(&world);
    world.settle().await;
    world.server.fail(Fault::Refuse("apply", 500));
    let desired = stateful_set(&["A"]);
    world.writer.apply(&desired).await.unwrap_err();
    world.settle().await;
    Writer::new::<Controller>(&world.context).apply(&desired).await.unwrap();
    assert_eq!(world.stored(STATEFUL_SET).pointer("/metadata/labels/theirs"), None);
}
