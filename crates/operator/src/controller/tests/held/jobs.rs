//! Changes that wait for jobs.

use slurm::rest::Observation;

use super::*;
use crate::{
    cluster::{
        Source,
        deliver::{Goal, State},
    },
    controller::tests::rules::annotated,
};

#[test]
fn only_a_change_that_could_end_jobs_waits_for_them() {
    let objects = running_with(&json!({}), vec![partition("a", "")]);
    let mut objects = changed(objects, &json!({ "extraConf": "GresTypes=gpu" }));
    replace(&mut objects, vec![partition("a", "MaxTime=5")]);
    for (knowledge, waits) in [
        (jobs(&[job("RUNNING", "a")]), true),
        (jobs(&[job("COMPLETED", "a")]), false),
        (jobs(&[]), false),
        (Knowledge::unknown("no response"), true),
        (
            Knowledge::Known(Seen::of_nodes(Vec::new(), NOW.parse().unwrap()).into()),
            true,
        ),
    ] {
        let end = converge_knowing(objects.clone(), &|_| false, &knowledge);
        assert!(end.conf().contains("Nodes=a MaxTime=5"), "{knowledge:?}");
        assert_eq!(end.conf().contains("GresTypes=gpu"), !waits, "{knowledge:?}");
        assert_eq!(end.plan.configuration.depends_on_slurm, waits, "{knowledge:?}");
        if waits {
            assert_eq!(end.held(), BTreeSet::from(["spec.extraConf"]));
            let mut seen = observed(end.objects, end.report);
            seen.snapshot.knowledge = knowledge;
            let status = crate::controller::status::build_status(&seen, &end.plan, None, NOW.parse().unwrap());
            let reasons: Vec<(&str, &str)> = status
                .conditions
                .iter()
                .map(|condition| (condition.type_.as_str(), condition.reason.as_str()))
                .collect();
            assert!(reasons.contains(&("Ready", "Ready")), "{reasons:?}");
            assert!(
                reasons.contains(&("ConfigurationApplied", "WaitsForJobs")),
                "{reasons:?}"
            );
        }
    }
}

#[test]
fn a_partition_with_jobs_is_not_removed() {
    let objects = running_with(&json!({}), vec![partition("a", ""), partition("b", "")]);
    let mut deleted = objects.clone();
    deleted.retain(|object| !(object["kind"] == "NodeSet" && object["metadata"]["name"] == "b"));
    let mut disabled = objects.clone();
    let without = node_set("b", NOW, json!({ "partition": { "enabled": false } }));
    replace(&mut disabled, vec![without]);
    let mut renamed = objects;
    let spec = json!({ "partition": {}, "template": { "spec": { "hostname": "c-" } } });
    replace(&mut renamed, vec![node_set("b", NOW, spec)]);
    for (change, objects) in [("deleted", deleted), ("disabled", disabled), ("renamed", renamed)] {
        let busy = converge_knowing(objects, &|_| false, &jobs(&[job("PENDING", "b")]));
        let conf = busy.conf();
        assert!(
            conf.contains("PartitionName=b Nodes=b State=DRAIN\n"),
            "{change}: {conf}"
        );
        assert!(conf.contains("NodeSet=b Feature=b\n"), "{change}: {conf}");
        assert_eq!(
            conf.contains("NodeSet=c Feature=c\n"),
            change == "renamed",
            "the rest goes live"
        );
        assert!(busy.held().is_empty(), "{change}");
        assert_eq!(busy.plan.configuration.retained, ["b"], "{change}");
        let condition = busy.plan.configuration.depends_on_slurm;
        assert!(condition, "{change}: its jobs are followed");
        let idle = converge_knowing(busy.objects, &|_| false, &jobs(&[job("RUNNING", "a")]));
        assert!(!idle.conf().contains("PartitionName=b "), "{change}");
        assert!(idle.held().is_empty(), "{change}");
    }
}

