//! The admission webhook never stops a cluster: whatever happens to it, only people's changes of specs may wait for it.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::command::{output, output_with_input};
use testbed::harness::{Namespace, alone, eventually, expect};
use testbed::paths;

use crate::common::clusters::{ONE_WORKER, install_chart, judged_namespace, set_extra_conf, wait_said};
use crate::common::operator::{PutBack, helm};
use crate::common::pods::shell_pod;
use crate::common::servers;
use crate::common::slurm::{SOON, slurm, wait_idle};

const WEBHOOK: &str = "deployment/slurm-operator-webhook";
const SECRET: &str = "secret/slurm-operator-webhook-ca";
const BAD: &str =
    "{apiVersion: slinky.slurm.net/v1beta1, kind: Controller, metadata: {name: bad}, spec: {extraConf: MaxJobCuont=5}}";

fn slinky(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.ask(&[&["--namespace", "slinky"], arguments].concat()).unwrap()
}

fn set_values(cluster: &Cluster, values: &[&str]) {
    let chart = paths::repository().join("charts/slurm-operator");
    let mut upgrade = helm(cluster);
    upgrade.args([
        "upgrade",
        "--wait",
        "--reuse-values",
        "--namespace",
        "slinky",
        "slurm-operator",
    ]);
    output(
        upgrade
            .arg(chart)
            .args(values.iter().flat_map(|value| ["--set", value])),
    )
    .unwrap();
}

/// Whether the webhook rejects a bad object now.
fn is_judged(namespace: &Namespace) -> Result<bool, anyhow::Error> {
    let mut dry = namespace.kubectl(&["create", "--dry-run=server", "-f", "-"]);
    match output_with_input(&mut dry, BAD) {
        Ok(_) => Ok(false),
        Err(error) if error.to_string().contains("spec.extraConf line 1") => Ok(true),
        Err(error) => Err(error),
    }
}

pub(crate) fn wait_judged(namespace: &Namespace) {
    eventually("bad objects are rejected", SOON, || {
        let judged = is_judged(namespace)?;
        expect(judged, judged)
    })
    .unwrap();
}

/// What has to work without the webhook: pods start, the operator writes, labels, scale, finalizers, deletion.
fn the_cluster_works(namespace: &Namespace) {
    namespace
        .ask(&["label", "controller/slurm", "seen=yes", "--overwrite"])
        .unwrap();
    namespace
        .ask(&["scale", "nodeset/slurm-worker-slinky", "--replicas=2"])
        .unwrap();
    wait_idle(namespace, 2).unwrap();
    namespace
        .ask(&["scale", "nodeset/slurm-worker-slinky", "--replicas=1"])
        .unwrap();
    eventually("one worker is left", SOON, || {
        let ready = namespace.field("nodeset/slurm-worker-slinky", ".status.replicas")?;
        expect(ready == "1", ready)
    })
    .unwrap();
}

/// What was not checked at admission is reported by the operator.
fn specs_are_judged_by_the_operator(namespace: &Namespace) {
    set_extra_conf(namespace, "MaxJobCuont=5").unwrap();
    wait_said(
        namespace,
        "controller/slurm",
        "ConfigurationApplied",
        &["False", "spec.extraConf line 1", "MaxJobCount"],
    );
    set_extra_conf(namespace, "").unwrap();
}

/// Makes API servers call a path of the test server in place of the webhook.
fn call_instead(cluster: &Cluster, server: &Namespace, path: &str, trusted: &str) {
    let service = json!({ "namespace": server.name, "name": "apis", "path": path });
    let client = json!({ "service": service, "caBundle": trusted });
    for kind in ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"] {
        let object = format!("{kind}/slurm-operator-webhook");
        let webhooks = cluster
            .ask(&["get", &object, "-o", "jsonpath={.webhooks[*].name}"])
            .unwrap();
        let replace = |index: usize| json!({ "op": "replace", "path": format!("/webhooks/{index}/clientConfig"), "value": client });
        let changes: Vec<Value> = (0..webhooks.split_whitespace().count()).map(replace).collect();
        let changes = Value::from(changes).to_string();
        cluster
            .ask(&["patch", &object, "--type=json", "--patch", &changes])
            .unwrap();
    }
}

