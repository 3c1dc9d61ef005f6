//! What is rejected in a new NodeSet.

use serde_json::{Value, json};

use super::{check, errors, object, refused};

#[test]
fn a_nodeset_with_a_value_out_of_bounds_is_rejected() {
    let nameless = json!({ "name": "", "key": "k" });
    refused("NodeSet", &json!({ "replicas": -1 }), "spec.replicas");
    for kind in ["NodeSet", "LoginSet", "RestApi"] {
        assert!(check(object(kind, &json!({ "replicas": 65_536 }))).is_ok(), "{kind}");
        refused(kind, &json!({ "replicas": 65_537 }), "spec.replicas");
        let reported = check(object(kind, &json!({ "replicas": 20_000_000 }))).to_string();
        assert_eq!(
            reported,
            "spec.replicas is 20000000, which is more than 65536; set 65536 or less"
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
fn an_update_without_a_time_is_rejected() {
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
fn an_update_that_could_never_progress_is_rejected() {
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
fn a_drain_timeout_needs_a_duration_and_an_action() {
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
fn text_that_cannot_be_written_to_slurm_conf_is_rejected() {
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
    // Blanks between items and inside quotes are accepted.
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
