//! Conditions of pods.

use super::*;

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
    world.context.registry.cache::<Pod>().get("n", "p").unwrap()
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
