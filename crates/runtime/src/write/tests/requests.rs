//! Creates, deletes, statuses and errors.

use super::*;

#[tokio::test(start_paused = true)]
async fn creating_what_exists_is_an_outcome() {
    let world = World::new().await;
    let object = config_map(json!({"key": "first"}));
    assert!(world.writer.create(&object).await.unwrap().is_some());
    assert_eq!(
        world
            .writer
            .create(&config_map(json!({"key": "second"})))
            .await
            .unwrap(),
        None
    );
    assert_eq!(world.stored(CONFIG_MAP)["data"], json!({"key": "first"}));
}

#[tokio::test(start_paused = true)]
async fn only_the_object_with_the_uid_is_deleted() {
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
async fn a_leader_that_was_paused_beyond_its_lease_deletes_nothing() {
    let world = World::new().await;
    let made = world.writer.apply(&config_map(json!({}))).await.unwrap();
    let lease = Duration::from_secs(10);
    let until = tokio::time::Instant::now() + lease;
    world.context.fence.begin(2, jiff::Timestamp::UNIX_EPOCH, Some(until));
    world.writer.check_unchanged(&made).await.unwrap();
    tokio::time::advance(lease).await;
    world.writes();
    let error = world.writer.delete_unchanged(&made, None).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot delete ConfigMap n/a: this process no longer leads"
    );
    assert!(world.writes().is_empty());
    world.writer.get::<ConfigMap>("n", "a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_write_ends_before_another_process_could_lead() {
    let world = World::new().await;
    let until = tokio::time::Instant::now() + Duration::from_secs(3);
    world.context.fence.begin(2, jiff::Timestamp::UNIX_EPOCH, Some(until));
    world.server.fail(Fault::Hang("create"));
    let error = world.writer.create(&config_map(json!({}))).await.unwrap_err();
    assert_eq!(error.label(), "silent");
    assert!(tokio::time::Instant::now() <= until + Duration::from_millis(1));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_has_changed_since_it_was_observed_is_not_deleted() {
    let world = World::new().await;
    let observed = world.writer.apply(&config_map(json!({"a": "1"}))).await.unwrap();
    world.by_hand(CONFIG_MAP, &json!({"data": {"a": "2"}}));
    let checked = world.writer.check_unchanged(&observed).await;
    assert_eq!(checked.unwrap_err().label(), "conflict");
    let deleted = world.writer.delete_unchanged(&observed, None).await;
    assert_eq!(deleted.unwrap_err().label(), "conflict");
    let now: ConfigMap = world.writer.get("n", "a").await.unwrap();
    world.writer.check_unchanged(&now).await.unwrap();
    world.writer.delete_unchanged(&now, None).await.unwrap();
    assert!(world.server.store().get(&Path::parse(CONFIG_MAP)).is_err());
    world.writer.delete_unchanged(&now, None).await.unwrap();
    let checked = world.writer.check_unchanged(&now).await;
    assert_eq!(checked.unwrap_err().label(), "conflict", "it is gone");
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
    let cache = &world.context.registry.cache::<ConfigMap>();
    world.writes();
    world.writer.prune(cache, "1", &keep).await.unwrap();
    assert_eq!(world.writes(), ["delete"]);
    world.settle().await;
    let left: Vec<String> = cache
        .all()
        .iter()
        .map(|object| object.metadata.name.clone().unwrap())
        .collect();
    assert_eq!(left, ["keep", "other"]);
    world.writer.prune(cache, "1", &keep).await.unwrap();
    assert!(world.writes().is_empty());
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
async fn a_field_that_the_server_drops_is_sent_once() {
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
async fn a_missing_response_is_an_error_of_its_own() {
    let world = World::new().await;
    world.server.fail(Fault::Hang("apply"));
    let error = world.writer.apply(&config_map(json!({}))).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot apply ConfigMap n/a: no response within 20s");
}

#[tokio::test(start_paused = true)]
async fn an_error_has_the_label_of_its_class() {
    let world = World::new().await;
    world.server.fail(Fault::Refuse("apply", 403));
    let error = world.writer.apply(&config_map(json!({}))).await.unwrap_err();
    assert_eq!(error.label(), "api");
    world.server.fail(Fault::Refuse("apply", 422));
    let error = world.writer.apply(&config_map(json!({}))).await.unwrap_err();
    assert_eq!(error.label(), "refused");
}

#[test]
fn an_immutable_field_is_distinguished_from_other_errors() {
    let read = |code: u16, reason: &str, message: &str| {
        let status = kube::core::Status {
            code,
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..kube::core::Status::default()
        };
        let error = kube::Error::Api(Box::new(status));
        Error::of_request("apply", "StatefulSet n/a".to_owned(), error).label()
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

#[tokio::test(start_paused = true)]
async fn fields_newer_than_our_types_reach_the_server() {
    let world = World::new().await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "n", "name": "p"},
        "spec": {"containers": [{"name": "slurmd", "fromTheFuture": true}], "fromTheFuture": {"a": 1}},
    });
    let made = world.writer.create_json::<Pod>(&pod).await.unwrap();
    assert!(made.is_some());
    assert_eq!(world.stored(POD)["spec"], pod["spec"]);
    assert_eq!(world.writer.create_json::<Pod>(&pod).await.unwrap(), None);
}
