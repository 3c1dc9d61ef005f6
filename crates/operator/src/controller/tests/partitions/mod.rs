//! Tests of Partitions as inputs of a Controller's configuration.

mod first;
mod removal;

use serde_json::{Value, json};
use slurm::agent::PartitionInUse;

use super::*;
use crate::{
    cluster::{
        Seen,
        deliver::{LiveRevision, State, Wanted},
    },
    configuration::{DeliveryChange, content::Content, gather_partitions, render::read_bundle, taken_by},
    partition::rules::line::PartitionLine,
};

const READ: &str = "2026-01-02T00:01:00Z";

fn partition(name: &str, created: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["controllerRef"] = json!({ "name": "slurm" });
    json!({
        "apiVersion": "slinky.slurm.net/v1alpha1", "kind": "Partition",
        "metadata": { "name": name, "namespace": "hpc", "uid": name, "generation": 1, "creationTimestamp": created },
        "spec": spec,
    })
}

fn cluster(extra: &str) -> Vec<Value> {
    let mut objects = vec![
        controller(&json!({ "extraConf": extra })),
        node_set(
            "cpu",
            "2026-01-01T00:00:00Z",
            json!({ "partition": { "config": "MaxTime=5" } }),
        ),
        node_set("gpu", "2026-01-01T00:00:00Z", json!({})),
    ];
    objects.extend(keys());
    objects
}

fn line<'a>(conf: &'a str, name: &str) -> Option<&'a str> {
    conf.lines()
        .find(|line| line.starts_with(&format!("PartitionName={name} ")))
}

fn with(mut objects: Vec<Value>, more: impl IntoIterator<Item = Value>) -> Vec<Value> {
    objects.extend(more);
    objects
}

#[test]
fn a_partitions_line_comes_after_those_of_nodesets_and_before_the_users_lines() {
    let both = partition(
        "both",
        "2026-01-02T00:00:00Z",
        json!({ "nodeSets": ["cpu", "gpu"], "maxTime": 60 }),
    );
    let plan = planned(with(cluster("PartitionName=mine Nodes=ALL\n"), [both]));
    let conf = slurm_conf(&plan);
    assert_eq!(
        line(&conf, "both"),
        Some("PartitionName=both Nodes=cpu,gpu State=UP MaxTime=60")
    );
    let at = |name: &str| conf.find(&format!("PartitionName={name} ")).unwrap();
    assert!(at("cpu") < at("both") && at("both") < at("mine"), "{conf}");
    assert_eq!(
        plan.configuration.partitions["both"].line.as_ref().unwrap().generation,
        1
    );
}

