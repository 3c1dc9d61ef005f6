use std::time::Duration;

use futures::StreamExt as _;
use proptest::prelude::*;
use runtime::{
    admission::{Request, Rules as _, Verdict},
    fake::{FakeServer, Fault, Path},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Admission;
use crate::testing::any_spec::any_spec;

const CONTROLLER: &str = "validate-slinky-slurm-net-v1beta1-controller";
const NODE_SET: &str = "validate-slinky-slurm-net-v1beta1-nodeset";
const PARTITION: &str = "validate-slinky-slurm-net-v1alpha1-partition";
const TOKEN: &str = "validate-slinky-slurm-net-v1beta1-token";
const BINDING: &str = "mutate--v1-binding";

fn request(old: Option<&Value>, object: &Value) -> Request {
    let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
    let request = json!({"uid": "u", "operation": operation, "namespace": "slurm", "object": object, "oldObject": old});
    serde_json::from_value(request).unwrap()
}

fn store(server: &FakeServer, path: &str, object: Value) {
    server
        .edit(|store| store.create(&Path::parse(path), object, "test"))
        .unwrap();
}

async fn review(server: &FakeServer, path: &str, request: &Request) -> Verdict {
    Admission::new(server.client()).review(path, request).await.unwrap()
}

fn controller(extra_conf: &str) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1",
        "kind": "Controller",
        "metadata": {"name": "slurm", "namespace": "slurm"},
        "spec": {"extraConf": extra_conf},
    })
}

fn partition(name: &str, config: &str) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1alpha1",
        "kind": "Partition",
        "metadata": {"name": name, "namespace": "slurm"},
        "spec": {"controllerRef": {"name": "slurm"}, "nodeSetSelector": {}, "config": config},
    })
}

#[tokio::test]
async fn a_line_that_slurm_would_refuse_is_rejected_with_its_field_and_a_remedy() {
    let server = FakeServer::new();
    let good = review(&server, CONTROLLER, &request(None, &controller("MaxJobCount=5"))).await;
    assert_eq!(good, Verdict::default());
    let bad = review(
        &server,
        CONTROLLER,
        &request(None, &controller("MaxJobCount=5\nMaxJobCuont=6")),
    )
    .await;
    assert!(
        bad.errors.len() == 1
            && bad.errors[0].contains("spec.extraConf line 2")
            && bad.errors[0].contains("MaxJobCount"),
        "{bad:?}"
    );
}

#[tokio::test]
async fn what_was_wrong_before_does_not_reject_another_change() {
    let server = FakeServer::new();
    let (old, mut new) = (controller("MaxJobCuont=6"), controller("MaxJobCuont=6"));
    new["spec"]["clusterName"] = json!("slurm_slurm");
    let verdict = review(&server, CONTROLLER, &request(Some(&old), &new)).await;
    assert!(verdict.errors.is_empty() && !verdict.warnings.is_empty(), "{verdict:?}");
    let worse = review(
        &server,
        CONTROLLER,
        &request(Some(&old), &controller("MaxJobCuont=6\nMinJobAgee=5")),
    )
    .await;
    assert!(!worse.errors.is_empty(), "{worse:?}");
}

#[tokio::test]
async fn objects_that_are_deleted_or_not_changed_are_accepted_whatever_they_say() {
    let server = FakeServer::new();
    let bad = controller("MaxJobCuont=6");
    let same = review(&server, CONTROLLER, &request(Some(&bad), &bad)).await;
    assert_eq!(same, Verdict::default());
    let mut deleted = controller("MaxJobCuont=7");
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let deleted = review(&server, CONTROLLER, &request(Some(&bad), &deleted)).await;
    assert_eq!(deleted, Verdict::default());
}

