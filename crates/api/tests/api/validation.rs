//! The rules beyond the schema: what is refused, where it points and what it says.

use serde_json::{Value, json};
use slurm_operator_api::{
    Controller, Problems,
    validate::{check_config_file, check_shared_claim},
};

use crate::common::{Kind, kind_of, objects};

/// The smallest object of a kind that passes, with `spec` laid over its own.
fn object(kind: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "slinky.slurm.net/v1beta1",
        "kind": kind,
        "metadata": { "name": "compute", "namespace": "slurm" },
        "spec": match kind {
            "NodeSet" | "RestApi" => json!({ "controllerRef": { "name": "slurm" } }),
            "LoginSet" => json!({ "controllerRef": { "name": "slurm" }, "sssdConfRef": { "name": "sssd", "key": "sssd.conf" } }),
            "Accounting" => json!({ "storageConfig": { "host": "db", "passwordKeyRef": { "name": "db", "key": "password" } } }),
            "Token" => json!({ "username": "alice", "jwtKeyRef": { "name": "jwt", "key": "jwt.key" } }),
            _ => json!({}),
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object
}

fn named(name: &str, mut object: Value) -> Value {
    object["metadata"]["name"] = name.into();
    object
}

fn check(object: Value) -> Problems {
    let Kind { check, .. } = kind_of(&object);
    check(object).unwrap()
}

fn check_step(old: Value, new: Value) -> Problems {
    let Kind { check_update, .. } = kind_of(&old);
    check_update(old, new).unwrap()
}

fn errors(problems: &Problems) -> Vec<String> {
    problems.errors().map(|problem| problem.field.clone()).collect()
}

fn warnings(problems: &Problems) -> Vec<String> {
    problems.warnings().map(|problem| problem.field.clone()).collect()
}

#[test]
fn the_smallest_objects_pass() {
    for kind in ["Accounting", "Controller", "LoginSet", "NodeSet", "RestApi", "Token"] {
        let problems = check(object(kind, &json!({})));
        assert_eq!(problems.iter().count(), 0, "{kind}: {problems}");
    }
}

#[test]
fn a_problem_reads_as_a_sentence_with_its_remedy() {
    let problems = check(object(
        "NodeSet",
        &json!({ "controllerRef": { "name": "slurm", "namespace": "other" } }),
    ));
    assert_eq!(
        problems.to_string(),
        "spec.controllerRef.namespace is \"other\", and references stay in the object's own namespace \"slurm\"; \
         remove it, and make the object that is meant in \"slurm\"",
    );
}

/// Fails unless the smallest object of this kind with this spec has exactly one error, and that one at this field.
fn refused(kind: &str, spec: &Value, field: &str) {
    let problems = check(object(kind, spec));
    assert_eq!(errors(&problems), [field], "{kind} {spec}: {problems}");
}

#[test]
fn references_name_something_in_their_own_namespace() {
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
fn a_controller_that_could_not_run_is_refused() {
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
fn a_nodeset_with_a_value_out_of_bounds_is_refused() {
    let nameless = json!({ "name": "", "key": "k" });
    refused("NodeSet", &json!({ "replicas": -1 }), "spec.replicas");
    for kind in ["NodeSet", "LoginSet", "RestApi"] {
        assert!(check(object(kind, &json!({ "replicas": 65_536 }))).is_ok(), "{kind}");
        refused(kind, &json!({ "replicas": 65_537 }), "spec.replicas");
        let told = check(object(kind, &json!({ "replicas": 20_000_000 }))).to_string();
        assert_eq!(
            told,
            "spec.replicas is 20000000, which is more than 65536; give 65536 or less"
        );
    }
    refused("NodeSet", &json!({ "ordinalPadding": -1 }), "spec.ordinalPadding");
    refused("NodeSet", &json!({ "ordinalPadding": 21 }), "spec.ordinalPadding");
    refused("NodeSet", &json!({ "scalingMode": "Spiral" }), "spec.scalingMode");
    refused(
        "NodeSet",
        &json!({ "ssh": { "enabled": true } }),
        "spec.ssh.sssdConfRef",
    );
    refused(
        "NodeSet",
        &json!({ "ssh": { "enabled": true, "sssdConfRef": nameless } }),
        "spec.ssh.sssdConfRef.name",
    );
    let claims = |names: &[&str]| -> Value {
        names
            .iter()
            .map(|name| json!({ "metadata": { "name": name } }))
            .collect()
    };
    refused(
        "NodeSet",
        &json!({ "volumeClaimTemplates": [{}] }),
        "spec.volumeClaimTemplates[0].metadata.name",
    );
    refused(
        "NodeSet",
        &json!({ "volumeClaimTemplates": claims(&["a", "a"]) }),
        "spec.volumeClaimTemplates[1].metadata.name",
    );
}

#[test]
fn text_that_slurm_conf_cannot_hold_is_refused() {
    for extra_conf in [
        "Weight=5 big",
        "=5",
        "Weight=5 \\",
        "Features=a\\ Weight=5",
        "Features=a#b",
        "Features=\"a",
        "Features=a\u{0}",
    ] {
        refused("NodeSet", &json!({ "extraConf": extra_conf }), "spec.extraConf");
    }
    for config in [
        "Default=YES\nSlurmUser=root",
        "Default=YES\rSlurmUser=root",
        "Default=YES \\ ",
        "State=UP \\ #",
        "AllowGroups=x,\\",
        "Default=YES # the usual one",
        "Topology=\"a",
    ] {
        refused(
            "NodeSet",
            &json!({ "partition": { "config": config } }),
            "spec.partition.config",
        );
    }
    // Blanks between items and in quotes are what they always were.
    for spec in [
        json!({ "extraConf": "Weight=5\n  Features=a,b\n" }),
        json!({ "partition": { "config": "Default=YES\tTopology=\"a b\"  MaxTime = 5" } }),
    ] {
        let problems = check(object("NodeSet", &spec));
        assert_eq!(problems.iter().count(), 0, "{spec}: {problems}");
    }
    for host in ["a\\", "a\"b", "a;b", "$(id)", "a b", "a\nb", "a,b"] {
        for kind in ["Controller", "Accounting"] {
            let mut spec = json!({ "external": true, "externalConfig": { "host": host, "port": 6817 } });
            if kind == "Controller" {
                spec["slurmKeyRef"] = json!({ "name": "a", "key": "k" });
                spec["jwtKeyRef"] = json!({ "name": "a", "key": "k" });
            }
            refused(kind, &spec, "spec.externalConfig.host");
        }
    }
    for hostname in ["GPU-", "gpu.a-", "a\nb", "all-", "default", &"x".repeat(63)] {
        let spec = json!({ "template": { "spec": { "hostname": hostname } } });
        refused("NodeSet", &spec, "spec.template.spec.hostname");
    }
    for hostname in ["GPU-", "a b", "ALL"] {
        let spec = json!({ "scalingMode": "DaemonSet", "template": { "spec": { "hostname": hostname } } });
        assert!(!check(object("NodeSet", &spec)).is_ok(), "{hostname}");
    }
}

#[test]
fn an_update_without_a_time_is_refused() {
    let update =
        |type_: &str, scheduled: Value| json!({ "updateStrategy": { "type": type_, "scheduledUpdate": scheduled } });
    let field = "spec.updateStrategy.scheduledUpdate";
    refused(
        "NodeSet",
        &json!({ "updateStrategy": { "type": "Now" } }),
        "spec.updateStrategy.type",
    );
    refused("NodeSet", &update("ScheduledUpdate", Value::Null), field);
    refused(
        "NodeSet",
        &update("ScheduledUpdate", json!({ "duration": "30m" })),
        &format!("{field}.startTime"),
    );
    refused(
        "NodeSet",
        &update("RollingUpdate", json!({ "startTime": "soon" })),
        &format!("{field}.startTime"),
    );
    refused(
        "NodeSet",
        &update("RollingUpdate", json!({ "duration": "30s" })),
        &format!("{field}.duration"),
    );
    refused(
        "NodeSet",
        &update("RollingUpdate", json!({ "duration": "soon" })),
        &format!("{field}.duration"),
    );
    assert!(check(object("NodeSet", &update("RollingUpdate", json!({ "duration": "0s" })))).is_ok());
}

#[test]
fn the_other_kinds_are_refused_what_their_daemons_could_not_use() {
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
fn an_update_that_could_never_move_is_refused() {
    let field = "spec.updateStrategy.rollingUpdate.maxUnavailable";
    for value in [json!(0), json!(-1), json!("0%"), json!("-5%")] {
        let spec = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": value } } });
        assert_eq!(errors(&check(object("NodeSet", &spec))), [field], "{value}");
    }
    for value in [json!(1), json!("1%"), json!("100%"), json!("many")] {
        let spec = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": value } } });
        assert!(check(object("NodeSet", &spec)).is_ok(), "{value}");
    }
}

#[test]
fn a_drain_timeout_says_how_long_and_what_then() {
    for (drain, field) in [
        (json!({ "timeout": "0s", "onTimeout": "Cancel" }), "spec.drain.timeout"),
        (json!({ "timeout": "-1h", "onTimeout": "Cancel" }), "spec.drain.timeout"),
        (json!({ "timeout": "1d", "onTimeout": "Requeue" }), "spec.drain.timeout"),
        (json!({ "onTimeout": "Requeue" }), "spec.drain.timeout"),
        (json!({ "timeout": "1h", "onTimeout": "Kill" }), "spec.drain.onTimeout"),
    ] {
        let problems = check(object("NodeSet", &json!({ "drain": drain })));
        assert_eq!(errors(&problems), [field], "{drain}");
    }
    for drain in [
        json!({}),
        json!({ "onTimeout": "Wait" }),
        json!({ "timeout": "1h", "onTimeout": "Requeue" }),
    ] {
        assert!(check(object("NodeSet", &json!({ "drain": drain }))).is_ok(), "{drain}");
    }
}

#[test]
fn what_works_with_a_doubt_is_warned_about() {
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
fn names_that_children_cannot_bear_are_refused() {
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

/// The errors of the step from one spec to another.
fn step(kind: &str, old: &Value, new: &Value) -> Vec<String> {
    errors(&check_step(object(kind, old), object(kind, new)))
}

#[test]
fn what_a_cluster_hangs_on_cannot_be_changed() {
    let key = |field: &str, name: &str, key: &str| json!({ field: { "name": name, "key": key } });
    let step = |old: &Value, new: &Value| step("Controller", old, new);
    assert_eq!(
        step(&json!({ "clusterName": "a" }), &json!({ "clusterName": "b" })),
        ["spec.clusterName"]
    );
    assert_eq!(
        step(&key("slurmKeyRef", "a", "k"), &key("slurmKeyRef", "b", "k")),
        ["spec.slurmKeyRef.name"]
    );
    assert_eq!(
        step(&key("jwtKeyRef", "a", "k"), &key("jwtKeyRef", "a", "l")),
        ["spec.jwtKeyRef"]
    );
    let persistence = |persistence: Value| json!({ "persistence": persistence });
    assert_eq!(
        step(&json!({}), &persistence(json!({ "enabled": false }))),
        ["spec.persistence.enabled"]
    );
    let claim = |name: &str| persistence(json!({ "existingClaim": name }));
    assert_eq!(step(&claim("a"), &claim("b")), ["spec.persistence.existingClaim"]);
}

#[test]
fn a_change_of_words_alone_is_no_change() {
    let key = |field: &str, key: &str| json!({ field: { "name": "a", "key": key } });
    let none = Vec::<String>::new();
    assert_eq!(
        step("Controller", &json!({}), &json!({ "clusterName": "slurm_compute" })),
        none
    );
    assert_eq!(
        step("Controller", &json!({}), &json!({ "persistence": { "enabled": true } })),
        none
    );
    assert_eq!(
        step("Controller", &key("jwtHs256KeyRef", "k"), &key("jwtKeyRef", "k")),
        none
    );
    assert_eq!(
        step("Controller", &key("slurmKeyRef", "k"), &key("slurmKeyRef", "l")),
        none,
        "the key may change"
    );
    assert_eq!(
        step(
            "NodeSet",
            &json!({}),
            &json!({ "controllerRef": { "name": "slurm", "namespace": "slurm" } })
        ),
        none
    );
    assert_eq!(
        step("NodeSet", &json!({}), &json!({ "volumeClaimTemplates": [] })),
        none
    );
}

#[test]
fn an_object_stays_with_its_controller_and_its_key() {
    let controller = |name: &str| json!({ "controllerRef": { "name": name } });
    assert_eq!(
        step("NodeSet", &controller("a"), &controller("b")),
        ["spec.controllerRef.name"]
    );
    assert_eq!(
        step("LoginSet", &controller("a"), &controller("b")),
        ["spec.controllerRef.name"]
    );
    assert_eq!(
        step("RestApi", &controller("a"), &controller("b")),
        Vec::<String>::new(),
        "it keeps no state"
    );
    let claims = |name: &str| json!({ "volumeClaimTemplates": [{ "metadata": { "name": name } }] });
    assert_eq!(
        step("NodeSet", &claims("a"), &claims("b")),
        ["spec.volumeClaimTemplates"]
    );
    let key = |name: &str| json!({ "jwtKeyRef": { "name": name, "key": "k" } });
    for kind in ["Accounting", "Token"] {
        assert_eq!(step(kind, &key("a"), &key("b")), ["spec.jwtKeyRef"], "{kind}");
    }
}

#[test]
fn an_error_that_stood_before_does_not_stop_another_change() {
    let before = object("NodeSet", &json!({ "extraConf": "big", "replicas": 1 }));
    let after = object("NodeSet", &json!({ "extraConf": "big", "replicas": 2 }));
    assert!(!check(before.clone()).is_ok());
    let problems = check_step(before.clone(), after);
    assert_eq!(
        (errors(&problems), warnings(&problems)),
        (vec![], vec!["spec.extraConf".to_owned()])
    );
    let worse = object("NodeSet", &json!({ "extraConf": "huge" }));
    assert_eq!(errors(&check_step(before, worse)), ["spec.extraConf"]);
}

#[test]
fn an_object_on_its_way_out_is_let_go() {
    let before = object("NodeSet", &json!({}));
    let mut after = object("NodeSet", &json!({ "controllerRef": { "name": "" } }));
    after["metadata"]["deletionTimestamp"] = "2026-11-15T03:11:38Z".into();
    assert_eq!(check_step(before, after).iter().count(), 0);
}

#[test]
fn a_long_name_of_a_cluster_that_runs_is_left_alone() {
    let long = object("Controller", &json!({ "clusterName": "x".repeat(41) }));
    assert!(!check(long.clone()).is_ok());
    assert!(check_step(long.clone(), long).is_ok());
}

#[test]
fn files_the_operator_writes_cannot_be_brought_along() {
    assert!(!check_config_file("files", "slurm.conf").is_ok());
    assert!(!check_config_file("files", "slurmdbd.conf").is_ok());
    assert_eq!(check_config_file("files", "gres.conf").iter().count(), 0);
    assert_eq!(
        warnings(&check_config_file("files", "gers.conf")),
        ["spec.configFileRefs"]
    );
}

#[test]
fn standbys_need_a_claim_they_can_all_mount() {
    let shared: Controller = serde_json::from_value(objects("given/upstream-c-ha.yaml").remove(0)).unwrap();
    assert!(check_shared_claim(&shared, &["ReadWriteMany".into()]).is_ok());
    assert!(!check_shared_claim(&shared, &["ReadWriteOnce".into()]).is_ok());
    let alone: Controller = serde_json::from_value(objects("given/upstream-a-default.yaml").remove(0)).unwrap();
    assert!(check_shared_claim(&alone, &["ReadWriteOnce".into()]).is_ok());
}
