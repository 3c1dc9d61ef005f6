//! Bad input: a reason on the object, nothing harmed, healed when the cause goes.

use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::operator::{ONE_WORKER, SOON, install, install_chart, slurm, wait_idle};

fn ready(namespace: &Namespace, object: &str) -> anyhow::Result<(String, String, String)> {
    let field = |name: &str| namespace.field(object, &format!(".status.conditions[?(@.type==\"Ready\")].{name}"));
    Ok((field("status")?, field("reason")?, field("message")?))
}

/// Waits for Ready=False whose message contains all words, and returns it.
fn refused(namespace: &Namespace, object: &str, words: &[&str]) -> String {
    eventually(&format!("{object} is refused"), SOON, || {
        let (status, reason, message) = ready(namespace, object)?;
        let told = words.iter().all(|word| message.contains(word));
        expect(
            status == "False" && !reason.is_empty() && told,
            (&status, &reason, &message),
        )?;
        Ok(message)
    })
    .unwrap()
}

#[test]
fn a_nodeset_without_its_controller_says_so_and_heals() {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, "orphan").unwrap();
    namespace
        .apply("{apiVersion: slinky.slurm.net/v1beta1, kind: NodeSet, metadata: {name: lonely}, spec: {replicas: 1, controllerRef: {name: slurm}}}")
        .unwrap();
    refused(&namespace, "nodeset/lonely", &["slurm"]);
    assert_eq!(namespace.ask(&["get", "pods", "-o", "name"]).unwrap(), "");
    install_chart(cluster, &namespace, "nodesets: {}\n").unwrap();
    eventually("the pod comes with the Controller", SOON, || {
        let pods = namespace.ask(&["get", "pods", "-l", "slinky.slurm.net/component=slurmd", "-o", "name"])?;
        expect(pods.lines().count() == 1, pods)
    })
    .unwrap();
    wait_idle(&namespace, 1).unwrap();
}

#[test]
fn a_missing_config_map_is_named_and_the_running_cluster_unharmed() {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, "missing").unwrap();
    install_chart(cluster, &namespace, ONE_WORKER).unwrap();
    wait_idle(&namespace, 1).unwrap();
    let uid = namespace.field("pod/slurm-controller-0", ".metadata.uid").unwrap();
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
    assert_eq!(namespace.field("pod/slurm-controller-0", ".metadata.uid").unwrap(), uid);
}

#[test]
fn of_two_nodesets_with_one_slurm_name_the_younger_is_refused() {
    let cluster = cluster();
    install(cluster);
    let namespace = Namespace::create(cluster, "twins").unwrap();
    install_chart(cluster, &namespace, ONE_WORKER).unwrap();
    wait_idle(&namespace, 1).unwrap();
    let before = namespace.field("configmap/slurm-config", ".data").unwrap();
    namespace
        .apply("{apiVersion: slinky.slurm.net/v1beta1, kind: NodeSet, metadata: {name: twin}, spec: {replicas: 1, controllerRef: {name: slurm}, template: {spec: {hostname: slinky-}}}}")
        .unwrap();
    refused(&namespace, "nodeset/twin", &["slinky"]);
    assert_eq!(namespace.field("configmap/slurm-config", ".data").unwrap(), before);
    assert_eq!(slurm(&namespace, "srun -p all hostname").unwrap().lines().count(), 1);
}