#[test]
fn a_rejected_partition_is_left_out_with_a_reason_and_delays_nothing() {
    for (name, spec, extra, reason, part) in [
        (
            "x",
            json!({ "nodeSets": ["nope"] }),
            "",
            "BadMembers",
            "spec.nodeSets[0] names NodeSet \"nope\"",
        ),
        (
            "cpu",
            json!({ "nodeSets": ["cpu"] }),
            "",
            "PartitionNameTaken",
            "NodeSet \"cpu\"",
        ),
        (
            "gpu",
            json!({ "nodeSets": ["cpu"] }),
            "",
            "PartitionNameTaken",
            "NodeSet \"gpu\"",
        ),
        (
            "mine",
            json!({ "nodeSets": ["cpu"] }),
            "PartitionName=mine Nodes=ALL\n",
            "PartitionNameTaken",
            "spec.extraConf",
        ),
        (
            "x",
            json!({ "nodeSets": ["cpu"], "default": true }),
            "PartitionName=m Nodes=ALL Default=YES\n",
            "TwoDefaults",
            "PartitionName=m",
        ),
        (
            "x",
            json!({ "nodes": ["n[0-9999999]"] }),
            "",
            "BadMembers",
            "spec.nodes[0]",
        ),
        (
            "x",
            json!({ "nodeSets": ["cpu"], "partitionName": "all" }),
            "",
            "InvalidSpec",
            "spec.partitionName",
        ),
        // Its line comes before the good one, and would continue into it.
        (
            "a",
            json!({ "nodeSets": ["cpu"], "config": "AllowGroups=x,\\" }),
            "",
            "InvalidSpec",
            "spec.config has a backslash",
        ),
        (
            "default",
            json!({ "nodeSets": ["cpu"] }),
            "",
            "InvalidSpec",
            "metadata.name",
        ),
        (
            "cpu-7",
            json!({ "nodeSets": ["cpu"] }),
            "",
            "PartitionNameTaken",
            "a node of NodeSet \"cpu\"",
        ),
        (
            "ext7",
            json!({ "nodeSets": ["cpu"] }),
            "NodeName=ext[1-9] CPUs=4\n",
            "PartitionNameTaken",
            "NodeName= line in spec.extraConf",
        ),
    ] {
        let objects = with(
            cluster(extra),
            [
                partition(name, "2026-01-02T00:00:00Z", spec.clone()),
                partition("good", "2026-01-03T00:00:00Z", json!({ "nodeSets": ["gpu"] })),
            ],
        );
        let plan = planned(objects);
        let conf = slurm_conf(&plan);
        assert!(line(&conf, "good").is_some(), "{name} {spec}: {conf}");
        let report = &plan.configuration.partitions[name];
        assert_eq!(report.line, None, "{name} {spec}");
        let trouble = report.trouble.clone().unwrap();
        assert_eq!(trouble.reason, reason, "{name} {spec}: {}", trouble.message);
        assert!(trouble.message.contains(part), "{name} {spec}: {}", trouble.message);
    }
}

#[test]
fn a_line_of_an_older_operator_that_continues_into_the_next_one_is_not_kept() {
    let config = |config: &str| json!({ "nodeSets": ["cpu"], "config": config });
    let of_before = |settings: &str| PartitionLine {
        name: "gpt".to_owned(),
        nodes: "cpu".to_owned(),
        state: "UP".to_owned(),
        settings: settings.to_owned(),
        generation: 1,
        mark: None,
    };
    let mut deleted = partition("gpt", "2026-01-02T00:00:00Z", config("AllowGroups=x,\\"));
    deleted["metadata"]["deletionTimestamp"] = "2026-01-03T00:00:00Z".into();
    for (object, settings, is_kept) in [
        (
            partition("gpt", "2026-01-02T00:00:00Z", config("AllowGroups=x,\\")),
            "AllowGroups=x,\\",
            false,
        ),
        (deleted, "AllowGroups=x,\\", false),
        // The new config is bad, the accepted one was good.
        (
            partition("gpt", "2026-01-02T00:00:00Z", config("AllowGroups=x,\\")),
            "AllowGroups=x",
            true,
        ),
    ] {
        let observed = observed(with(cluster(""), [object]), Report::default());
        let mut before = Content::default();
        before.partitions.insert("gpt".to_owned(), of_before(settings));
        let content = Content::default();
        let taken = taken_by(&content);
        let (lines, _) = gather_partitions(&observed.inputs, &observed.snapshot, &content, &before, taken, true);
        assert_eq!(lines.contains_key("gpt"), is_kept, "{settings:?}");
    }
}

#[test]
fn of_two_partitions_with_one_name_the_older_one_is_accepted_and_named() {
    let named = |own: &str, created: &str| {
        partition(
            own,
            created,
            json!({ "nodeSets": ["cpu"], "partitionName": "long", "maxTime": own.len() }),
        )
    };
    let plan = planned(with(
        cluster(""),
        [
            named("a", "2026-01-03T00:00:00Z"),
            named("older", "2026-01-02T00:00:00Z"),
        ],
    ));
    assert!(plan.configuration.partitions["older"].line.is_some());
    let refused = plan.configuration.partitions["a"].trouble.clone().unwrap();
    assert!(refused.message.contains("Partition \"older\""), "{}", refused.message);
    assert_eq!(
        line(&slurm_conf(&plan), "long"),
        Some("PartitionName=long Nodes=cpu State=UP MaxTime=5")
    );
}