#[tokio::test]
async fn a_config_map_that_is_missing_or_has_a_reserved_entry_is_named() {
    let server = FakeServer::new();
    let mut object = controller("");
    object["spec"]["configFileRefs"] = json!([{"name": "files"}]);
    let missing = review(&server, CONTROLLER, &request(None, &object)).await;
    assert!(
        missing.errors[0].contains("ConfigMap \"files\", which does not exist"),
        "{missing:?}"
    );
    let data = json!({"slurm.conf": "", "gers.conf": ""});
    store(
        &server,
        "/api/v1/namespaces/slurm/configmaps",
        json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "files", "namespace": "slurm"}, "data": data}),
    );
    let reserved = review(&server, CONTROLLER, &request(None, &object)).await;
    assert!(
        reserved.errors.len() == 1 && reserved.errors[0].contains("slurm.conf"),
        "{reserved:?}"
    );
}

#[tokio::test]
async fn a_partition_is_judged_with_its_cluster_and_accepted_without_one() {
    let server = FakeServer::new();
    let bad = request(None, &partition("debug", "MaxTiem=5"));
    assert_eq!(review(&server, PARTITION, &bad).await.errors, Vec::<String>::new());
    store(
        &server,
        "/apis/slinky.slurm.net/v1beta1/namespaces/slurm/controllers",
        controller(""),
    );
    let node_set = json!({"apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
        "metadata": {"name": "compute"}, "spec": {"controllerRef": {"name": "slurm"}}});
    store(
        &server,
        "/apis/slinky.slurm.net/v1beta1/namespaces/slurm/nodesets",
        node_set,
    );
    let verdict = review(&server, PARTITION, &bad).await;
    assert!(
        verdict.errors.len() == 1 && verdict.errors[0].contains("MaxTime"),
        "{verdict:?}"
    );
    let good = review(&server, PARTITION, &request(None, &partition("debug", "MaxTime=5"))).await;
    assert_eq!(good.errors, Vec::<String>::new());
}

#[tokio::test]
async fn a_name_that_another_partition_has_is_rejected() {
    let server = FakeServer::new();
    store(
        &server,
        "/apis/slinky.slurm.net/v1beta1/namespaces/slurm/controllers",
        controller("PartitionName=debug Nodes=ALL"),
    );
    let verdict = review(&server, PARTITION, &request(None, &partition("debug", ""))).await;
    assert!(
        verdict.errors.len() == 1 && verdict.errors[0].contains("debug"),
        "{verdict:?}"
    );
}

#[tokio::test]
async fn what_cannot_be_read_is_not_a_reason_to_reject() {
    let server = FakeServer::new();
    server.fail(Fault::Refuse("get", 503));
    let mut object = controller("");
    object["spec"]["configFileRefs"] = json!([{"name": "files"}]);
    let verdict = review(&server, CONTROLLER, &request(None, &object)).await;
    assert!(verdict.errors.is_empty() && verdict.warnings.len() == 1, "{verdict:?}");
}

#[tokio::test]
async fn immutable_fields_cannot_be_changed() {
    let server = FakeServer::new();
    let token = |secret: &str| {
        json!({
            "apiVersion": "slinky.slurm.net/v1beta1",
            "kind": "Token",
            "metadata": {"name": "t", "namespace": "slurm"},
            "spec": {"username": "anna", "jwtKeyRef": {"name": secret, "key": "jwt.key"}},
        })
    };
    let verdict = review(&server, TOKEN, &request(Some(&token("a")), &token("b"))).await;
    assert!(verdict.errors[0].contains("cannot be changed"), "{verdict:?}");
}

#[tokio::test]
async fn an_object_that_cannot_be_decoded_is_rejected_unless_it_was_stored_so() {
    let server = FakeServer::new();
    let node_set = |replicas: Value| json!({"metadata": {"name": "n"}, "spec": {"controllerRef": {"name": "slurm"}, "replicas": replicas}});
    let new = review(&server, NODE_SET, &request(None, &node_set(json!("many")))).await;
    assert!(new.errors[0].contains("many"), "{new:?}");
    let stored = request(Some(&node_set(json!("many"))), &node_set(json!("more")));
    let stored = review(&server, NODE_SET, &stored).await;
    assert!(stored.errors.is_empty() && !stored.warnings.is_empty(), "{stored:?}");
}

