//! Tests of decisions about Partitions of an external slurmctld, as tables.

use std::sync::Arc;

use api::{NodeSet, keys::PARTITION_FINALIZER};
use serde_json::{Value, json};
use slurm::{
    answer::ServedConf,
    partition::PartitionStateName::{Down, Drain, Inactive, Up},
    rpc::ServedFile,
};

use super::*;

const ADDRESS: &str = "ctl:6817";
const FILE: &str = "NodeSet=cpu Feature=cpu\n\
    PartitionName=DEFAULT MaxNodes=4\n\
    PartitionName=all Nodes=ALL Default=YES\n\
    PartitionName=long Nodes=n[1-4] MaxTime=60 AllowGroups=a\n";

/// The time slurmctld started.
const BOOT: i64 = 1_800_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(BOOT + second).unwrap()
}

fn live(name: &str, state: PartitionStateName) -> LivePartition {
    LivePartition {
        name: name.to_owned(),
        state: state.into(),
        nodes: "n[1-4]".to_owned(),
        max_time: 60,
        max_nodes: 4,
        allow_groups: "a".to_owned(),
        ..LivePartition::default()
    }
}

/// A slurmctld that started at second 0.
fn cluster(conf: &str, partitions: Vec<LivePartition>) -> ExternalCluster {
    let file = ServedFile {
        name: "slurm.conf".to_owned(),
        content: Some(conf.as_bytes().to_vec()),
        executable: false,
    };
    let boot = ServedConf {
        boot_time: 1000,
        now: 1500,
        hash: 0,
    };
    ExternalCluster::new(&[file], partitions, &boot, at(500))
}

fn partition(spec: &Value) -> Partition {
    let mut spec = spec.clone();
    spec["controllerRef"] = json!({ "name": "slurm" });
    if spec["nodes"].is_null() && spec["nodeSets"].is_null() {
        spec["nodes"] = json!(["n[1-4]"]);
    }
    serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1alpha1", "kind": "Partition",
        "metadata": { "name": "long", "namespace": "hpc", "generation": 1, "creationTimestamp": "2026-01-02T00:00:00Z" },
        "spec": spec,
    }))
    .unwrap()
}

fn desired(partition: &Partition, cluster: &ExternalCluster) -> Result<Desired, Finding> {
    plan_desired(partition, &[], cluster, ADDRESS)
}

/// The Partition after this spec was sent to slurmctld at that second.
fn sent(spec: &Value, second: i64, cluster: &ExternalCluster) -> Partition {
    let mut partition = partition(spec);
    let line = desired(&partition, cluster).unwrap().line.whole();
    partition.status = Some(
        serde_json::from_value(json!({
            "line": line, "applied": { "generation": 1, "time": at(second), "way": "Rpc" },
        }))
        .unwrap(),
    );
    partition
}

fn decided(partition: &Partition, cluster: &ExternalCluster) -> Result<Plan, Finding> {
    let desired = desired(partition, cluster).unwrap();
    decide(partition, &desired, cluster, ADDRESS, PartitionWay::Rpc, at(600))
}

fn updates(partition: &Partition, cluster: &ExternalCluster) -> Vec<PartitionUpdate> {
    match decided(partition, cluster).unwrap().effects.pop() {
        Some(Effect::External(ExternalEffect::Update { updates, .. })) => updates,
        None => Vec::new(),
        other => panic!("{other:?}"),
    }
}

/// The manual state of a Partition for which nothing is sent, and whether its line or its slurmctld has just changed.
fn unchanged(partition: &Partition, cluster: &ExternalCluster) -> (Option<ManualState>, bool) {
    let plan = decided(partition, cluster).unwrap();
    assert_eq!(plan.effects, []);
    (plan.report.unwrap().manual_state, plan.again == Some(COMPARE_AFTER))
}

#[test]
fn only_keys_of_the_object_are_sent() {
    let there = cluster(FILE, vec![live("long", Up)]);
    let partition = partition(&json!({ "maxTime": 30 }));
    let desired = desired(&partition, &there).unwrap();
    assert_eq!(
        desired.line.whole(),
        "PartitionName=long Nodes=n[1-4] State=UP AllowGroups=a MaxNodes=4 MaxTime=30"
    );
    let expected = PartitionUpdate {
        nodes: Some("n[1-4]".to_owned()),
        max_time: Some(30),
        ..PartitionUpdate::new("long")
    };
    assert_eq!(desired.update, expected);
    assert_eq!(updates(&partition, &there), [expected]);
}

