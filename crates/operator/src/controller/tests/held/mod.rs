//! Tests that bad or waiting inputs are held, and the others go live.

mod jobs;

use std::{collections::BTreeSet, sync::Arc};

use api::ConditionStatus;
use proptest::prelude::*;
use serde_json::{Value, json};
use slurm::revision::Digest;

use super::{
    super::plan::{Plan, plan},
    config_map, node_set, observed, planned,
    rules::{NOW, bundled, changed, condition, live_as_bundled, replace, running, with_keys},
    slurm_conf, written,
};
use crate::{
    cluster::{
        Knowledge, Seen,
        deliver::{Files, LiveRevision, Report},
    },
    configuration::{ConfigState, DeliveryChange, render::read_bundle},
};

/// Rejected by the slurmctld of these tests in any place, and unknown to the checker.
const REFUSED: &str = "AllowGroups=refused";

fn running_with(spec: &Value, others: Vec<Value>) -> Vec<Value> {
    let mut objects = running(&json!({}));
    objects.extend(others);
    let objects = changed(objects, spec);
    converge_knowing(objects, &|_| false, &jobs(&[])).objects
}

fn partition(name: &str, config: &str) -> Value {
    node_set(name, NOW, json!({ "partition": { "config": config } }))
}

struct Converged {
    objects: Vec<Value>,
    plan: Plan,
    report: Report,
    pushes: usize,
}

impl Converged {
    fn held(&self) -> BTreeSet<&str> {
        self.plan
            .configuration
            .held
            .iter()
            .map(|held| held.source.as_str())
            .collect()
    }

    fn conf(&self) -> String {
        slurm_conf(&self.plan)
    }
}

/// Simulates an operator and an agent until nothing changes, with a slurmctld that rejects some files.
fn converge(objects: Vec<Value>, refuses: &dyn Fn(&str) -> bool) -> Converged {
    converge_knowing(objects, refuses, &Knowledge::unknown("not polled"))
}

fn converge_knowing(mut objects: Vec<Value>, refuses: &dyn Fn(&str) -> bool, knowledge: &Knowledge) -> Converged {
    let mut report = live_as_bundled(&objects);
    let mut pushes = 0;
    for _ in 0..1000 {
        let mut seen = observed(objects.clone(), report.clone());
        seen.snapshot.knowledge = knowledge.clone();
        let plan = plan(&seen);
        let before = objects.clone();
        replace(&mut objects, written(&plan));
        let (digest, files) = pushed(&plan);
        let live = report.live.unwrap();
        if digest == live.digest {
            if objects.iter().all(|object| before.contains(object)) {
                return Converged {
                    objects,
                    plan,
                    report,
                    pushes,
                };
            }
            continue;
        }
        pushes += 1;
        if refuses(&all_text(&files)) {
            let refusals = Arc::make_mut(&mut report.refusals);
            assert_eq!(
                refusals.insert(digest, "fatal: refused".to_owned()),
                None,
                "it was pushed again"
            );
        } else {
            let sequence = live.sequence + 1;
            report.live = Some(LiveRevision { sequence, digest });
        }
    }
    panic!("it does not converge");
}

fn pushed(plan: &Plan) -> (Digest, Files) {
    match &plan.configuration.delivery {
        DeliveryChange::Deliver(wanted) => (wanted.digest, (*wanted.files).clone()),
        other => panic!("{other:?}"),
    }
}

fn all_text(files: &Files) -> String {
    let texts = files
        .values()
        .map(|file| String::from_utf8_lossy(&file.content).into_owned());
    texts.collect()
}

fn jobs(jobs: &[Value]) -> Knowledge {
    let mut seen = Seen::of_nodes(Vec::new(), NOW.parse().unwrap());
    seen.jobs = Some(serde_json::from_value(json!(jobs)).unwrap());
    Knowledge::Known(seen.into())
}

