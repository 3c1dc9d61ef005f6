//! Manual changes and manual states.

use super::*;

#[tokio::test]
async fn manual_changes_are_restored_to_the_files() {
    let pod = Pod::running(&revision(1, BEFORE)).await;
    let by_hand = PartitionUpdate {
        max_time: Some(9),
        default_time: Some(3),
        priority_tier: Some(7),
        ..PartitionUpdate::new("a")
    };
    pod.by_hand().update_partition(&by_hand).await.unwrap();
    let client = pod.client();
    let order = |partition: &str, keys: &[&str]| PartitionCommand {
        partition: partition.to_owned(),
        restore: keys.iter().map(ToString::to_string).collect(),
    };
    let restore = order("a", &["MaxTime", "DefaultTime"]);
    let restored = client.command_partition(&restore, fence(20)).await.unwrap();
    let left: Vec<&String> = restored.left.keys().collect();
    assert_eq!(left, ["DefaultTime"], "no RPC removes it: {restored:?}");
    let a = pod.partition("a").unwrap();
    assert_eq!((a.max_time, a.default_time, a.priority_tier), (5, 3, 7), "no other key");
    assert_eq!(pod.lives().len(), 1, "no reconfigure");

    let unknown = client.command_partition(&order("x", &["MaxTime"]), fence(21)).await;
    assert!(
        matches!(unknown, Err(Error::Refused(Refusal::NoSuchThing))),
        "{unknown:?}"
    );
    fs::write(pod.path("mute"), "").unwrap();
    let silent = client.command_partition(&restore, fence(22)).await;
    assert!(
        matches!(silent, Err(Error::Refused(Refusal::Slurm { .. }))),
        "{silent:?}"
    );
    let replaced = Fence { term: 0, sequence: 23 };
    let stale = client.command_partition(&restore, replaced).await;
    assert!(matches!(stale, Err(Error::StaleFence { .. })), "{stale:?}");
}

#[tokio::test]
async fn manual_changes_survive_a_reconfigure() {
    let pod = Pod::running(&revision(1, BEFORE)).await;
    let client = pod.slurmctld();
    let hand = slurm::rpc::PartitionUpdate {
        nodes: Some("n7".to_owned()),
        ..slurm::rpc::PartitionUpdate::new("hand")
    };
    client.create_partition(&hand).await.unwrap();
    let drain = slurm::rpc::PartitionUpdate {
        state: Some(PartitionStateName::Drain),
        ..slurm::rpc::PartitionUpdate::new("a")
    };
    client.update_partition(&drain).await.unwrap();
    pod.jobs("hand", "RUNNING");

    // The change of another partition affects neither.
    let other = BEFORE.replace("PartitionName=b Nodes=n1", "PartitionName=b Nodes=n1 MaxTime=3");
    let pushed = pod.push(&revision(2, &other)).await;
    assert_eq!(
        (pushed.outcome, pushed.action),
        (Outcome::Applied, Action::PartitionRpc)
    );
    assert!(pod.partition("hand").is_some());

    let more = format!("{other}MaxJobCount=5\n");
    let pushed = pod.push(&revision(3, &more)).await;
    let Outcome::PartitionsInUse { partitions } = &pushed.outcome else {
        panic!("{pushed:?}")
    };
    assert_eq!(partitions[0].name, "hand");
    assert!(partitions[0].made_by_hand);
    assert_eq!(pod.lives().len(), 1);
    assert_eq!(pod.conf(), other);

    // With its line in the file it blocks nothing, and the manual state is kept.
    let adopted = format!("{more}{}\n", partitions[0].line);
    let pushed = pod.push(&revision(4, &adopted)).await;
    assert_eq!(
        (&pushed.outcome, pushed.action),
        (&Outcome::Applied, Action::Reconfigure)
    );
    assert_eq!(
        pushed.kept_states,
        [KeptState {
            partition: "a".to_owned(),
            state: "DRAIN".to_owned()
        }]
    );
    assert_eq!(pod.lives().len(), 2);
    assert_eq!(pod.partition("hand").unwrap().nodes, "n7");
    assert_eq!(
        pod.partition("a").unwrap().state.name(),
        Some(PartitionStateName::Drain)
    );
}

