//! The environment of pods.

use std::io::Read;
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use testbed::command::{output, output_with_input};
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::pods::shell_pod;
use crate::common::servers;

const SOON: Duration = Duration::from_secs(30);

/// A pod named `shell` that sleeps, with changes to its spec.
fn shell(namespace: &Namespace, changes: &serde_json::Value) {
    namespace.apply(&shell_pod("shell", changes)).unwrap();
    namespace.wait("condition=Ready", "pod/shell").unwrap();
}

#[test]
fn services_balance_and_names_resolve() {
    let cluster = cluster();
    servers::load(cluster);
    let namespace = Namespace::create(cluster, "names").unwrap();
    namespace.apply(&servers::web()).unwrap();
    shell(&namespace, &json!({}));
    namespace.rollout("statefulset/web").unwrap();

    // kube-proxy and DNS follow the endpoints within a second or so.
    eventually("both pods respond behind the Service", SOON, || {
        let line = "for i in $(seq 20); do curl -sS --max-time 2 http://front/hostname; done | sort -u";
        let answer = namespace.exec("shell", line)?;
        expect(answer == "web-0\nweb-1\n", answer)
    })
    .unwrap();
    let by_name = namespace
        .exec("shell", "curl -sS http://web-1.web:8080/hostname")
        .unwrap();
    assert_eq!(by_name, "web-1\n");

    let address = namespace.field("pod/web-0", ".status.podIP").unwrap();
    let full = format!("web-0.web.{}.svc.cluster.local", namespace.name);
    let resolved = namespace.exec("shell", "getent hosts web-0.web").unwrap();
    assert!(resolved.contains(&address) && resolved.contains(&full), "{resolved}");
    let pointer = namespace.exec("shell", &format!("host -t PTR {address}")).unwrap();
    assert!(pointer.contains(&full), "{pointer}");
    let service = format!("_http._tcp.web.{}.svc.cluster.local", namespace.name);
    let srv = namespace.exec("shell", &format!("host -t SRV {service}")).unwrap();
    assert!(srv.contains(&format!("8080 {full}.")), "{srv}");
    let unknown = namespace.exec("shell", "host nobody.example; true").unwrap();
    assert!(unknown.contains("NXDOMAIN"), "{unknown}");
}

#[test]
fn exec_logs_cp_and_port_forward() {
    let cluster = cluster();
    servers::load(cluster);
    let namespace = Namespace::create(cluster, "access").unwrap();
    namespace.apply(&servers::web()).unwrap();
    shell(
        &namespace,
        &json!({"container": {"command": ["sh", "-c", "echo hello from the log; exec sleep infinity"]}}),
    );

    assert_eq!(namespace.exec("shell", "hostname").unwrap(), "shell\n");
    let typed = output_with_input(&mut namespace.kubectl(&["exec", "-i", "shell", "--", "cat"]), "typed").unwrap();
    assert_eq!(typed, "typed");
    assert_eq!(namespace.ask(&["logs", "shell"]).unwrap(), "hello from the log\n");

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "carried").unwrap();
    namespace
        .ask(&["cp", &file.path().display().to_string(), "shell:/tmp/carried"])
        .unwrap();
    assert_eq!(namespace.exec("shell", "cat /tmp/carried").unwrap(), "carried");

    namespace.rollout("statefulset/web").unwrap();
    let mut forward = namespace
        .kubectl(&["port-forward", "pod/web-0", ":8080"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 64];
    let count = forward.stdout.as_mut().unwrap().read(&mut said).unwrap();
    let said = String::from_utf8_lossy(&said[..count]).into_owned();
    let port: u16 = said
        .split("127.0.0.1:")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
    std::io::Write::write_all(&mut connection, b"GET /hostname HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    connection.read_to_string(&mut page).unwrap();
    forward.kill().unwrap();
    forward.wait().unwrap();
    assert!(page.ends_with("web-0\n"), "{page}");
}

#[test]
fn a_native_sidecar_starts_first_and_the_pod_ends_without_it() {
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "sidecar").unwrap();
    let pod = shell_pod(
        "shell",
        &json!({
            "restartPolicy": "Never",
            "volumes": [{"name": "shared", "emptyDir": {"medium": "Memory"}}],
            "initContainers": [{
                "name": "sidecar", "image": "alpine:latest", "imagePullPolicy": "IfNotPresent", "restartPolicy": "Always",
                "command": ["sh", "-c", "touch /shared/up; exec sleep infinity"],
                "startupProbe": {"exec": {"command": ["test", "-e", "/shared/up"]}, "periodSeconds": 1},
                "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
            }],
            "container": {"command": ["test", "-e", "/shared/up"], "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]},
        }),
    );
    namespace.apply(&pod).unwrap();
    namespace
        .wait("jsonpath={.status.phase}=Succeeded", "pod/shell")
        .unwrap();
}

#[test]
fn a_memory_limit_kills_what_exceeds_it() {
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "memory").unwrap();
    let pod = shell_pod(
        "shell",
        &json!({
            "restartPolicy": "Never",
            "container": {
                "command": ["sh", "-c", "tail /dev/zero"],
                "resources": {"limits": {"memory": "32Mi"}},
            },
        }),
    );
    namespace.apply(&pod).unwrap();
    namespace.wait("jsonpath={.status.phase}=Failed", "pod/shell").unwrap();
    let reason = namespace
        .field("pod/shell", ".status.containerStatuses[0].state.terminated.reason")
        .unwrap();
    assert_eq!(reason, "OOMKilled");
}