fn job(state: &str, partition: &str) -> Value {
    json!({ "job_id": 7, "job_state": [state], "nodes": "n1", "partition": partition })
}

#[test]
fn a_bad_extra_conf_is_held_and_named_while_a_good_partition_goes_live() {
    let good = json!({ "extraConf": "SchedulerParameters=defer" });
    let objects = running_with(&good, vec![partition("cpu", "Default=YES")]);
    let mut objects = changed(
        objects,
        &json!({ "extraConf": "# mine\nSchedulerParameter=bf_interval=9" }),
    );
    replace(&mut objects, vec![partition("cpu", "MaxTime=60")]);
    let end = converge(objects, &|_| false);
    assert_eq!(end.pushes, 1);
    let conf = end.conf();
    assert!(conf.contains("PartitionName=cpu Nodes=cpu MaxTime=60\n"), "{conf}");
    assert!(
        conf.contains("\nSchedulerParameters=defer\n") && !conf.contains("bf_interval"),
        "{conf}"
    );
    assert_eq!(end.held(), BTreeSet::from(["spec.extraConf"]));
    for type_ in ["Ready", "ConfigurationApplied"] {
        let (status, reason, message) = condition(end.objects.clone(), end.report.clone(), type_);
        assert_eq!(
            (status, reason.as_str()),
            (ConditionStatus::False, "ConfigRejected"),
            "{type_}"
        );
        assert!(message.contains("spec.extraConf line 2: "), "{message}");
        assert!(message.contains("SchedulerParameters?"), "{message}");
    }
    // The next good edit goes live.
    let end = converge(
        changed(
            end.objects,
            &json!({ "extraConf": "SchedulerParameters=bf_interval=9" }),
        ),
        &|_| false,
    );
    assert!(end.conf().contains("bf_interval=9") && end.held().is_empty());
}

#[test]
fn each_source_is_held_at_its_last_good_version_and_a_new_one_is_left_out() {
    let spec = json!({ "extraConf": "SchedulerParameters=defer", "configFileRefs": [{ "name": "files" }] });
    let files = |cgroup: &str| config_map("files", &json!({ "cgroup.conf": cgroup, "x": "1" }));
    let objects = running_with(
        &spec,
        vec![files("CgroupPlugin=disabled\n"), partition("cpu", "MaxTime=1")],
    );
    let before = slurm_conf(&planned(objects.clone()));
    for (bad, held, place) in [
        (
            vec![partition("cpu", "Foo=1")],
            "NodeSet \"cpu\" spec.partition",
            "NodeSet \"cpu\" spec.partition.config: ",
        ),
        (
            vec![partition("cpu", "MaxTime=1 \\ #")],
            "NodeSet \"cpu\" spec.partition",
            "NodeSet \"cpu\": spec.partition.config has a backslash",
        ),
        (
            vec![partition("gpu", "Foo=1")],
            "NodeSet \"gpu\" spec.partition",
            "NodeSet \"gpu\" spec.partition.config: ",
        ),
        (
            vec![files("CgroupPlugin=disabled\nFoo=1\n")],
            "ConfigMap \"files\" entry \"cgroup.conf\"",
            "ConfigMap \"files\" entry \"cgroup.conf\" line 2: ",
        ),
    ] {
        let mut objects = objects.clone();
        replace(&mut objects, bad);
        let end = converge(objects, &|_| false);
        assert_eq!(end.held(), BTreeSet::from([held]));
        let conf = end.conf();
        let without_new = conf.replace("NodeSet=gpu Feature=gpu\n", "");
        assert_eq!(without_new, before, "{held}");
        let fault = &end.plan.findings[0];
        assert!(fault.message.starts_with(place), "{}", fault.message);
        assert!(!all_text(&pushed(&end.plan).1).contains("Foo"));
    }
}

