//! `kubectl slurm`: its output, and that a change is live and in the object when it returns.

use std::process::Output;

use anyhow::Result;
use serde_json::Value;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::two_node_sets;
use crate::common::slurm::{SOON, slurm, start_job, wait_node};

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs `kubectl slurm …` with the plugin on the PATH, as it is installed.
fn run(namespace: &Namespace, words: &[&str]) -> Said {
    let plugin = testbed::sibling("kubectl-slurm").unwrap();
    let folder = plugin.parent().unwrap().display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = cluster().kubectl(&["slurm"]);
    command.args(words).args(["--namespace", &namespace.name]);
    if matches!(words, [_, "create" | "set" | "drain" | "resume" | "delete", ..]) {
        // For busy machines.
        command.arg("--timeout=3m");
    }
    let Output { status, stdout, stderr } = command.env("PATH", format!("{folder}:{path}")).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = Said {
        code: status.code(),
        out: text(&stdout),
        err: text(&stderr),
    };
    eprintln!("$ kubectl slurm {}\n{}{}", words.join(" "), said.out, said.err);
    said
}

/// Returns the output of a successful command.
pub(crate) fn done(namespace: &Namespace, words: &[&str]) -> String {
    let said = run(namespace, words);
    assert_eq!(said.code, Some(0), "{words:?}: {}{}", said.out, said.err);
    said.out
}

/// Returns the error output of a command that exits with this code.
fn fails(namespace: &Namespace, words: &[&str], code: i32) -> String {
    let said = run(namespace, words);
    assert_eq!(said.code, Some(code), "{words:?}: {}{}", said.out, said.err);
    said.err
}

/// Expects that slurmctld's partition contains all these words now.
fn live(namespace: &Namespace, name: &str, words: &[&str]) {
    let shown = slurm(namespace, &format!("scontrol --oneliner show partition {name}")).unwrap();
    assert!(words.iter().all(|word| shown.contains(word)), "{words:?} in {shown}");
}

fn extra_conf(namespace: &Namespace) -> String {
    namespace.field("controller/slurm", ".spec.extraConf").unwrap()
}

fn config(namespace: &Namespace) -> String {
    namespace.field("nodeset/compute", ".spec.partition.config").unwrap()
}

fn object(namespace: &Namespace, path: &str) -> Result<String> {
    namespace.field("partition.slinky.slurm.net/both", path)
}

#[test]
fn partitions_of_all_three_kinds_are_listed_changed_drained_and_deleted_alike() {
    let namespace = two_node_sets("plugin");
    done(
        &namespace,
        &[
            "partition",
            "create",
            "both",
            "--nodes",
            "compute,slurm-second",
            "MaxTime=60",
        ],
    );
    live(&namespace, "both", &["MaxTime=01:00:00", "TotalNodes=2"]);
    let refused = fails(&namespace, &["partition", "create", "compute", "--nodes", "compute"], 1);
    assert!(refused.contains("NodeSet compute spec.partition"), "{refused}");
    list_side_by_side(&namespace);
    change_settings(&namespace);
    change_members(&namespace);
    close_and_open(&namespace);
    refuse_and_warn(&namespace);
    delete_after_jobs(&namespace);
}

/// In parallel.
fn list_side_by_side(namespace: &Namespace) {
    let list: Value = serde_json::from_str(&done(namespace, &["partition", "list", "-o", "json"])).unwrap();
    let kinds: Vec<String> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            format!(
                "{} {} {} {}",
                item["name"], item["kind"], item["live"]["state"], item["ready"]
            )
            .replace('"', "")
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "all extraConf UP true",
            "both Partition UP true",
            "compute NodeSet UP true",
            "highprio extraConf UP true"
        ]
    );
    let table = done(namespace, &["partition", "list"]);
    assert!(
        table.starts_with("NAME ") && table.contains("nodeset/compute") && !table.contains('\u{1b}'),
        "{table}"
    );
}

