//! Partitions are changed in the running slurmctld without a reconfigure, and no job is lost.

use std::time::Instant;

use serde_json::json;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{
    CONTROLLER, change_spec, configuration_applied, manifest_cluster, operator_namespace, set_extra_conf, wait_said,
    workers,
};
use crate::common::slurm::{SOON, slurm, start_job, wait_done, wait_idle};

const BASE: &str = "PartitionName=all Nodes=ALL Default=NO\n";

/// The time at which slurmctld last read its files, and the number of reconfigures.
fn mark(namespace: &Namespace) -> [String; 2] {
    let conf = slurm(namespace, "scontrol show config").unwrap();
    let boot_time = conf.lines().find(|line| line.starts_with("BOOT_TIME")).unwrap();
    let log = namespace
        .ask(&["logs", "slurm-controller-0", "--container=reconfigure"])
        .unwrap();
    let reconfigures = log.matches("reconfiguring slurmctld").count();
    [boot_time.to_owned(), reconfigures.to_string()]
}

fn applied(namespace: &Namespace) {
    eventually("the configuration is live", SOON, || {
        let generation = namespace.field("controller/slurm", ".metadata.generation")?;
        let seen = namespace.field("controller/slurm", ".status.observedGeneration")?;
        let status = configuration_applied(namespace, "status")?;
        expect(status == "True" && seen == generation, (status, seen, generation))
    })
    .unwrap();
}

fn shown(namespace: &Namespace, partition: &str) -> anyhow::Result<String> {
    slurm(namespace, &format!("scontrol --oneliner show partition {partition}"))
}

/// Waits until slurmctld's partition contains these words, and returns how the change was sent.
fn live(namespace: &Namespace, partition: &str, words: &[&str]) {
    let begun = Instant::now();
    eventually(&format!("{partition} has {words:?}"), SOON, || {
        let shown = shown(namespace, partition)?;
        expect(words.iter().all(|word| shown.contains(word)), shown)
    })
    .unwrap();
    let seen = begun.elapsed();
    applied(namespace);
    let change = namespace
        .field("controller/slurm", ".status.configuration.lastChange")
        .unwrap();
    eprintln!("{partition} {words:?}: seen after {seen:?}; {change}");
}

fn action(namespace: &Namespace) -> String {
    let path = ".status.configuration.lastChange.action";
    namespace.field("controller/slurm", path).unwrap()
}

fn start(name: &str) -> Namespace {
    let namespace = manifest_cluster(cluster(), name, 1);
    set_extra_conf(&namespace, BASE).unwrap();
    live(&namespace, "all", &["State=UP"]);
    namespace
}

#[test]
fn partitions_change_without_any_reconfigure() {
    let namespace = start("partitions-live");
    eventually("highprio is gone", SOON, || {
        let shown = slurm(&namespace, "scontrol --oneliner show partitions")?;
        expect(!shown.contains("PartitionName=highprio"), shown)
    })
    .unwrap();
    let before = mark(&namespace);
    let line =
        |rest: &str| set_extra_conf(&namespace, &format!("{BASE}PartitionName=extra Nodes=compute {rest}\n")).unwrap();

    line("MaxTime=60 PriorityTier=7 State=DRAIN");
    live(
        &namespace,
        "extra",
        &["MaxTime=01:00:00", "PriorityTier=7", "State=DRAIN"],
    );
    assert_eq!(action(&namespace), "PartitionRpc");
    line("MaxTime=120 PriorityTier=7");
    live(&namespace, "extra", &["MaxTime=02:00:00", "PriorityTier=7", "State=UP"]);
    // A removed key has Slurm's default again.
    line("PriorityTier=7");
    live(&namespace, "extra", &["MaxTime=UNLIMITED", "PriorityTier=7"]);
    let job = start_job(&namespace, "-p extra", "sleep 5").unwrap();
    wait_done(&namespace, &job).unwrap();

    let patch = json!({ "spec": { "partition": { "config": "Default=YES MaxTime=30" } } }).to_string();
    namespace
        .ask(&["patch", "nodeset/compute", "--type=merge", "-p", &patch])
        .unwrap();
    live(&namespace, "compute", &["MaxTime=00:30:00", "Default=YES"]);
    assert_eq!(action(&namespace), "PartitionRpc");

    set_extra_conf(&namespace, BASE).unwrap();
    eventually("the field is removed", SOON, || {
        let shown = slurm(&namespace, "scontrol --oneliner show partitions")?;
        expect(!shown.contains("PartitionName=extra"), shown)
    })
    .unwrap();
    applied(&namespace);
    assert_eq!(action(&namespace), "PartitionRpc");
    assert_eq!(mark(&namespace), before, "nothing was read again");

    // A manual reconfigure reads the file, which has all changes.
    slurm(&namespace, "scontrol reconfigure").unwrap();
    live(&namespace, "compute", &["MaxTime=00:30:00", "Default=YES"]);
    assert_ne!(mark(&namespace)[0], before[0]);
    let partitions = slurm(&namespace, "scontrol --oneliner show partitions").unwrap();
    assert!(!partitions.contains("PartitionName=extra"), "{partitions}");
    line("MaxTime=45");
    live(&namespace, "extra", &["MaxTime=00:45:00"]);
    assert_eq!(action(&namespace), "PartitionRpc");
}