/// In a few seconds: a pod starts, the operator adds its finalizer and removes it, labels are written.
fn a_pod_starts_and_a_finalizer_goes(namespace: &Namespace, name: &str) {
    namespace.apply(&shell_pod(name, &json!({}))).unwrap();
    let partition = json!({
        "apiVersion": "slinky.slurm.net/v1alpha1", "kind": "Partition", "metadata": { "name": name },
        "spec": { "controllerRef": { "name": "slurm" }, "nodeSets": ["slurm-worker-slinky"] },
    });
    namespace.apply(&partition.to_string()).unwrap();
    let partition = format!("partition.slinky.slurm.net/{name}");
    namespace.wait("condition=Ready", &partition).unwrap();
    let finalizers = namespace.field(&partition, ".metadata.finalizers").unwrap();
    assert!(finalizers.contains("slinky.slurm.net"), "{finalizers}");
    namespace.ask(&["label", &partition, "seen=yes"]).unwrap();
    namespace.ask(&["delete", &partition, "--timeout=60s"]).unwrap();
    namespace.wait("condition=Ready", &format!("pod/{name}")).unwrap();
}

/// Servers in place of the webhook: one that hangs, one that answers nonsense, and one whose certificate has expired.
fn webhooks_that_do_not_work_stop_nothing(cluster: &'static Cluster, namespace: &Namespace) {
    let other = Namespace::create(cluster, "other-webhook").unwrap();
    servers::load(cluster);
    let server = servers::secure(cluster, &other).unwrap();
    other.apply(&server).unwrap();
    other.wait("condition=Ready", "pod/apis").unwrap();
    let address = other.field("pod/apis", ".status.podIP").unwrap();
    let calls = || {
        let calls = slurm(namespace, &format!("curl -sS --fail http://{address}:8080/calls")).unwrap();
        calls.trim().parse::<u32>().unwrap()
    };
    let trusted = servers::authority_base64(cluster).unwrap();
    for path in ["hang", "nonsense"] {
        let before = calls();
        call_instead(cluster, &other, &format!("/{path}"), &trusted);
        a_pod_starts_and_a_finalizer_goes(namespace, path);
        specs_are_judged_by_the_operator(namespace);
        assert!(calls() > before, "/{path} was not called");
    }
    let (certificate, key) = certificate_until(&format!("apis.{}.svc", other.name), -1);
    let data = json!({ "data": { "tls.crt": certificate, "tls.key": key } }).to_string();
    other.ask(&["patch", "secret/apis", "--patch", &data]).unwrap();
    other.ask(&["delete", "pod/apis", "--grace-period=1"]).unwrap();
    let server: Value = serde_json::from_str(&server).unwrap();
    let pod = server["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["kind"] == "Pod");
    other.apply(&pod.unwrap().to_string()).unwrap();
    other.wait("condition=Ready", "pod/apis").unwrap();
    call_instead(cluster, &other, "/mutate", &certificate);
    a_pod_starts_and_a_finalizer_goes(namespace, "expired");
    specs_are_judged_by_the_operator(namespace);
    // Helm does not overwrite what another manager has changed.
    for kind in ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"] {
        cluster.ask(&["delete", kind, "slurm-operator-webhook"]).unwrap();
    }
}

#[test]
fn without_the_webhook_everything_but_changes_of_specs_goes_on() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = judged_namespace(cluster, "no-webhook");
    let _put_back = PutBack(cluster);
    // The strictest terms: every pod and every spec is to be judged.
    set_values(
        cluster,
        &["webhook.podsBinding=true", "webhook.validating.failurePolicy=Fail"],
    );
    wait_judged(&namespace);
    install_chart(&namespace, ONE_WORKER).unwrap();
    wait_idle(&namespace, 1).unwrap();

    slinky(cluster, &["scale", WEBHOOK, "--replicas=0"]);
    slinky(
        cluster,
        &[
            "wait",
            "--for=delete",
            "pod",
            "-l",
            "app.kubernetes.io/name=slurm-operator-webhook",
            "--timeout=60s",
        ],
    );
    the_cluster_works(&namespace);
    let said = set_extra_conf(&namespace, "MaxJobCount=5000").unwrap_err().to_string();
    assert!(said.contains("failed calling webhook"), "{said}");

    // As it is by default: specs pass too, and the operator makes the same checks.
    set_values(
        cluster,
        &[
            "webhook.validating.failurePolicy=Ignore",
            "webhook.replicas=0",
            "webhook.timeoutSeconds=2",
        ],
    );
    the_cluster_works(&namespace);
    specs_are_judged_by_the_operator(&namespace);

    webhooks_that_do_not_work_stop_nothing(cluster, &namespace);

    // With finalizers, and with everything in the namespace.
    namespace
        .ask(&["delete", "nodeset/slurm-worker-slinky", "--timeout=120s"])
        .unwrap();
    cluster
        .ask(&["delete", "namespace", &namespace.name, "--timeout=120s"])
        .unwrap();
}

