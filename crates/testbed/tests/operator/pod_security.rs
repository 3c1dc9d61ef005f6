//! Pods with as few privileges as their daemons need.

use anyhow::Result;
use serde_json::{Value, json};
use testbed::command::output_with_input;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::accounting::{MARIADB, set_password};
use crate::common::clusters::{install_as_written, install_chart, operator_namespace};
use crate::common::operator::helm;
use crate::common::slurm::{SOON, slurm, start_job, wait_idle};

const UNPRIVILEGED: &str = include_str!("../../../../examples/unprivileged/values.yaml");

/// Every daemon but slurmd. Nothing has to run: the templates are enough. They lack the volumes that a StatefulSet claims.
const EVERYTHING: &str = "
controller: {persistence: {enabled: false}}
accounting: {enabled: true}
loginsets: {slinky: {}}
";

fn objects(namespace: &Namespace, kinds: &str) -> Result<Vec<Value>> {
    let listed: Value = serde_json::from_str(&namespace.ask(&["get", kinds, "-o", "json"])?)?;
    Ok(listed["items"].as_array().cloned().unwrap_or_default())
}

/// Asks the API server whether it accepts a pod of this workload in the namespace.
fn try_pod(namespace: &Namespace, workload: &Value) -> Result<()> {
    let mut pod = workload["spec"]["template"].clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    let labels = pod["metadata"]["labels"].clone();
    pod["metadata"] = json!({ "name": "tried", "labels": labels });
    // The accounts are in other namespaces.
    if let Some(spec) = pod["spec"].as_object_mut() {
        spec.remove("serviceAccount");
        spec.remove("serviceAccountName");
        spec.remove("priorityClassName");
        spec.remove("nodeName");
    }
    let mut create = namespace.kubectl(&["create", "--dry-run=server", "-f", "-"]);
    output_with_input(&mut create, &pod.to_string()).map(drop)
}

fn enforcing(level: &str) -> Namespace {
    let namespace = Namespace::create(cluster(), &format!("{level}-pods")).unwrap();
    let label = format!("pod-security.kubernetes.io/enforce={level}");
    namespace
        .cluster
        .ask(&["label", "namespace", &namespace.name, &label])
        .unwrap();
    namespace
}

/// The Job that runs before the operator is uninstalled.
fn release_job() -> Value {
    let chart = testbed::paths::repository().join("charts/slurm-operator");
    let mut template = helm(cluster());
    template.args(["template", "slurm-operator"]).arg(chart);
    let shown = template
        .args(["--show-only", "templates/release.yaml"])
        .output()
        .unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(shown.stdout).unwrap()).unwrap();
    documents.into_iter().find(|object| object["kind"] == "Job").unwrap()
}

#[test]
fn pods_of_all_daemons_but_slurmd_and_sshd_are_restricted() {
    let namespace = operator_namespace(cluster(), "restricted-source");
    set_password(&namespace, "any");
    install_chart(&namespace, EVERYTHING).unwrap();
    let mut workloads = eventually("every daemon has its workload", SOON, || {
        let found = objects(&namespace, "statefulsets,deployments")?;
        expect(found.len() == 4, found.len())?;
        Ok(found)
    })
    .unwrap();
    let operator = ["get", "deployments", "--namespace=slinky", "-o", "json"];
    let operator: Value = serde_json::from_str(&cluster().ask(&operator).unwrap()).unwrap();
    workloads.extend(operator["items"].as_array().unwrap().iter().cloned());
    workloads.push(release_job());

    let (restricted, baseline) = (enforcing("restricted"), enforcing("baseline"));
    let mut refused = Vec::new();
    for workload in &workloads {
        let name = format!("{} {}", workload["kind"], workload["metadata"]["name"]);
        if let Err(error) = try_pod(&restricted, workload) {
            refused.push(name.clone());
            // sshd has to be root to become the user who logs in.
            let is_login = workload["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == "login";
            assert!(is_login, "{name}: {error:#}");
        }
        try_pod(&baseline, workload).unwrap();
    }
    assert_eq!(refused.len(), 1, "{refused:?}");
}

#[test]
fn workers_without_privileges_run_jobs() {
    let namespace = operator_namespace(cluster(), "unprivileged");
    set_password(&namespace, "unprivileged");
    namespace.apply(MARIADB).unwrap();
    install_as_written(&namespace, UNPRIVILEGED).unwrap();
    wait_idle(&namespace, 2).unwrap();

    let worker = "slurm-worker-slinky-0";
    // SYS_ADMIN is bit 21.
    let held = namespace
        .inside(worker, "slurmd", "grep CapEff /proc/1/status")
        .unwrap();
    let held = u64::from_str_radix(held.rsplit('\t').next().unwrap().trim(), 16).unwrap();
    assert_eq!(held & (1 << 21), 0, "{held:x}");

    let pod: Value = serde_json::from_str(&namespace.ask(&["get", "pod", worker, "-o", "json"]).unwrap()).unwrap();
    try_pod(&enforcing("baseline"), &json!({ "spec": { "template": pod } })).unwrap();

    // On two nodes, as a user who is not root.
    let hosts = slurm(&namespace, "srun -p all -N 2 --chdir=/tmp hostname | sort").unwrap();
    assert_eq!(hosts, "slinky-0\nslinky-1\n");
    // slurmctld could not reach an srun that had waited for the end of the first job.
    wait_idle(&namespace, 2).unwrap();
    let who = slurm(&namespace, "srun -p all --chdir=/tmp id -un").unwrap();
    assert_eq!(who.trim(), "slurm");

    // A script that catches a signal of scancel, as a job's user would see it.
    let script = r#"trap "echo caught >/tmp/caught; exit 0" USR1; while :; do sleep 1; done"#;
    let job = start_job(&namespace, "-p all -w slinky-0", script).unwrap();
    eventually("the script catches the signal", SOON, || {
        slurm(&namespace, &format!("scancel --signal=USR1 --batch {job}; true"))?;
        let caught = namespace.inside(worker, "slurmd", "cat /tmp/caught")?;
        expect(caught.trim() == "caught", caught)
    })
    .unwrap();

    // scancel ends what a job started in the background, too, unless its parent has ended (docs/security.md).
    let script = "sleep 7777 & sleep 7777";
    let job = start_job(&namespace, "-p all -w slinky-0", script).unwrap();
    eventually("the job's processes run", SOON, || {
        let found = namespace.inside(worker, "slurmd", "pgrep -fc '^sleep 7777'")?;
        expect(found.trim() == "2", found)
    })
    .unwrap();
    slurm(&namespace, &format!("scancel {job}")).unwrap();
    eventually("none of them is left", SOON, || {
        let found = namespace.inside(worker, "slurmd", "pgrep -fc '^sleep 7777' || true")?;
        expect(found.trim() == "0", found)
    })
    .unwrap();

    let ask = format!("sacct --noheader --parsable2 --allocations --jobs={job} --format=State,NodeList");
    eventually("accounting has the job", SOON, || {
        let said = slurm(&namespace, &ask)?;
        expect(
            said.starts_with("CANCELLED") && said.trim().ends_with("|slinky-0"),
            said,
        )
    })
    .unwrap();
    let ask = "sacct --noheader --parsable2 --allusers --name=hostname --format=JobID,State";
    eventually("accounting has the step", SOON, || {
        let said = slurm(&namespace, ask)?;
        expect(said.contains("COMPLETED"), said)
    })
    .unwrap();
}