/// A Partition of the workers.
const EXTRA: &str = "
apiVersion: slinky.slurm.net/v1alpha1
kind: Partition
metadata:
  name: extra
spec:
  controllerRef: {name: slurm}
  nodeSets: [compute]
  maxTime: 60
";

/// slurmctld listens on the address of its pod only, where the agent does not connect; TLS or another key would have
/// the same effect.
#[test]
fn partitions_change_by_scontrol_if_slurmctld_does_not_listen_for_the_agent() {
    let namespace = operator_namespace(cluster(), "by-scontrol");
    let deaf = "  extraConf: |\n    CommunicationParameters=NoCtldInAddrAny\n";
    namespace.apply(&CONTROLLER.replace("  extraConf: |\n", deaf)).unwrap();
    namespace.apply(&workers(1)).unwrap();
    wait_idle(&namespace, 1).unwrap();
    applied(&namespace);
    let before = mark(&namespace);
    let extra = "partition.slinky.slurm.net/extra";
    let way = |words: &[&str]| {
        live(&namespace, "extra", words);
        wait_said(&namespace, extra, "Ready", &["True"]);
        namespace.field(extra, ".status.applied.way").unwrap()
    };
    namespace.apply(EXTRA).unwrap();
    assert_eq!(way(&["MaxTime=01:00:00", "State=UP"]), "Scontrol");
    change_spec(
        &namespace,
        extra,
        &json!({ "maxTime": null, "state": "Drain", "hidden": true }),
    )
    .unwrap();
    assert_eq!(way(&["MaxTime=UNLIMITED", "State=DRAIN", "Hidden=YES"]), "Scontrol");
    change_spec(&namespace, extra, &json!({ "state": "Up", "hidden": null })).unwrap();
    assert_eq!(way(&["State=UP", "Hidden=NO"]), "Scontrol");
    let patch = json!({ "partition": { "config": "Default=YES MaxTime=30" } });
    change_spec(&namespace, "nodeset/compute", &patch).unwrap();
    live(&namespace, "compute", &["MaxTime=00:30:00", "Default=YES"]);

    // It is deleted after its job, and not before.
    let job = start_job(&namespace, "-p extra", "sleep 15").unwrap();
    namespace.ask(&["delete", extra, "--wait=false"]).unwrap();
    wait_said(&namespace, extra, "PartitionRetained", &["True WaitsForJobs"]);
    namespace.wait("delete", extra).unwrap();
    wait_done(&namespace, &job).unwrap();
    let partitions = slurm(&namespace, "scontrol --oneliner show partitions").unwrap();
    assert!(!partitions.contains("PartitionName=extra"), "{partitions}");
    assert_eq!(mark(&namespace), before, "nothing was read again");
}

