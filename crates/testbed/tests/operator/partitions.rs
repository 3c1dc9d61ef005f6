//! Partitions as objects: in slurm.conf and in the running slurmctld, from their creation to their deletion.

use anyhow::Result;
use serde_json::json;
use testbed::harness::{Namespace, eventually, expect};

use crate::common::clusters::{change_spec, two_node_sets};
use crate::common::slurm::{SOON, slurm, start_job, wait_done, wait_saved};

/// Creates or replaces a Partition with this spec.
fn try_make(namespace: &Namespace, name: &str, spec: &str) -> Result<()> {
    let manifest = format!(
        "apiVersion: slinky.slurm.net/v1alpha1\nkind: Partition\nmetadata:\n  name: {name}\nspec:\n  controllerRef:\n    name: slurm\n{spec}"
    );
    namespace.apply(&manifest)?;
    Ok(())
}

fn make(namespace: &Namespace, name: &str, spec: &str) {
    try_make(namespace, name, spec).unwrap();
}

fn patch(namespace: &Namespace, name: &str, spec: &serde_json::Value) {
    change_spec(namespace, &format!("partition.slinky.slurm.net/{name}"), spec).unwrap();
}

fn field(namespace: &Namespace, name: &str, path: &str) -> Result<String> {
    namespace.field(&format!("partition.slinky.slurm.net/{name}"), path)
}

fn condition(namespace: &Namespace, name: &str, condition: &str, of_it: &str) -> Result<String> {
    field(
        namespace,
        name,
        &format!(".status.conditions[?(@.type==\"{condition}\")].{of_it}"),
    )
}

/// Waits until the condition has this status and reason, and a message with these words.
fn wait_condition(namespace: &Namespace, name: &str, of: &str, status: &str, reason: &str, words: &[&str]) {
    eventually(&format!("{name} {of}={status} {reason}"), SOON, || {
        let now =
            ["status", "reason", "message"].map(|of_it| condition(namespace, name, of, of_it).unwrap_or_default());
        let says = words.iter().all(|word| now[2].contains(word));
        expect(now[0] == status && now[1] == reason && says, &now)
    })
    .unwrap();
}

fn ready(namespace: &Namespace, name: &str) {
    eventually(&format!("Partition {name} is ready"), SOON, || {
        let shown = namespace.ask(&["get", "partition.slinky.slurm.net", name, "-o", "yaml"])?;
        let generation = field(namespace, name, ".metadata.generation")?;
        let applied = field(namespace, name, ".status.applied.generation")?;
        let ready = condition(namespace, name, "Ready", "status")?;
        expect(ready == "True" && generation == applied, shown)
    })
    .unwrap();
}

/// Waits until Slurm's partition contains all these words.
fn live(namespace: &Namespace, name: &str, words: &[&str]) {
    eventually(&format!("partition {name} with {words:?}"), SOON, || {
        let shown = slurm(namespace, &format!("scontrol --oneliner show partition {name}"))?;
        expect(words.iter().all(|word| shown.contains(word)), shown)
    })
    .unwrap();
}

/// The line of the partition in slurmctld's slurm.conf.
fn line(namespace: &Namespace, name: &str) -> String {
    slurm(
        namespace,
        &format!("grep '^PartitionName={name} ' /etc/slurm/slurm.conf || true"),
    )
    .unwrap()
}

/// The change is live first, and in the file a moment later.
fn in_file(namespace: &Namespace, name: &str, word: &str) {
    eventually(&format!("{word} of {name} in slurm.conf"), SOON, || {
        let line = line(namespace, name);
        expect(line.contains(word), line)
    })
    .unwrap();
}

fn gone(namespace: &Namespace, name: &str) {
    eventually(&format!("Partition {name} is gone"), SOON, || {
        let left = namespace.ask(&[
            "get",
            "partition.slinky.slurm.net",
            "--ignore-not-found",
            name,
            "-o",
            "yaml",
        ])?;
        expect(left.is_empty(), left)
    })
    .unwrap();
    assert_eq!(line(namespace, name), "");
    let shown = slurm(namespace, "scontrol --oneliner show partitions").unwrap();
    assert!(!shown.contains(&format!("PartitionName={name} ")), "{shown}");
}

