//! What a real Slurm said is understood, whichever way it was said.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml allows it in tests, but does not see that `read` is part of one"
)]

use slurm::answer::{DecodeError, Payload, Ping, ServedConf, decode};
use slurm::partition::{PartitionState, PartitionStateName};
use slurm::rpc::{Incomparable, LivePartition};
use slurm::{Job, Node, Number, Partition};

fn read<T: Payload>(json: &str) -> T {
    let answer = decode::<T>(json.as_bytes()).unwrap();
    let release = if json.contains("data_parser/v0.0.42") {
        "24.11.5"
    } else {
        "26.05.5"
    };
    assert_eq!(answer.release.as_deref(), Some(release));
    answer.value
}

#[test]
fn nodes() {
    for json in [
        include_str!("captured/v0.0.42-nodes.json"),
        include_str!("captured/v0.0.44-nodes.json"),
        include_str!("captured/v0.0.45-nodes.json"),
        include_str!("captured/scontrol-nodes.json"),
    ] {
        let nodes: Vec<Node> = read(json);
        let [node] = nodes.as_slice() else { panic!("{nodes:?}") };
        assert_eq!(node.name, "n1");
        assert_eq!(node.state.to_string(), "MIXED+DYNAMIC_NORM");
        assert!(node.state.is_busy() && node.state.is_dynamic() && node.state.is_responding());
        assert_eq!(node.features, ["compute", "x"]);
        assert_eq!(node.active_features, ["compute"]);
        assert_eq!(node.partitions, ["compute", "all"]);
        assert_eq!(
            (node.comment.as_str(), node.address.as_str(), node.cpus),
            ("{\"a\":1}", "10.9.9.1", 4)
        );
        assert!(node.slurmd_start_time.finite().is_some());
    }
}

#[test]
fn jobs() {
    for (json, count) in [
        (include_str!("captured/v0.0.42-jobs.json"), 4),
        (include_str!("captured/v0.0.44-jobs.json"), 4),
        (include_str!("captured/v0.0.45-jobs.json"), 4),
        // squeue leaves out what is over.
        (include_str!("captured/squeue-jobs.json"), 3),
    ] {
        let jobs: Vec<Job> = read(json);
        assert_eq!(jobs.len(), count);
        let is_in = |list: &str| slurm::Hostlist::parse(list).unwrap().contains("n1");
        for job in &jobs {
            let holds = ["running", "suspended"].contains(&job.name.as_str());
            assert_eq!(job.state.may_be_on_nodes() && is_in(&job.nodes), holds, "{job:?}");
            let waits = !job.state.is_finished() && is_in(&job.required_nodes);
            assert_eq!(waits, job.name == "waiting", "{job:?}");
            assert_eq!(job.latest_end().is_some(), job.name == "running", "{job:?}");
            assert_eq!(job.partitions().count(), if job.name == "waiting" { 2 } else { 1 });
        }
    }
}

