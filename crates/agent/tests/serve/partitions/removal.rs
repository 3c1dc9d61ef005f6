//! A partition is removed only when slurmctld deletes it.

use super::*;

#[tokio::test]
async fn a_partition_is_removed_when_slurmctld_deletes_it() {
    let pod = Pod::running(&revision(1, BEFORE)).await;
    pod.jobs("", "");
    let without_b = "PartitionName=a Nodes=n1 MaxTime=5 Default=YES\n";
    let pushed = pod.push(&revision(2, without_b)).await;
    assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
    assert_eq!(pushed.action, Action::PartitionRpc);
    assert_eq!(pod.partition("b"), None);
    assert_eq!(pod.orders(), ["update b", "delete b"], "closed first");
}

#[tokio::test]
async fn a_partition_in_use_stays_whatever_else_the_push_changes() {
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
async fn the_next_default_is_set_before_the_last_one_is_deleted() {
    let pod = Pod::running(&revision(1, BEFORE)).await;
    pod.jobs("", "");
    let pushed = pod.push(&revision(2, "PartitionName=b Nodes=n1 Default=YES\n")).await;
    assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
    assert_eq!(pod.orders(), ["update b", "update a", "delete a"]);
    // A cluster may have no default.
    let pushed = pod.push(&revision(3, "PartitionName=c Nodes=n1\n")).await;
    assert_eq!(pushed.outcome, Outcome::Applied, "{pushed:?}");
    assert_eq!(pod.partition("b"), None);
}

/// slurmctld dies after it has deleted a partition and before the files are without it: it has the partition again.
#[tokio::test]
async fn a_deleted_partition_that_is_back_is_deleted_again_or_gets_its_line_back() {
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
            assert!(start.elapsed() < TIMEOUT);
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