#[test]
fn a_removed_key_is_reset_to_the_file_or_to_slurms_default() {
    let there = cluster(FILE, vec![live("long", Up)]);
    let mut changed = sent(&json!({ "maxTime": 30, "graceTime": 9, "state": "Drain" }), 100, &there);
    changed.spec = partition(&json!({})).spec;
    changed.metadata.generation = Some(2);
    let update = desired(&changed, &there).unwrap().update;
    assert_eq!(
        (update.max_time, update.grace_time, update.state),
        (Some(60), Some(0), Some(Up))
    );
    assert_eq!(update.allow_groups, None);
}

#[test]
fn values_that_slurmctld_has_are_not_sent_again() {
    let there = cluster(FILE, vec![live("long", Up)]);
    let new = partition(&json!({ "maxTime": "1:00:00" }));
    assert_eq!(unchanged(&new, &there), (None, true));
    let known = sent(&json!({ "maxTime": 60 }), 100, &there);
    assert_eq!(unchanged(&known, &there), (None, false));
}

#[test]
fn a_partition_is_persistent_if_the_file_has_it_or_slurmctld_keeps_it() {
    let keeps = format!("ReconfigFlags=keeppartinfo\n{FILE}");
    for (conf, max_time, lasts) in [
        (FILE, json!("1:00:00"), true),
        (FILE, json!(30), false),
        (keeps.as_str(), json!(30), true),
    ] {
        let there = cluster(conf, vec![live("long", Up)]);
        let desired = desired(&partition(&json!({ "maxTime": max_time })), &there).unwrap();
        assert_eq!(desired.not_persistent.is_none(), lasts, "{max_time}");
    }
}

#[test]
fn a_missing_partition_is_created_only_if_slurmctld_keeps_it() {
    let new = partition(&json!({ "maxTime": 30, "state": "Down" }));
    let forgetful = cluster("", vec![live("all", Up)]);
    let fault = decided(&new, &forgetful).expect_err("it would be lost");
    let line = "add the line PartitionName=long Nodes=n[1-4] State=DOWN MaxTime=30 to the slurm.conf there";
    assert!(fault.message.contains(line), "{}", fault.message);
    assert_eq!(fault.reason, "CannotCreate");
    let unread = decided(&new, &cluster(FILE, Vec::new())).unwrap_err();
    assert!(unread.message.contains("scontrol reconfigure` there"), "{unread:?}");
    let kept = decided(&new, &cluster("ReconfigFlags=KeepPartInfo\n", Vec::new())).unwrap();
    let [Effect::External(ExternalEffect::Create { update: made, .. })] = kept.effects.as_slice() else {
        panic!("it is kept there");
    };
    assert_eq!((made.state, made.max_time), (Some(Down), Some(30)));
}

#[test]
fn values_are_sent_again_after_a_restart_unless_drift_is_only_reported() {
    let there = cluster(FILE, vec![live("long", Up)]);
    for (policy, sent_at, again) in [
        ("Revert", -100, true),
        ("RevertAll", -100, true),
        ("Report", -100, false),
        // A later manual change is drift.
        ("Revert", 100, false),
    ] {
        let spec = json!({ "maxTime": 30, "state": "Drain", "driftPolicy": policy });
        let updates = updates(&sent(&spec, sent_at, &there), &there);
        assert_eq!(!updates.is_empty(), again, "{policy} at {sent_at}");
        if again {
            assert_eq!((updates[0].max_time, updates[0].state), (Some(30), Some(Drain)));
        }
    }
}

#[test]
fn a_manually_closed_partition_stays_closed_until_the_state_is_lifted() {
    let closed = |state| cluster(FILE, vec![live("long", state)]);
    for state in [Drain, Down, Inactive] {
        let there = closed(state);
        for spec in [json!({}), json!({ "state": "Up" })] {
            let partition = sent(&spec, 100, &there);
            let (kept, _) = unchanged(&partition, &there);
            let kept = kept.unwrap_or_else(|| panic!("{state} is opened"));
            assert_eq!((kept.state.as_str(), kept.wanted.as_str()), (state.name(), "UP"));
        }
    }
    let there = closed(Drain);
    // A new object does not open it either.
    let new = partition(&json!({ "state": "Up" }));
    assert!(unchanged(&new, &there).0.is_some());
    let opened = |partition: &Partition| updates(partition, &there).first().and_then(|update| update.state);
    let mut another = sent(&json!({ "state": "Drain" }), 100, &there);
    another.spec.state = partition(&json!({ "state": "Up" })).spec.state;
    assert_eq!(opened(&another), Some(Up), "another wanted state");
    assert_eq!(
        opened(&sent(
            &json!({ "state": "Up", "driftPolicy": "RevertAll" }),
            100,
            &there
        )),
        Some(Up)
    );
    let mut resumed = sent(&json!({ "state": "Up" }), 100, &there);
    let annotation = (annotations::RESUMED_AT.to_owned(), at(700).to_string());
    resumed.metadata.annotations = Some([annotation].into());
    assert_eq!(opened(&resumed), Some(Up));
}

