//! Bad input is reported on the object, harms nothing, and heals when it is corrected.

use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{ONE_WORKER, chart_cluster, install_chart, operator_namespace};
use crate::common::pods::lives;
use crate::common::slurm::{SOON, slurm, wait_idle};

fn ready(namespace: &Namespace, object: &str) -> anyhow::Result<(String, String, String)> {
    let field = |name: &str| namespace.field(object, &format!(".status.conditions[?(@.type==\"Ready\")].{name}"));
    Ok((field("status")?, field("reason")?, field("message")?))
}

/// Waits for Ready=False whose message contains all words, and returns it.
fn refused(namespace: &Namespace, object: &str, words: &[&str]) -> String {
    eventually(&format!("{object} is refused"), SOON, || {
        let (status, reason, message) = ready(namespace, object)?;
        let matches = words.iter().all(|word| message.contains(word));
        expect(
            status == "False" && !reason.is_empty() && matches,
            (&status, &reason, &message),
        )?;
        Ok(message)
    })
    .unwrap()
}

#[test]
fn a_nodeset_without_its_controller_reports_it_and_heals() {
    let namespace = operator_namespace(cluster(), "orphan");
    namespace
        .apply("{apiVersion: slinky.slurm.net/v1beta1, kind: NodeSet, metadata: {name: lonely}, spec: {replicas: 1, controllerRef: {name: slurm}}}")
        .unwrap();
    refused(&namespace, "nodeset/lonely", &["slurm"]);
    assert_eq!(namespace.ask(&["get", "pods", "-o", "name"]).unwrap(), "");
    install_chart(&namespace, "nodesets: {}\n").unwrap();
    eventually("the pod comes with the Controller", SOON, || {
        let pods = namespace.ask(&["get", "pods", "-l", "slinky.slurm.net/component=slurmd", "-o", "name"])?;
        expect(pods.lines().count() == 1, pods)
    })
    .unwrap();
    wait_idle(&namespace, 1).unwrap();
}

#[test]
fn a_missing_config_map_is_named_and_the_running_cluster_is_unharmed() {
    let namespace = chart_cluster(cluster(), "missing", ONE_WORKER, 1);
    let uid = namespace.uid("pod/slurm-controller-0").unwrap();
    let refs = namespace.field("controller/slurm", ".spec.configFileRefs").unwrap();
    let patch = r#"[{"op":"add","path":"/spec/configFileRefs/-","value":{"name":"nowhere"}}]"#;
    assert!(refs.contains("name"), "{refs}");
    namespace
        .ask(&["patch", "controller/slurm", "--type=json", "-p", patch])
        .unwrap();
    refused(&namespace, "controller/slurm", &["nowhere"]);
    assert_eq!(slurm(&namespace, "srun -p all hostname").unwrap().lines().count(), 1);
    namespace
        .ask(&["create", "configmap", "nowhere", "--from-literal=oci.conf="])
        .unwrap();
    eventually("healed", SOON, || {
        let now = ready(&namespace, "controller/slurm")?;
        expect(now.0 == "True", now)
    })
    .unwrap();
    assert_eq!(namespace.uid("pod/slurm-controller-0").unwrap(), uid);
}

/// No registry listens there; `make release-test` tries images that a registry refuses.
const UNREACHABLE: &str = "127.0.0.1:1/slurm:none";

