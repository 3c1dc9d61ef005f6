//! Changes of partitions without a reconfigure.

use super::*;

#[tokio::test]
async fn a_change_of_partitions_alone_needs_no_reconfigure() {
    let mut pod = Pod::running(&revision(1, BEFORE)).await;
    // There is no dry run.
    pod.tool("slurmctld", "exit 1");
    let after = "PartitionName=a Nodes=n1 MaxTime=9 Default=YES\nPartitionName=b Nodes=n1\nPartitionName=c Nodes=n2 State=DRAIN\n";
    let pushed = pod.push(&revision(2, after)).await;
    assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
    assert_eq!(pushed.action, Action::PartitionRpc);
    assert_eq!(steps(&pushed), [Phase::PartitionsLive, Phase::Swapped, Phase::Verified]);
    assert_eq!(pod.lives().len(), 1, "no reconfigure");
    assert_eq!(pod.conf(), after);
    assert_eq!(pod.stored(), [1, 2]);
    assert_eq!(pod.partition("a").unwrap().max_time, 9);
    assert_eq!(
        pod.partition("c").unwrap().state.name(),
        Some(PartitionStateName::Drain)
    );
    assert_eq!(pod.orders(), ["create c", "update a", "update c"], "b is left alone");
    assert_eq!(
        pod.legacy_log()[1..],
        ["Reconfiguring Slurm...", "SUCCESS"],
        "the legacy log"
    );

    // A removed key gets Slurm's default.
    let last = after.replace(" MaxTime=9", "");
    let pushed = pod.push(&revision(3, &last)).await;
    assert_eq!(pushed.action, Action::PartitionRpc);
    assert_eq!(pod.partition("a").unwrap().max_time, u32::MAX);

    // Neither the next agent nor a restarted slurmctld needs anything.
    pod.kill_agent();
    pod.serve();
    let status = pod.phase(Phase::Verified).await;
    assert_eq!(status.live, Some(revision(3, &last).summary()));
    assert_eq!(pod.lives().len(), 1, "no reconfigure");
    assert_eq!(pod.orders().len(), 4);
    kill(*pod.lives().last().unwrap(), Signal::SIGKILL).unwrap();
    pod.status_that("slurmctld is back", |status| {
        status
            .slurmctld
            .as_ref()
            .is_some_and(|slurmctld| slurmctld.restarts == 1)
    })
    .await;
    // Any other change takes a reconfigure.
    let pushed = pod.push(&revision(4, &format!("{last}MaxJobCount=5\n"))).await;
    assert!(matches!(pushed.outcome, Outcome::Rejected(_)) || pushed.action == Action::Reconfigure);
}

#[tokio::test]
async fn a_change_that_no_rpc_can_express_takes_a_reconfigure() {
    let pod = Pod::running(&revision(1, BEFORE)).await;
    let pushed = pod.push(&revision(2, &BEFORE.replace("MaxTime=5", "MaxTime=6"))).await;
    assert_eq!(pushed.action, Action::PartitionRpc);
    let pushed = pod
        .push(&revision(3, &BEFORE.replace("MaxTime=5", "DefaultTime=3")))
        .await;
    assert_eq!(pushed.action, Action::PartitionRpc);
    assert_eq!(pod.lives().len(), 1);
    let pushed = pod.push(&revision(4, BEFORE)).await;
    assert_eq!(pushed.outcome, Outcome::Applied);
    assert_eq!(pushed.action, Action::Reconfigure, "no RPC removes a DefaultTime");
    assert_eq!(pod.lives().len(), 2);
}

/// A slurmctld with an unknown protocol version, another key, or garbage as its response: each is reconfigured.
#[tokio::test]
async fn a_slurmctld_without_a_channel_takes_a_reconfigure() {
    let pod = Pod::running(&revision(1, BEFORE)).await;
    for (sequence, dialect) in [(2, "other version"), (3, "other key"), (4, "garbage")] {
        fs::write(pod.path("dialect"), dialect).unwrap();
        let conf = BEFORE.replace("MaxTime=5", &format!("MaxTime=1{sequence}"));
        let pushed = pod.push(&revision(sequence, &conf)).await;
        assert_eq!(pushed.outcome, Outcome::Applied, "{dialect}: {pushed:?}");
        assert_eq!(pushed.action, Action::Reconfigure, "{dialect}");
        assert_eq!(
            pod.partition("a").unwrap().max_time,
            10 + u32::try_from(sequence).unwrap()
        );
        assert_eq!(pod.conf(), conf);
    }
}

