//! What an apply sends and removes.

use super::*;

#[tokio::test(start_paused = true)]
async fn applying_the_same_again_sends_no_request() {
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

    let started_again = Writer::new::<Controller>(&world.context);
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
async fn a_field_that_is_no_longer_desired_is_removed() {
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
async fn a_field_that_is_no_longer_desired_is_removed_also_after_a_restart() {
    let world = World::new().await;
    let labelled: ConfigMap =
        serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "a", "labels": {"old": "1"}}})).unwrap();
    world.writer.apply(&labelled).await.unwrap();
    world.settle().await;
    let started_again = Writer::new::<Controller>(&world.context);
    let plain: ConfigMap = serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "a"}})).unwrap();
    started_again.apply(&plain).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP).pointer("/metadata/labels/old"), None);
}

#[tokio::test(start_paused = true)]
async fn an_edit_by_hand_is_reverted() {
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
async fn a_field_that_is_removed_and_restored_by_hand_is_ours_again() {
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
async fn foreign_entries_are_removed_where_all_is_ours() {
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
async fn an_object_that_changed_in_the_meantime_is_read_again() {
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
async fn a_field_of_the_create_can_be_removed_right_after_it() {
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
async fn a_foreign_change_is_kept_and_costs_one_request() {
    let world = World::new().await;
    let desired = config_map(json!({"a": "1"}));
    world.writer.apply(&desired).await.unwrap();
    world.settle().await;
    world.by_hand(CONFIG_MAP, &json!({"metadata": {"labels": {"theirs": "1"}}}));
    world.settle().await;
    world.writes();
    let before = world.stored(CONFIG_MAP);
    for _ in 0..3 {
        world.writer.apply(&desired).await.unwrap();
    }
    assert_eq!(world.writes(), ["apply"]);
    assert_eq!(world.stored(CONFIG_MAP), before, "and nothing changed by it");
}

#[tokio::test(start_paused = true)]
async fn a_late_write_of_a_former_leader_is_reverted() {
    let world = World::new().await;
    let desired = config_map(json!({"a": "1"}));
    world.writer.apply(&desired).await.unwrap();
    world.settle().await;
    let former = Writer::new::<Controller>(&world.context);
    former.apply(&config_map(json!({"a": "2"}))).await.unwrap();
    world.settle().await;
    world.writer.apply(&desired).await.unwrap();
    assert_eq!(world.stored(CONFIG_MAP)["data"], json!({"a": "1"}));
}
