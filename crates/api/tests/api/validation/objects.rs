//! What is rejected in a new object of any kind, and what is accepted with a warning.

use serde_json::json;

use super::{check, errors, named, object, refused, warnings};

#[test]
fn the_smallest_objects_pass() {
    for kind in ["Accounting", "Controller", "LoginSet", "NodeSet", "RestApi", "Token"] {
        let problems = check(object(kind, &json!({})));
        assert_eq!(problems.iter().count(), 0, "{kind}: {problems}");
    }
}

#[test]
fn a_problem_is_a_sentence_with_its_remedy() {
    let problems = check(object(
        "NodeSet",
        &json!({ "controllerRef": { "name": "slurm", "namespace": "other" } }),
    ));
    assert_eq!(
        problems.to_string(),
        "spec.controllerRef.namespace is \"other\", but references must stay in the object's own namespace \"slurm\"; \
         remove the namespace, and create the object in \"slurm\"",
    );
}

#[test]
fn references_stay_in_their_own_namespace() {
    let nameless = json!({ "name": "", "key": "k" });
    let elsewhere = json!({ "name": "a", "namespace": "b" });
    for kind in ["NodeSet", "LoginSet", "RestApi"] {
        refused(
            kind,
            &json!({ "controllerRef": { "name": "" } }),
            "spec.controllerRef.name",
        );
        refused(
            kind,
            &json!({ "controllerRef": { "name": "Slurm" } }),
            "spec.controllerRef.name",
        );
        refused(
            kind,
            &json!({ "controllerRef": elsewhere }),
            "spec.controllerRef.namespace",
        );
    }
    refused("LoginSet", &json!({ "sssdConfRef": nameless }), "spec.sssdConfRef.name");
    refused(
        "Controller",
        &json!({ "slurmKeyRef": nameless }),
        "spec.slurmKeyRef.name",
    );
    refused(
        "Controller",
        &json!({ "jwtKeyRef": { "name": "a", "key": "" } }),
        "spec.jwtKeyRef.key",
    );
    refused(
        "Controller",
        &json!({ "jwksKeyRef": { "name": "a", "key": "a/b" } }),
        "spec.jwksKeyRef.key",
    );
    refused(
        "Controller",
        &json!({ "accountingRef": elsewhere }),
        "spec.accountingRef.namespace",
    );
    refused(
        "Controller",
        &json!({ "configFileRefs": [{ "name": "a" }, { "name": "" }] }),
        "spec.configFileRefs[1].name",
    );
    for list in [
        "prologScriptRefs",
        "epilogScriptRefs",
        "prologSlurmctldScriptRefs",
        "epilogSlurmctldScriptRefs",
    ] {
        refused(
            "Controller",
            &json!({ list: [elsewhere] }),
            &format!("spec.{list}[0].namespace"),
        );
    }
    let key = json!({ "name": "a", "key": "k", "namespace": "b" });
    refused("Token", &json!({ "jwtKeyRef": key }), "spec.jwtKeyRef.namespace");
}

#[test]
fn a_controller_that_could_not_run_is_rejected() {
    let external =
        |host: &str, port: i64| json!({ "external": true, "externalConfig": { "host": host, "port": port } });
    refused(
        "Controller",
        &json!({ "clusterName": "a\nSlurmUser=root" }),
        "spec.clusterName",
    );
    refused("Controller", &json!({ "clusterName": "../x" }), "spec.clusterName");
    refused(
        "Controller",
        &json!({ "clusterName": "x".repeat(41) }),
        "spec.clusterName",
    );
    refused(
        "Controller",
        &json!({ "configUpdate": "Sometimes" }),
        "spec.configUpdate",
    );
    refused(
        "Controller",
        &json!({ "ha": { "enabled": false, "backups": 0 } }),
        "spec.ha.backups",
    );
    refused("Controller", &json!({ "ha": { "backups": 9 } }), "spec.ha.backups");
    assert!(check(object("Controller", &json!({ "ha": { "backups": 8 } }))).is_ok());
    refused(
        "Controller",
        &json!({ "ha": { "enabled": true } }),
        "spec.persistence.existingClaim",
    );
    refused(
        "Controller",
        &json!({ "persistence": { "existingClaim": "A B" } }),
        "spec.persistence.existingClaim",
    );
    refused("Controller", &json!({ "external": true }), "spec.externalConfig");
    refused("Controller", &external("a b", 6817), "spec.externalConfig.host");
    refused("Controller", &external("a", 0), "spec.externalConfig.port");
    for kind in ["Controller", "Accounting"] {
        let storage = json!({ "host": "db", "username": "slurm", "passwordKeyRef": { "name": "a", "key": "k" } });
        let spec = json!({ "storageConfig": storage, "template": { "spec": { "hostNetwork": true } } });
        refused(kind, &spec, "spec.template.spec.hostNetwork");
    }
    refused(
        "Controller",
        &json!({ "service": { "port": 70000 } }),
        "spec.service.port",
    );
    refused(
        "Controller",
        &json!({ "slurmctld": { "args": "-v" } }),
        "spec.slurmctld.args",
    );
}