#[test]
fn the_default_returns_to_the_partition_that_had_it_before() {
    let mut long = live("long", Up);
    long.set(PartitionFlag::Default(true));
    let there = cluster(FILE, vec![live("all", Up), long]);
    let mut partition = sent(&json!({ "default": true }), 100, &there);
    partition.spec.default = None;
    partition.metadata.generation = Some(2);
    let updates = updates(&partition, &there);
    assert_eq!(updates[1].name, "all");
    assert_eq!(updates[1].flags, [PartitionFlag::Default(true)]);
    assert_eq!(updates[0].flags, []);
}

#[test]
fn members_are_hosts_or_node_sets_in_the_file() {
    let there = cluster(FILE, vec![live("long", Up)]);
    let node_set = |name: &str| -> Arc<NodeSet> {
        Arc::new(
            serde_json::from_value(json!({
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
                "metadata": { "name": name, "namespace": "hpc" },
                "spec": { "controllerRef": { "name": "slurm" } },
            }))
            .unwrap(),
        )
    };
    let sets = [node_set("cpu"), node_set("gpu")];
    let members =
        |spec: Value| plan_desired(&partition(&spec), &sets, &there, ADDRESS).map(|desired| desired.line.nodes);
    assert_eq!(members(json!({ "nodeSets": ["cpu"] })).as_deref(), Ok("cpu"));
    let unknown = members(json!({ "nodeSets": ["cpu", "gpu"] })).unwrap_err();
    assert!(unknown.message.contains("NodeSet=gpu Feature=gpu"), "{unknown:?}");
    let excluded = members(json!({ "nodeSets": ["cpu"], "excludeNodes": ["cpu-1"] })).unwrap_err();
    assert!(excluded.message.starts_with("spec.excludeNodes"), "{excluded:?}");
}

#[test]
fn a_key_that_cannot_be_sent_is_rejected_with_the_line_to_write() {
    let there = cluster(FILE, vec![live("long", Up)]);
    let refused = desired(&partition(&json!({ "config": "SuspendTime=5" })), &there).unwrap_err();
    assert!(
        refused.message.contains("SuspendTime") && refused.message.contains("write PartitionName=long "),
        "{refused:?}"
    );
    let with_key = FILE.replace("MaxTime=60", "MaxTime=60 SuspendTime=5");
    let there = cluster(&with_key, vec![live("long", Up)]);
    assert!(desired(&partition(&json!({ "config": "SuspendTime=5" })), &there).is_ok());
}

#[test]
fn only_a_partition_that_the_object_created_is_deleted_with_it() {
    let made = |at: Option<&str>| {
        let mut partition = partition(&json!({}));
        partition.metadata.finalizers = Some(vec![PARTITION_FINALIZER.to_owned()]);
        partition.metadata.annotations =
            at.map(|at| [(annotations::PARTITION_MADE_AT.to_owned(), at.to_owned())].into());
        partition
    };
    let keeps = "ReconfigFlags=KeepPartInfo\n";
    let mut default = live("long", Up);
    default.set(PartitionFlag::Default(true));
    let close = |state| (Some(ExternalEffect::Close(state)), None, false);
    let leave = (None, None, true);
    let closed = live("long", Drain);
    let delete = ExternalEffect::Delete(Box::new(closed.clone()));
    for (at, conf, partitions, expected) in [
        (None, keeps, vec![live("long", Up)], leave.clone()),
        (Some("other:6817"), keeps, vec![live("long", Up)], leave.clone()),
        (Some(ADDRESS), FILE, vec![live("long", Up)], leave),
        (Some(ADDRESS), keeps, vec![], (None, None, false)),
        (Some(ADDRESS), keeps, vec![default], (None, Some(LAST_DEFAULT), false)),
        (Some(ADDRESS), keeps, vec![live("long", Up)], close(Drain)),
        (Some(ADDRESS), keeps, vec![live("long", Down)], close(Inactive)),
        (Some(ADDRESS), keeps, vec![closed], (Some(delete), None, false)),
    ] {
        let plan = decide_removal(&made(at), &cluster(conf, partitions), ADDRESS);
        let trouble = plan.report.unwrap().trouble;
        let trouble = trouble.as_ref().map(|fault| fault.message.as_str());
        let order = plan.effects.iter().find_map(|effect| match effect {
            Effect::External(order) => Some(order.clone()),
            _ => None,
        });
        let is_kept = plan.effects.iter().any(|effect| matches!(effect, Effect::TellKept(_)));
        assert_eq!((order, trouble, is_kept), expected, "{at:?} {conf}");
    }
}

