//! The reconciler with watches, queue, writer, poll and HTTP, against an API server in this process and an agent on this
//! machine. In real time, since the agent uses a real socket.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Bytes,
    extract::State as Extract,
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use host::Host;
use serde_json::{Value, json};
use slurm::agent::{AgentKey, PROOF_HEADER, path};
use tokio::{net::TcpListener, time::sleep};

use super::{NodeSetReconciler, fixture};
use crate::{
    defaults::Defaults,
    runtime::{
        Caches, Clients, Context, Key, Operator, Options, Reconciler,
        fake::{FakeServer, Path},
    },
};

const KEY: &[u8] = b"0123456789abcdef";

/// A slurmctld, as far as the agent shows it.
#[derive(Debug, Default)]
struct Slurm {
    /// Whether it is drained.
    nodes: BTreeMap<String, Option<String>>,
    /// Comments by node.
    comments: BTreeMap<String, String>,
    /// Node of each job.
    jobs: BTreeMap<u64, String>,
    commands: Vec<String>,
    silent: bool,
    refuses_drains: bool,
}

#[derive(Clone, Debug, Default)]
struct FakeAgent(Arc<Mutex<Slurm>>);

impl FakeAgent {
    fn slurm(&self) -> std::sync::MutexGuard<'_, Slurm> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let router = Router::new().fallback(answer).with_state(self.clone());
        tokio::spawn(async { axum::serve(listener, router).await });
        port
    }

    fn answer_to(&self, asked: &str, body: &[u8]) -> (StatusCode, Value) {
        let mut slurm = self.slurm();
        let busy = |slurm: &Slurm, name: &str| slurm.jobs.values().any(|node| node == name);
        match asked {
            path::REVISION => {
                let fence = json!({ "term": 0, "sequence": 0 });
                let status = json!({ "protocol": 2, "agent": "1", "live": null, "phase": "verified", "slurmctld": null, "fence": fence });
                (StatusCode::OK, status)
            }
            path::CONFIG => {
                let meta = json!({ "BOOT_TIME": 1000, "LastUpdate": 2000, "HashValue": 1 });
                (StatusCode::OK, json!({ "slurm_conf_meta": meta, "errors": [] }))
            }
            path::NODES => {
                let node = |(name, drained): (&String, &Option<String>)| {
                    let mut state = vec![if busy(&slurm, name) { "ALLOCATED" } else { "IDLE" }, "DYNAMIC_NORM"];
                    if drained.is_some() {
                        state.push("DRAIN");
                    }
                    let comment = slurm.comments.get(name);
                    json!({ "name": name, "state": state, "reason": drained.as_deref().unwrap_or_default(), "comment": comment })
                };
                let nodes: Vec<Value> = slurm.nodes.iter().map(node).collect();
                (StatusCode::OK, json!({ "nodes": nodes, "errors": [] }))
            }
            path::JOBS => {
                let job =
                    |(id, node): (&u64, &String)| json!({ "job_id": id, "job_state": ["RUNNING"], "nodes": node });
                let jobs: Vec<Value> = slurm.jobs.iter().map(job).collect();
                (StatusCode::OK, json!({ "jobs": jobs, "errors": [] }))
            }
            path::NODE => {
                let command: Value = serde_json::from_slice(body).unwrap();
                let (node, action) = (
                    command["node"].as_str().unwrap().to_owned(),
                    command["action"].as_str().unwrap(),
                );
                if action == "describe" {
                    slurm
                        .comments
                        .insert(node, command["comment"].as_str().unwrap().to_owned());
                    return (StatusCode::OK, json!({}));
                }
                slurm.commands.push(format!("{action} {node}"));
                match action {
                    "drain" if slurm.refuses_drains => {
                        let refusal = json!({ "refused": "slurm", "detail": "Invalid node state specified" });
                        return (StatusCode::CONFLICT, refusal);
                    }
                    "drain" => {
                        let reason = command["reason"].as_str().map(str::to_owned);
                        slurm.nodes.entry(node).and_modify(|drained| *drained = reason);
                    }
                    "down" => {}
                    "undrain" => drop(slurm.nodes.entry(node).and_modify(|drained| *drained = None)),
                    "delete" if busy(&slurm, &node) => {
                        let refusal = json!({ "refused": "slurm", "detail": "Requested nodes are busy" });
                        return (StatusCode::CONFLICT, refusal);
                    }
                    "delete" => drop(slurm.nodes.remove(&node)),
                    other => panic!("{other}"),
                }
                (StatusCode::OK, json!({}))
            }
            other => panic!("{other}"),
        }
    }
}