#[test]
fn an_input_that_slurmctld_rejects_is_held_and_the_rest_goes_live() {
    let objects = running_with(&json!({}), vec![partition("a", ""), partition("b", "")]);
    let mut objects = changed(objects, &json!({ "extraConf": "SchedulerParameters=defer" }));
    replace(&mut objects, vec![partition("a", REFUSED), partition("b", "MaxTime=5")]);
    let end = converge(objects, &|text| text.contains(REFUSED));
    let conf = end.conf();
    assert!(
        conf.contains("SchedulerParameters=defer") && conf.contains("Nodes=b MaxTime=5"),
        "{conf}"
    );
    assert!(!conf.contains(REFUSED));
    assert_eq!(end.held(), BTreeSet::from(["NodeSet \"a\" spec.partition"]));
    assert!(end.plan.configuration.held[0].why.contains("fatal: refused"));
    assert!(end.pushes <= 5, "{}", end.pushes);
    assert!(matches!(end.plan.configuration.state, ConfigState::Applied { .. }));

    // Another leader, which knows no rejections, gets the same result.
    let again = converge(end.objects.clone(), &|text| text.contains(REFUSED));
    assert_eq!((again.conf(), again.held()), (conf, end.held()));
}

#[test]
fn an_input_that_requires_another_goes_live_once_that_exists() {
    let extra = json!({ "extraConf": "PartitionName=both Nodes=a,b" });
    let knows_nodes = Knowledge::Known(Seen::of_nodes(Vec::new(), NOW.parse().unwrap()).into());
    let objects = running_with(&json!({}), vec![partition("a", "")]);
    let end = converge_knowing(changed(objects, &extra), &|_| false, &knows_nodes);
    assert_eq!(end.held(), BTreeSet::from(["spec.extraConf"]));
    let mut objects = end.objects;
    objects.push(partition("b", ""));
    let end = converge_knowing(objects, &|_| false, &knows_nodes);
    assert!(end.conf().contains("PartitionName=both Nodes=a,b") && end.held().is_empty());
}

#[test]
fn a_missing_object_does_not_delay_other_inputs() {
    let spec = |extra: &str, files: &str| json!({ "extraConf": extra, "configFileRefs": [{ "name": files }], "accountingRef": { "name": "db" } });
    let accounting = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Accounting",
        "metadata": { "name": "db", "namespace": "hpc", "uid": "db" }, "spec": {},
    });
    let files = config_map("files", &json!({ "gres.conf": "AutoDetect=off\n" }));
    let mut objects = running_with(&spec("", "files"), vec![files, accounting]);
    objects.retain(|object| object["metadata"]["name"] != "files" && object["kind"] != "Accounting");
    let end = converge(changed(objects, &spec("SchedulerParameters=defer", "files")), &|_| {
        false
    });
    let conf = end.conf();
    assert!(
        conf.contains("SchedulerParameters=defer") && conf.contains("accounting_storage/slurmdbd"),
        "{conf}"
    );
    assert!(all_text(&pushed(&end.plan).1).contains("AutoDetect=off"));
    assert_eq!(
        end.held(),
        BTreeSet::from(["ConfigMap \"files\"", "spec.accountingRef"])
    );
    let (status, reason, _) = condition(end.objects, end.report, "Ready");
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "ConfigMapMissing"));
}