#[test]
fn the_older_of_two_objects_keeps_the_name_and_the_default() {
    let mut other = partition(&json!({ "partitionName": "long", "default": true }));
    other.metadata.name = Some("older".to_owned());
    other.metadata.creation_timestamp = Some(serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap());
    let all = |other: &Partition, own: &Partition| vec![Arc::new(other.clone()), Arc::new(own.clone())];
    let own = partition(&json!({ "default": true }));
    let reason = |partition: &Partition, other: &Partition| {
        find_rival(partition, &all(other, partition)).map(|fault| fault.reason)
    };
    assert_eq!(reason(&own, &other), Some("PartitionNameTaken"));
    assert_eq!(reason(&other, &own), None);
    other.spec.partition_name = None;
    assert_eq!(reason(&own, &other), Some("TwoDefaults"));
    other.spec.default = None;
    assert_eq!(reason(&own, &other), None);
}

/// The cluster as slurmrestd returns it.
fn cluster_without_file(flags: &[&str], partitions: Vec<LivePartition>) -> ExternalCluster {
    let boot = ServedConf {
        boot_time: 1000,
        now: 1500,
        hash: 0,
    };
    ExternalCluster::without_file(flags, partitions, &boot, at(500))
}

#[test]
fn without_the_file_only_keys_of_the_object_are_sent() {
    let known = cluster(FILE, vec![live("long", Up)]);
    let unknown = cluster_without_file(&[], vec![live("long", Up)]);
    // Sent by Slurm's own protocol before, so the line contains the file's keys.
    let mut partition = sent(&json!({ "maxTime": 30, "config": "GraceTime=9" }), 600, &known);
    assert_eq!(
        desired(&partition, &unknown).unwrap().line,
        desired(&partition, &known).unwrap().line
    );
    partition.spec.max_time = serde_json::from_value(json!(20)).unwrap();
    partition.spec.config = None;
    let Desired {
        update, not_persistent, ..
    } = desired(&partition, &unknown).unwrap();
    assert_eq!(update.max_time, Some(20));
    assert_eq!(update.grace_time, None, "it is not known whether the file has it");
    assert_eq!((update.max_nodes, update.allow_groups), (None, None));
    assert!(not_persistent.unwrap().contains("which slurmrestd does not return"));
    assert_eq!(desired(&partition, &known).unwrap().update.grace_time, Some(0));
    let keeps = cluster_without_file(&["KeepPartInfo"], Vec::new());
    assert_eq!(desired(&partition, &keeps).unwrap().not_persistent, None);
}

#[test]
fn without_the_file_node_sets_are_left_to_slurmctld() {
    let node_set: NodeSet = serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
        "metadata": { "name": "cpu", "namespace": "hpc" }, "spec": { "controllerRef": { "name": "slurm" } },
    }))
    .unwrap();
    let partition = partition(&json!({ "nodeSets": ["cpu"] }));
    let desired = |cluster: &ExternalCluster| plan_desired(&partition, &[Arc::new(node_set.clone())], cluster, ADDRESS);
    assert!(desired(&cluster("", Vec::new())).is_err());
    assert_eq!(
        desired(&cluster_without_file(&[], Vec::new())).unwrap().line.nodes,
        "cpu"
    );
}

#[test]
fn a_value_with_blanks_is_quoted_in_the_line_to_write() {
    let conf = "PartitionName=long Nodes=n[1-4] AllowGroups=\"a b\" MaxTime=60\n";
    let cluster = cluster(conf, vec![live("long", Up)]);
    let line = desired(&partition(&json!({ "maxTime": 30 })), &cluster).unwrap().line;
    assert!(line.whole().contains(r#"AllowGroups="a b""#), "{}", line.whole());
    assert_eq!(PartitionLine::read(&line.whole(), line.generation), Some(line.clone()));
    assert_eq!(settings_in(&line.whole()), {
        let mut settings = settings_in(conf);
        settings.insert(slurm::conf::Key::new("MaxTime"), "30".to_owned());
        settings.insert(slurm::conf::Key::new("State"), "UP".to_owned());
        settings
    });
}
