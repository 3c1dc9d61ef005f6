//! Changes of partitions that the previous agent or pod left unfinished.

use super::*;

/// Kills the agent after each step, and starts the next agent, or the next pod.
#[tokio::test]
async fn an_agent_killed_at_any_step_leaves_the_old_or_the_new_partitions() {
    let after = "PartitionName=a Nodes=n1 MaxTime=9 Default=YES\nPartitionName=c Nodes=n2\n";
    for (step, expected) in [
        ("staged", BEFORE),
        ("pending", after),
        ("updated", after),
        ("released", after),
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
            pod = pod.resumed(whole_pod).await;
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

/// The same while the removed partition has a job: everything stays as it was.
#[tokio::test]
async fn an_agent_killed_at_any_step_keeps_a_partition_with_jobs() {
    let after = "PartitionName=a Nodes=n1 MaxTime=9 Default=YES\nPartitionName=c Nodes=n2\n";
    for step in ["staged", "pending", "updated"] {
        for whole_pod in [false, true] {
            let case = format!("{step}, {whole_pod}");
            let mut pod = Pod::running(&revision(1, BEFORE)).await;
            pod.jobs("b", "RUNNING");
            pod.push_dying_at(step, &revision(2, after)).await;
            pod = pod.resumed(whole_pod).await;
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