async fn answer(Extract(agent): Extract<FakeAgent>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    if agent.slurm().silent {
        std::future::pending::<()>().await;
    }
    let token = headers["authorization"]
        .to_str()
        .unwrap()
        .trim_start_matches("Bearer ")
        .to_owned();
    let (status, answer) = agent.answer_to(uri.path(), &body);
    let answer = answer.to_string();
    let proof = AgentKey::derive(KEY)
        .unwrap()
        .prove(&token, status.as_u16(), answer.as_bytes());
    (status, [(PROOF_HEADER, proof)], answer).into_response()
}

/// A cluster: the API server, the agent, and an operator that runs.
struct World {
    server: FakeServer,
    agent: FakeAgent,
}

fn at(plural: &str, name: &str) -> Path {
    let group = match plural {
        "nodesets" | "controllers" => "/apis/slinky.slurm.net/v1beta1",
        "customresourcedefinitions" => return Path::parse(&format!("/apis/apiextensions.k8s.io/v1/{plural}/{name}")),
        _ => "/api/v1",
    };
    Path::parse(&format!("{group}/namespaces/{}/{plural}/{name}", fixture::NAMESPACE))
}

fn base64(bytes: &[u8]) -> String {
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes)
}

impl World {
    async fn new(nodeset: Value) -> Self {
        let world = Self::stopped(nodeset).await;
        let (clients, caches) = (Clients::same(world.server.client()), Caches::default());
        let mut operator = Operator::new(clients, Options::default(), caches.registry().clone(), Host::real());
        let context = Context::new(operator.context(), caches, Defaults::default());
        operator.add(NodeSetReconciler::new(context));
        tokio::spawn(operator.run(std::future::pending()));
        tokio::spawn(run_pods(world.server.clone(), world.agent.clone()));
        world
    }

    /// With as many workers, all of them idle.
    async fn with_idle(replicas: u32) -> Self {
        let world = Self::new(fresh_nodeset(replicas)).await;
        world
            .until("counted", |world| {
                world.nodeset().unwrap()["status"]["slurmIdle"] == replicas
            })
            .await;
        world
    }