fn binding() -> Value {
    json!({"metadata": {"name": "compute-0", "namespace": "slurm"}, "target": {"kind": "Node", "name": "k1"}})
}

fn cluster(label: Option<&str>, place: Option<&str>) -> FakeServer {
    let server = FakeServer::new();
    let labels = label.map(|label| json!({"app.kubernetes.io/name": label}));
    store(
        &server,
        "/api/v1/namespaces/slurm/pods",
        json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "compute-0", "namespace": "slurm", "labels": labels}}),
    );
    let annotations = place.map(|place| json!({"topology.slinky.slurm.net/spec": place}));
    store(
        &server,
        "/api/v1/nodes",
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "k1", "annotations": annotations}}),
    );
    server
}

async fn bound(server: &FakeServer, request: &Request) -> (Verdict, Option<String>) {
    let verdict = review(server, BINDING, request).await;
    let pod = server
        .store()
        .get(&Path::parse("/api/v1/namespaces/slurm/pods/compute-0"));
    let place = pod.ok().and_then(|pod| {
        Some(
            pod.pointer("/metadata/annotations/topology.slinky.slurm.net~1spec")?
                .as_str()?
                .to_owned(),
        )
    });
    (verdict, place)
}

#[tokio::test]
async fn a_worker_gets_its_place_when_it_is_bound() {
    let bind = request(None, &binding());
    for (place, expected) in [(Some("rack:1"), "rack:1"), (None, "")] {
        let server = cluster(Some("slurmd"), place);
        assert_eq!(
            bound(&server, &bind).await,
            (Verdict::default(), Some(expected.to_owned()))
        );
    }
    for label in [None, Some("other")] {
        let server = cluster(label, Some("rack:1"));
        assert_eq!(bound(&server, &bind).await, (Verdict::default(), None), "not a worker");
    }
}

#[tokio::test]
async fn a_binding_is_accepted_whatever_happens() {
    let server = cluster(Some("slurmd"), Some("rack:1"));
    let mut dry = request(None, &binding());
    dry.dry_run = Some(true);
    assert_eq!(
        bound(&server, &dry).await,
        (Verdict::default(), None),
        "a dry run writes nothing"
    );
    let mut elsewhere = binding();
    elsewhere["target"]["name"] = json!("gone");
    assert_eq!(bound(&server, &request(None, &elsewhere)).await.0, Verdict::default());
    for (verb, code) in [("get", 500), ("merge", 500)] {
        server.fail(Fault::Refuse(verb, code));
        let (verdict, _) = bound(&server, &request(None, &binding())).await;
        assert!(verdict.errors.is_empty() && verdict.warnings.len() == 1, "{verdict:?}");
    }
    let nothing = review(&FakeServer::new(), BINDING, &request(None, &binding())).await;
    assert!(nothing.errors.is_empty() && nothing.warnings.len() == 1, "{nothing:?}");
}

