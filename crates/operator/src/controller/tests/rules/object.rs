//! The object itself: its generation, what wakes it, its deletion, its ServiceMonitor.

use super::*;

#[test]
fn the_status_has_the_observed_generation_unless_the_definitions_would_drop_it() {
    let mut observed = observed(with_keys(&json!({})), Report::default());
    let status = build_status(&observed, &plan(&observed), None, NOW.parse().unwrap());
    assert_eq!(status.observed_generation, Some(1));
    observed.outdated = vec!["controllers.slinky.slurm.net".to_owned()];
    let status = build_status(&observed, &plan(&observed), None, NOW.parse().unwrap());
    assert_eq!(status.observed_generation, None);
    assert!(
        status
            .conditions
            .iter()
            .any(|condition| condition.type_ == "CRDsOutdated")
    );
}

#[test]
fn a_controller_is_woken_by_changes_of_all_its_inputs() {
    let spec = json!({
        "slurmKeyRef": { "name": "k", "key": "k" },
        "configFileRefs": [{ "name": "files" }], "epilogSlurmctldScriptRefs": [{ "name": "scripts" }],
        "jwksKeyRef": { "name": "jwks", "key": "k" }, "accountingRef": { "name": "acct" },
        "persistence": { "existingClaim": "state" },
    });
    let mut caches_objects = running(&spec);
    caches_objects.extend(keys());
    let caches = Caches::of(caches_objects);
    let me = Key::new("hpc", "slurm");
    let references = crate::controller::references::references();
    let hears = |change: Change| references.affected(&change, &caches).contains(&me);
    for name in ["files", "scripts", "jwks"] {
        assert!(hears(appeared::<ConfigMap>(config_map(name, &json!({})))), "{name}");
    }
    assert!(!hears(appeared::<ConfigMap>(config_map("other", &json!({})))));
    for name in ["k", "slurm-auth-jwt"] {
        assert!(hears(appeared::<Secret>(secret(name, "k", ""))), "{name}");
    }
    assert!(!hears(appeared::<Secret>(secret("other", "k", ""))));
    assert!(hears(appeared::<NodeSet>(node_set("n", NOW, json!({})))));
    assert!(hears(appeared::<Pod>(pod(0))));
    let named =
        |kind: &str, name: &str| json!({ "kind": kind, "metadata": { "name": name, "namespace": "hpc" }, "spec": {} });
    assert!(hears(appeared::<Accounting>(named("Accounting", "acct"))));
    assert!(hears(appeared::<PersistentVolumeClaim>(named(
        "PersistentVolumeClaim",
        "state"
    ))));
    let owned = json!({ "metadata": { "name": "slurm-controller", "namespace": "hpc", "ownerReferences": [{
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "name": "slurm", "uid": UID, "controller": true,
    }] } });
    assert!(hears(appeared::<Service>(owned.clone())));
    assert!(hears(appeared::<ConfigMap>(owned.clone())));
    assert!(hears(appeared::<Secret>(owned)));
    let mut rival = controller(&json!({ "clusterName": "hpc_slurm" }));
    rival["metadata"]["name"] = "rival".into();
    assert!(hears(appeared::<Controller>(rival)));
}

fn appeared<K: Object>(object: Value) -> Change {
    let object: K = serde_json::from_value(object).unwrap();
    Delta::appeared(std::sync::Arc::new(object)).into()
}

#[test]
fn a_deleted_controller_is_left_to_garbage_collection() {
    let mut objects = running(&json!({}));
    objects
        .iter_mut()
        .find(|object| object["kind"] == "Controller")
        .unwrap()["metadata"]["deletionTimestamp"] = NOW.into();
    let plan = planned(objects);
    assert!(plan.stateful_set.is_none() && plan.services.is_empty() && plan.keep.is_none());
}

#[test]
fn the_seeds_controller_without_settings_is_complete() {
    let plan = planned(with_keys(
        &json!({ "extraConf": "PartitionName=all Nodes=ALL Default=NO\n" }),
    ));
    assert_eq!(plan.findings, []);
    let controller: Controller = serde_json::from_value(controller(&json!({}))).unwrap();
    assert_eq!(controller.cluster_name(), "hpc_slurm");
    let claim = &serde_json::to_value(plan.stateful_set).unwrap()["spec"]["volumeClaimTemplates"][0]["spec"];
    assert_eq!(
        *claim,
        json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "4Gi" } } })
    );
}

