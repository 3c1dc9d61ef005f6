//! The optional ValidatingAdmissionPolicy of the operator's chart, for somebody who may create our kinds and nothing else.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use testbed::command::{output, output_with_input};
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::operator_namespace;
use crate::common::operator::helm;

const RIGHTS: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: team}
rules:
- apiGroups: [slinky.slurm.net]
  resources: ['*']
  verbs: ['*']
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: team}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: team}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}
";

/// The rendered policy. Dropping it removes it.
struct Policy(String);

impl Policy {
    fn install(namespace: &Namespace) -> Self {
        let chart = testbed::paths::repository().join("charts/slurm-operator");
        let selector = r"admissionPolicy.namespaceSelector.matchLabels.kubernetes\.io/metadata\.name";
        let mut template = helm(cluster());
        template.arg("template").arg(&namespace.name).arg(chart);
        template.args(["--namespace=slinky", "--show-only=templates/policy.yaml"]);
        template.args(["--set", "admissionPolicy.enabled=true"]);
        template.args(["--set", &format!("{selector}={}", namespace.name)]);
        let policy = Self(output(&mut template).unwrap());
        policy.call("apply").unwrap();
        policy
    }

    fn call(&self, verb: &str) -> Result<String> {
        output_with_input(&mut cluster().kubectl(&[verb, "-f", "-"]), &self.0)
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        let deleted = self.call("delete");
        assert!(std::thread::panicking() || deleted.is_ok(), "{deleted:?}");
    }
}

fn object(kind: &str, spec: &Value) -> String {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "metadata": { "name": "tried" }, "spec": spec,
    })
    .to_string()
}

/// Creates an object as alice, who may create our kinds.
fn create(namespace: &Namespace, kind: &str, spec: &Value) -> Result<String> {
    let mut create = namespace.kubectl(&["create", "--as=alice", "--dry-run=server", "-f", "-"]);
    output_with_input(&mut create, &object(kind, spec))
}

/// A NodeSet that is allowed, with these fields besides.
fn nodeset(fields: &Value) -> Value {
    let mut spec = json!({
        "controllerRef": { "name": "slurm" },
        "slurmd": { "securityContext": { "privileged": false, "capabilities": { "drop": ["ALL"], "add": ["SETUID", "SETGID"] } } },
    });
    for (field, value) in fields.as_object().unwrap() {
        spec[field] = value.clone();
    }
    spec
}

fn pod(spec: &Value) -> Value {
    json!({ "template": { "spec": spec } })
}

fn volume(source: &str, value: &Value) -> Value {
    pod(&json!({ "volumes": [{ "name": "a", (source): value }] }))
}

fn sidecar(fields: &Value) -> Value {
    let mut container = fields.clone();
    container["name"] = "x".into();
    pod(&json!({ "containers": [container] }))
}

fn sssd(secret: &str) -> Value {
    json!({ "controllerRef": { "name": "slurm" }, "sssdConfRef": { "name": secret, "key": "k" } })
}

/// A RestApi with a variable from a Secret or a ConfigMap.
fn env(source: &str) -> Value {
    let variable = json!({ "name": "A", "valueFrom": { (source): { "name": "foreign", "key": "k" } } });
    json!({ "controllerRef": { "name": "slurm" }, "slurmrestd": { "env": [variable] } })
}

fn slurmd(context: &Value) -> Value {
    nodeset(&json!({ "slurmd": { "securityContext": context } }))
}

fn what_a_cluster_needs_is_accepted(namespace: &Namespace) {
    let accept = |kind: &str, spec: &Value| {
        create(namespace, kind, spec).unwrap_or_else(|error| panic!("{kind} {spec}: {error:#}"));
    };
    let key = json!({ "name": "slurm-auth-slurm", "key": "slurm.key" });
    let volumes =
        json!([{ "name": "a", "persistentVolumeClaim": { "claimName": "home" } }, { "name": "b", "emptyDir": {} }]);
    let empty = json!({ "volumes": null, "initContainers": [], "serviceAccountName": "default" });
    accept("Controller", &json!({}));
    accept(
        "Controller",
        &json!({ "template": { "spec": null }, "slurmctld": { "resources": {} } }),
    );
    accept("Controller", &json!({ "slurmKeyRef": key }));
    accept("NodeSet", &nodeset(&json!({})));
    accept("NodeSet", &nodeset(&pod(&json!({ "volumes": volumes }))));
    accept("NodeSet", &nodeset(&pod(&empty)));
    accept("LoginSet", &sssd("slurm-sssd-conf"));
    accept("RestApi", &env("configMapKeyRef"));
}