#[test]
fn a_qos_goes_live_when_the_database_is_known_to_have_it() {
    let accounting = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Accounting",
        "metadata": { "name": "db", "namespace": "hpc", "uid": "db" }, "spec": {},
    });
    let spec = json!({ "accountingRef": { "name": "db" } });
    let mut objects = running_with(&spec, vec![accounting, partition("a", ""), partition("b", "")]);
    replace(
        &mut objects,
        vec![partition("a", "AllowQos=ALL,Fast"), partition("b", "MaxTime=5")],
    );
    let qos = |qos: Option<Result<&[&str], &str>>| {
        let mut seen = Seen::of_nodes(Vec::new(), NOW.parse().unwrap());
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        seen.qos = qos.map(|qos| qos.map(names).map_err(str::to_owned));
        seen.jobs = Some(Vec::new());
        Knowledge::Known(seen.into())
    };
    for (known, reason, soon, part) in [
        (qos(None), "WaitsForAccounting", true, "QOS \"fast\" has not been found"),
        (
            qos(Some(Err("no database"))),
            "WaitsForAccounting",
            false,
            "no database",
        ),
        (
            qos(Some(Ok(&["normal"]))),
            "ConfigRejected",
            false,
            "sacctmgr add qos Fast",
        ),
    ] {
        let end = converge_knowing(objects.clone(), &|_| false, &known);
        let held = &end.plan.configuration.held[0];
        assert_eq!((held.reason, held.soon), (reason, soon), "{}", held.why);
        assert!(held.why.contains(part), "{}", held.why);
        assert!(!end.conf().contains("Fast") && end.conf().contains("Nodes=b MaxTime=5"));
        assert_eq!(end.plan.configuration.depends_on_slurm, reason == "WaitsForAccounting");
    }
    let end = converge_knowing(objects, &|_| false, &qos(Some(Ok(&["normal", "fast"]))));
    assert!(end.conf().contains("AllowQos=ALL,Fast") && end.held().is_empty());
    // A live QOS is not checked again.
    let end = converge_knowing(end.objects, &|_| false, &qos(None));
    assert!(end.held().is_empty() && !end.plan.configuration.depends_on_slurm);
}

#[test]
fn a_held_input_has_one_event_and_one_that_waits_for_a_poll_has_none() {
    let objects = running_with(&json!({}), vec![partition("a", "")]);
    let mut plan = converge(changed(objects, &json!({ "extraConf": "Nonsense=1" })), &|_| false).plan;
    let noted = |plan: &Plan| {
        let held = &plan.configuration.held[0];
        vec![api::configuration::HeldInput {
            source: held.source.clone(),
            reason: held.reason.to_owned(),
            message: held.why.clone(),
        }]
    };
    assert_eq!(plan.warnings(&[]).count(), 1);
    assert_eq!(plan.warnings(&noted(&plan)).count(), 0);
    let mut another = noted(&plan);
    another[0].message = "something else is wrong".to_owned();
    assert_eq!(plan.warnings(&another).count(), 1);
    plan.configuration.held[0].soon = true;
    assert_eq!(plan.warnings(&[]).count(), 0);
}

#[test]
fn an_existing_problem_does_not_hold_another_input() {
    // As accepted by an operator without a checker.
    let mut objects = running_with(
        &json!({ "extraConf": "SchedulerParameters=defer" }),
        vec![partition("a", "")],
    );
    let bundle = objects
        .iter()
        .find(|object| object["metadata"]["name"] == "slurm-bundle")
        .unwrap();
    let mut bundle = bundle.clone();
    let revision = read_bundle(&serde_json::from_value(bundle.clone()).unwrap()).unwrap();
    let mut spoiled = revision.clone();
    for (name, file) in &mut spoiled.files {
        if name.as_str() == "slurm.conf" {
            let conf = String::from_utf8(file.content.clone()).unwrap();
            file.content = conf.replace("SchedulerParameters=defer", "OurOwn=1").into_bytes();
        }
    }
    let inputs = bundle["data"]["inputs"].as_str().unwrap();
    let inputs = inputs
        .replace("SchedulerParameters=defer", "OurOwn=1")
        .replace(&revision.digest().to_string(), &spoiled.digest().to_string());
    bundle["data"]["inputs"] = inputs.into();
    bundle["binaryData"]["bundle"] =
        serde_json::to_value(k8s_openapi::ByteString(spoiled.to_bundle().unwrap())).unwrap();
    replace(&mut objects, vec![bundle, partition("a", "MaxTime=5")]);
    let end = converge(changed(objects, &json!({ "extraConf": "OurOwn=1" })), &|_| false);
    assert!(end.conf().contains("Nodes=a MaxTime=5") && end.conf().contains("OurOwn=1"));
    assert!(end.held().is_empty());
}