    /// Without an operator and kubelets.
    async fn stopped(nodeset: Value) -> Self {
        let server = FakeServer::new();
        let agent = FakeAgent::default();
        let port = agent.serve().await;
        let jwt = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "slurm-auth-jwt" }, "data": { "jwt.key": base64(KEY) },
        });
        let labels = json!({ "app.kubernetes.io/name": "slurmctld", "app.kubernetes.io/instance": "slurm" });
        let stateful_set = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "slurm-controller", "labels": labels },
        });
        let slurmctld = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "slurm-controller-0", "labels": labels },
            "spec": { "containers": [{ "name": "reconfigure", "ports": [{ "name": "agent", "containerPort": port }] }] },
            "status": { "podIP": "127.0.0.1" },
        });
        server.edit(|store| {
            for definition in api::crds() {
                let definition = serde_json::to_value(definition).unwrap();
                store
                    .create(&at("customresourcedefinitions", ""), definition, "helm")
                    .unwrap();
            }
            let mut owner = Value::Null;
            for (plural, mut object) in [
                ("controllers", fixture::controller()),
                ("statefulsets", stateful_set),
                ("pods", slurmctld),
                ("secrets", jwt),
                ("secrets", fixture::slurm_key()),
                ("nodesets", nodeset),
            ] {
                if matches!(plural, "statefulsets" | "pods") {
                    object["metadata"]["ownerReferences"] = json!([owner]);
                }
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                store.create(&at(plural, ""), object, "helm").unwrap();
                let made = store.get(&at(plural, &name)).unwrap();
                owner = json!({
                    "apiVersion": made["apiVersion"], "kind": made["kind"], "name": name, "uid": made["metadata"]["uid"],
                    "controller": true,
                });
            }
        });
        Self { server, agent }
    }

    fn workers(&self) -> Vec<String> {
        let pods = self.server.store().list(&at("pods", ""));
        let names = pods["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned());
        names.filter(|name| name.starts_with("compute-")).collect()
    }

    fn nodeset(&self) -> Option<Value> {
        self.server.store().get(&at("nodesets", "compute")).ok()
    }

    fn condition(&self, name: &str) -> (String, String) {
        let status = self.nodeset().unwrap()["status"]["conditions"].clone();
        let conditions = status.as_array().cloned().unwrap_or_default();
        let word = |condition: &Value, field: &str| condition[field].as_str().unwrap().to_owned();
        let found = conditions.iter().find(|condition| condition["type"] == name);
        found
            .map(|condition| (word(condition, "status"), word(condition, "message")))
            .unwrap_or_default()
    }

    fn patch(&self, patch: &Value) {
        self.server
            .edit(|store| store.merge(&at("nodesets", "compute"), patch, "kubectl"))
            .unwrap();
    }

    fn scale(&self, replicas: u32) {
        self.patch(&json!({ "spec": { "replicas": replicas } }));
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !holds(self) {
            let shown = (
                self.workers(),
                self.nodeset().map(|set| set["status"].clone()),
                self.agent.slurm().commands.clone(),
            );
            assert!(begin.elapsed() < Duration::from_secs(20), "{what}: {shown:#?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The kubelet and slurmd: pods run at once and register.
async fn run_pods(server: FakeServer, agent: FakeAgent) {
    loop {
        sleep(Duration::from_millis(20)).await;
        let pods = server.store().list(&at("pods", ""));
        for pod in pods["items"].as_array().unwrap() {
            let name = pod["metadata"]["name"].as_str().unwrap();
            if !name.starts_with("compute-") || pod.get("status").is_some() {
                continue;
            }
            let status = json!({
                "phase": "Running",
                "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": fixture::NOW }],
            });
            let mut at = at("pods", name);
            at.status = true;
            // It may be deleted already.
            drop(server.edit(|store| store.merge(&at, &json!({ "status": status }), "kubelet")));
            agent
                .slurm()
                .nodes
                .insert(pod["spec"]["hostname"].as_str().unwrap().to_owned(), None);
        }
    }
}

fn fresh_nodeset(replicas: u32) -> Value {
    fixture::with(
        fixture::nodeset(&json!({ "replicas": replicas })),
        &[("/metadata/finalizers", json!([]))],
    )
}

#[tokio::test]
async fn a_set_is_scaled_out_and_in_without_losing_a_job_and_is_quiet_in_between() {
    let world = World::new(fresh_nodeset(2)).await;
    world
        .until("two workers", |world| world.workers() == ["compute-0", "compute-1"])
        .await;
    world
        .until("counted", |world| world.nodeset().unwrap()["status"]["slurmIdle"] == 2)
        .await;
    world.until("ready", |world| world.condition("Ready").0 == "True").await;
    assert_eq!(
        world.nodeset().unwrap()["metadata"]["finalizers"],
        json!(["nodeset.slinky.slurm.net/reservation"])
    );

    world
        .until("each sees the other", |world| {
            let pod = world.server.store().get(&at("pods", "compute-1")).unwrap();
            let comments = world.agent.slurm().comments.clone();
            let named = comments
                .get("compute-1")
                .is_some_and(|comment| comment.contains(r#""podName":"compute-1""#));
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            named
                && conditions
                    .iter()
                    .any(|condition| condition["type"] == "SlurmNodeStateIdle")
        })
        .await;

    sleep(Duration::from_millis(500)).await;
    world.server.writes();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(world.server.writes(), [], "nothing is written at rest");

    world.agent.slurm().jobs.insert(7, "compute-1".to_owned());
    world.scale(1);
    world
        .until("drained", |world| world.agent.slurm().nodes["compute-1"].is_some())
        .await;
    world
        .until("said why", |world| world.condition("Progressing").1.contains("job 7"))
        .await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.workers(), ["compute-0", "compute-1"]);
    assert_eq!(world.agent.slurm().commands, ["drain compute-1"]);

    world.agent.slurm().jobs.clear();
    world.until("gone", |world| world.workers() == ["compute-0"]).await;
    assert_eq!(world.agent.slurm().commands, ["drain compute-1", "delete compute-1"]);

    // A deletion removes all workers the same way.
    world.patch(&json!({ "metadata": { "deletionTimestamp": "2026-01-01T02:00:00Z" } }));
    world.until("empty", |world| world.workers().is_empty()).await;
    world
        .until("let go", |world| {
            world.nodeset().unwrap()["metadata"]["finalizers"] == json!([])
        })
        .await;
}

#[tokio::test]
async fn while_slurm_is_silent_workers_are_made_and_none_is_removed() {
    let world = World::with_idle(1).await;
    world.agent.slurm().silent = true;
    world.scale(3);
    world.until("three workers", |world| world.workers().len() == 3).await;
    world.scale(1);
    // The last snapshot may show idle nodes; a fresh one decides, and there is none.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(world.workers().len(), 3);
    world.agent.slurm().silent = false;
    world
        .until("one worker", |world| world.workers() == ["compute-0"])
        .await;
}

#[tokio::test]
async fn an_order_that_slurm_refuses_is_not_repeated_without_a_pause() {
    let world = World::with_idle(2).await;
    world.agent.slurm().refuses_drains = true;
    // The NodeSet follows jobs, so every poll wakes it.
    world.agent.slurm().jobs.insert(7, "compute-1".to_owned());
    world.scale(1);
    world
        .until("said why", |world| {
            world.condition("Degraded").1.contains("Invalid node state specified")
        })
        .await;
    let before = world.agent.slurm().commands.len();
    sleep(Duration::from_secs(3)).await;
    let repeated = world.agent.slurm().commands.len() - before;
    assert!(repeated < 12, "{repeated} orders in 3 s");
    world.agent.slurm().refuses_drains = false;
    world
        .until("drained", |world| world.agent.slurm().nodes["compute-1"].is_some())
        .await;
}

#[tokio::test]
async fn a_pod_of_others_keeps_its_name_and_the_other_workers_are_made() {
    let world = World::new(fresh_nodeset(0)).await;
    let theirs = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "compute-0" }, "status": { "phase": "Running" },
    });
    let stored = world
        .server
        .edit(|store| store.create(&at("pods", ""), theirs, "kubectl"))
        .unwrap();
    world.scale(2);
    world
        .until("the other one", |world| world.workers() == ["compute-0", "compute-1"])
        .await;
    world
        .until("said why", |world| {
            let (status, message) = world.condition("Degraded");
            status == "True" && message.contains("compute-0 already exists and has no owner")
        })
        .await;
    assert_eq!(world.server.store().get(&at("pods", "compute-0")).unwrap(), stored);
}

