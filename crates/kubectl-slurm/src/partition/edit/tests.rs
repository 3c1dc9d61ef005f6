use super::super::members::parse_change;
use super::*;

fn cluster() -> Cluster {
    let set = json!({ "controllerRef": { "name": "slurm" } });
    let mut controller = Controller::new("slurm", serde_json::from_value(json!({})).unwrap());
    controller.metadata.namespace = Some("hpc".into());
    Cluster {
        controller,
        node_sets: vec![
            NodeSet::new("compute", serde_json::from_value(set.clone()).unwrap()),
            NodeSet::new("gpu", serde_json::from_value(set).unwrap()),
        ],
        ..Cluster::default()
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn members(cluster: &Cluster, changes: &[&str]) -> Vec<MemberChange> {
    changes
        .iter()
        .map(|change| parse_change(cluster, &Workers::default(), change).unwrap())
        .collect()
}

fn object(spec: Value) -> Partition {
    let mut spec = spec;
    spec["controllerRef"] = json!({ "name": "slurm" });
    Partition::new("gpu-long", serde_json::from_value(spec).unwrap())
}

#[test]
fn settings_become_fields_and_the_rest_goes_into_config() {
    for (spec, line, expected) in [
        (json!({}), "MaxTime=90", json!({ "maxTime": 90 })),
        (
            json!({}),
            "maxtime=1-00:00:00 Default=yes",
            json!({ "maxTime": "1-00:00:00", "default": true }),
        ),
        (
            json!({}),
            "AllowAccounts=a,b CpuBind=core",
            json!({ "allowAccounts": ["a", "b"], "config": "CpuBind=core" }),
        ),
        (json!({ "maxTime": 90 }), "MaxTime-", json!({ "maxTime": null })),
        (
            json!({ "config": "CpuBind=core SuspendTime=9" }),
            "CpuBind-",
            json!({ "config": "SuspendTime=9" }),
        ),
        (
            json!({ "config": "CpuBind=core" }),
            "CpuBind-",
            json!({ "config": null }),
        ),
        // A setting in config that has a field moves there.
        (
            json!({ "config": "MaxTime=5 CpuBind=core" }),
            "MaxTime=6",
            json!({ "maxTime": 6, "config": "CpuBind=core" }),
        ),
        (json!({}), "State=drain", json!({ "state": "Drain" })),
    ] {
        let changes = parse_settings(&words(line)).unwrap();
        let patch = object_patch(&cluster(), &Workers::default(), &object(spec.clone()), &changes, &[]).unwrap();
        assert_eq!(patch, Some(json!({ "spec": expected })), "{spec} {line}");
    }
}

#[test]
fn unchanged_settings_are_not_written() {
    let unchanged = object(json!({ "maxTime": 90, "nodeSets": ["compute"], "config": "CpuBind=core" }));
    let cluster = cluster();
    let changes = parse_settings(&words("MaxTime=90 CpuBind=core DefaultTime-")).unwrap();
    let members = members(&cluster, &["+compute"]);
    assert_eq!(
        object_patch(&cluster, &Workers::default(), &unchanged, &changes, &members).unwrap(),
        None
    );
}

#[test]
fn only_the_members_of_an_object_are_patched() {
    let cluster = cluster();
    let spec = json!({ "nodeSets": ["compute"], "nodes": ["ext1"], "maxTime": 5 });
    let members = members(&cluster, &["+gpu", "-compute-1", "-ext1"]);
    let patch = object_patch(&cluster, &Workers::default(), &object(spec), &[], &members).unwrap();
    let expected = json!({ "nodeSets": ["compute", "gpu"], "nodes": null, "excludeNodes": ["compute-1"] });
    assert_eq!(patch, Some(json!({ "spec": expected })));
}

#[test]
fn a_nodesets_partition_keeps_its_other_keys() {
    let mut set = cluster().node_sets.remove(0);
    set.spec.partition = Some(serde_json::from_value(json!({ "config": "Default=YES  MaxTime=60" })).unwrap());
    let changes = parse_settings(&words("MaxTime=90 State=DRAIN")).unwrap();
    let patch = node_set_patch(&set, &changes, &[]).unwrap();
    assert_eq!(
        patch,
        Some(json!({ "spec": { "partition": { "config": "Default=YES  MaxTime=90 State=DRAIN" } } }))
    );
    let same = parse_settings(&words("MaxTime=60")).unwrap();
    assert_eq!(node_set_patch(&set, &same, &[]).unwrap(), None);
    let failure = node_set_patch(&set, &[], &members(&cluster(), &["+ext1"])).unwrap_err();
    assert!(failure.to_string().contains("partition create"), "{failure}");
}

#[test]
fn only_the_line_of_the_partition_is_changed() {
    let cluster = cluster();
    let extra = "# mine\nPartitionName=all Nodes=ALL Default=NO\nPartitionName=high Nodes=compute # why\n";
    let mut controller = cluster.controller.clone();
    controller.spec.extra_conf = Some(extra.into());
    let patch = |line: &str, nodes: &[&str]| {
        let changes = parse_settings(&words(line)).unwrap();
        extra_conf_patch(
            &cluster,
            &Workers::default(),
            &controller,
            "high",
            &changes,
            &members(&cluster, nodes),
        )
    };
    let expected = extra.replace("Nodes=compute", "Nodes=compute,gpu MaxTime=5");
    assert_eq!(
        patch("MaxTime=5", &["+gpu"]).unwrap(),
        Some(json!({ "spec": { "extraConf": expected } }))
    );
    assert_eq!(patch("MaxTime-", &[]).unwrap(), None);
    assert_eq!(patch("", &["-compute-0"]).unwrap_err().exit_code(), 1);
    let gone = removed_line_patch(&controller, "high").unwrap();
    assert_eq!(
        gone["spec"]["extraConf"],
        "# mine\nPartitionName=all Nodes=ALL Default=NO\n"
    );
    assert_eq!(removed_line_patch(&controller, "nope"), None);
}

#[test]
fn a_new_object_has_a_valid_name() {
    let cluster = cluster();
    let changes = parse_settings(&words("MaxTime=1:00:00 CpuBind=core")).unwrap();
    let new = new_object(
        &cluster,
        "gpuLong_1",
        &members(&cluster, &["gpu,ext[1-2]"]),
        &["gpu-0".into()],
        &changes,
    )
    .unwrap();
    let value = serde_json::to_value(&new).unwrap();
    assert_eq!(value["metadata"], json!({ "name": "gpulong-1", "namespace": "hpc" }));
    let expected = json!({
        "controllerRef": { "name": "slurm" }, "partitionName": "gpuLong_1", "nodeSets": ["gpu"], "nodes": ["ext[1-2]"],
        "excludeNodes": ["gpu-0"], "maxTime": "1:00:00", "config": "CpuBind=core",
    });
    assert_eq!(value["spec"], expected);
    assert_eq!(
        new_object(&cluster, "gpu-long", &members(&cluster, &["gpu"]), &[], &[])
            .unwrap()
            .spec
            .partition_name,
        None
    );
}

#[test]
fn an_invalid_setting_is_wrong_usage() {
    for word in [
        "MaxTime",
        "=5",
        "Max Time=5",
        "MaxTime=",
        "-",
        "Nodes=a",
        "PartitionName=x",
        "Nodes-",
    ] {
        assert_eq!(parse_settings(&[word.to_owned()]).unwrap_err().exit_code(), 2, "{word}");
    }
    for word in ["PriorityTier=high", "Default=maybe", "State=ASLEEP", "CpuBind=a\"b"] {
        let changes = parse_settings(&[word.to_owned()]).unwrap();
        let failure = object_patch(&cluster(), &Workers::default(), &object(json!({})), &changes, &[]).unwrap_err();
        assert_eq!(failure.exit_code(), 2, "{word}: {failure}");
    }
}

#[test]
fn a_manual_state_is_lifted_by_the_operators_clock() {
    let now: Timestamp = "2026-11-15T10:00:00Z".parse().unwrap();
    let closed = |since: &str, resumed: Option<&str>| {
        let mut object = object(json!({}));
        let drift = json!([{ "key": "State", "wanted": "UP", "live": "DRAIN", "since": since, "settled": "Kept" }]);
        object.status = Some(serde_json::from_value(json!({ "drift": drift })).unwrap());
        object.metadata.annotations =
            resumed.map(|time| [(annotations::RESUMED_AT.to_owned(), time.to_owned())].into());
        object
    };
    assert_eq!(lift_time(&object(json!({})), now), "2026-11-15T10:00:00.000Z");
    let ahead = closed("2026-11-15T10:05:00.123Z", None);
    assert_eq!(lift_time(&ahead, now), "2026-11-15T10:05:00.124Z");
    assert!(is_closed_since(&ahead) && !is_closed_since(&object(json!({}))));
    assert!(is_closed_since(&closed(
        "2026-11-15T10:05:00.123Z",
        Some("2026-11-15T10:00:00Z")
    )));
    assert!(!is_closed_since(&closed(
        "2026-11-15T10:05:00.123Z",
        Some("2026-11-15T10:05:00.124Z")
    )));
}