/// What can be changed of a partition, read from JSON as by Slurm's own protocol.
#[test]
fn partitions_with_everything_set() {
    let json = include_str!("captured/scontrol-partitions-set.json");
    let live = |json| -> Result<Vec<LivePartition>, Incomparable> {
        let shown: Vec<Partition> = read(json);
        shown.into_iter().map(LivePartition::try_from).collect()
    };
    let shown = live(json).unwrap();
    let [base, full, alone] = shown.as_slice() else {
        panic!("{shown:?}")
    };
    assert_eq!(base.to_line(), "PartitionName=base Nodes=n1 State=UP");
    assert_eq!(
        full.to_line(),
        "PartitionName=full Nodes=s1 State=DRAIN Hidden=YES DisableRootJobs=YES RootOnly=YES ReqResv=YES LLN=YES ExclusiveUser=YES \
         PowerDownOnIdle=YES AllowAccounts=acc1,acc2 AllowGroups=root AllowQos=q1,q2 QOS=q1 Alternate=base \
         TRESBillingWeights=CPU=2.0,Mem=0.25G CpuBind=core DefMemPerCPU=100 MaxMemPerNode=4000 DefaultTime=30 MaxTime=60 \
         GraceTime=5 MaxCPUsPerNode=3 MaxCPUsPerSocket=2 MaxNodes=7 MinNodes=2 OverSubscribe=FORCE:5 OverTimeLimit=UNLIMITED \
         PreemptMode=CANCEL PriorityJobFactor=9 PriorityTier=8"
    );
    assert_eq!(full.job_defaults, None, "they are set, and not shown");
    assert_eq!(
        alone.to_line(),
        "PartitionName=alone Nodes=n4 State=UP OverSubscribe=EXCLUSIVE PreemptMode=OFF"
    );
    for live in &shown {
        assert_eq!(live.to_update().differences(live), []);
        assert_eq!(live.to_update().job_defaults, None);
    }
    // An older slurmrestd does not show which partition is the default, and that does not mean that none is.
    let older = include_str!("captured/v0.0.44-partitions.json");
    assert_eq!(live(older), Err(Incomparable::Lacks("the flags")));
}

#[test]
fn partitions() {
    for (json, default) in [
        (include_str!("captured/v0.0.42-partitions.json"), None),
        (include_str!("captured/v0.0.44-partitions.json"), None),
        (include_str!("captured/v0.0.45-partitions.json"), Some(true)),
        (include_str!("captured/scontrol-partitions.json"), Some(true)),
    ] {
        let partitions: Vec<Partition> = read(json);
        let [compute, all] = partitions.as_slice() else {
            panic!("{partitions:?}")
        };
        assert_eq!(
            (
                compute.name.as_str(),
                compute.node_sets.as_str(),
                compute.nodes.as_str()
            ),
            ("compute", "compute", "n1")
        );
        assert_eq!(compute.state, PartitionState::Known(PartitionStateName::Up));
        assert_eq!((compute.max_time, all.max_time), (Number::Finite(60), Number::Infinite));
        assert_eq!(compute.is_default(), default);
        assert_eq!((compute.total_nodes, compute.total_cpus), (1, 4));
    }
}

#[test]
fn the_process_that_answers() {
    let conf: ServedConf = read(include_str!("captured/scontrol-config.json"));
    assert!(conf.boot_time < conf.now);
}

#[test]
fn pings() {
    for (json, responding) in [
        (include_str!("captured/v0.0.42-ping.json"), true),
        (include_str!("captured/v0.0.44-ping.json"), true),
        (include_str!("captured/v0.0.45-ping.json"), true),
        (include_str!("captured/dead-ping.json"), false),
    ] {
        let pings: Vec<Ping> = read(json);
        assert_eq!(
            pings
                .iter()
                .map(|ping| (ping.responding, ping.primary))
                .collect::<Vec<_>>(),
            [(responding, true)]
        );
    }
}

#[test]
fn an_empty_cluster_is_empty() {
    assert_eq!(read::<Vec<Node>>(include_str!("captured/empty-nodes.json")), []);
    assert_eq!(read::<Vec<Job>>(include_str!("captured/empty-squeue.json")), []);
}

/// slurmrestd sends an empty list of jobs along with the error.
#[test]
fn an_empty_list_beside_an_error_is_no_list() {
    let dead = decode::<Vec<Job>>(include_bytes!("captured/dead-jobs.json"));
    assert!(
        matches!(&dead, Err(DecodeError::Complaints(complaints)) if complaints[0].number == 1800),
        "{dead:?}"
    );
    for (json, number) in [
        (include_str!("captured/dead-nodes.json"), 1800),
        (include_str!("captured/hanging-nodes.json"), 5004),
    ] {
        let answer = decode::<Vec<Node>>(json.as_bytes());
        assert!(
            matches!(&answer, Err(DecodeError::Complaints(complaints)) if complaints[0].number == number),
            "{answer:?}"
        );
    }
}