#[tokio::test]
async fn a_manual_state_survives_a_reconfigure_that_slurmctld_did_not_respond_to_at_first() {
    let closed = BEFORE.replace("Default=YES", "Default=YES State=DRAIN");
    for (conf, state) in [
        (BEFORE, PartitionStateName::Drain),
        (closed.as_str(), PartitionStateName::Up),
    ] {
        let by_hand = |sequence: u64, conf: &str| Revision {
            closed_by_hand: BTreeSet::from(["a".to_owned()]),
            ..revision(sequence, conf)
        };
        let pod = Pod::running(&by_hand(1, conf)).await;
        pod.slurmctld().update_partition(&set_state(state)).await.unwrap();
        fs::write(pod.path("mute"), "").unwrap();
        let pushed = pod.push(&by_hand(2, &format!("{conf}MaxJobCount=5\n"))).await;
        assert!(matches!(pushed.outcome, Outcome::Pending { .. }), "{pushed:?}");
        assert_eq!(pod.lives().len(), 1, "no reconfigure before the states are known");
        fs::remove_file(pod.path("mute")).unwrap();
        pod.phase(Phase::Verified).await;
        assert_eq!(pod.lives().len(), 2, "one reconfigure");
        assert_eq!(pod.partition("a").unwrap().state.name(), Some(state));
    }
}

#[tokio::test]
async fn a_manually_opened_partition_stays_open_when_an_interrupted_update_of_another_is_repeated() {
    let pod = Pod::running(&revision(1, BEFORE)).await;
    let closed = Revision {
        closed_by_hand: BTreeSet::from(["a".to_owned()]),
        ..revision(2, &BEFORE.replace("Default=YES", "Default=YES State=DRAIN"))
    };
    assert_eq!(pod.push(&closed).await.action, Action::PartitionRpc);
    let update = set_state(PartitionStateName::Up);
    pod.slurmctld().update_partition(&update).await.unwrap();
    fs::write(pod.path("mute"), "").unwrap();
    let other = Revision {
        closed_by_hand: closed.closed_by_hand,
        ..revision(3, &format!("{}PartitionName=c Nodes=n2\n", pod.conf()))
    };
    // The push may end before slurmctld responds.
    let _ = pod.client().push(&other, fence(3)).await;
    fs::remove_file(pod.path("mute")).unwrap();
    pod.status_that("the other partition is live", |status| {
        status.phase == Phase::Verified && status.live.as_ref().is_some_and(|live| live.sequence == 3)
    })
    .await;
    assert!(pod.partition("c").is_some());
    let state = pod.partition("a").unwrap().state.name();
    assert_eq!(state, Some(PartitionStateName::Up));
}

fn set_state(state: PartitionStateName) -> PartitionUpdate {
    PartitionUpdate {
        state: Some(state),
        ..PartitionUpdate::new("a")
    }
}

/// The partition is closed in the file, because of a manual state or on purpose.
#[tokio::test]
async fn a_manually_opened_partition_stays_open_although_the_file_has_it_closed() {
    let before = BEFORE.replace("Default=YES", "Default=YES State=DRAIN");
    let state = |name: &str| slurm::rpc::PartitionUpdate {
        state: PartitionStateName::from_name(name),
        ..slurm::rpc::PartitionUpdate::new("a")
    };
    for (closed_by_hand, then) in [(true, "UP"), (true, "DOWN"), (false, "UP")] {
        let with = |sequence: u64, conf: &str| Revision {
            closed_by_hand: closed_by_hand.then(|| "a".to_owned()).into_iter().collect(),
            ..revision(sequence, conf)
        };
        let pod = Pod::running(&with(1, &before)).await;
        pod.slurmctld().update_partition(&state(then)).await.unwrap();
        // A live update of other settings does not send the state.
        let pushed = pod.push(&with(2, &before.replace("MaxTime=5", "MaxTime=6"))).await;
        assert_eq!(pushed.action, Action::PartitionRpc);
        let named = |pod: &Pod| pod.partition("a").unwrap().state.name().map(|state| state.to_string());
        assert_eq!(named(&pod).as_deref(), Some(then));

        let more = format!("{}MaxJobCount=5\n", before.replace("MaxTime=5", "MaxTime=6"));
        let pushed = pod.push(&with(3, &more)).await;
        assert_eq!(
            (&pushed.outcome, pushed.action),
            (&Outcome::Applied, Action::Reconfigure)
        );
        let kept = KeptState {
            partition: "a".to_owned(),
            state: then.to_owned(),
        };
        assert_eq!(pushed.kept_states, if closed_by_hand { vec![kept] } else { vec![] });
        let expected = if closed_by_hand { then } else { "DRAIN" };
        assert_eq!(named(&pod).as_deref(), Some(expected), "{closed_by_hand}");
        assert_eq!(pod.conf(), more, "the operator writes the files");

        // A restarted slurmctld has the state of the files, which is no manual one.
        let last = *pod.lives().last().unwrap();
        kill(last, Signal::SIGKILL).unwrap();
        pod.status_that("slurmctld is back", |status| {
            let slurmctld = status.slurmctld.as_ref();
            slurmctld.is_some_and(|daemon| daemon.restarts == 1 && daemon.state == DaemonState::Ready)
        })
        .await;
        let pushed = pod.push(&with(4, &format!("{more}MinJobAge=5\n"))).await;
        assert_eq!(pushed.action, Action::Reconfigure);
        assert_eq!(named(&pod).as_deref(), Some("DRAIN"));
    }
}