#[test]
fn a_partition_across_nodesets_is_live_changes_and_is_deleted_after_its_last_job() {
    let namespace = two_node_sets("partitions");
    make(
        &namespace,
        "both",
        "  nodeSets: [compute, slurm-second]\n  maxTime: 60\n",
    );
    ready(&namespace, "both");
    let hosts = slurm(&namespace, "srun -p both -N 2 hostname | sort").unwrap();
    assert_eq!(hosts, "compute-0\nsecond-0\n");
    assert_eq!(
        line(&namespace, "both"),
        "PartitionName=both Nodes=compute,second State=UP MaxTime=60\n"
    );

    // A change is live, and a removed key has Slurm's default again.
    patch(&namespace, "both", &json!({ "maxTime": 90, "priorityTier": 7 }));
    live(&namespace, "both", &["MaxTime=01:30:00", "PriorityTier=7"]);
    patch(&namespace, "both", &json!({ "maxTime": null, "priorityTier": null }));
    live(&namespace, "both", &["MaxTime=UNLIMITED", "PriorityTier=1 "]);
    ready(&namespace, "both");

    leave_one_out(&namespace);

    // Deleted with a running job: it is drained, kept until the job ends, then deleted.
    let until_told = "until [ -e /tmp/enough ]; do sleep 1; done";
    let job = start_job(&namespace, "-p both -N 2", until_told).unwrap();
    namespace
        .ask(&["delete", "partition.slinky.slurm.net", "both", "--wait=false"])
        .unwrap();
    live(&namespace, "both", &["State=DRAIN"]);
    in_file(&namespace, "both", "State=DRAIN");
    wait_condition(
        &namespace,
        "both",
        "PartitionRetained",
        "True",
        "WaitsForJobs",
        &[&format!("job {job}")],
    );
    let refused = slurm(&namespace, "sbatch -p both --wrap true 2>&1 || true").unwrap();
    assert!(
        refused.contains("not available") || refused.contains("unavailable") || refused.contains("drain"),
        "{refused}"
    );
    // The script runs on the node that registered first.
    for pod in ["compute-0", "slurm-second-0"] {
        namespace.inside(pod, "slurmd", "touch /tmp/enough").unwrap();
    }
    wait_done(&namespace, &job).unwrap();
    gone(&namespace, "both");
}

/// Waits until the partition has exactly these nodes.
fn members(namespace: &Namespace, name: &str, expected: &str) {
    eventually(&format!("{name} is {expected}"), SOON, || {
        let line = format!("sinfo --noheader --Node --partition={name} --format=%N | sort");
        let shown = slurm(namespace, &line)?;
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        expect(shown == expected, shown)
    })
    .unwrap();
}

/// A single node of a NodeSet stays excluded from a partition, whatever happens to the NodeSet and to slurmctld.
fn leave_one_out(namespace: &Namespace) {
    let scale = |replicas: u32| {
        let replicas = format!("--replicas={replicas}");
        namespace.ask(&["scale", "nodeset/compute", &replicas]).unwrap();
    };
    scale(2);
    members(namespace, "both", "compute-0 compute-1 second-0");
    patch(namespace, "both", &json!({ "excludeNodes": ["compute-0"] }));
    ready(namespace, "both");
    members(namespace, "both", "compute-1 second-0");
    let refused = slurm(namespace, "srun -p both -w compute-0 hostname 2>&1 || true").unwrap();
    assert!(!refused.contains("compute-0\n"), "{refused}");
    let beside = slurm(namespace, "srun -p compute -w compute-0 hostname").unwrap();
    assert_eq!(beside, "compute-0\n", "other partitions have it");

    // A node that joins belongs to the partition.
    scale(3);
    members(namespace, "both", "compute-1 compute-2 second-0");
    wait_saved(namespace).unwrap();
    slurm(namespace, "kill -9 $(pidof slurmctld)").unwrap();
    members(namespace, "both", "compute-1 compute-2 second-0");
    slurm(namespace, "scontrol reconfigure").unwrap();
    members(namespace, "both", "compute-1 compute-2 second-0");
    scale(1);
    members(namespace, "both", "second-0");
    let refused = slurm(namespace, "srun -p both -N 2 --immediate=3 hostname 2>&1 || true").unwrap();
    assert!(!refused.contains("compute-0\n"), "{refused}");

    patch(namespace, "both", &json!({ "excludeNodes": null }));
    ready(namespace, "both");
    members(namespace, "both", "compute-0 second-0");
    let hosts = slurm(namespace, "srun -p both -N 2 hostname | sort").unwrap();
    assert_eq!(hosts, "compute-0\nsecond-0\n");
    eventually("the mark is gone", SOON, || {
        let features = slurm(namespace, "sinfo --noheader --format=%f")?;
        expect(!features.contains("members-"), features)
    })
    .unwrap();
}