#[test]
fn a_forced_change_does_not_wait() {
    let objects = changed(running(&json!({})), &json!({ "extraConf": "GresTypes=gpu" }));
    let busy = jobs(&[job("RUNNING", "a")]);
    let waiting = converge_knowing(objects.clone(), &|_| false, &busy);
    let message = waiting.plan.configuration.held[0].why.clone();
    let (_, value) = message.split_once("slinky.slurm.net/force-config=").unwrap();
    for (value, forced) in [(value, true), ("true", true), ("false", false), (&value[1..], false)] {
        let objects = annotated(objects.clone(), "slinky.slurm.net/force-config", value);
        let end = converge_knowing(objects, &|_| false, &busy);
        assert_eq!(end.conf().contains("GresTypes=gpu"), forced, "{value}");
    }
    // A digest is valid only for the files it was made from.
    let objects = annotated(objects, "slinky.slurm.net/force-config", value);
    let other = changed(objects, &json!({ "extraConf": "GresTypes=gpu,mps" }));
    assert_eq!(converge_knowing(other, &|_| false, &busy).pushes, 0);
}

#[test]
fn a_change_that_could_end_jobs_is_not_sent_before_the_agent_has_listed_them() {
    let planned = |spec: Value, source: Source| {
        let objects = running(&json!({}));
        let mut report = live_as_bundled(&objects);
        let mut plan_with = |checked: Option<Digest>| {
            report.checked = checked;
            let mut seen = observed(changed(objects.clone(), &spec), report.clone());
            let listed = Observation {
                nodes: vec![],
                jobs: vec![],
                process: None,
            };
            let listed = Seen::new(listed, NOW.parse().unwrap(), source);
            seen.snapshot.knowledge = Knowledge::Known(listed.into());
            plan(&seen)
        };
        // A dry run has succeeded.
        let checked = pushed(&plan_with(None)).0;
        plan_with(Some(checked))
    };
    let goal = |plan: &Plan| match &plan.configuration.delivery {
        DeliveryChange::Deliver(wanted) => wanted.goal,
        other => panic!("{other:?}"),
    };
    for (extra, source, expected) in [
        ("GresTypes=gpu", Source::Unsigned, Goal::Confirmed),
        ("GresTypes=gpu", Source::Agent, Goal::Live),
        ("GresTypes=gpu", Source::Agentless, Goal::Live),
        ("SchedulerTimeSlice=20", Source::Unsigned, Goal::Live),
    ] {
        let plan = planned(json!({ "extraConf": extra }), source);
        assert_eq!(plan.configuration.held, [], "{extra} {source:?}");
        assert_eq!(goal(&plan), expected, "{extra} {source:?}");
    }
    let restart = json!({ "configUpdate": "Restart", "extraConf": "GresTypes=gpu" });
    let restarts = |source| {
        let state = planned(restart.clone(), source).configuration.state;
        matches!(state, ConfigState::Restarting { .. })
    };
    assert!(restarts(Source::Agent));
    assert!(!restarts(Source::Unsigned));
}

#[test]
fn a_cluster_that_never_ran_has_no_jobs_to_wait_for() {
    let mut objects = with_keys(&json!({ "extraConf": "SelectType=select/nope" }));
    objects.extend(written(&planned(objects.clone())));
    objects.push(crate::controller::tests::pod(0));
    let mut down = live_as_bundled(&objects);
    down.state = State::Waiting {
        why: "fatal".to_owned(),
    };
    let made = written(&plan(&observed(objects.clone(), down.clone())));
    replace(&mut objects, made);
    let objects = changed(objects, &json!({ "extraConf": "SelectType=select/cons_tres" }));
    let plan = plan(&observed(objects, down));
    assert_eq!(plan.configuration.held, []);
    assert!(all_text(&pushed(&plan).1).contains("cons_tres"));
}

#[test]
fn max_node_count_covers_all_nodes_and_does_not_shrink() {
    let sized = |replicas: i32| node_set("a", NOW, json!({ "replicas": replicas }));
    let objects = running_with(&json!({}), vec![sized(2000)]);
    let conf = slurm_conf(&plan(&observed(objects.clone(), live_as_bundled(&objects))));
    assert!(conf.contains("\nMaxNodeCount=2048\n"), "{conf}");
    let mut objects = objects;
    replace(&mut objects, vec![sized(1)]);
    let end = converge(objects, &|_| false);
    assert!(end.conf().contains("\nMaxNodeCount=2048\n") && end.held().is_empty());
}