#[test]
fn a_service_monitor_is_created_if_metrics_are_enabled_and_the_kind_exists() {
    let metrics = |enabled: bool, monitor: bool| json!({ "metrics": { "enabled": enabled, "serviceMonitor": { "enabled": monitor } } });
    let cases = [
        // Metrics, ServiceMonitor, kind known: created, faults.
        (true, true, true, true, 0),
        (true, true, false, false, 1),
        (true, false, true, false, 0),
        (false, true, true, false, 0),
    ];
    for (enabled, monitor, known, made, faults) in cases {
        let mut observed = observed(with_keys(&metrics(enabled, monitor)), Report::default());
        observed.has_service_monitors = known;
        let plan = plan(&observed);
        let case = (enabled, monitor, known);
        assert_eq!(plan.service_monitor.is_some(), made, "{case:?}");
        assert_eq!(plan.keep.unwrap().service_monitors.len(), usize::from(made), "{case:?}");
        assert_eq!(plan.findings.len(), faults, "{case:?}: {:?}", plan.findings);
        assert!(plan.stateful_set.is_some(), "{case:?}: the rest is not affected");
    }
}

#[test]
fn an_endpoint_without_intervals_uses_those_of_the_service_monitor() {
    let plan = planned(with_keys(&json!({ "metrics": { "enabled": true, "serviceMonitor": {
        "enabled": true, "interval": "30s", "scrapeTimeout": "25s", "labels": { "release": "prometheus" },
        "endpoints": [{ "path": "/metrics/jobs" }, { "path": "/metrics/nodes", "interval": "1m" }],
    } } })));
    let monitor = plan.service_monitor.unwrap();
    assert_eq!(monitor.metadata.name.as_deref(), Some("slurm-controller"));
    assert_eq!(monitor.metadata.labels.unwrap()["release"], "prometheus");
    let relabelings =
        json!([{ "action": "keep", "sourceLabels": ["__meta_kubernetes_service_name"], "regex": "slurm-controller" }]);
    assert_eq!(
        monitor.spec,
        json!({
            "namespaceSelector": { "matchNames": ["hpc"] },
            "selector": { "matchLabels": { "app.kubernetes.io/name": "slurmctld", "app.kubernetes.io/instance": "slurm" } },
            "endpoints": [
                { "port": "slurmctld", "scheme": "http", "path": "/metrics/jobs", "interval": "30s", "scrapeTimeout": "25s", "relabelings": relabelings },
                { "port": "slurmctld", "scheme": "http", "path": "/metrics/nodes", "interval": "1m", "scrapeTimeout": "25s", "relabelings": relabelings },
            ],
        })
    );
}

#[test]
fn without_endpoints_all_metrics_of_slurmctld_are_collected() {
    let plan = planned(with_keys(
        &json!({ "metrics": { "enabled": true, "serviceMonitor": { "enabled": true } } }),
    ));
    let spec = plan.service_monitor.unwrap().spec;
    let paths: Vec<_> = spec["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|endpoint| &endpoint["path"])
        .collect();
    assert_eq!(
        paths,
        [
            "/metrics/jobs",
            "/metrics/nodes",
            "/metrics/partitions",
            "/metrics/scheduler"
        ]
    );
}

/// slurmctld before 25.11 does not start with `MetricsType`.
#[test]
fn metrics_that_the_release_lacks_are_reported_and_left_out() {
    let with_tag = |tag: &str| {
        let spec = json!({ "metrics": { "enabled": true }, "slurmctld": { "image": format!("slurmctld:{tag}") } });
        let plan = planned(with_keys(&spec));
        let too_old = |finding: &&Finding| finding.reason == "SlurmTooOld";
        let message = plan
            .findings
            .iter()
            .find(too_old)
            .map(|finding| finding.message.clone());
        (slurm_conf(&plan).contains("MetricsType"), message)
    };
    assert_eq!(with_tag("26.05-ubuntu26.04"), (true, None));
    let (has_metrics, message) = with_tag("24.11-ubuntu24.04");
    assert!(!has_metrics);
    let message = message.unwrap();
    assert!(
        message.contains("spec.metrics") && message.contains("24.11"),
        "{message}"
    );
}