#[test]
fn settings_that_daemons_could_not_use_are_rejected() {
    let storage = |host: &str, username: &str| json!({ "storageConfig": { "host": host, "username": username, "passwordKeyRef": { "name": "a", "key": "k" } } });
    refused(
        "LoginSet",
        &json!({ "strategy": { "type": "Never" } }),
        "spec.strategy.type",
    );
    refused("Accounting", &json!({ "storageConfig": null }), "spec.storageConfig");
    refused("Accounting", &storage("", "slurm"), "spec.storageConfig.host");
    refused("Accounting", &storage("db", "a\nb"), "spec.storageConfig.username");
    refused("Accounting", &storage("db", "a\\"), "spec.storageConfig.username");
    refused("Accounting", &storage("d\"b", "a"), "spec.storageConfig.host");
    refused("Token", &json!({ "jwtKeyRef": null }), "spec.jwtKeyRef");
    refused("Token", &json!({ "lifetime": "a while" }), "spec.lifetime");
    refused("Token", &json!({ "lifetime": "-5m" }), "spec.lifetime");
    refused("Token", &json!({ "username": "Alice" }), "spec.secretRef.name");
}

#[test]
fn doubtful_settings_are_accepted_with_a_warning() {
    for (kind, spec, field) in [
        ("NodeSet", json!({ "slurmd": { "imagee": "x" } }), "spec.slurmd.imagee"),
        ("NodeSet", json!({ "drain": { "timeout": "1h" } }), "spec.drain.timeout"),
        (
            "NodeSet",
            json!({ "template": { "spec": { "dNSPolicy": "Default" } } }),
            "spec.template.spec.dNSPolicy",
        ),
        (
            "NodeSet",
            json!({ "template": { "spec": { "hostname": "gpu1" } } }),
            "spec.template.spec.hostname",
        ),
        (
            "LoginSet",
            json!({ "service": { "spec": { "externalIPs": ["10.0.0.1"] } } }),
            "spec.service.spec.externalIPs",
        ),
        (
            "Controller",
            json!({ "jwtKeyRef": { "name": "a", "key": "k" }, "jwtHs256KeyRef": { "name": "b", "key": "k" } }),
            "spec.jwtHs256KeyRef",
        ),
        (
            "Token",
            json!({ "username": "", "secretRef": { "name": "a", "key": "k" } }),
            "spec.username",
        ),
    ] {
        let problems = check(object(kind, &spec));
        assert_eq!(errors(&problems), Vec::<String>::new(), "{kind} {spec}: {problems}");
        assert_eq!(warnings(&problems), [field], "{kind} {spec}");
    }
    let external = object(
        "Controller",
        &json!({ "external": true, "externalConfig": { "host": "a", "port": 1 } }),
    );
    assert_eq!(warnings(&check(external)), ["spec.slurmKeyRef", "spec.jwtKeyRef"]);
}

#[test]
fn names_that_are_invalid_for_children_are_rejected() {
    for (kind, name) in [
        ("Controller", "a".repeat(42)),
        ("Controller", "my.cluster".into()),
        ("Accounting", "a".repeat(42)),
        ("RestApi", "a".repeat(56)),
        ("LoginSet", "my.login".into()),
        ("NodeSet", "all".into()),
        ("NodeSet", "default".into()),
        ("NodeSet", "my.nodes".into()),
        ("NodeSet", "a".repeat(62)),
        ("NodeSet", "a".repeat(64)),
    ] {
        let spec = if kind == "Controller" {
            json!({ "clusterName": "short" })
        } else {
            json!({})
        };
        let problems = check(named(&name, object(kind, &spec)));
        assert_eq!(errors(&problems), ["metadata.name"], "{kind} {name}: {problems}");
    }
    let hosted = json!({ "template": { "spec": { "hostname": "gpu-" } } });
    assert!(
        check(named("all", object("NodeSet", &hosted))).is_ok(),
        "Slurm calls it gpu"
    );
    assert!(
        check(named("my.nodes", object("NodeSet", &hosted))).is_ok(),
        "its pods have another host name"
    );
}