/// Observed with a slurmctld that runs with the bundle.
fn served(mut objects: Vec<Value>) -> Observed {
    objects.push(pod(0));
    let mut observed = observed(objects, Report::default());
    let bundle = observed.inputs.bundle.as_deref().and_then(read_bundle).unwrap();
    observed.snapshot.report = Report {
        pod: "pod-0".to_owned(),
        live: Some(LiveRevision {
            sequence: bundle.sequence,
            digest: bundle.digest(),
        }),
        state: State::Done,
        ..Report::default()
    };
    observed
}

/// The plan once slurmctld runs with `objects`, if the objects are then `now` and Slurm returns these partitions and
/// jobs.
fn later(objects: Vec<Value>, now: Vec<Value>, states: &[(&str, &str)], jobs: Value, read: &str) -> Plan {
    plan(&after(objects, now, states, jobs, read))
}

/// The observed state for [`later`].
fn after(objects: Vec<Value>, now: Vec<Value>, states: &[(&str, &str)], jobs: Value, read: &str) -> Observed {
    let first = planned(objects.clone());
    // Once with a running slurmctld, so that jobs are possible.
    let serving = plan(&served(with(objects, written(&first))));
    let mut observed = served(with(now, written(&serving)));
    let digest = observed.snapshot.report.live.unwrap().digest;
    observed.snapshot.lives = vec![(digest, "2026-01-02T00:00:30Z".parse().unwrap())];
    let mut seen = Seen::of_nodes(Vec::new(), read.parse().unwrap());
    seen.jobs = Some(serde_json::from_value(jobs).unwrap());
    let partition = |(name, state): &(&str, &str)| {
        let live = json!({ "name": name, "partition": { "state": [state] }, "nodes": { "configured": "" } });
        ((*name).to_owned(), serde_json::from_value(live).unwrap())
    };
    seen.partitions = Some(Arc::new(states.iter().map(partition).collect()));
    observed.snapshot.knowledge = Knowledge::Known(seen.into());
    observed
}

fn pushed(plan: &Plan) -> Wanted {
    match &plan.configuration.delivery {
        DeliveryChange::Deliver(wanted) => wanted.as_ref().clone(),
        other => panic!("{other:?}"),
    }
}

fn pushed_conf(plan: &Plan) -> String {
    let files = pushed(plan).files;
    let (_, conf) = files.iter().find(|(name, _)| name.as_str() == "slurm.conf").unwrap();
    String::from_utf8(conf.content.clone()).unwrap()
}