/// The same with an scontrol that works.
#[tokio::test]
async fn scontrol_replaces_the_protocol_where_that_does_not_work() {
    for dialect in ["other version", "other key", "garbage"] {
        let pod = Pod::running(&revision(1, BEFORE)).await;
        pod.jobs("", "");
        pod.scontrol();
        fs::write(pod.path("dialect"), dialect).unwrap();
        let after = BEFORE.replace("MaxTime=5", "MaxTime=9") + "PartitionName=c Nodes=n2 MaxTime=4 State=DRAIN\n";
        let pushed = pod.push(&revision(2, &after)).await;
        assert_eq!(pushed.outcome, Outcome::Applied, "{dialect}: {pushed:?}");
        assert_eq!(
            (pushed.action, pushed.way),
            (Action::PartitionRpc, UpdateChannel::Scontrol)
        );
        assert_eq!(pod.partition("a").unwrap().max_time, 9);
        let c = pod.partition("c").unwrap();
        assert_eq!(
            (c.nodes.as_str(), c.state.name()),
            ("n2", Some(PartitionStateName::Drain))
        );
        assert_eq!(pod.conf(), after);

        // A rejected change is reverted, and its reason reported.
        let before = pod.partitions();
        let refused = pod
            .push(&revision(
                3,
                &after.replace("Nodes=n2 MaxTime=4", "Nodes=nowhere MaxTime=7"),
            ))
            .await;
        let Outcome::RolledBack(why) = &refused.outcome else {
            panic!("{dialect}: {refused:?}")
        };
        assert!(why.reason.contains("Invalid node name specified"), "{why:?}");
        assert_eq!((pod.partitions(), pod.conf()), (before, after.clone()));

        // Manual changes are restored, too.
        let by_hand = pod.slurmctld_by(fake_daemon::SCONTROL);
        let changed = PartitionUpdate {
            max_time: Some(3),
            ..PartitionUpdate::new("a")
        };
        by_hand.update_partition(&changed).await.unwrap();
        let order = PartitionCommand {
            partition: "a".to_owned(),
            restore: vec!["MaxTime".to_owned()],
        };
        let restored = pod.client().command_partition(&order, fence(20)).await.unwrap();
        assert!(restored.left.is_empty(), "{restored:?}");
        assert_eq!(pod.partition("a").unwrap().max_time, 9);

        // A partition is removed only without jobs.
        pod.jobs("c", "RUNNING");
        let in_use = pod.push(&revision(21, &BEFORE.replace("MaxTime=5", "MaxTime=9"))).await;
        assert!(matches!(in_use.outcome, Outcome::PartitionsInUse { .. }), "{in_use:?}");
        assert!(pod.partition("c").is_some());
        pod.jobs("", "");
        let gone = pod.push(&revision(22, &BEFORE.replace("MaxTime=5", "MaxTime=9"))).await;
        assert_eq!((gone.outcome, gone.way), (Outcome::Applied, UpdateChannel::Scontrol));
        assert_eq!(pod.partition("c"), None);
        assert_eq!(pod.lives().len(), 1, "{dialect}: no reconfigure");

        // A setting that cannot be read back takes a reconfigure.
        let gpus = BEFORE.replace("MaxTime=5", "MaxTime=9 DefCPUPerGPU=2");
        let pushed = pod.push(&revision(23, &gpus)).await;
        assert_eq!((pushed.outcome, pushed.action), (Outcome::Applied, Action::Reconfigure));
    }
}

#[tokio::test]
async fn a_partition_that_slurmctld_rejects_or_ignores_is_reverted() {
    let pod = Pod::running(&revision(1, BEFORE)).await;
    let before = pod.partitions();
    let bad =
        "PartitionName=a Nodes=n1 MaxTime=9 Default=YES\nPartitionName=b Nodes=nowhere\nPartitionName=c Nodes=n1\n";
    let pushed = pod.push(&revision(2, bad)).await;
    let Outcome::RolledBack(refused) = &pushed.outcome else {
        panic!("{pushed:?}")
    };
    assert!(refused.reason.contains("PartitionName=b: "), "{refused:?}");
    assert!(refused.reason.contains("ESLURM_INVALID_NODE_NAME"), "{refused:?}");
    assert_eq!(pod.partitions(), before);
    assert_eq!((pod.conf().as_str(), pod.stored()), (BEFORE, vec![1]));
    assert_eq!(pushed.status.rolled_back.as_ref(), Some(refused));

    fs::write(pod.path("careless"), "").unwrap();
    let ignored = BEFORE.replace("MaxTime=5", "MaxTime=6 DefaultTime=30");
    let pushed = pod.push(&revision(3, &ignored)).await;
    let Outcome::RolledBack(refused) = &pushed.outcome else {
        panic!("{pushed:?}")
    };
    assert!(
        refused
            .reason
            .contains(r#"did not apply DefaultTime: wanted "30", it has "UNLIMITED or none""#),
        "{refused:?}"
    );
    fs::remove_file(pod.path("careless")).unwrap();
    // No RPC removes a DefaultTime: a reconfigure with the old files reverts it.
    pod.status_that("it is as before", |status| {
        status.phase == Phase::Verified && pod.lives().len() == 2
    })
    .await;
    assert_eq!(pod.partitions(), before);
    assert_eq!((pod.conf().as_str(), pod.stored()), (BEFORE, vec![1]));
    let pushed = pod.push(&revision(4, &BEFORE.replace("MaxTime=5", "MaxTime=7"))).await;
    assert_eq!(pushed.outcome, Outcome::Applied);
    assert_eq!(pushed.status.rolled_back, None);
}

/// slurmctld is updated, dies, and restarts with the old files a moment before the swap.
#[tokio::test]
async fn a_slurmctld_that_restarts_before_the_swap_is_updated_again() {
    let mut pod = Pod::running(&revision(1, BEFORE)).await;
    let after = BEFORE
        .replace("MaxTime=5", "MaxTime=9")
        .replace("b Nodes=n1", "b Nodes=n1 State=DRAIN");
    let pushed = pod
        .push_stopping_at("durable", &revision(2, &after), async |pod: &Pod| {
            assert_eq!(pod.partition("a").unwrap().max_time, 9);
            kill(*pod.lives().last().unwrap(), Signal::SIGKILL).unwrap();
            let start = Instant::now();
            while pod.partition("a").unwrap().max_time != 5 {
                assert!(start.elapsed() < TIMEOUT, "slurmctld is not back");
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
    assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
    assert_eq!((pod.conf(), pod.lives().len()), (after, 2), "no reconfigure");
    assert_eq!(pod.partition("a").unwrap().max_time, 9);
    let b = pod.partition("b").unwrap().state.name();
    assert_eq!(b, Some(PartitionStateName::Drain));
}