#[test]
fn privileged_and_host_network_pods_run() {
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "privileged").unwrap();
    shell(
        &namespace,
        &json!({
            "hostNetwork": true, "nodeName": "node2",
            "container": {"securityContext": {
                "privileged": true, "capabilities": {"add": ["BPF", "NET_ADMIN", "SYS_ADMIN", "SYS_NICE"]},
            }},
        }),
    );
    let node = cluster
        .ask(&["get", "node", "node2", "-o", "jsonpath={.status.addresses[0].address}"])
        .unwrap();
    assert_eq!(namespace.field("pod/shell", ".status.podIP").unwrap(), node);
    namespace
        .exec(
            "shell",
            "mount -t tmpfs none /mnt && ip link add probe type veth && ip link del probe",
        )
        .unwrap();
}

#[test]
fn an_admission_webhook_is_served_from_a_pod() {
    let cluster = cluster();
    servers::load(cluster);
    let namespace = Namespace::create(cluster, "webhook").unwrap();
    namespace.apply(&servers::secure(cluster, &namespace).unwrap()).unwrap();
    namespace.wait("condition=Ready", "pod/apis").unwrap();
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": namespace.name},
        "webhooks": [{
            "name": "test.testbed.invalid", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "service": {"name": "apis", "namespace": namespace.name, "path": "/mutate"},
                "caBundle": servers::authority_base64(cluster).unwrap(),
            },
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
        }],
    });
    namespace.apply(&webhook.to_string()).unwrap();
    let config_map = |name: &str, labels: serde_json::Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}).to_string()
    };
    let reviewed = eventually("the webhook is asked", SOON, || {
        let _ = namespace.ask(&["delete", "configmap", "allowed", "--ignore-not-found"]);
        namespace.apply(&config_map("allowed", json!({})))?;
        let reviewed = namespace.field("configmap/allowed", ".metadata.annotations.reviewed")?;
        expect(reviewed == "yes", reviewed)
    });
    let refused = namespace.apply(&config_map("refused", json!({"forbidden": "x"})));
    cluster
        .ask(&["delete", "mutatingwebhookconfiguration", &namespace.name])
        .unwrap();
    reviewed.unwrap();
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("the label forbidden is refused here")
    );
}

#[test]
fn an_autoscaler_drives_the_scale_of_a_custom_resource() {
    let cluster = cluster();
    servers::load(cluster);
    let namespace = Namespace::create(cluster, "autoscale").unwrap();
    namespace.apply(&servers::secure(cluster, &namespace).unwrap()).unwrap();
    namespace.wait("condition=Ready", "pod/apis").unwrap();
    let group = format!("g{}.testbed.invalid", std::process::id());
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("herds.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"kind": "Herd", "plural": "herds"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.selector",
                }, "status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"replicas": {"type": "integer", "minimum": 0}}},
                    "status": {"type": "object", "properties": {
                        "replicas": {"type": "integer"}, "selector": {"type": "string"},
                    }},
                }}},
            }],
        },
    });
    let metrics = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
        "spec": {
            "group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": {"name": "apis", "namespace": namespace.name},
            "caBundle": servers::authority_base64(cluster).unwrap(),
        },
    });
    namespace.apply(&servers::list(&[definition, metrics])).unwrap();
    let definition_name = format!("crd/herds.{group}");
    namespace.wait("condition=Established", &definition_name).unwrap();
    namespace
        .wait("condition=Available", "apiservice/v1beta1.external.metrics.k8s.io")
        .unwrap();
    let herd = json!({
        "apiVersion": format!("{group}/v1"), "kind": "Herd", "metadata": {"name": "sheep"}, "spec": {"replicas": 1},
    });
    let scaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "sheep"},
        "spec": {
            "scaleTargetRef": {"apiVersion": format!("{group}/v1"), "kind": "Herd", "name": "sheep"},
            "minReplicas": 1, "maxReplicas": 9,
            "metrics": [{"type": "External", "external": {
                "metric": {"name": "load"}, "target": {"type": "AverageValue", "averageValue": "1"},
            }}],
        },
    });
    let herds = format!("herds.{group}");
    let followed = eventually("the custom resource can be created", SOON, || {
        output_with_input(&mut namespace.kubectl(&["apply", "-f", "-"]), &herd.to_string())
    })
    .and_then(|_| {
        let status = r#"{"status":{"replicas":1,"selector":"app=sheep"}}"#;
        output(&mut namespace.kubectl(&[
            "patch",
            &herds,
            "sheep",
            "--subresource=status",
            "--type=merge",
            "-p",
            status,
        ]))
    })
    .and_then(|_| namespace.apply(&scaler.to_string()))
    // The metric is five and the target one per pod; an autoscaler at most doubles the number or adds four at once.
    .and_then(|()| namespace.wait("jsonpath={.spec.replicas}=5", &format!("{herds}/sheep")));
    cluster
        .ask(&["delete", "apiservice/v1beta1.external.metrics.k8s.io", &definition_name])
        .unwrap();
    followed.unwrap();
}