fn deleted(mut partition: Value) -> Value {
    partition["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z".into();
    partition["metadata"]["finalizers"] = json!(["partition.slinky.slurm.net/slurm"]);
    partition
}

#[test]
fn a_new_manual_state_is_written_into_the_file() {
    let objects = |state: &str| {
        with(
            cluster("PartitionName=mine Nodes=ALL # kept as it is\nPartitionName=own Nodes=ALL MaxTime=3\n"),
            [partition(
                "both",
                "2026-01-02T00:00:00Z",
                json!({ "nodeSets": ["cpu", "gpu"], "state": state }),
            )],
        )
    };
    let states = |state: &'static str| [("both", state), ("cpu", "UP"), ("own", "UP")];
    for (spec, slurm, read, expected) in [
        ("Up", "DRAIN", READ, "DRAIN"),
        ("Up", "INACTIVE", READ, "INACTIVE"),
        ("Up", "UP", READ, "UP"),
        // Less strict than the object, or as strict: the object's state is kept.
        ("Drain", "UP", READ, "DRAIN"),
        ("Drain", "DOWN", READ, "DRAIN"),
        ("Down", "INACTIVE", READ, "INACTIVE"),
        // Read before slurmctld had the file.
        ("Up", "DRAIN", "2026-01-02T00:00:10Z", "UP"),
    ] {
        let plan = later(objects(spec), objects(spec), &states(slurm), json!([]), read);
        let conf = pushed_conf(&plan);
        let line = line(&conf, "both").unwrap();
        assert!(
            line.contains(&format!(" State={expected}")),
            "{spec} {slurm} {read}: {line}"
        );
        // The agent receives the names of manually closed partitions.
        let by_hand: Vec<String> = pushed(&plan).closed_by_hand.iter().cloned().collect();
        let is_by_hand = expected != spec.to_uppercase();
        assert_eq!(
            by_hand,
            if is_by_hand { vec!["both"] } else { vec![] },
            "{spec} {slurm} {read}"
        );
    }
    // During the push it is still wanted.
    let mut on_its_way = after(objects("Up"), objects("Up"), &states("DRAIN"), json!([]), READ);
    on_its_way.snapshot.report.state = State::Busy;
    let conf = pushed_conf(&super::plan(&on_its_way));
    assert!(line(&conf, "both").unwrap().contains("State=DRAIN"), "{conf}");
    // It is kept when slurmctld has it and Kubernetes has not recorded it yet.
    let sent = super::plan(&on_its_way);
    let wanted = pushed(&sent);
    on_its_way.snapshot.report.state = State::Done;
    on_its_way.snapshot.report.live = Some(LiveRevision {
        sequence: 9,
        digest: wanted.digest,
    });
    on_its_way
        .snapshot
        .lives
        .push((wanted.digest, "2026-01-02T00:02:00Z".parse().unwrap()));
    let conf = pushed_conf(&super::plan(&on_its_way));
    assert!(line(&conf, "both").unwrap().contains("State=DRAIN"), "{conf}");
    // Slurm may be polled again before that: the response is about the served revision.
    on_its_way.snapshot.served = on_its_way
        .snapshot
        .report
        .live
        .zip(sent.configuration.sent.map(Arc::new));
    for (state, expected) in [("DRAIN", "DRAIN"), ("UP", "UP")] {
        let polled = after(
            objects("Up"),
            objects("Up"),
            &states(state),
            json!([]),
            "2026-01-02T00:03:00Z",
        );
        on_its_way.snapshot.knowledge = polled.snapshot.knowledge;
        let conf = pushed_conf(&super::plan(&on_its_way));
        let line = line(&conf, "both").unwrap();
        assert!(line.contains(&format!(" State={expected}")), "{line}");
    }
    // Partitions of NodeSets and of extraConf too.
    let plan = later(
        objects("Up"),
        objects("Up"),
        &[("cpu", "DRAIN"), ("own", "DOWN")],
        json!([]),
        READ,
    );
    let conf = pushed_conf(&plan);
    assert_eq!(
        line(&conf, "cpu"),
        Some("PartitionName=cpu Nodes=cpu MaxTime=5 State=DRAIN")
    );
    assert_eq!(
        line(&conf, "own"),
        Some("PartitionName=own Nodes=ALL MaxTime=3 State=DOWN")
    );
    assert_eq!(
        line(&conf, "mine"),
        Some("PartitionName=mine Nodes=ALL # kept as it is")
    );
}

/// Kubernetes' data was restored from a backup, or the cache is old, and the leader that pushed the live revision is gone.
#[test]
fn a_partition_stays_closed_if_the_record_of_the_live_revision_is_lost() {
    let mut observed = after(cluster(""), cluster(""), &[("cpu", "INACTIVE")], json!([]), READ);
    let recorded = observed.snapshot.report.live.unwrap();
    observed.snapshot.lives.clear();
    observed.snapshot.report.live = Some(LiveRevision {
        sequence: recorded.sequence + 3,
        digest: slurm::revision::Digest::of(b"pushed by another leader"),
    });
    let polled = std::mem::take(&mut observed.snapshot.knowledge);
    let unpolled = plan(&observed);
    assert_eq!(pushed(&unpolled).known, recorded.sequence);
    assert!(unpolled.configuration.depends_on_slurm, "Slurm is polled");

    observed.snapshot.knowledge = polled;
    let plan = plan(&observed);
    assert_eq!(pushed(&plan).known, recorded.sequence + 3);
    let conf = pushed_conf(&plan);
    assert!(line(&conf, "cpu").unwrap().contains("State=INACTIVE"), "{conf}");

    // This operator pushed it: the states are compared with those it wrote.
    observed.snapshot.is_live_own = true;
    let plan = super::plan(&observed);
    assert_eq!(pushed(&plan).known, recorded.sequence + 3);
    let conf = pushed_conf(&plan);
    assert!(!line(&conf, "cpu").unwrap().contains("State=INACTIVE"), "{conf}");
}

#[test]
fn a_manual_state_that_is_not_accepted_yet_is_kept_while_slurm_does_not_respond() {
    let mut observed = after(cluster(""), cluster(""), &[("cpu", "DRAIN")], json!([]), READ);
    let found = plan(&observed).configuration;
    assert_eq!(found.remembered_states, Some(found.manual_states));
    observed.snapshot.manual_states = found.remembered_states;
    observed.snapshot.knowledge = Knowledge::default();
    let plan = plan(&observed);
    let conf = pushed_conf(&plan);
    assert!(line(&conf, "cpu").unwrap().contains("State=DRAIN"), "{conf}");
}

#[test]
fn a_manual_state_that_was_lifted_in_kubernetes_does_not_return_while_slurm_does_not_respond() {
    let mut observed = after(cluster(""), cluster(""), &[("cpu", "DRAIN")], json!([]), READ);
    observed.snapshot.manual_states = plan(&observed).configuration.remembered_states;
    observed.snapshot.knowledge = Knowledge::default();
    let mut plan_with = |config: &str| {
        let mut node_set = (*observed.inputs.node_sets[0]).clone();
        node_set.spec.partition.as_mut().unwrap().config = Some(config.to_owned());
        observed.inputs.node_sets[0] = Arc::new(node_set);
        let plan = plan(&observed);
        observed.snapshot.manual_states = plan.configuration.remembered_states.clone();
        line(&pushed_conf(&plan), "cpu").unwrap().to_owned()
    };
    // The owner drains it as well, which lifts the manual state, and opens it later.
    assert_eq!(
        plan_with("MaxTime=5 State=DRAIN"),
        "PartitionName=cpu Nodes=cpu MaxTime=5 State=DRAIN"
    );
    assert_eq!(
        plan_with("MaxTime=5 State=UP"),
        "PartitionName=cpu Nodes=cpu MaxTime=5 State=UP"
    );
}

#[test]
fn a_manual_state_is_kept_while_the_settings_of_its_partition_cannot_be_read() {
    let mut bad = cluster("");
    bad[1]["spec"]["partition"]["config"] = "MaxTime=9 \\".into();
    let plan = later(cluster(""), bad, &[("cpu", "DRAIN")], json!([]), READ);
    let held: Vec<&str> = plan.configuration.held.iter().map(|held| held.reason).collect();
    assert_eq!(held, ["BadPartition"]);
    let conf = pushed_conf(&plan);
    let expected = "PartitionName=cpu Nodes=cpu MaxTime=5 State=DRAIN";
    assert_eq!(line(&conf, "cpu"), Some(expected));
}

/// A worker of NodeSet cpu on a Kubernetes node.
fn worker(name: &str, created: &str, slurmd: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "hpc", "uid": name, "creationTimestamp": created,
            "labels": { "app.kubernetes.io/name": "slurmd" },
            "ownerReferences": [{ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "cpu", "uid": "cpu", "controller": true }],
        },
        "spec": { "nodeName": "machine", "containers": [{ "name": "slurmd" }] },
        "status": { "phase": "Running", "containerStatuses": [
            { "name": "slurmd", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": slurmd },
        ] },
    })
}