/// The operator has seen that a person closed the partition, and writes it into the file while a person opens it again.
#[tokio::test]
async fn a_partition_that_is_opened_while_its_manual_state_is_written_stays_open() {
    let closed = BEFORE.replace("Default=YES", "Default=YES State=DRAIN");
    let more = format!("{closed}MaxJobCount=5\n");
    for (conf, action) in [(closed, Action::PartitionRpc), (more, Action::Reconfigure)] {
        for (is_shown, restarts, expected) in [
            (true, false, PartitionStateName::Up),
            (false, false, PartitionStateName::Drain),
            // The restarted slurmctld has the state of the file, UP, and not because a person set it.
            (true, true, PartitionStateName::Drain),
        ] {
            let pod = Pod::running(&revision(1, BEFORE)).await;
            pod.scontrol();
            let order = async |state| pod.slurmctld().update_partition(&set_state(state)).await.unwrap();
            order(PartitionStateName::Drain).await;
            if is_shown {
                pod.client().partitions().await.unwrap();
            }
            if restarts {
                kill(*pod.lives().last().unwrap(), Signal::SIGKILL).unwrap();
                pod.status_that("slurmctld is back", |status| {
                    let slurmctld = status.slurmctld.as_ref();
                    slurmctld.is_some_and(|daemon| daemon.restarts == 1 && daemon.state == DaemonState::Ready)
                })
                .await;
            } else {
                order(PartitionStateName::Up).await;
                // The push is of a poll before this one.
                pod.client().partitions().await.unwrap();
            }
            let by_hand = Revision {
                closed_by_hand: BTreeSet::from(["a".to_owned()]),
                ..revision(2, &conf)
            };
            let pushed = pod.push(&by_hand).await;
            assert_eq!((&pushed.outcome, pushed.action), (&Outcome::Applied, action));
            let state = pod.partition("a").unwrap().state.name();
            assert_eq!(state, Some(expected), "{is_shown} {restarts} {action:?}");
            assert_eq!(pod.conf(), conf, "the operator writes the files");
        }
    }
}

/// As above, and another change of the configuration comes first.
#[tokio::test]
async fn a_state_that_was_shown_counts_after_a_reconfigure_by_the_agent() {
    let pod = Pod::running(&revision(1, BEFORE)).await;
    pod.scontrol();
    let order = async |state| pod.slurmctld().update_partition(&set_state(state)).await.unwrap();
    let state = || pod.partition("a").unwrap().state.name();
    order(PartitionStateName::Drain).await;
    pod.client().partitions().await.unwrap();
    let other = format!("{BEFORE}MaxJobCount=5\n");
    assert_eq!(pod.push(&revision(2, &other)).await.action, Action::Reconfigure);
    assert_eq!(state(), Some(PartitionStateName::Drain));
    order(PartitionStateName::Up).await;
    let by_hand = Revision {
        closed_by_hand: BTreeSet::from(["a".to_owned()]),
        ..revision(3, &other.replace("Default=YES", "Default=YES State=DRAIN"))
    };
    assert_eq!(pod.push(&by_hand).await.outcome, Outcome::Applied);
    assert_eq!(state(), Some(PartitionStateName::Up));
}

#[tokio::test]
async fn the_next_agent_closes_a_manually_closed_partition_again() {
    for whole_pod in [false, true] {
        for step in ["checked", "swapped", "reconfiguring"] {
            let mut pod = Pod::running(&revision(1, BEFORE)).await;
            let drain = slurm::rpc::PartitionUpdate {
                state: Some(PartitionStateName::Drain),
                ..slurm::rpc::PartitionUpdate::new("a")
            };
            pod.slurmctld().update_partition(&drain).await.unwrap();
            let after = format!("{BEFORE}MaxJobCount=5\n");
            pod.push_dying_at(step, &revision(2, &after)).await;
            pod = pod.resumed(whole_pod).await;
            assert_eq!(pod.conf(), after, "{step}");
            let state = pod.partition("a").unwrap().state.name();
            assert_eq!(state, Some(PartitionStateName::Drain), "{step}, {whole_pod}");
        }
    }
}
