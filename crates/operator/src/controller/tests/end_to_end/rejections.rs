//! Rejected, failed and repeated pushes.

use super::*;

#[tokio::test]
async fn status_and_history_show_accepted_and_rejected_changes() {
    let world = World::new(&json!({})).await;
    world.until_settled().await;
    assert_eq!(world.history(), ["accepted-00000001"]);
    assert_eq!(world.configuration()["delivery"], "Written");

    world.extra_conf("SchedulerParameters=Typo");
    world
        .until("refused", |world| world.configuration()["rejected"]["by"] == "DryRun")
        .await;
    let refused = world.configuration();
    assert_eq!(
        (&refused["rejected"]["sequence"], &refused["applied"]["sequence"]),
        (&json!(2), &json!(1))
    );
    world.extra_conf("SchedulerParameters=Nonsense");
    world
        .until("refused", |world| {
            world.configuration()["rejected"]["by"] == "Slurmctld"
        })
        .await;

    world.extra_conf("SchedulerParameters=defer");
    world.until_settled().await;
    let taken = world.configuration();
    assert_eq!(taken["applied"]["sequence"], 4);
    assert_eq!(taken["lastChange"]["action"], "Reconfigure");
    assert_eq!(taken["lastChange"]["steps"][0]["milliseconds"], 80);
    assert_eq!(taken["delivery"], "Agent");
    assert!(taken.get("rejected").is_none(), "{taken:#}");
    assert_eq!(
        world.history(),
        [
            "accepted-00000001",
            "accepted-00000004",
            "rejected-00000002",
            "rejected-00000003"
        ]
    );
    world.server.writes();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.server.writes(), [], "nothing is written without a change");
}

#[tokio::test]
async fn a_push_that_the_agent_fails_to_apply_is_retried() {
    let world = World::new(&json!({})).await;
    world.until_settled().await;
    world.agent.lock().disk_full = true;
    world.extra_conf("SchedulerParameters=defer");
    world
        .until("reported", |world| {
            world.condition("ConfigurationApplied") == "False: Retrying"
        })
        .await;
    world
        .until("retried", |world| world.agent.lock().pushes.len() > 1)
        .await;
    assert_eq!(world.condition("ConfigurationApplied"), "False: Retrying");
    world.agent.lock().disk_full = false;
    world.until_settled().await;
    assert!(world.slurm_conf().contains("defer"));
}

#[tokio::test]
async fn a_dry_run_that_does_not_end_does_not_delay_other_inputs() {
    let world = World::new(&json!({ "extraConf": "SchedulerTimeSlice=10" })).await;
    world.until_settled().await;
    world.server.edit(|store| {
        let spec = json!({ "partition": { "config": "MaxTime=5" } });
        let node_set = crate::controller::tests::node_set("a", "2026-01-01T00:00:00Z", spec);
        store.create(&at("nodesets", ""), node_set, "kubectl").unwrap();
        let patch = json!({ "spec": { "extraConf": "NodeName=n1 NodeAddr=unresolvable" } });
        store.merge(&at("controllers", "slurm"), &patch, "kubectl").unwrap();
    });
    world
        .until("the rest is live", |world| {
            let held = world.configuration()["heldInputs"].to_string();
            world.slurm_conf().contains("PartitionName=a Nodes=a MaxTime=5\n")
                && held.contains("getaddrinfo() failed; it is retried every minute")
        })
        .await;
    assert!(!world.slurm_conf().contains("unresolvable"));
    let pushes = world.agent.lock().pushes.len();
    assert!(pushes <= 8, "{pushes}");
}

#[tokio::test]
async fn a_new_leader_polls_during_a_push_and_does_not_push_twice() {
    let mut world = World::new(&json!({})).await;
    world.until_settled().await;
    world.agent.lock().slow = true;
    world.extra_conf("SchedulerParameters=defer");
    world
        .until("pushed", |world| world.agent.lock().pushes.len() == 1)
        .await;
    let polls = world.agent.lock().polls;
    world.replace_operator().await;
    world
        .until("polled", |world| world.agent.lock().polls > polls + 1)
        .await;
    assert_ne!(world.condition("ConfigurationApplied"), "True: Applied");
    world.agent.lock().slow = false;
    world.until_settled().await;
    assert!(world.slurm_conf().contains("defer"));
    assert_eq!(world.agent.lock().pushes.len(), 1);
    assert_eq!(world.history(), ["accepted-00000001", "accepted-00000002"]);
}

/// Has an edit rejected under one leader, and runs the next one for a while. Returns the status and the history before
/// the takeover.
async fn rejected_under_one_leader(world: &mut World, extra_conf: &str) -> (Value, Vec<String>) {
    world.until_settled().await;
    world.extra_conf(extra_conf);
    world
        .until("refused", |world| {
            let status = world.configuration();
            status["rejected"]["sequence"] == 2 && status["heldInputs"][0]["source"] == "spec.extraConf"
        })
        .await;
    let before = (world.configuration(), world.history());
    let polls = world.agent.lock().polls;
    world.replace_operator().await;
    world.until("polled", |world| world.agent.lock().polls > polls).await;
    world
        .until("reported again", |world| {
            world.condition("ConfigurationApplied") == "False: ConfigRejected"
        })
        .await;
    sleep(Duration::from_millis(1500)).await;
    before
}

#[tokio::test]
async fn a_revision_rolled_back_under_one_leader_is_not_retried_by_the_next() {
    let mut world = World::new(&json!({})).await;
    let (refused, _) = rejected_under_one_leader(&mut world, "SchedulerParameters=Nonsense").await;
    assert_eq!(world.agent.lock().pushes.len(), 1);
    assert_eq!(world.configuration(), refused);
}

#[tokio::test]
async fn a_revision_that_a_dry_run_rejected_under_one_leader_is_not_retried_by_the_next() {
    let mut world = World::new(&json!({})).await;
    let (refused, history) = rejected_under_one_leader(&mut world, "SchedulerParameters=Typo").await;
    assert_eq!(world.agent.lock().pushes.len(), 1);
    assert_eq!(world.configuration(), refused);
    assert_eq!(world.history(), history);
    world.extra_conf("SchedulerParameters=defer");
    world.until_settled().await;
    assert!(world.slurm_conf().contains("defer"));
}

#[tokio::test]
async fn a_restart_comes_after_a_dry_run() {
    let world = World::new(&json!({ "configUpdate": "Restart" })).await;
    world.until_settled().await;
    let hash = |world: &World| {
        let set = world.get("statefulsets", "slurm-controller").unwrap_or_default();
        set["spec"]["template"]["metadata"]["annotations"]["slinky.slurm.net/slurm-config-hash"].clone()
    };
    let before = hash(&world);
    assert_eq!(world.agent.lock().checks, 0);
    world.agent.lock().silent = true;
    world.extra_conf("SchedulerParameters=defer");
    world
        .until("the agent is unreachable", |world| {
            world.condition("ConfigurationApplied") == "False: AgentAway"
        })
        .await;
    assert_eq!(hash(&world), before, "it has not been checked");
    world.agent.lock().silent = false;
    world.until("another template", |world| hash(world) != before).await;
    assert_eq!(world.agent.lock().checks, 1);
    assert!(world.slurm_conf().contains("defer"));
}