#[test]
fn an_exclusion_waits_for_workers_that_are_about_to_register() {
    let objects = |spec: Value| with(cluster(""), [partition("both", "2026-01-02T00:00:00Z", spec)]);
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:50Z");
    let running = |since: &str| json!({ "running": { "startedAt": since } });
    let waiting = || json!({ "waiting": { "reason": "ContainerCreating" } });
    let leaving = |mut pod: Value| {
        pod["metadata"]["deletionTimestamp"] = late.into();
        pod
    };
    let nowhere = |mut pod: Value| {
        pod["spec"]["nodeName"] = Value::Null;
        pod
    };
    for (what, pod, waits) in [
        ("has just started", worker("cpu-1", early, &running(late)), true),
        ("is about to start", worker("cpu-1", late, &waiting()), true),
        ("is excluded", worker("cpu-0", early, &running(late)), false),
        (
            "has been seen with the mark",
            worker("cpu-2", early, &running(late)),
            false,
        ),
        ("cannot register", worker("cpu-1", early, &running(early)), false),
        ("does not start", worker("cpu-1", early, &waiting()), false),
        (
            "is being deleted",
            leaving(worker("cpu-1", early, &running(late))),
            false,
        ),
        ("has no node", nowhere(worker("cpu-1", late, &waiting())), false),
    ] {
        let now = with(
            objects(json!({ "nodeSets": ["cpu"], "excludeNodes": ["cpu-0"] })),
            [pod],
        );
        let mut observed = after(objects(json!({ "nodeSets": ["cpu"] })), now, &[], json!([]), READ);
        let mark = crate::partition::rules::members::resolve_members(
            &observed.inputs.partitions[0],
            &observed.inputs.node_sets,
        )
        .unwrap()
        .mark
        .unwrap()
        .name;
        let node = |name: &str, features: Value| -> slurm::Node {
            serde_json::from_value(json!({ "name": name, "features": features, "state": ["IDLE"] })).unwrap()
        };
        let nodes = vec![node("cpu-0", json!(["cpu"])), node("cpu-2", json!(["cpu", mark]))];
        observed.snapshot.knowledge = Knowledge::Known(Seen::of_nodes(nodes, READ.parse().unwrap()).into());
        let plan = super::plan(&observed);
        let conf = pushed_conf(&plan);
        let nodes = if waits { "cpu" } else { mark.as_str() };
        let expected = format!("PartitionName=both Nodes={nodes} State=UP");
        assert_eq!(line(&conf, "both"), Some(expected.as_str()), "one that {what}");
        assert_eq!(plan.configuration.depends_on_slurm, waits, "one that {what}");
    }
}

#[test]
fn a_state_that_an_object_requested_and_withdrew_is_no_manual_state() {
    let objects = |state: &str| {
        let spec = json!({ "nodeSets": ["cpu"], "state": state });
        with(cluster(""), [partition("both", "2026-01-02T00:00:00Z", spec)])
    };
    // Closed by its object, which slurmctld has and Kubernetes has not recorded yet; then opened again.
    let closing = plan(&after(
        objects("Up"),
        objects("Drain"),
        &[("both", "UP")],
        json!([]),
        READ,
    ));
    let mut reopened = after(
        objects("Up"),
        objects("Up"),
        &[("both", "DRAIN")],
        json!([]),
        "2026-01-02T00:03:00Z",
    );
    let digest = pushed(&closing).digest;
    reopened.snapshot.report.live = Some(LiveRevision { sequence: 9, digest });
    reopened.snapshot.is_live_own = true;
    reopened
        .snapshot
        .lives
        .push((digest, "2026-01-02T00:02:00Z".parse().unwrap()));
    let conf = pushed_conf(&plan(&reopened));
    assert_eq!(line(&conf, "both"), Some("PartitionName=both Nodes=cpu State=UP"));
}