#[test]
fn a_partition_that_cannot_be_created_reports_why_and_harms_nothing() {
    let namespace = two_node_sets("partitions-bad");
    make(&namespace, "good", "  nodeSets: [compute]\n  maxTime: 60\n");
    ready(&namespace, "good");
    let job = start_job(&namespace, "-p good", "sleep 600").unwrap();

    // Names that are taken, with both places named.
    for (name, other) in [("compute", "NodeSet \"compute\""), ("highprio", "spec.extraConf")] {
        make(&namespace, name, "  nodeSets: [slurm-second]\n");
        wait_condition(&namespace, name, "Ready", "False", "PartitionNameTaken", &[other]);
    }
    make(&namespace, "twice", "  nodeSets: [compute]\n  partitionName: good\n");
    wait_condition(
        &namespace,
        "twice",
        "Ready",
        "False",
        "PartitionNameTaken",
        &["Partition \"good\""],
    );
    make(&namespace, "lost", "  nodeSets: [nope]\n");
    wait_condition(
        &namespace,
        "lost",
        "Ready",
        "False",
        "BadMembers",
        &["spec.nodeSets[0]", "compute"],
    );
    make(&namespace, "huge", "  nodes: [\"n[0-9999999]\"]\n");
    wait_condition(&namespace, "huge", "Ready", "False", "BadMembers", &["spec.nodes[0]"]);
    make(&namespace, "second-default", "  nodeSets: [compute]\n  default: true\n");
    wait_condition(
        &namespace,
        "second-default",
        "Ready",
        "False",
        "TwoDefaults",
        &["NodeSet \"compute\""],
    );

    // Changes that the checker or slurmctld rejects leave everything as before.
    patch(&namespace, "good", &json!({ "maxTime": 90, "qos": "nope" }));
    wait_condition(
        &namespace,
        "good",
        "Ready",
        "False",
        "ConfigRejected",
        &["QOS \"nope\""],
    );
    patch(&namespace, "good", &json!({ "qos": null, "defaultTime": 120 }));
    wait_condition(
        &namespace,
        "good",
        "Ready",
        "False",
        "ConfigRejected",
        &["slurmctld refused it", "DefaultTime"],
    );
    live(&namespace, "good", &["MaxTime=01:00:00", "State=UP"]);
    assert_eq!(
        line(&namespace, "good"),
        "PartitionName=good Nodes=compute State=UP MaxTime=60\n"
    );

    // A good change beside them is live at once, and so is the correction.
    make(
        &namespace,
        "fine",
        "  nodeSetSelector:\n    matchLabels:\n      zone: b\n",
    );
    ready(&namespace, "fine");
    assert_eq!(slurm(&namespace, "srun -p fine hostname").unwrap(), "second-0\n");
    namespace
        .apply(include_str!("../../../../examples/partitions/partition.yaml"))
        .unwrap();
    ready(&namespace, "long");
    live(
        &namespace,
        "long",
        &["NodeSets=compute,second", "MaxTime=7-00:00:00", "PriorityTier=2"],
    );
    patch(&namespace, "good", &json!({ "defaultTime": null }));
    ready(&namespace, "good");
    live(&namespace, "good", &["MaxTime=01:30:00"]);
    let state = slurm(&namespace, &format!("squeue --noheader --format=%T --jobs {job}")).unwrap();
    assert_eq!(state.trim(), "RUNNING");

    // The columns of `kubectl get`.
    eventually("the columns of kubectl get", SOON, || {
        let table = namespace.ask(&["get", "partition.slinky.slurm.net", "good", "-o", "wide"])?;
        let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let heads = lines.next().unwrap_or_default();
        let row = lines.next().unwrap_or_default();
        let cell = |head: &str| {
            heads
                .iter()
                .position(|found| *found == head)
                .and_then(|index| row.get(index).copied())
        };
        let shown = ["PARTITION", "STATE", "NODES", "RUNNING", "PENDING", "READY"].map(cell);
        expect(
            shown == [Some("good"), Some("UP"), Some("1"), Some("1"), Some("0"), Some("True")],
            table,
        )
    })
    .unwrap();
}