#[test]
fn images_that_cannot_be_pulled_are_explained_on_their_objects() {
    let namespace = chart_cluster(cluster(), "images", ONE_WORKER, 1);
    let values = format!(
        "{ONE_WORKER}restapi: {{slurmrestd: {{image: '{UNREACHABLE}'}}}}\n\
         loginsets: {{slinky: {{enabled: true, login: {{image: '{UNREACHABLE}'}}}}}}\n"
    )
    .replace(
        "nodesets:\n",
        &format!("nodesets:\n  other: {{slurmd: {{image: '{UNREACHABLE}'}}}}\n"),
    );
    install_chart(&namespace, &values).unwrap();
    let degraded = |object: &str| -> anyhow::Result<String> {
        let field =
            |name: &str| namespace.field(object, &format!(".status.conditions[?(@.type==\"Degraded\")].{name}"));
        Ok(format!("{} {}", field("reason")?, field("message")?))
    };
    for object in [
        "nodeset/slurm-worker-other",
        "restapi/slurm",
        "loginset/slurm-login-slinky",
    ] {
        eventually(&format!("{object} explains it"), SOON, || {
            let told = degraded(object)?;
            let expected = ["PodsDoNotStart", UNREACHABLE, "cannot reach the registry"];
            expect(expected.iter().all(|word| told.contains(word)), told)
        })
        .unwrap();
    }
    assert_eq!(slurm(&namespace, "srun -p all hostname").unwrap(), "slinky-0\n");
    install_chart(&namespace, ONE_WORKER).unwrap();
    eventually("slurmrestd's problem is gone", SOON, || {
        let told = degraded("restapi/slurm")?;
        expect(told.starts_with("Healthy"), told)
    })
    .unwrap();
}

#[test]
fn of_two_nodesets_with_one_slurm_name_the_younger_is_rejected() {
    let namespace = chart_cluster(cluster(), "twins", ONE_WORKER, 1);
    let before = namespace.field("configmap/slurm-config", ".data").unwrap();
    namespace
        .apply("{apiVersion: slinky.slurm.net/v1beta1, kind: NodeSet, metadata: {name: twin}, spec: {replicas: 1, controllerRef: {name: slurm}, template: {spec: {hostname: slinky-}}}}")
        .unwrap();
    refused(&namespace, "nodeset/twin", &["slinky"]);
    assert_eq!(namespace.field("configmap/slurm-config", ".data").unwrap(), before);
    assert_eq!(slurm(&namespace, "srun -p all hostname").unwrap().lines().count(), 1);
}

/// A NodeSet without workers.
fn nodeset(name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: slinky.slurm.net/v1beta1, kind: NodeSet, metadata: {{name: {name}}}, spec: {{replicas: 0, {spec}}}}}"
    )
}

fn controller(name: &str, spec: &str) -> String {
    daemon("Controller", name, spec)
}

fn daemon(kind: &str, name: &str, spec: &str) -> String {
    format!("{{apiVersion: slinky.slurm.net/v1beta1, kind: {kind}, metadata: {{name: {name}}}, spec: {{{spec}}}}}")
}

fn healed(namespace: &Namespace, object: &str) {
    eventually(&format!("{object} is healed"), SOON, || {
        let now = ready(namespace, object)?;
        expect(now.0 == "True", now)
    })
    .unwrap();
}

