//! Changes of partitions: by RPC where that will do, and never at the price of a job.

use slurm::agent::{KeptState, PartitionCommand};
use slurm::partition::PartitionStateName;
use slurm::rpc::{self, LivePartition, PartitionUpdate};
use slurm::token::{Issuer, SigningKey};

use super::*;

const BEFORE: &str = "PartitionName=a Nodes=n1 MaxTime=5 Default=YES\nPartitionName=b Nodes=n1\n";

impl Pod {
    fn partitions(&self) -> Vec<LivePartition> {
        serde_json::from_slice(&fs::read(self.path("partitions")).unwrap()).unwrap()
    }

    fn partition(&self, name: &str) -> Option<LivePartition> {
        self.partitions().into_iter().find(|partition| partition.name == name)
    }

    /// Somebody with the cluster's key.
    fn by_hand(&self) -> rpc::Client {
        self.slurmctld_by("root")
    }

    /// As Slurm's own program reaches it.
    fn slurmctld_by(&self, user: &str) -> rpc::Client {
        let issuer = Issuer::new(SigningKey::new(KEY).unwrap(), user, Duration::from_secs(30));
        rpc::Client::new(self.daemon.to_string(), issuer, rpc::Options::default())
    }

    /// scontrol lies beside slurmctld from now on.
    fn scontrol(&self) {
        let script = fake_scontrol::script(&self.path("calls"), &self.daemon.to_string(), KEY);
        self.tool("scontrol", &script);
    }

    fn told(&self) -> Vec<String> {
        let told = fs::read_to_string(self.path("told")).unwrap_or_default();
        told.lines().map(str::to_owned).collect()
    }

