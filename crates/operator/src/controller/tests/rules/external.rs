//! A slurmctld outside Kubernetes.

use super::*;

#[test]
fn an_external_controller_has_a_slurm_conf_and_nothing_else() {
    let plan = planned(vec![controller(&json!({
        "external": true, "externalConfig": { "host": "ctl.example.com", "port": 6817 }, "extraConf": "X=1",
    }))]);
    assert_eq!(plan.findings, []);
    assert!(plan.services.is_empty() && plan.stateful_set.is_none() && plan.keys.is_empty());
    let conf = slurm_conf(&plan);
    assert!(
        conf.contains("SlurmctldHost=ctl.example.com\n") && !conf.contains("X=1"),
        "{conf}"
    );
    assert!(plan.keep.unwrap().stateful_sets.is_empty());
}

#[test]
fn the_port_of_an_external_slurmctld_is_optional() {
    let plan = planned(vec![controller(&json!({
        "external": true, "externalConfig": { "host": "ctl.example.com" },
    }))]);
    assert!(slurm_conf(&plan).contains("SlurmctldPort=6817\n"));
}

#[test]
fn fields_without_effect_on_an_external_slurmctld_are_named() {
    let message = |objects| condition(objects, Report::default(), "ConfigurationApplied").2;
    let external = |extra: &str| {
        controller(&json!({ "external": true, "externalConfig": { "host": "ctl.example.com" }, "extraConf": extra }))
    };
    let quiet = message(vec![external("")]);
    assert!(!quiet.contains("have no effect"), "{quiet}");
    let set = node_set("gpu", NOW, json!({ "partition": { "enabled": true } }));
    let named = message(vec![external("X=1"), set]);
    assert!(
        named.contains("have no effect: spec.extraConf, spec.partition of NodeSet \"gpu\";"),
        "{named}"
    );
}

#[test]
fn missing_requirements_of_an_external_slurmctld_are_reported_and_change_nothing() {
    let spec = json!({ "external": true, "externalConfig": { "host": "ctl.example.com" } });
    let mut observed = observed(vec![controller(&spec)], Report::default());
    let polled = |unfit| {
        let view = Arc::new(View {
            unfit,
            cluster: Err("not polled".to_owned()),
            at: NOW.parse().unwrap(),
        });
        Some(("ctl.example.com:6817".to_owned(), Some(view)))
    };
    observed.snapshot.external = polled(Some(Fault::new("RequirementMissing", "it lacks configless")));
    let unfit = plan(&observed);
    let status = build_status(&observed, &unfit, None, NOW.parse().unwrap());
    for type_ in ["Ready", "Degraded"] {
        let condition = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_)
            .unwrap();
        assert_eq!(condition.reason, "RequirementMissing");
        assert_eq!(condition.message, "it lacks configless");
    }
    assert!(!slurm_conf(&unfit).is_empty());
    observed.snapshot.external = polled(None);
    let fit = plan(&observed);
    let status = build_status(&observed, &fit, None, NOW.parse().unwrap());
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .unwrap();
    assert_eq!(ready.message, "external slurmctld responds at ctl.example.com:6817");
}