fn what_is_foreign_is_rejected(namespace: &Namespace) {
    let reject = |kind: &str, spec: &Value, words: &str| {
        let said = create(namespace, kind, spec).map_err(|error| format!("{error:#}"));
        let is_rejected = said.as_ref().is_err_and(|said| said.contains(words));
        assert!(is_rejected, "{kind} {spec}: {said:?}");
    };
    let host = "hostNetwork, hostPID and hostIPC";
    reject("Controller", &pod(&json!({ "hostNetwork": true })), host);
    reject("Controller", &pod(&json!({ "hostPID": true })), host);
    reject("NodeSet", &nodeset(&pod(&json!({ "hostIPC": true }))), host);

    let volumes = "hostPath and other volumes";
    let root = volume("hostPath", &json!({ "path": "/" }));
    reject("NodeSet", &nodeset(&root), volumes);
    reject(
        "Controller",
        &volume("nfs", &json!({ "server": "s", "path": "/" })),
        volumes,
    );

    for field in ["serviceAccountName", "serviceAccount"] {
        reject("Controller", &pod(&json!({ (field): "admin" })), "the ServiceAccount");
    }

    let foreign = json!({ "name": "foreign", "key": "k" });
    let projected = json!({ "sources": [{ "secret": { "name": "foreign" } }] });
    let variables = json!({ "envFrom": [{ "secretRef": { "name": "foreign" } }] });
    let in_volume = "a volume in template.spec has a Secret";
    let in_variable = "a variable of a container has a Secret";
    let in_spec = "a reference in the spec names a Secret";
    reject(
        "Controller",
        &volume("secret", &json!({ "secretName": "foreign" })),
        in_volume,
    );
    reject("Controller", &volume("projected", &projected), in_volume);
    reject("RestApi", &env("secretKeyRef"), in_variable);
    reject("Controller", &sidecar(&variables), in_variable);
    reject("LoginSet", &sssd("foreign"), in_spec);
    reject("Controller", &json!({ "slurmKeyRef": foreign }), in_spec);

    let privileged = sidecar(&json!({ "securityContext": { "privileged": true } }));
    let admin = json!({ "securityContext": { "capabilities": { "add": ["SYS_ADMIN"] } } });
    reject("Controller", &privileged, "privileged containers");
    reject("Controller", &json!({ "slurmctld": admin }), "only capabilities");
    reject(
        "NodeSet",
        &slurmd(&json!({ "privileged": false })),
        "privileged workers",
    );
    let empty = json!({ "privileged": false, "capabilities": { "add": [] } });
    reject("NodeSet", &slurmd(&empty), "privileged workers");
}

#[test]
fn people_get_nothing_of_the_host_and_no_foreign_secrets_by_our_kinds() {
    let namespace = operator_namespace(cluster(), "policy");
    namespace.apply(RIGHTS).unwrap();
    let plain = json!({ "controllerRef": { "name": "slurm" } });
    create(&namespace, "NodeSet", &plain).unwrap();
    let policy = Policy::install(&namespace);
    let refused = eventually("the policy is enforced", Duration::from_secs(30), || {
        let said = create(&namespace, "NodeSet", &plain);
        expect(said.is_err(), &said)?;
        Ok(format!("{:#}", said.unwrap_err()))
    });
    assert!(refused.unwrap().contains("privileged workers are not allowed here"));

    what_a_cluster_needs_is_accepted(&namespace);
    what_is_foreign_is_rejected(&namespace);

    // An object from before the policy can be labelled, and the operator and administrators are not affected.
    namespace.apply(&object("NodeSet", &plain)).unwrap();
    namespace
        .ask(&["label", "--as=alice", "nodeset/tried", "team=blue"])
        .unwrap();
    let scaled = namespace.ask(&["scale", "--as=alice", "nodeset/tried", "--replicas=2"]);
    assert!(scaled.is_ok(), "a subresource is not in the policy: {scaled:?}");
    namespace.ask(&["delete", "--as=alice", "nodeset/tried"]).unwrap();
    drop(policy);
}