/// One setting of each kind is live and in the object when the command returns; nothing else changes.
fn change_settings(namespace: &Namespace) {
    done(namespace, &["partition", "set", "compute", "MaxTime=90"]);
    live(namespace, "compute", &["MaxTime=01:30:00", "Default=YES"]);
    assert_eq!(config(namespace), "Default=YES MaxTime=90");
    done(
        namespace,
        &["partition", "set", "highprio", "MaxTime=2-00:00:00", "PriorityTier-"],
    );
    live(namespace, "highprio", &["MaxTime=2-00:00:00", "PriorityTier=1 "]);
    assert_eq!(
        extra_conf(namespace),
        "PartitionName=all Nodes=ALL Default=NO\nPartitionName=highprio Nodes=compute MaxTime=2-00:00:00\n"
    );
    done(namespace, &["partition", "set", "both", "MaxTime=30", "PriorityTier=7"]);
    live(namespace, "both", &["MaxTime=00:30:00", "PriorityTier=7 "]);
    assert_eq!(object(namespace, ".spec.maxTime").unwrap(), "30");
}

/// Members.
fn change_members(namespace: &Namespace) {
    done(namespace, &["partition", "set", "both", "--nodes", "-slurm-second"]);
    live(namespace, "both", &["TotalNodes=1", ",node=1,"]);
    assert_eq!(object(namespace, ".spec.nodeSets").unwrap(), r#"["compute"]"#);
    done(namespace, &["partition", "set", "both", "--nodes", "+second"]);
    live(namespace, "both", &["TotalNodes=2", ",node=2,"]);
    // A single node of a NodeSet. The operator waits for all nodes that it has seen, and these have just joined.
    for node in ["compute-0", "second-0"] {
        wait_node(namespace, node, &["podName"], &[]).unwrap();
    }
    done(namespace, &["partition", "set", "both", "--nodes", "-compute-0"]);
    live(namespace, "both", &[" Nodes=second-0 "]);
    // By names that people know, and not by the mark in slurm.conf.
    let shown = done(namespace, &["partition", "show", "both"]);
    assert!(shown.contains("compute,second except compute-0\n"), "{shown}");
    let history = done(namespace, &["config", "history"]);
    assert!(!history.contains("both.members-"), "{history}");
    done(namespace, &["partition", "set", "both", "--nodes", "+compute-0"]);
    live(namespace, "both", &[" Nodes=compute-0,second-0 "]);
    // By the name of its pod.
    done(namespace, &["partition", "set", "both", "--nodes", "-slurm-second-0"]);
    live(namespace, "both", &[" Nodes=compute-0 "]);
    done(namespace, &["partition", "set", "both", "--nodes", "+second-0"]);
    live(namespace, "both", &[" Nodes=compute-0,second-0 "]);
    done(namespace, &["partition", "set", "highprio", "--nodes", "+slurm-second"]);
    live(namespace, "highprio", &["TotalNodes=2"]);
    let refused = fails(namespace, &["partition", "set", "compute", "--nodes", "+second-0"], 1);
    assert!(refused.contains("kubectl slurm partition create"), "{refused}");
}

/// Drained and resumed.
fn close_and_open(namespace: &Namespace) {
    for name in ["compute", "highprio", "both"] {
        done(namespace, &["partition", "drain", name]);
        live(namespace, name, &["State=DRAIN"]);
        done(namespace, &["partition", "resume", name]);
        live(namespace, name, &["State=UP"]);
    }
    assert_eq!(config(namespace), "Default=YES MaxTime=90 State=UP");
    // Also after a manual drain.
    for name in ["both", "compute"] {
        slurm(namespace, &format!("scontrol update PartitionName={name} State=DRAIN")).unwrap();
    }
    eventually("the manual drain is observed", SOON, || {
        let drift = object(namespace, ".status.drift[*].live")?;
        expect(drift == "DRAIN", drift)
    })
    .unwrap();
    for name in ["both", "compute"] {
        done(namespace, &["partition", "resume", name]);
        live(namespace, name, &["State=UP"]);
    }
}

/// A rejection has the message of the condition, leaves nothing behind in the object, and slurmctld continues as before.
fn refuse_and_warn(namespace: &Namespace) {
    let (config_before, extra_before) = (config(namespace), extra_conf(namespace));
    for (name, setting) in [
        ("compute", "MaxTime=soon"),
        ("highprio", "MaxTime=soon"),
        ("both", "QOS=nonesuch"),
    ] {
        let refused = fails(namespace, &["partition", "set", name, setting, "PriorityTier=3"], 1);
        let (_, value) = setting.split_once('=').unwrap();
        assert!(refused.contains(value) && refused.contains("was undone"), "{refused}");
    }
    live(namespace, "compute", &["MaxTime=01:30:00"]);
    assert_eq!(
        (config(namespace), extra_conf(namespace)),
        (config_before, extra_before)
    );
    assert_eq!(object(namespace, ".spec.qos").unwrap(), "");
    assert_eq!(object(namespace, ".spec.priorityTier").unwrap(), "7");
    eventually("the rejected Partition has its event", SOON, || {
        let of_both = "involvedObject.kind=Partition,involvedObject.name=both";
        let messages = "jsonpath={.items[*].message}";
        let events = namespace.ask(&["get", "events", "--field-selector", of_both, "-o", messages])?;
        expect(events.contains("nonesuch"), events)
    })
    .unwrap();
    // Nor does a new object stay.
    let create = ["partition", "create", "bad", "--nodes", "compute", "QOS=nonesuch"];
    let refused = fails(namespace, &create, 1);
    assert!(
        refused.contains("nonesuch") && refused.contains("deleted again"),
        "{refused}"
    );
    eventually("the rejected Partition is gone", SOON, || {
        let left = namespace.ask(&["get", "partitions.slinky.slurm.net", "-o", "name"])?;
        expect(!left.contains("/bad"), left)
    })
    .unwrap();
    // The next change is accepted, and nothing waits.
    done(namespace, &["partition", "set", "both", "PriorityTier=8"]);
    let same = done(namespace, &["config", "diff"]);
    assert!(same.contains("runs with the settings of all objects"), "{same}");

    // The other field manager is named.
    namespace
        .ask(&["label", "nodeset/compute", "app.kubernetes.io/managed-by=Helm"])
        .unwrap();
    let said = run(namespace, &["partition", "set", "compute", "MaxTime=91"]);
    assert!(
        said.code == Some(0) && said.err.contains("warning: Helm"),
        "{}",
        said.err
    );
}

/// The deletion waits for jobs.
fn delete_after_jobs(namespace: &Namespace) {
    let job = start_job(namespace, "-p highprio", "sleep 10").unwrap();
    done(namespace, &["partition", "delete", "highprio"]);
    assert_eq!(extra_conf(namespace), "PartitionName=all Nodes=ALL Default=NO\n");
    let ended = slurm(namespace, &format!("scontrol show job {job}")).unwrap();
    assert!(
        ended.contains("JobState=COMPLETED") && ended.contains("ExitCode=0:0"),
        "{ended}"
    );
    done(namespace, &["partition", "delete", "both"]);
    let left = slurm(namespace, "scontrol --oneliner show partitions").unwrap();
    assert!(!left.contains("=both ") && !left.contains("=highprio "), "{left}");

    // Exit codes for scripts.
    assert!(fails(namespace, &["partition", "show", "nope"], 3).contains("existing partitions: "));
    fails(namespace, &["partition", "set", "compute"], 2);
    fails(namespace, &["partition", "list", "--cluster", "nope"], 3);
}

#[test]
fn nodes_configuration_and_status_are_shown() {
    let namespace = two_node_sets("plugin-nodes");
    let node = |name: &str| slurm(&namespace, &format!("scontrol show node {name} --oneliner")).unwrap();

    // By the pod's name and by Slurm's.
    done(
        &namespace,
        &["node", "drain", "compute-0", "slurm-second-0", "--reason", "disk swap"],
    );
    for name in ["compute-0", "second-0"] {
        let shown = node(name);
        assert!(
            shown.contains("+DRAIN") && shown.contains("Reason=slurm-operator: disk swap"),
            "{shown}"
        );
    }
    let list = done(&namespace, &["node", "list"]);
    assert!(
        list.contains("IDLE+DRAIN") && list.contains("slurm-operator: disk swap"),
        "{list}"
    );
    let shown = done(&namespace, &["node", "show", "slurm-second-0"]);
    for words in [
        "Name:            second-0\n",
        "Why:             slurm-operator: disk swap\n",
        "By:              Person\n",
        "Pod cordoned:    disk swap\n",
        "Address:         ",
        "Jobs:            none\n",
    ] {
        assert!(shown.contains(words), "{words:?} in {shown}");
    }
    fails(&namespace, &["node", "show", "nope"], 3);
    done(&namespace, &["node", "resume", "second-0", "compute-0"]);
    for name in ["compute-0", "second-0"] {
        assert!(!node(name).contains("DRAIN"), "{}", node(name));
    }
    // A drain by hand.
    slurm(&namespace, "scontrol update NodeName=second-0 State=DRAIN Reason=fan").unwrap();
    eventually("the pod has a condition for Slurm's drain", SOON, || {
        let second = namespace.ask(&[
            "get",
            "pod",
            "slurm-second-0",
            "-o",
            "jsonpath={.status.conditions[*].message}",
        ])?;
        expect(second.contains("fan"), second)
    })
    .unwrap();
    let list = done(&namespace, &["node", "list"]);
    assert!(list.contains(" fan ") && list.contains("Z   Person ("), "{list}");
    let check = "scontrol update NodeName=compute-0 State=DRAIN Reason='NHC: /scratch is full'";
    slurm(&namespace, check).unwrap();
    eventually("the NodeSet says who drained its node", SOON, || {
        let said = namespace.field("nodeset/compute", ".status.outOfService[0]")?;
        let is_told = [
            r#""by":"Check""#,
            "NHC: /scratch is full",
            r#""node":"compute-0""#,
            r#""since":"#,
        ];
        expect(is_told.iter().all(|words| said.contains(words)), said)
    })
    .unwrap();
    done(&namespace, &["node", "resume", "compute-0"]);
    eventually("the node is in service again", SOON, || {
        let said = namespace.field("nodeset/compute", ".status.outOfService")?;
        expect(said.is_empty(), said)
    })
    .unwrap();
    done(&namespace, &["node", "resume", "second-0"]);
    assert!(!node("second-0").contains("DRAIN"), "{}", node("second-0"));
    assert!(fails(&namespace, &["node", "drain", "compute-9"], 3).contains("node list"));

    show_configuration(&namespace);

    let job = start_job(&namespace, "-p compute", "sleep 300").unwrap();
    let status = done(&namespace, &["status"]);
    for words in [
        ": Ready\n",
        "configuration  revision ",
        "jobs           1 running, 0 pending",
        "nodeset",
        "controller/slurm",
    ] {
        assert!(
            status.to_lowercase().contains(&words.to_lowercase()),
            "{words:?} in {status}"
        );
    }
    slurm(&namespace, &format!("scancel {job}")).unwrap();
    assert!(done(&namespace, &["completion", "bash"]).contains("kubectl-slurm"));
    complete_names(&namespace);
}

/// A file that slurmctld would reject, and the revisions.
fn show_configuration(namespace: &Namespace) {
    let files = tempfile::tempdir().unwrap();
    let conf = files.path().join("slurm.conf");
    std::fs::write(&conf, "ClusterName=a\nSlurmctldHost=b\nPartitonName=x Nodes=y\n").unwrap();
    let said = run(namespace, &["config", "check", conf.to_str().unwrap()]);
    assert!(
        said.code == Some(1) && said.out.contains("did you mean PartitionName"),
        "{}",
        said.out
    );
    let history = done(namespace, &["config", "history"]);
    assert!(
        history.contains("accepted") && history.contains("the first revision"),
        "{history}"
    );
}

/// kubectl's own completion, which its scripts for bash, zsh and fish all ask, completes names by the plugin.
fn complete_names(namespace: &Namespace) {
    let folder = tempfile::tempdir().unwrap();
    let plugin = testbed::sibling("kubectl-slurm").unwrap();
    for name in ["kubectl-slurm", "kubectl_complete-slurm"] {
        std::os::unix::fs::symlink(&plugin, folder.path().join(name)).unwrap();
    }
    let path = format!(
        "{}:{}",
        folder.path().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    for (words, expected) in [
        (&["partition", "show", "high"][..], "highprio\n:4"),
        (&["node", "drain", "comp"], "compute-0\n:4"),
        (
            &["partition", "set", "all", "--nodes", "+slurm-sec"],
            "+slurm-second\n:4",
        ),
        (&["status", "--cluster", ""], "slurm\n:4"),
    ] {
        // The options of the cluster come first; the words of a person follow.
        let mut command = cluster().kubectl(&["__complete", "slurm", "--namespace", &namespace.name]);
        let output = command.args(words).env("PATH", &path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            said.starts_with(expected),
            "{words:?}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