#[test]
fn without_a_record_of_the_inputs_all_go_live_or_none() {
    let mut objects = running(&json!({}));
    for object in &mut objects {
        if object["metadata"]["name"] == "slurm-bundle" {
            object["data"] = Value::Null;
        }
    }
    let before = bundled(&objects);
    objects.push(partition("a", ""));
    let bad = changed(objects.clone(), &json!({ "extraConf": "Nonsense=1" }));
    let plan = super::super::plan::plan(&observed(bad.clone(), live_as_bundled(&bad)));
    let mut after = bad.clone();
    replace(&mut after, written(&plan));
    assert_eq!(bundled(&after), before);
    let (status, reason, message) = condition(bad, Report::default(), "Ready");
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "ConfigRejected"));
    assert!(message.starts_with("spec.extraConf line 1: "), "{message}");
    let end = converge(objects, &|_| false);
    assert!(end.conf().contains("PartitionName=a"));
    assert!(end.objects.iter().any(|object| object["data"]["inputs"].is_string()));
}

#[test]
fn a_new_cluster_starts_without_bad_inputs() {
    let plan = planned(with_keys(&json!({ "extraConf": "Nonsense=1" })));
    let conf = slurm_conf(&plan);
    assert!(conf.contains("ClusterName=") && !conf.contains("Nonsense"), "{conf}");
    assert!(plan.stateful_set.is_some());
    assert_eq!(plan.configuration.held[0].source, "spec.extraConf");
}

#[test]
fn a_cluster_of_another_operator_is_not_adopted_with_bad_inputs() {
    let spec = json!({ "extraConf": "Nonsense=1" });
    let mut objects = with_keys(&spec);
    objects.extend(written(&planned(with_keys(&json!({})))));
    objects.retain(|object| object["metadata"]["name"] != "slurm-bundle");
    let plan = planned(objects);
    assert!(plan.configuration.config_maps.is_empty() && plan.stateful_set.is_none());
    assert_eq!(plan.findings[0].reason, "ConfigRejected");
}

#[test]
fn extra_conf_cannot_change_the_identity_of_a_cluster() {
    let rendered = slurm_conf(&planned(with_keys(&json!({}))));
    let own = |key: &str| rendered.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    for (other, same) in [
        ("ClusterName=other", Some("ClusterName=")),
        ("SlurmctldHost=elsewhere", Some("SlurmctldHost=")),
        ("AuthType=auth/munge", Some("AuthType=")),
        ("CredType=auth/munge", Some("CredType=")),
        ("AuthAltTypes=auth/other", Some("AuthAltTypes=")),
        ("StateSaveLocation=/tmp", Some("StateSaveLocation=")),
        ("SlurmUser=root", Some("SlurmUser=")),
        ("ReconfigFlags=KeepPartInfo", None),
    ] {
        let spec = json!({ "extraConf": other });
        let first = planned(with_keys(&spec));
        assert_eq!(first.configuration.held.len(), 1, "{other} at the first start");
        assert!(!slurm_conf(&first).contains(other), "{other}");
        let end = converge(changed(running(&json!({})), &spec), &|_| false);
        assert_eq!(end.held(), BTreeSet::from(["spec.extraConf"]), "{other}");
        assert_eq!(end.pushes, 0, "{other}");
        if let Some(key) = same {
            let spec = json!({ "extraConf": own(key) });
            assert_eq!(planned(with_keys(&spec)).configuration.held, [], "{key}");
            assert!(
                converge(changed(running(&json!({})), &spec), &|_| false)
                    .held()
                    .is_empty()
            );
        }
    }
    let more = json!({ "extraConf": "AuthAltParameters=disable_token_creation" });
    assert_eq!(
        planned(with_keys(&more)).configuration.held,
        [],
        "a new cluster accepts options in addition to the operator's"
    );
    assert_eq!(converge(changed(running(&json!({})), &more), &|_| false).pushes, 0);
}