#[test]
fn a_line_that_would_join_the_next_one_is_rejected_and_the_next_one_stays_live() {
    let namespace = two_node_sets("partitions-joined");
    make(&namespace, "gpu", "  nodeSets: [compute]\n");
    ready(&namespace, "gpu");
    // In slurm.conf they would precede the other one.
    for (name, config) in [("gpt", "'AllowGroups=x,\\'"), ("gps", "'MaxTime=5 # why'")] {
        let said = try_make(
            &namespace,
            name,
            &format!("  nodeSets: [compute]\n  config: {config}\n"),
        );
        let said = said.unwrap_err().to_string();
        let words = ["spec.config", "must be part of one line", "without backslashes and #"];
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    live(&namespace, "gpu", &["State=UP"]);
    assert_eq!(line(&namespace, "gpt") + &line(&namespace, "gps"), "");

    // The other one can still be changed, also with a value in quotes.
    let weights = r#"TRESBillingWeights="CPU=1.0,Mem=0.25G""#;
    patch(&namespace, "gpu", &json!({ "maxTime": 60, "config": weights }));
    live(
        &namespace,
        "gpu",
        &["MaxTime=01:00:00", "TRESBillingWeights=CPU=1.0,Mem=0.25G"],
    );
    ready(&namespace, "gpu");

    // The bad one can be made once it is corrected.
    make(&namespace, "gpt", "  nodeSets: [compute]\n  config: AllowGroups=x\n");
    ready(&namespace, "gpt");
    live(&namespace, "gpt", &["AllowGroups=x"]);
    live(&namespace, "gpu", &["State=UP"]);

    // A partition that is missing in Slurm is not ready, whatever the cause.
    slurm(&namespace, "scontrol delete PartitionName=gpu").unwrap();
    let words = ["\"gpu\"", "scontrol reconfigure"];
    wait_condition(&namespace, "gpu", "Ready", "False", "NotInSlurm", &words);
    slurm(&namespace, "scontrol reconfigure").unwrap();
    ready(&namespace, "gpu");
}

#[test]
fn a_manual_state_is_kept_everywhere_until_it_is_lifted() {
    let namespace = two_node_sets("partitions-drift");
    make(
        &namespace,
        "both",
        "  nodeSets: [compute, slurm-second]\n  maxTime: 60\n",
    );
    ready(&namespace, "both");
    put_back(&namespace);
    slurm(&namespace, "scontrol update PartitionName=both State=DRAIN").unwrap();
    slurm(&namespace, "scontrol update PartitionName=highprio State=DOWN").unwrap();
    wait_condition(&namespace, "both", "Drifted", "True", "ClosedByHand", &["State=DRAIN"]);
    assert_eq!(field(&namespace, "both", ".status.drift[0].settled").unwrap(), "Kept");
    in_file(&namespace, "both", "State=DRAIN");
    in_file(&namespace, "highprio", "State=DOWN");
    // Neither another change nor a restart of slurmctld lifts the manual state.
    patch(&namespace, "both", &json!({ "maxTime": 30 }));
    ready(&namespace, "both");
    live(&namespace, "both", &["State=DRAIN", "MaxTime=00:30:00"]);
    wait_saved(&namespace).unwrap();
    slurm(&namespace, "kill -9 $(pidof slurmctld)").unwrap();
    live(&namespace, "both", &["State=DRAIN", "MaxTime=00:30:00"]);
    live(&namespace, "highprio", &["State=DOWN"]);
    let condition = ".status.conditions[?(@.type==\"Drifted\")].message";
    let message = namespace.field("controller/slurm", condition).unwrap();
    assert!(message.contains("partition highprio was set to DOWN"), "{message}");

    // One is resumed manually, the other by its object.
    slurm(&namespace, "scontrol update PartitionName=highprio State=UP").unwrap();
    let now = slurm(&namespace, "date -u +%Y-%m-%dT%H:%M:%SZ").unwrap();
    let annotation = format!("slinky.slurm.net/resumed-at={}", now.trim());
    namespace
        .ask(&["annotate", "partition.slinky.slurm.net/both", &annotation])
        .unwrap();
    live(&namespace, "both", &["State=UP"]);
    in_file(&namespace, "both", "State=UP");
    eventually("no drift is left", SOON, || {
        let partition = field(&namespace, "both", ".status.drift")?;
        let controller = namespace.field("controller/slurm", condition)?;
        let line = line(&namespace, "highprio");
        expect(
            partition.is_empty() && controller.is_empty() && !line.contains("State="),
            (partition, controller, line),
        )
    })
    .unwrap();
    assert_eq!(
        slurm(&namespace, "srun -p both -N 2 hostname | sort").unwrap(),
        "compute-0\nsecond-0\n"
    );
}

/// Other values are reverted live, once each.
fn put_back(namespace: &Namespace) {
    let reconfigures = || {
        let path = ".status.configuration.lastChange.sequence";
        namespace.field("controller/slurm", path).unwrap()
    };
    let before = reconfigures();
    for minutes in ["5", "7"] {
        slurm(
            namespace,
            &format!("scontrol update PartitionName=both MaxTime={minutes}"),
        )
        .unwrap();
        live(namespace, "both", &["MaxTime=01:00:00"]);
    }
    eventually("both values are reported", SOON, || {
        let path = "{range .status.drift[*]}{.key} {.wanted} {.live} {.settled};{end}";
        let drift = namespace.ask(&[
            "get",
            "partition.slinky.slurm.net",
            "both",
            "-o",
            &format!("jsonpath={path}"),
        ])?;
        expect(drift == "MaxTime 60 7 Reverted;MaxTime 60 5 Reverted;", drift)
    })
    .unwrap();
    let others = [
        ("GraceTime=30", "GraceTime=0 "),
        ("Hidden=YES", "Hidden=NO "),
        ("OverSubscribe=FORCE:2", "OverSubscribe=NO "),
        ("MaxCPUsPerNode=1", "MaxCPUsPerNode=UNLIMITED "),
        ("DefMemPerNode=100", "DefMemPerNode=UNLIMITED "),
    ];
    let shown = slurm(namespace, "scontrol --oneliner show partition both").unwrap();
    for (by_hand, word) in others {
        assert!(shown.contains(word), "{word}: {shown}");
        slurm(namespace, &format!("scontrol update PartitionName=both {by_hand}")).unwrap();
    }
    live(namespace, "both", &others.map(|(_, word)| word));
    assert_eq!(reconfigures(), before, "by an RPC");
    slurm(namespace, "scontrol update PartitionName=both MaxTime=5").unwrap();
    wait_condition(
        namespace,
        "both",
        "Drifted",
        "True",
        "ChangedByHand",
        &["MaxTime=5", "reverted once"],
    );
    patch(namespace, "both", &json!({ "maxTime": null }));
    live(namespace, "both", &["MaxTime=UNLIMITED"]);
}

/// A partition is drained in Slurm first and then in the object, as users of slow operators do.
#[test]
fn a_drain_in_slurm_and_in_the_object_is_kept_in_either_order() {
    let namespace = two_node_sets("partitions-both-ways");
    let in_slurm = || {
        let line = "scontrol update partitionname=compute state=drain";
        slurm(&namespace, line).unwrap();
    };
    let in_the_object = |config: &str| {
        let spec = json!({ "partition": { "config": config } });
        change_spec(&namespace, "nodeset/compute", &spec).unwrap();
    };
    let steps: [&dyn Fn(); 2] = [&in_slurm, &|| in_the_object("Default=YES State=DRAIN")];
    for order in [[0, 1], [1, 0]] {
        for step in order {
            steps[step]();
            live(&namespace, "compute", &["State=DRAIN"]);
        }
        in_file(&namespace, "compute", "State=DRAIN");
        slurm(&namespace, "kill -9 $(pidof slurmctld)").unwrap();
        eventually("slurmctld is back", SOON, || {
            slurm(&namespace, "scontrol ping | grep UP")
        })
        .unwrap();
        live(&namespace, "compute", &["State=DRAIN"]);
        // Resuming it in the object lifts the manual state.
        in_the_object("Default=YES State=UP");
        live(&namespace, "compute", &["State=UP"]);
    }
}