/// Asks the webhook all the time while this is done, and fails if a request was not judged.
fn judged_during(namespace: &Namespace, work: impl FnOnce()) {
    let (stop, asked, missed) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                asked.fetch_add(1, Ordering::Relaxed);
                if !is_judged(namespace).unwrap_or(false) {
                    missed.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    let (asked, missed) = (asked.into_inner(), missed.into_inner());
    println!("{asked} requests, {missed} not judged");
    assert!(
        asked > 10 && missed == 0,
        "{missed} of {asked} requests were not judged"
    );
}

/// A certificate of this name that ends in so many days, and its key, in base64.
fn certificate_until(name: &str, days: i64) -> (String, String) {
    let mut parameters = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let date = |days: i64| {
        let date = today.checked_add(jiff::Span::new().days(days)).unwrap();
        let part = |number: i8| u8::try_from(number).unwrap();
        rcgen::date_time_ymd(date.year().into(), part(date.month()), part(date.day()))
    };
    (parameters.not_before, parameters.not_after) = (date(-90), date(days));
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    (STANDARD.encode(certificate.pem()), STANDARD.encode(key.serialize_pem()))
}

#[test]
fn certificates_are_renewed_and_repaired_without_a_missed_request() {
    let alone = alone();
    let cluster = alone.cluster;
    let namespace = judged_namespace(cluster, "certificates");
    let _put_back = PutBack(cluster);
    set_values(cluster, &["webhook.replicas=2"]);
    wait_judged(&namespace);
    let entry = |name: &str| {
        let path = format!("jsonpath={{.data.{name}}}");
        slinky(cluster, &["get", SECRET, "--ignore-not-found", "-o", &path])
    };
    let certificate = || entry("tls\\.crt");
    let before = certificate();

    judged_during(&namespace, || {
        // Deleted: the certificate that API servers trust comes back.
        slinky(cluster, &["delete", SECRET]);
        eventually("the Secret is back", SOON, || {
            let now = certificate();
            expect(now == before, now)
        })
        .unwrap();
        let nonsense = r#"{"data": {"tls.key": "bm9uc2Vuc2U=", "ca.crt": null}}"#;
        slinky(cluster, &["patch", SECRET, "--patch", nonsense]);
        eventually("the Secret is repaired", SOON, || {
            let trusted = entry("ca\\.crt");
            expect(!trusted.is_empty() && certificate() == before, trusted)
        })
        .unwrap();
        slinky(cluster, &["rollout", "restart", WEBHOOK]);
        slinky(cluster, &["rollout", "status", WEBHOOK, "--timeout=120s"]);
        // Helm knows nothing of the certificates, and leaves them alone.
        set_values(cluster, &["webhook.logLevel=debug"]);
    });
    assert_eq!(certificate(), before);
    let owner = slinky(
        cluster,
        &["get", SECRET, "-o", "jsonpath={.metadata.ownerReferences[0].kind}"],
    );
    assert_eq!(owner, "ValidatingWebhookConfiguration", "it goes with the chart");

    // One that ends soon, as if two months had passed.
    let (old, key) = certificate_until("slurm-operator-webhook.slinky.svc", 10);
    let aged = format!(r#"{{"data": {{"tls.crt": "{old}", "tls.key": "{key}"}}}}"#);
    slinky(cluster, &["patch", SECRET, "--patch", &aged]);
    eventually("a successor is introduced", SOON, || {
        let next = entry("next\\.crt");
        expect(!next.is_empty(), next)
    })
    .unwrap();
    wait_judged(&namespace);
    judged_during(&namespace, || {
        eventually("the successor is served", SOON * 4, || {
            let now = certificate();
            expect(now != old && entry("next\\.crt").is_empty(), now)
        })
        .unwrap();
    });
}