#[test]
fn a_partition_with_a_job_is_kept_until_the_job_has_ended() {
    let namespace = start("partitions-jobs");
    set_extra_conf(&namespace, &format!("{BASE}PartitionName=extra Nodes=compute\n")).unwrap();
    live(&namespace, "extra", &["State=UP"]);
    let job = start_job(&namespace, "-p extra", "sleep 45").unwrap();
    set_extra_conf(&namespace, &format!("{BASE}SchedulerParameters=defer\n")).unwrap();
    eventually("the retained partition is reported", SOON, || {
        let condition = ".status.conditions[?(@.type==\"PartitionRetained\")].message";
        let message = namespace.field("controller/slurm", condition)?;
        expect(message.contains("partition extra"), message)
    })
    .unwrap();
    // It is drained, and the rest of the change is live.
    live(&namespace, "extra", &["State=DRAIN"]);
    assert!(slurm(&namespace, "scontrol show config").unwrap().contains("defer"));
    let file = slurm(&namespace, "grep '^PartitionName=extra ' /etc/slurm/slurm.conf").unwrap();
    assert!(file.contains("State=DRAIN"), "{file}");
    let refused = slurm(&namespace, "sbatch -p extra --wrap true 2>&1 || true").unwrap();
    assert!(!refused.contains("Submitted"), "{refused}");
    wait_done(&namespace, &job).unwrap();
    eventually("it is deleted after its job", SOON, || {
        let shown = slurm(&namespace, "scontrol --oneliner show partitions")?;
        expect(!shown.contains("PartitionName=extra"), shown)
    })
    .unwrap();
    applied(&namespace);
    assert!(slurm(&namespace, "scontrol show config").unwrap().contains("defer"));
}

#[test]
fn manual_changes_survive_a_reconfigure() {
    let namespace = start("partitions-hand");
    slurm(&namespace, "scontrol create PartitionName=hand Nodes=compute").unwrap();
    slurm(&namespace, "scontrol update PartitionName=all State=DRAIN").unwrap();
    let job = start_job(&namespace, "-p hand", "sleep 45").unwrap();
    set_extra_conf(&namespace, &format!("{BASE}SchedulerParameters=defer\n")).unwrap();
    wait_done(&namespace, &job).unwrap();
    applied(&namespace);
    assert!(slurm(&namespace, "scontrol show config").unwrap().contains("defer"));
    let all = shown(&namespace, "all").unwrap();
    assert!(all.contains("State=DRAIN"), "{all}");
    open_while_the_configuration_changes(&namespace);
}

/// A manual resume is kept, also if the next configuration was built before the operator knew of it.
fn open_while_the_configuration_changes(namespace: &Namespace) {
    let file = "grep '^PartitionName=all ' /etc/slurm/slurm.conf";
    for round in 1..=3 {
        slurm(namespace, "scontrol update PartitionName=all State=DRAIN").unwrap();
        eventually("the file has the drained state", SOON, || {
            let line = slurm(namespace, file)?;
            expect(line.contains("State=DRAIN"), line)
        })
        .unwrap();
        applied(namespace);
        slurm(namespace, "scontrol update PartitionName=all State=UP").unwrap();
        set_extra_conf(namespace, &format!("{BASE}KillWait={}\n", 40 + round)).unwrap();
        eventually("the change is live", SOON, || {
            let conf = slurm(namespace, "scontrol show config | grep KillWait")?;
            expect(conf.contains(&format!("= {}", 40 + round)), conf)
        })
        .unwrap();
        applied(namespace);
        let all = shown(namespace, "all").unwrap();
        assert!(all.contains("State=UP"), "round {round}: {all}");
        eventually("the file has the state UP", SOON, || {
            let line = slurm(namespace, file)?;
            expect(!line.contains("State="), line)
        })
        .unwrap();
        let all = shown(namespace, "all").unwrap();
        assert!(all.contains("State=UP"), "round {round}: {all}");
    }
}