/// For four seconds, over TLS: every answer is the right one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_requests_a_second_get_the_right_answers() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let server = FakeServer::new();
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "webhook"}, "webhooks": []});
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    store(&server, path, configuration);
    let client = server.client();
    let certificates = runtime::admission::Certificates {
        namespace: "slinky".to_owned(),
        secret: "certificate".to_owned(),
        service: "webhook".to_owned(),
        managed: true,
    };
    let options = runtime::admission::Options {
        address,
        health_address: None,
        metrics_address: None,
        metrics_secure: false,
        certificates,
    };
    let clients = runtime::Clients::same(client.clone());
    let rules = Admission::new(client);
    let serve = runtime::admission::run(clients, options, rules, host::Host::real(), std::future::pending());
    let serving = tokio::spawn(serve);
    let path = Path::parse("/api/v1/namespaces/slinky/secrets/certificate");
    let secret = loop {
        if let Ok(secret) = server.store().get(&path) {
            break secret;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let pem = base64::Engine::decode(
        &base64::prelude::BASE64_STANDARD,
        secret["data"]["tls.crt"].as_str().unwrap(),
    );
    let certificate = pem::parse(pem.unwrap()).unwrap().into_contents();
    let mut config = kube::Config::new(format!("https://{address}").parse().unwrap());
    config.root_cert = Some(vec![certificate]);
    config.tls_server_name = Some("webhook.slinky.svc".to_owned());
    let webhook = kube::Client::try_from(config).unwrap();
    let ask = async |number: usize| {
        let is_bad = number.is_multiple_of(2);
        let object = controller(if is_bad { "MaxJobCuont=5" } else { "MaxJobCount=5" });
        let request = json!({"uid": number.to_string(), "operation": "CREATE", "namespace": "slurm", "object": object});
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let http = http::Request::post(format!("/{CONTROLLER}?timeout=10s")).header("content-type", "application/json");
        let answer: Value = webhook
            .request(http.body(review.to_string().into_bytes()).unwrap())
            .await
            .unwrap();
        assert_eq!(answer["response"]["uid"], json!(number.to_string()));
        assert_eq!(answer["response"]["allowed"], json!(!is_bad), "{answer}");
    };
    // The watch brings the certificate that was written.
    while webhook
        .request_text(http::Request::get("/").body(Vec::new()).unwrap())
        .await
        .is_err_and(|error| !matches!(error, kube::Error::Api(_)))
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Each request is sent when it is due, but on a slow machine no more than 64 at a time: an API server has fewer connections than
    // the webhook accepts of one address.
    let (begin, interval) = (Instant::now(), Duration::from_millis(2));
    let slowest = futures::stream::iter(0..2000)
        .map(async |number: usize| {
            let due = begin + interval * u32::try_from(number).unwrap();
            tokio::time::sleep_until(due).await;
            ask(number).await;
            due.elapsed()
        })
        .buffer_unordered(64)
        .fold(Duration::ZERO, async |slowest, took| slowest.max(took))
        .await;
    println!("2000 requests in {:?}, the slowest took {slowest:?}", begin.elapsed());
    serving.abort();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_manifest_makes_a_review_panic(
        controller in any_spec("Controller"),
        node_set in any_spec("NodeSet"),
        partitions in prop::collection::vec(any_spec("Partition"), 2),
    ) {
        let object = |kind: &str, version: &str, mut spec: Value| {
            if kind != "Controller" {
                spec["controllerRef"] = json!({ "name": "slurm" });
            }
            let metadata = json!({ "name": "slurm", "namespace": "slurm" });
            json!({ "apiVersion": format!("slinky.slurm.net/{version}"), "kind": kind, "metadata": metadata, "spec": spec })
        };
        let controller = object("Controller", "v1beta1", controller);
        let node_set = object("NodeSet", "v1beta1", node_set);
        let [old, new] = [0, 1].map(|index: usize| object("Partition", "v1alpha1", partitions[index].clone()));
        prop_assume!(serde_json::from_value::<api::Controller>(controller.clone()).is_ok());
        prop_assume!(serde_json::from_value::<api::NodeSet>(node_set.clone()).is_ok());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = FakeServer::new();
            let folder = "/apis/slinky.slurm.net/v1beta1/namespaces/slurm";
            review(&server, CONTROLLER, &request(None, &controller)).await;
            store(&server, &format!("{folder}/controllers"), controller);
            review(&server, NODE_SET, &request(None, &node_set)).await;
            store(&server, &format!("{folder}/nodesets"), node_set);
            review(&server, PARTITION, &request(None, &old)).await;
            review(&server, PARTITION, &request(Some(&old), &new)).await;
        });
    }
}