#[test]
fn each_mistake_is_reported_with_its_remedy_harms_nothing_and_heals() {
    let namespace = chart_cluster(cluster(), "wrong", ONE_WORKER, 1);
    let unharmed = || {
        assert_eq!(slurm(&namespace, "srun -p all hostname").unwrap(), "slinky-0\n");
        lives(&namespace).unwrap()
    };
    let before = unharmed();

    // NodeSets: a reference to another namespace, a missing Secret, a contradictory spec.
    namespace
        .apply(&nodeset(
            "foreign",
            "controllerRef: {name: slurm, namespace: elsewhere}",
        ))
        .unwrap();
    let secretive = "controllerRef: {name: slurm}, ssh: {enabled: true, sssdConfRef: {name: nowhere, key: sssd.conf}}";
    namespace.apply(&nodeset("secretive", secretive)).unwrap();
    namespace
        .apply(&nodeset("all", "controllerRef: {name: slurm}"))
        .unwrap();
    refused(
        &namespace,
        "nodeset/foreign",
        &["spec.controllerRef.namespace", "elsewhere"],
    );
    refused(&namespace, "nodeset/secretive", &["spec.ssh.sssdConfRef", "nowhere"]);
    refused(&namespace, "nodeset/all", &["all", "spec.template.spec.hostname"]);
    // A second cluster of the same name.
    let name = slurm(&namespace, "scontrol show config | sed -n 's/^ClusterName *= *//p'").unwrap();
    let twin = format!("clusterName: {}", name.trim());
    namespace.apply(&controller("twin", &twin)).unwrap();
    refused(
        &namespace,
        "controller/twin",
        &["spec.clusterName", name.trim(), "slurm"],
    );
    // Two external clusters of one name, so that no pod has to start when the younger is accepted. Nothing listens at
    // their addresses.
    let away = ["no slurmctld can be reached at far:6817", "spec.externalConfig"];
    let keys = "slurmKeyRef: {name: slurm-auth-slurm, key: slurm.key}, jwtKeyRef: {name: slurm-auth-jwt, key: jwt.key}";
    let far = format!("clusterName: far, external: true, externalConfig: {{host: far, port: 6817}}, {keys}");
    namespace.apply(&controller("older", &far)).unwrap();
    refused(&namespace, "controller/older", &away);
    namespace.apply(&controller("younger", &far)).unwrap();
    refused(&namespace, "controller/younger", &["spec.clusterName", "far", "older"]);
    // Daemons with a DNS name on the host network, and external daemons without an address.
    let database = "storageConfig: {host: db, passwordKeyRef: {name: db, key: password}}, ";
    for (kind, more) in [("Controller", ""), ("Accounting", database)] {
        let spec = format!("{more}template: {{spec: {{hostNetwork: true}}}}");
        namespace.apply(&daemon(kind, "networked", &spec)).unwrap();
        let object = format!("{kind}/networked");
        refused(&namespace, &object, &["spec.template.spec.hostNetwork", "remove it"]);
        let hostless = namespace.apply(&daemon(kind, "hostless", "external: true"));
        let error = hostless.unwrap_err().to_string();
        assert!(error.contains("is required if spec.external is true"), "{error}");
    }
    // A key that is deleted while the cluster runs.
    let key = namespace
        .ask(&["get", "secret/slurm-auth-slurm", "-o", "json"])
        .unwrap();
    namespace.ask(&["delete", "secret/slurm-auth-slurm"]).unwrap();
    refused(
        &namespace,
        "controller/slurm",
        &["spec.slurmKeyRef.name", "slurm-auth-slurm"],
    );

    let config = namespace.field("configmap/slurm-config", ".data.slurm\\.conf").unwrap();
    for refused in ["NodeSet=foreign", "NodeSet=all"] {
        assert!(!config.contains(refused), "{config}");
    }
    assert_eq!(unharmed(), before);
    assert_eq!(
        namespace.ask(&["get", "statefulsets", "-o", "name"]).unwrap(),
        "statefulset.apps/slurm-controller\n"
    );

    namespace.apply(&key).unwrap();
    healed(&namespace, "controller/slurm");
    namespace
        .ask(&["create", "secret", "generic", "nowhere", "--from-literal=sssd.conf="])
        .unwrap();
    healed(&namespace, "nodeset/secretive");
    for (set, spec) in [
        ("foreign", r#"{"controllerRef":{"namespace":null}}"#),
        ("all", r#"{"template":{"spec":{"hostname":"some-"}}}"#),
    ] {
        let patch = format!("{{\"spec\":{spec}}}");
        namespace
            .ask(&["patch", "nodeset", set, "--type=merge", "-p", &patch])
            .unwrap();
        healed(&namespace, &format!("nodeset/{set}"));
    }
    assert_eq!(unharmed(), before);
    // The younger one is accepted when the older one is deleted.
    namespace.ask(&["delete", "controller/older"]).unwrap();
    refused(&namespace, "controller/younger", &away);
}