#[tokio::test]
async fn a_revision_without_an_owner_is_taken_back_if_its_content_is_ours() {
    let world = World::new(fresh_nodeset(1)).await;
    world.until("a worker", |world| world.workers() == ["compute-0"]).await;
    let revision = world.server.store().list(&at("controllerrevisions", ""))["items"][0].clone();
    let path = at("controllerrevisions", revision["metadata"]["name"].as_str().unwrap());
    let edit = |change: &Value| {
        world
            .server
            .edit(|store| store.merge(&path, change, "kubectl"))
            .unwrap()
    };

    edit(&json!({ "metadata": { "ownerReferences": null } }));
    world
        .until("taken back", |world| {
            world.server.store().get(&path).unwrap()["metadata"]["ownerReferences"][0]["kind"] == "NodeSet"
        })
        .await;

    let theirs = edit(&json!({ "metadata": { "ownerReferences": null }, "data": { "theirs": 1 } }));
    world
        .until("said why", |world| {
            world.condition("Degraded").1.contains("ControllerRevision")
        })
        .await;
    assert_eq!(world.server.store().get(&path).unwrap(), theirs);
}

/// Reconciles once on caches that have this pod of the worker, and with a server that has `successor` or the same pod.
/// Returns the orders to Slurm.
async fn orders_about_a_dead_worker(cached: Option<Value>, successor: bool) -> Vec<String> {
    let world = World::stopped(fixture::nodeset(&json!({ "replicas": 1 }))).await;
    let created = |pod: Value| {
        world
            .server
            .edit(|store| store.create(&at("pods", ""), pod, "operator").unwrap())
    };
    let uid = world.nodeset().unwrap()["metadata"]["uid"].clone();
    let mut objects = Vec::new();
    for plural in ["secrets", "statefulsets", "pods", "controllers", "nodesets"] {
        let list = world.server.store().list(&at(plural, ""));
        objects.extend(list["items"].as_array().unwrap().clone());
    }
    let has_pod = cached.is_some();
    objects.extend(cached.map(|pod| {
        let owned = fixture::with(pod, &[("/metadata/ownerReferences/0/uid", uid.clone())]);
        created(owned)
    }));
    if successor && has_pod {
        let gone = world
            .server
            .edit(|store| store.delete(&at("pods", "compute-0"), &json!({})));
        drop(gone.unwrap());
    }
    if successor {
        created(fixture::with(fixture::worker(0), &[("/spec/nodeName", json!("k2"))]));
    }
    let comment = json!({ "namespace": "slurm", "podName": "compute-0", "node": "k1", "nodeSetName": "compute", "nodeSetUID": uid });
    {
        let mut slurm = world.agent.slurm();
        slurm.nodes.insert("compute-0".to_owned(), None);
        slurm.comments.insert("compute-0".to_owned(), comment.to_string());
    }
    let context = Context::for_tests(world.server.client(), Caches::of(objects));
    let reconciler = NodeSetReconciler::new(context);
    // It fails to write where the caches are old.
    drop(reconciler.reconcile(&Key::new(fixture::NAMESPACE, "compute")).await);
    world.agent.slurm().commands.clone()
}

#[tokio::test]
async fn no_order_about_a_dead_worker_is_sent_to_a_successor_that_the_caches_do_not_show() {
    for cached in [Some(fixture::worker(0)), None] {
        let orders = orders_about_a_dead_worker(cached.clone(), false).await;
        assert_eq!(orders, ["down compute-0"], "{}", cached.is_some());
        let orders = orders_about_a_dead_worker(cached.clone(), true).await;
        assert_eq!(orders, [""; 0], "{}", cached.is_some());
    }
}