#[test]
fn a_change_of_the_spec_itself_does_not_hold_the_inputs() {
    let mut objects = running(&json!({}));
    objects.push(config_map("jwks", &json!({ "set": "{}" })));
    let spec = json!({ "jwksKeyRef": { "name": "jwks", "key": "set" }, "extraConf": "SchedulerParameters=defer" });
    let end = converge(changed(objects, &spec), &|_| false);
    assert!(end.held().is_empty(), "{:?}", end.plan.configuration.held);
    assert!(end.conf().contains("jwks=/etc/slurm/jwks.json"));
}

/// Whether a source is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quality {
    Good,
    /// Rejected by the checker.
    Bad,
    /// Rejected by slurmctld.
    Refused,
}

fn any_quality() -> impl Strategy<Value = Quality> {
    prop::sample::select(vec![Quality::Good, Quality::Bad, Quality::Refused])
}

fn config(quality: Quality) -> &'static str {
    match quality {
        Quality::Good => "MaxTime=5",
        Quality::Bad => "Foo=1",
        Quality::Refused => REFUSED,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn finally_all_good_inputs_and_no_bad_ones_are_live(
        extra in any_quality(),
        file in any_quality(),
        partitions in prop::collection::vec(any_quality(), 0..5),
    ) {
        let spec = |extra: &str| json!({ "extraConf": extra, "configFileRefs": [{ "name": "files" }] });
        let files = |content: &str| config_map("files", &json!({ "cgroup.conf": content }));
        let names: Vec<String> = (0..partitions.len()).map(|index| format!("n{index}")).collect();
        let mut others = vec![files("CgroupPlugin=disabled\n")];
        others.extend(names.iter().map(|name| partition(name, "MaxTime=1")));
        let objects = running_with(&spec("SchedulerParameters=defer"), others);

        let line = |quality| match quality {
            Quality::Good => "GroupUpdateForce=1".to_owned(),
            Quality::Bad => "Foo=1".to_owned(),
            Quality::Refused => format!("PartitionName=extra {REFUSED}"),
        };
        let cgroup = match file {
            Quality::Good => "CgroupPlugin=disabled\n# good\n".to_owned(),
            Quality::Bad => "Foo=1\n".to_owned(),
            Quality::Refused => format!("CgroupPlugin=disabled\n# {REFUSED}\n"),
        };
        let mut objects = changed(objects, &spec(&line(extra)));
        let mut new = vec![files(&cgroup)];
        new.extend(names.iter().zip(&partitions).map(|(name, quality)| partition(name, config(*quality))));
        replace(&mut objects, new);
        let end = converge(objects, &|text| text.contains(REFUSED));

        let conf = end.conf();
        let text = all_text(&pushed(&end.plan).1);
        prop_assert!(!text.contains("Foo") && !text.contains(REFUSED), "{}", text);
        prop_assert_eq!(conf.contains("GroupUpdateForce"), extra == Quality::Good);
        prop_assert_eq!(conf.contains("SchedulerParameters=defer"), extra != Quality::Good);
        prop_assert_eq!(text.contains("# good"), file == Quality::Good);
        for (name, quality) in names.iter().zip(&partitions) {
            let good = conf.contains(&format!("PartitionName={name} Nodes={name} MaxTime=5\n"));
            let old = conf.contains(&format!("PartitionName={name} Nodes={name} MaxTime=1\n"));
            prop_assert_eq!((good, old), (*quality == Quality::Good, *quality != Quality::Good), "{}", conf);
        }
        let bad = partitions.iter().chain([&extra, &file]).filter(|quality| **quality != Quality::Good).count();
        prop_assert_eq!(end.plan.configuration.held.len(), bad);
    }
}