    /// `squeue` shows one job of this partition, or none.
    fn jobs(&self, partition: &str, state: &str) {
        let job = if partition.is_empty() {
            String::new()
        } else {
            format!(r#"{{"job_id":7,"job_state":["{state}"],"partition":"{partition}","nodes":"n1"}}"#)
        };
        self.tool("squeue", &format!(r#"echo '{{"jobs":[{job}]}}'"#));
    }
}

fn steps(pushed: &Pushed) -> Vec<Phase> {
    pushed.steps.iter().map(|step| step.step).collect()
}

#[tokio::test]
async fn a_change_of_partitions_alone_is_told_and_nothing_is_read_again() {
    let mut pod = Pod::running(&revision(1, BEFORE)).await;
    // Nobody asks it.
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
    assert_eq!(pod.told(), ["create c", "update a", "update c"], "b is left alone");
    assert_eq!(
        pod.story()[1..],
        ["Reconfiguring Slurm...", "SUCCESS"],
        "as people know it"
    );

    // A key that is taken out goes back to Slurm's default.
    let last = after.replace(" MaxTime=9", "");
    let pushed = pod.push(&revision(3, &last)).await;
    assert_eq!(pushed.action, Action::PartitionRpc);
    assert_eq!(pod.partition("a").unwrap().max_time, u32::MAX);

    // Neither the next agent nor a slurmctld that starts anew has anything to do.
    pod.kill_agent();
    pod.serve();
    let status = pod.phase(Phase::Verified).await;
    assert_eq!(status.live, Some(revision(3, &last).summary()));
    assert_eq!(pod.lives().len(), 1, "no reconfigure");
    assert_eq!(pod.told().len(), 4);
    kill(*pod.lives().last().unwrap(), Signal::SIGKILL).unwrap();
    pod.status_that("slurmctld is back", |status| {
        status
            .slurmctld
            .as_ref()
            .is_some_and(|slurmctld| slurmctld.restarts == 1)
    })
    .await;
    // What is more than partitions goes the long way, and brings both together.
    let pushed = pod.push(&revision(4, &format!("{last}MaxJobCount=5\n"))).await;
    assert!(matches!(pushed.outcome, Outcome::Rejected(_)) || pushed.action == Action::Reconfigure);
}

#[tokio::test]
async fn what_a_running_slurmctld_cannot_be_told_takes_a_reconfigure() {
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
    assert_eq!(pushed.action, Action::Reconfigure, "a DefaultTime cannot be taken away");
    assert_eq!(pod.lives().len(), 2);
}

#[tokio::test]
async fn what_somebody_set_by_hand_is_brought_back_to_the_files() {
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
    assert_eq!(left, ["DefaultTime"], "it cannot be taken away: {restored:?}");
    let a = pod.partition("a").unwrap();
    assert_eq!((a.max_time, a.default_time, a.priority_tier), (5, 3, 7), "no other key");
    assert_eq!(pod.lives().len(), 1, "no reconfigure");

    let nobody = client.command_partition(&order("x", &["MaxTime"]), fence(21)).await;
    assert!(
        matches!(nobody, Err(Error::Refused(Refusal::NoSuchThing))),
        "{nobody:?}"
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

/// A slurmctld of a release that speaks none of our versions, one with another key, one whose answers make no sense: each takes the files.
#[tokio::test]
async fn a_slurmctld_that_cannot_be_told_takes_a_reconfigure() {
    let pod = Pod::running(&revision(1, BEFORE)).await;
    for (sequence, tongue) in [(2, "other version"), (3, "other key"), (4, "garbage")] {
        fs::write(pod.path("tongue"), tongue).unwrap();
        let conf = BEFORE.replace("MaxTime=5", &format!("MaxTime=1{sequence}"));
        let pushed = pod.push(&revision(sequence, &conf)).await;
        assert_eq!(pushed.outcome, Outcome::Applied, "{tongue}: {pushed:?}");
        assert_eq!(pushed.action, Action::Reconfigure, "{tongue}");
        assert_eq!(
            pod.partition("a").unwrap().max_time,
            10 + u32::try_from(sequence).unwrap()
        );
        assert_eq!(pod.conf(), conf);
    }
}

/// The same with an scontrol at hand, which is understood.
#[tokio::test]
async fn where_the_protocol_cannot_be_spoken_scontrol_tells_and_nothing_is_read_again() {
    for tongue in ["other version", "other key", "garbage"] {
        let pod = Pod::running(&revision(1, BEFORE)).await;
        pod.jobs("", "");
        pod.scontrol();
        fs::write(pod.path("tongue"), tongue).unwrap();
        let after = BEFORE.replace("MaxTime=5", "MaxTime=9") + "PartitionName=c Nodes=n2 MaxTime=4 State=DRAIN\n";
        let pushed = pod.push(&revision(2, &after)).await;
        assert_eq!(pushed.outcome, Outcome::Applied, "{tongue}: {pushed:?}");
        assert_eq!((pushed.action, pushed.way), (Action::PartitionRpc, Way::Scontrol));
        assert_eq!(pod.partition("a").unwrap().max_time, 9);
        let c = pod.partition("c").unwrap();
        assert_eq!(
            (c.nodes.as_str(), c.state.name()),
            ("n2", Some(PartitionStateName::Drain))
        );
        assert_eq!(pod.conf(), after);

        // What slurmctld refuses is taken back, with its words.
        let before = pod.partitions();
        let refused = pod
            .push(&revision(
                3,
                &after.replace("Nodes=n2 MaxTime=4", "Nodes=nowhere MaxTime=7"),
            ))
            .await;
        let Outcome::RolledBack(why) = &refused.outcome else {
            panic!("{tongue}: {refused:?}")
        };
        assert!(why.reason.contains("Invalid node name specified"), "{why:?}");
        assert_eq!((pod.partitions(), pod.conf()), (before, after.clone()));

        // Values that somebody changed are brought back, too.
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

        // One goes when no job is in it, and not before.
        pod.jobs("c", "RUNNING");
        let in_use = pod.push(&revision(21, &BEFORE.replace("MaxTime=5", "MaxTime=9"))).await;
        assert!(matches!(in_use.outcome, Outcome::PartitionsInUse { .. }), "{in_use:?}");
        assert!(pod.partition("c").is_some());
        pod.jobs("", "");
        let gone = pod.push(&revision(22, &BEFORE.replace("MaxTime=5", "MaxTime=9"))).await;
        assert_eq!((gone.outcome, gone.way), (Outcome::Applied, Way::Scontrol));
        assert_eq!(pod.partition("c"), None);
        assert_eq!(pod.lives().len(), 1, "{tongue}: no reconfigure");

        // What could not be read back is not said.
        let gpus = BEFORE.replace("MaxTime=5", "MaxTime=9 DefCPUPerGPU=2");
        let pushed = pod.push(&revision(23, &gpus)).await;
        assert_eq!((pushed.outcome, pushed.action), (Outcome::Applied, Action::Reconfigure));
    }
}

#[tokio::test]
async fn what_slurmctld_refuses_or_passes_over_leaves_everything_as_it_was() {
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
            .contains(r#"did not take DefaultTime: wanted "30", it has "UNLIMITED or none""#),
        "{refused:?}"
    );
    fs::remove_file(pod.path("careless")).unwrap();
    // A DefaultTime cannot be taken away: here only the old files know how it was.
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

#[tokio::test]
async fn a_partition_goes_when_slurmctld_lets_it_go() {
    let pod = Pod::running(&revision(1, BEFORE)).await;
    pod.jobs("", "");
    let without_b = "PartitionName=a Nodes=n1 MaxTime=5 Default=YES\n";
    let pushed = pod.push(&revision(2, without_b)).await;
    assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
    assert_eq!(pushed.action, Action::PartitionRpc);
    assert_eq!(pod.partition("b"), None);
    assert_eq!(pod.told(), ["update b", "delete b"], "closed first");
}

#[tokio::test]
async fn a_partition_in_use_stays_whatever_else_the_push_wants() {
    let pod = Pod::running(&revision(1, BEFORE)).await;
    let before = pod.partitions();
    let without_b = "PartitionName=a Nodes=n1 MaxTime=9 Default=YES\nPartitionName=c Nodes=n1\n";
    let mut sequence = 1;
    for more in ["", "MaxJobCount=5\n"] {
        for (partition, state) in [("b", "RUNNING"), ("x,b", "PENDING"), ("b", "COMPLETING"), ("", "busy")] {
            sequence += 1;
            pod.jobs(
                partition,
                if state == "COMPLETING" {
                    "COMPLETED\",\"COMPLETING"
                } else {
                    state
                },
            );
            if state == "busy" {
                fs::write(pod.path("busy"), "b").unwrap();
            }
            let pushed = pod.push(&revision(sequence, &format!("{without_b}{more}"))).await;
            let Outcome::PartitionsInUse { partitions } = &pushed.outcome else {
                panic!("{more} {state}: {pushed:?}")
            };
            assert_eq!(partitions.len(), 1);
            assert_eq!(partitions[0].name, "b");
            assert!(!partitions[0].made_by_hand);
            assert!(
                partitions[0].line.starts_with("PartitionName=b Nodes=n1 State=UP"),
                "{partitions:?}"
            );
            assert_eq!(pod.partitions(), before, "{more} {state}");
            assert_eq!((pod.conf().as_str(), pod.stored()), (BEFORE, vec![1]));
            assert_eq!(pushed.status.phase, Phase::Verified);
            let _ = fs::remove_file(pod.path("busy"));
        }
    }
    pod.tool("squeue", "exit 1");
    sequence += 1;
    let pushed = pod.push(&revision(sequence, without_b)).await;
    assert!(
        matches!(pushed.outcome, Outcome::PartitionsInUse { .. }),
        "jobs are not known: {pushed:?}"
    );
    assert_eq!(pod.lives().len(), 1);
}

#[tokio::test]
async fn the_next_default_is_told_before_the_last_one_goes() {
    let pod = Pod::running(&revision(1, BEFORE)).await;
    pod.jobs("", "");
    let pushed = pod.push(&revision(2, "PartitionName=b Nodes=n1 Default=YES\n")).await;
    assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
    assert_eq!(pod.told(), ["update b", "update a", "delete a"]);
    // Nobody keeps a user from having none.
    let pushed = pod.push(&revision(3, "PartitionName=c Nodes=n1\n")).await;
    assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
    assert_eq!(pod.partition("b"), None);
}

#[tokio::test]
async fn what_people_do_by_hand_outlives_a_reconfigure() {
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

    // Another partition's change touches neither.
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

    // With its line in the file it is no longer in the way, and what was closed stays closed.
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

/// In the file the partition is closed: by somebody's hand, or because it is meant to be.
#[tokio::test]
async fn who_opens_what_was_closed_by_hand_has_opened_it_although_the_file_has_it_closed() {
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
        // Nothing is said of its state where it is told what else has changed.
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

        // A slurmctld that starts anew has read the files, which is nobody's hand.
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

/// slurmctld dies after it has let a partition go and before the files are without it: it has the partition again.
#[tokio::test]
async fn a_partition_that_comes_back_goes_again_or_keeps_its_line() {
    let after = "PartitionName=a Nodes=n1 MaxTime=9 Default=YES\n";
    for busy in [false, true] {
        let mut pod = Pod::running(&revision(1, BEFORE)).await;
        pod.jobs("", "");
        pod.push_dying_at("durable", &revision(2, after)).await;
        assert_eq!(pod.partition("b"), None);
        let lives = pod.lives().len();
        kill(*pod.lives().last().unwrap(), Signal::SIGKILL).unwrap();
        let start = Instant::now();
        while pod.lives().len() == lives || pod.partition("b").is_none() {
            assert!(start.elapsed() < PATIENCE);
            sleep(Duration::from_millis(5)).await;
        }
        if busy {
            pod.jobs("b", "RUNNING");
        }
        pod.serve();
        pod.phase(Phase::Verified).await;
        assert_eq!(pod.conf(), if busy { BEFORE } else { after });
        assert_eq!(pod.partition("b").is_some(), busy);
        assert_eq!(pod.partition("a").unwrap().max_time, if busy { 5 } else { 9 });
    }
}

/// slurmctld has been told, dies, and is back with the files of before a moment before there are others.
#[tokio::test]
async fn a_slurmctld_that_begins_anew_before_the_files_are_there_is_told_again() {
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
                assert!(start.elapsed() < PATIENCE, "slurmctld is not back");
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

#[tokio::test]
async fn what_was_closed_by_hand_is_closed_again_by_the_next_agent() {
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
            pod = pod.gone_on(whole_pod).await;
            assert_eq!(pod.conf(), after, "{step}");
            let state = pod.partition("a").unwrap().state.name();
            assert_eq!(state, Some(PartitionStateName::Drain), "{step}, {whole_pod}");
        }
    }
}

/// Kills the agent after each step, and has the next agent, or the next pod, go on.
#[tokio::test]
async fn an_agent_killed_at_any_step_leaves_old_or_new_partitions_and_never_a_mix() {
    let after = "PartitionName=a Nodes=n1 MaxTime=9 Default=YES\nPartitionName=c Nodes=n2\n";
    for (step, expected) in [
        ("staged", BEFORE),
        ("pending", after),
        ("told", after),
        ("let go", after),
        ("partitions live", after),
        ("durable", after),
        ("swapped", after),
        ("verified", after),
    ] {
        for whole_pod in [false, true] {
            let case = format!("{step}, {whole_pod}");
            let mut pod = Pod::running(&revision(1, BEFORE)).await;
            pod.jobs("", "");
            if step == "verified" {
                pod.kill_agent();
                pod.serve();
                pod.phase(Phase::Verified).await;
                pod.push(&revision(2, after)).await;
                pod.kill_agent();
            } else {
                pod.push_dying_at(step, &revision(2, after)).await;
            }
            pod = pod.gone_on(whole_pod).await;
            assert_eq!(pod.conf(), expected, "{case}");
            let names: Vec<String> = pod.partitions().into_iter().map(|partition| partition.name).collect();
            let is_new = expected == after;
            assert_eq!(names, if is_new { ["a", "c"] } else { ["a", "b"] }, "{case}");
            assert_eq!(
                pod.partition("a").unwrap().max_time,
                if is_new { 9 } else { 5 },
                "{case}"
            );
            for partition in pod.partitions() {
                assert_eq!(
                    partition.state.name(),
                    Some(PartitionStateName::Up),
                    "{case}: {partition:?}"
                );
            }
            assert_eq!(pod.stored().last(), Some(&if is_new { 2 } else { 1 }), "{case}");
            assert_eq!(
                Store::new(&host::Host::real(), &pod.path("state"), &uid()).pending(),
                None,
                "{case}"
            );
            let pushed = pod.push(&revision(3, &expected.replace("MaxTime", "MinNodes"))).await;
            assert_eq!(pushed.outcome, Outcome::Applied, "{case}: {pushed:?}");
            if !whole_pod {
                assert_eq!(pod.lives().len(), 1, "{case}: no reconfigure");
            }
        }
    }
}

/// The same while a job is in the partition that is to go: nobody loses it, and all is as it was.
#[tokio::test]
async fn an_agent_killed_at_any_step_leaves_a_partition_with_jobs_and_all_else_as_it_was() {
    let after = "PartitionName=a Nodes=n1 MaxTime=9 Default=YES\nPartitionName=c Nodes=n2\n";
    for step in ["staged", "pending", "told"] {
        for whole_pod in [false, true] {
            let case = format!("{step}, {whole_pod}");
            let mut pod = Pod::running(&revision(1, BEFORE)).await;
            pod.jobs("b", "RUNNING");
            pod.push_dying_at(step, &revision(2, after)).await;
            pod = pod.gone_on(whole_pod).await;
            assert_eq!(pod.conf(), BEFORE, "{case}");
            let names: Vec<String> = pod.partitions().into_iter().map(|partition| partition.name).collect();
            assert_eq!(names, ["a", "b"], "{case}");
            for partition in pod.partitions() {
                let state = partition.state.name();
                assert_eq!(state, Some(PartitionStateName::Up), "{case}: {partition:?}");
            }
            assert_eq!(pod.partition("a").unwrap().max_time, 5, "{case}");
            assert_eq!(pod.stored().last(), Some(&1), "{case}");
            assert_eq!(
                Store::new(&host::Host::real(), &pod.path("state"), &uid()).pending(),
                None,
                "{case}"
            );
        }
    }
}
