//! Whoever can write ConfigMaps or a RestApi does not get into slurmctld, as the review of the code's security found it.

use std::process::Command;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use slurm::token::{Claims, SigningKey};
use testbed::command::output;
use testbed::harness::{Namespace, cluster, eventually, expect};

use crate::common::clusters::{REST_API, change_spec, manifest_cluster, set_extra_conf, wait_said};
use crate::common::servers;
use crate::common::slurm::{SOON, slurm, start_job, wait_node};

const BUNDLE: &str = "configmap/slurm-bundle";
const CONTROLLER: &str = "controller/slurm";
const HIDDEN: &str =
    "PartitionName=all Nodes=ALL Default=NO\nPartitionName=hidden Nodes=ALL Hidden=YES AllowGroups=root";

/// Runs a shell pipeline on the bundle's text.
fn edited(bundle: &str, edit: &str) -> String {
    let edit = format!("printf %s \"$0\" | base64 -d | {edit}");
    output(Command::new("sh").args(["-c", &edit, bundle]))
        .unwrap()
        .trim()
        .to_owned()
}

fn bundle(namespace: &Namespace) -> anyhow::Result<String> {
    namespace.field(BUNDLE, ".binaryData.bundle")
}

fn sequence(bundle: &str) -> u64 {
    let found = edited(bundle, r#"zcat | grep -o '^{"sequence":[0-9]*' | grep -o '[0-9]*$'"#);
    found.parse().unwrap()
}

fn a_forged_bundle_is_not_used(namespace: &Namespace) {
    let before = bundle(namespace).unwrap();
    let highest = r#"zcat | sed 's/^{"sequence":[0-9]*/{"sequence":18446744073709551615/' | gzip | base64 -w0"#;
    let forged = edited(&before, highest);
    assert_eq!(sequence(&forged), u64::MAX);
    let patch = json!({ "binaryData": { "bundle": forged } }).to_string();
    namespace
        .ask(&["patch", BUNDLE, "--type=merge", "--patch", &patch])
        .unwrap();
    eventually("the operator writes the accepted revision again", SOON, || {
        expect(bundle(namespace)? == before, "not yet")
    })
    .unwrap();
    // Without its signature it is no bundle of an older operator: slurmctld does not run with it.
    let patch = json!({ "binaryData": { "bundle": forged, "bundle.sig": null } }).to_string();
    namespace
        .ask(&["patch", BUNDLE, "--type=merge", "--patch", &patch])
        .unwrap();
    set_extra_conf(namespace, "SchedulerParameters=defer").unwrap();
    eventually("the next change goes live", SOON, || {
        let shown = slurm(namespace, "scontrol show config | grep SchedulerParameters")?;
        expect(shown.contains("defer"), shown)
    })
    .unwrap();
    eventually("with the next sequence", SOON, || {
        let now = sequence(&bundle(namespace)?);
        expect(now > sequence(&before) && now < 1000, now)
    })
    .unwrap();
}

fn slurmrestd_is_not_sent_elsewhere(namespace: &Namespace) {
    namespace.apply(REST_API).unwrap();
    let elsewhere = json!({ "service": { "spec": { "type": "ExternalName", "externalName": "attacker.example" } } });
    change_spec(namespace, "restapi/slurm", &elsewhere).unwrap();
    wait_said(namespace, "restapi/slurm", "Ready", &["False", "ExternalName"]);
    let service = namespace
        .field("service/slurm-restapi", ".spec.type},{.spec.externalName")
        .unwrap();
    assert_eq!(service, "ClusterIP,");
}

#[test]
fn config_maps_and_services_give_no_access_to_slurmctld() {
    let namespace = manifest_cluster(cluster(), "trust", 1);
    a_forged_bundle_is_not_used(&namespace);
    slurmrestd_is_not_sent_elsewhere(&namespace);
}

fn signing_key(namespace: &Namespace) -> SigningKey {
    let key = namespace.field("secret/slurm-auth-jwt", ".data.jwt\\.key").unwrap();
    SigningKey::new(&STANDARD.decode(key).unwrap()).unwrap()
}

/// Sends a request to slurmrestd as a user. Returns the HTTP status and the body.
fn rest(namespace: &Namespace, user: &str, path: &str, body: Option<&Value>) -> anyhow::Result<(u16, Value)> {
    let claims = Claims::new(user, SystemTime::now(), Duration::from_secs(75));
    let token = signing_key(namespace).sign(&claims)?;
    let body = body.map(|body| format!("-H 'Content-Type: application/json' --data '{body}'"));
    let ask = format!(
        "curl -sS -w '\\n%{{http_code}}' {} -H 'X-SLURM-USER-TOKEN: {}' http://slurm-restapi:6820/slurm/v0.0.45/{path}",
        body.unwrap_or_default(),
        token.secret()
    );
    let said = slurm(namespace, &ask)?;
    let (body, status) = said.trim().rsplit_once('\n').unwrap_or_default();
    Ok((status.parse()?, serde_json::from_str(body)?))
}

/// A user without privileges sees every node, job and reservation, also of hidden partitions, which it does not see.
fn nobody_sees_everything(namespace: &Namespace, job: &str) {
    let seen = |user: &str| {
        ["nodes", "jobs", "reservations"].map(|list| {
            let (status, answer) = rest(namespace, user, &format!("{list}/"), None).unwrap();
            assert_eq!(status, 200, "{answer}");
            let record = |record: &Value| ["name", "job_id", "nodes", "partition"].map(|field| record[field].clone());
            let records: Vec<_> = answer[list].as_array().unwrap().iter().map(record).collect();
            assert!(!records.is_empty(), "{list}: {answer}");
            records
        })
    };
    // The Service may lead to slurmrestd a little later than its pod is ready.
    eventually("slurmrestd answers", SOON, || rest(namespace, "nobody", "ping/", None)).unwrap();
    let of_nobody = seen("nobody");
    assert_eq!(of_nobody, seen("slurm"));
    let job: u64 = job.parse().unwrap();
    assert!(of_nobody[1].iter().any(|seen| seen[1] == job), "{of_nobody:?}");
}

fn nobody_cannot_drain(namespace: &Namespace) {
    let drain = json!({ "state": ["DRAIN"], "reason": "of a test" });
    let (status, answer) = rest(namespace, "nobody", "node/compute-1", Some(&drain)).unwrap();
    assert!(status >= 400, "{status}: {answer}");
    let shown = slurm(namespace, "scontrol show node compute-1 --oneliner").unwrap();
    assert!(!shown.contains("DRAIN"), "{shown}");
    // With privileges the same request drains.
    let (status, answer) = rest(namespace, "slurm", "node/compute-1", Some(&drain)).unwrap();
    assert_eq!(status, 200, "{answer}");
    wait_node(namespace, "compute-1", &["DRAIN"], &[]).unwrap();
    slurm(namespace, "scontrol update nodename=compute-1 state=resume").unwrap();
}

/// The claims of all tokens that the operator has sent to the slurmrestd that lies.
fn captured(namespace: &Namespace) -> anyhow::Result<Vec<Claims>> {
    let tokens: Vec<String> =
        serde_json::from_str(&slurm(namespace, "curl -sS --fail http://slurm-restapi:6820/tokens")?)?;
    let key = signing_key(namespace);
    Ok(tokens.iter().filter_map(|token| key.read(token)).collect())
}

/// Waits until the operator has asked the slurmrestd that lies more often than this. Returns how often.
fn wait_lies(namespace: &Namespace, more_than: usize) -> usize {
    eventually("the operator asks the slurmrestd that lies", SOON, || {
        let count = captured(namespace)?.len();
        expect(count > more_than, count)?;
        Ok(count)
    })
    .unwrap()
}

/// What responds instead of slurmrestd says that all workers are drained without a reason, and that there is no partition and no job.
fn start_liar(namespace: &Namespace) {
    servers::load(namespace.cluster);
    let image = json!({ "slurmrestd": { "image": servers::IMAGE, "imagePullPolicy": "Never" } });
    change_spec(namespace, "restapi/slurm", &image).unwrap();
    wait_lies(namespace, 0);
}

fn a_lie_lifts_no_order_and_changes_no_file(namespace: &Namespace) {
    let files = || {
        let file = slurm(namespace, "cat /etc/slurm/slurm.conf").unwrap();
        (sequence(&bundle(namespace).unwrap()), file)
    };
    let before = files();
    wait_lies(namespace, wait_lies(namespace, 0) + 5);
    let node = slurm(namespace, "scontrol show node compute-1 --oneliner").unwrap();
    let partition = slurm(namespace, "scontrol show partition all --oneliner").unwrap();
    assert!(
        node.contains("+DRAIN") && node.contains("Reason=a fan is broken"),
        "{node}"
    );
    assert!(partition.contains("State=DRAIN"), "{partition}");
    assert_eq!(files(), before);
}

fn a_lie_deletes_no_busy_worker(namespace: &Namespace, job: &str) {
    let uid = namespace.uid("pod/compute-0").unwrap();
    change_spec(namespace, "nodeset/compute", &json!({ "replicas": 0 })).unwrap();
    namespace.wait("delete", "pod/compute-1").unwrap();
    wait_node(namespace, "compute-0", &["DRAIN", "slurm-operator:"], &[]).unwrap();
    // While a worker leaves, the agent is asked for everything; the liar has to do if it does not respond.
    let pod = namespace.pod("slurm-controller-0");
    let frozen = namespace.cluster.pause_container(pod, "reconfigure").unwrap();
    // Nor does a lie send a change that could end jobs: the agent would find it in a ConfigMap when it goes on.
    set_extra_conf(namespace, &format!("{HIDDEN}\nGresTypes=gpu")).unwrap();
    wait_said(namespace, CONTROLLER, "ConfigurationApplied", &["False", "AgentAway"]);
    wait_lies(namespace, wait_lies(namespace, 0) + 20);
    assert_eq!(namespace.uid("pod/compute-0").unwrap(), uid);
    let shown = slurm(namespace, &format!("scontrol show job {job}")).unwrap();
    assert!(shown.contains("JobState=RUNNING"), "{shown}");
    for claims in captured(namespace).unwrap() {
        assert_eq!(claims.user, "nobody");
        assert!(claims.lifetime() <= Duration::from_secs(75), "{claims:?}");
    }
    frozen.heal().unwrap();
    let waits = format!("job {job} is there");
    wait_said(
        namespace,
        CONTROLLER,
        "ConfigurationApplied",
        &["False", "WaitsForJobs", &waits],
    );
    let file = slurm(namespace, "cat /etc/slurm/slurm.conf").unwrap();
    assert!(!file.contains("GresTypes"), "{file}");
    slurm(namespace, &format!("scancel {job}")).unwrap();
    namespace.wait("delete", "pod/compute-0").unwrap();
    wait_said(namespace, CONTROLLER, "ConfigurationApplied", &["True"]);
}

#[test]
fn slurmrestd_is_read_without_privileges_and_proves_nothing() {
    let namespace = manifest_cluster(cluster(), "reads", 2);
    namespace.apply(REST_API).unwrap();
    set_extra_conf(&namespace, HIDDEN).unwrap();
    eventually("the hidden partition", SOON, || {
        let shown = slurm(&namespace, "scontrol show partition hidden")?;
        expect(shown.contains("State=UP"), shown)
    })
    .unwrap();
    let reserve =
        "scontrol create reservation reservationname=kept starttime=now+100 duration=5 users=root nodes=compute-1";
    slurm(&namespace, reserve).unwrap();
    let job = start_job(&namespace, "--partition=hidden --nodelist=compute-0", "sleep 600").unwrap();
    namespace.rollout("deployment/slurm-restapi").unwrap();
    nobody_sees_everything(&namespace, &job);
    nobody_cannot_drain(&namespace);
    slurm(&namespace, "scontrol delete reservation=kept").unwrap();
    slurm(
        &namespace,
        "scontrol update nodename=compute-1 state=drain reason='a fan is broken'",
    )
    .unwrap();
    slurm(&namespace, "scontrol update partitionname=all state=drain").unwrap();
    eventually("the file has the state that a person set", SOON, || {
        let file = slurm(&namespace, "cat /etc/slurm/slurm.conf")?;
        expect(file.contains("State=DRAIN"), file)
    })
    .unwrap();
    start_liar(&namespace);
    a_lie_lifts_no_order_and_changes_no_file(&namespace);
    a_lie_deletes_no_busy_worker(&namespace, &job);
}
