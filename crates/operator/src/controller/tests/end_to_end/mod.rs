//! Tests the reconciler with watches, queue, writer, delivery task and HTTP, against an API server in this process and
//! an agent on this machine. In real time, because the agent is reached over a real socket.

mod rejections;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Bytes,
    extract::State as Extract,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use host::Host;
use serde_json::{Value, json};
use slurm::{
    Revision,
    agent::{self, AgentKey, PROOF_HEADER},
};
use tokio::{net::TcpListener, task::JoinHandle, time::sleep};

use super::super::ControllerReconciler;
use crate::{
    defaults::Defaults,
    runtime::{
        Caches, Clients, Context, Operator, Options,
        fake::{FakeServer, Path},
    },
};

const NAMESPACE: &str = "hpc";
/// The decoded JWT key of `keys`.
const JWT_KEY: &[u8] = b"jwt";

/// An agent whose dry run rejects a configuration that contains `Typo`, and a slurmctld that rejects one with
/// `Nonsense`.
#[derive(Debug, Default)]
struct Agent {
    live: Option<Revision>,
    pushes: Vec<Revision>,
    /// How often its status was read.
    polls: usize,
    rolled_back: Option<Value>,
    /// Revisions that its dry runs rejected.
    refused: Vec<Value>,
    /// The number of dry runs.
    checks: usize,
    silent: bool,
    disk_full: bool,
    /// slurmctld applies pushes slowly, and the response is delayed.
    slow: bool,
}

#[derive(Clone, Debug, Default)]
struct FakeAgent(Arc<Mutex<Agent>>);

impl FakeAgent {
    fn lock(&self) -> MutexGuard<'_, Agent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let router = Router::new().fallback(answer).with_state(self.clone());
        tokio::spawn(async { axum::serve(listener, router).await });
        port
    }

    fn status(&self) -> Value {
        let agent = self.lock();
        let live = agent.live.as_ref().map(Revision::summary);
        let phase = if agent.slow { "reconfiguring" } else { "verified" };
        json!({
            "protocol": 1, "agent": "0.1.0", "live": live, "phase": phase, "slurmctld": null,
            "rolledBack": agent.rolled_back, "refused": agent.refused, "fence": { "term": 0, "sequence": 0 },
        })
    }

    fn take(&self, bundle: &[u8]) -> (StatusCode, Value) {
        let revision = Revision::from_bundle(bundle).unwrap();
        let stale = self
            .lock()
            .live
            .as_ref()
            .is_some_and(|live| live.sequence >= revision.sequence);
        assert!(!stale, "revision {} is not newer", revision.sequence);
        self.lock().pushes.push(revision.clone());
        let text = |file: &slurm::revision::File| String::from_utf8_lossy(&file.content).into_owned();
        if revision.files.values().any(|file| text(file).contains("unresolvable")) {
            let stuck = json!({ "refused": "stuck", "detail": "getaddrinfo() failed" });
            return (StatusCode::INTERNAL_SERVER_ERROR, stuck);
        }
        if self.lock().disk_full {
            let failed = json!({ "refused": "failed", "detail": "No space left on device" });
            return (StatusCode::INTERNAL_SERVER_ERROR, failed);
        }
        let conf = revision
            .files
            .iter()
            .find(|(name, _)| name.as_str() == "slurm.conf")
            .map(|(_, file)| file.content.clone());
        let conf = String::from_utf8(conf.unwrap()).unwrap();
        let refused = |outcome: &str| json!({ "outcome": outcome, "sequence": revision.sequence, "reason": "refused", "lastWords": ["unrecognized key"] });
        let outcome = if conf.contains("Nonsense") {
            self.lock().rolled_back = Some(refused("rolledBack"));
            refused("rolledBack")
        } else if conf.contains("Typo") {
            let mut memory = refused("rejected");
            memory["digest"] = json!(revision.digest());
            self.lock().refused.push(memory);
            refused("rejected")
        } else {
            self.lock().live = Some(revision);
            json!({ "outcome": "applied", "action": "reconfigure", "steps": [{ "step": "verified", "milliseconds": 80 }] })
        };
        let mut answer = outcome;
        answer["milliseconds"] = 90.into();
        answer["status"] = self.status();
        (StatusCode::OK, answer)
    }
}

async fn answer(
    Extract(agent): Extract<FakeAgent>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if agent.lock().silent {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    let token = headers["authorization"]
        .to_str()
        .unwrap()
        .trim_start_matches("Bearer ")
        .to_owned();
    let (status, answer) = if uri.path() == agent::path::CHECK {
        agent.lock().checks += 1;
        (StatusCode::OK, json!({ "refused": null }))
    } else if method == Method::PUT {
        let outcome = agent.take(&body);
        while agent.lock().slow {
            sleep(Duration::from_millis(10)).await;
        }
        outcome
    } else {
        agent.lock().polls += 1;
        (StatusCode::OK, agent.status())
    };
    let answer = answer.to_string();
    let key = AgentKey::derive(JWT_KEY).unwrap();
    let proof = key.prove(&token, status.as_u16(), answer.as_bytes());
    (status, [(PROOF_HEADER, proof)], answer).into_response()
}

fn at(plural: &str, name: &str) -> Path {
    let group = match plural {
        "controllers" | "nodesets" => "/apis/slinky.slurm.net/v1beta1",
        "statefulsets" => "/apis/apps/v1",
        "customresourcedefinitions" => return Path::parse(&format!("/apis/apiextensions.k8s.io/v1/{plural}/{name}")),
        _ => "/api/v1",
    };
    Path::parse(&format!("{group}/namespaces/{NAMESPACE}/{plural}/{name}"))
}

/// A cluster: the API server, a simple kubelet, the agent, and a running operator.
struct World {
    server: FakeServer,
    agent: FakeAgent,
    operator: JoinHandle<anyhow::Result<()>>,
}

impl World {
    async fn new(spec: &Value) -> Self {
        let server = FakeServer::new();
        let agent = FakeAgent::default();
        let port = agent.serve().await;
        server.edit(|store| {
            for definition in api::crds() {
                let definition = serde_json::to_value(definition).unwrap();
                store
                    .create(&at("customresourcedefinitions", ""), definition, "helm")
                    .unwrap();
            }
            for secret in super::keys() {
                store.create(&at("secrets", ""), secret, "helm").unwrap();
            }
            store
                .create(&at("controllers", ""), super::controller(spec), "helm")
                .unwrap();
        });
        tokio::spawn(run_pods(server.clone(), agent.clone(), port));
        Self {
            operator: start_operator(&server),
            server,
            agent,
        }
    }

    /// Aborts the operator at any point, and starts another leader.
    async fn replace_operator(&mut self) {
        self.operator.abort();
        drop((&mut self.operator).await);
        self.operator = start_operator(&self.server);
    }

    fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.server.store().get(&at(plural, name)).ok()
    }

    fn patch(&self, patch: &Value) {
        self.server
            .edit(|store| store.merge(&at("controllers", "slurm"), patch, "kubectl"))
            .unwrap();
    }

    fn extra_conf(&self, text: &str) {
        self.patch(&json!({ "spec": { "extraConf": text } }));
    }

    fn condition(&self, type_: &str) -> String {
        let controller = self.get("controllers", "slurm").unwrap();
        let conditions = controller["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let found = conditions.iter().find(|condition| condition["type"] == type_);
        found
            .map(|condition| {
                format!(
                    "{}: {}",
                    condition["status"].as_str().unwrap(),
                    condition["reason"].as_str().unwrap()
                )
            })
            .unwrap_or_default()
    }

    fn configuration(&self) -> Value {
        self.get("controllers", "slurm").unwrap()["status"]["configuration"].clone()
    }

    fn history(&self) -> Vec<String> {
        let history = self.get("configmaps", "slurm-history").unwrap_or_default();
        let data = history["data"].as_object().cloned().unwrap_or_default();
        data.keys().cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn slurm_conf(&self) -> String {
        let config = self.get("configmaps", "slurm-config");
        config
            .and_then(|config| config["data"]["slurm.conf"].as_str().map(str::to_owned))
            .unwrap_or_default()
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !holds(self) {
            let status = self
                .get("controllers", "slurm")
                .map(|controller| controller["status"].clone());
            assert!(begin.elapsed() < Duration::from_secs(20), "{what}: {status:#?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until_settled(&self) {
        self.until("settled", |world| {
            world.condition("Ready") == "True: Ready" && world.condition("ConfigurationApplied") == "True: Applied"
        })
        .await;
    }
}

fn start_operator(server: &FakeServer) -> JoinHandle<anyhow::Result<()>> {
    let (clients, caches) = (Clients::same(server.client()), Caches::default());
    let mut operator = Operator::new(clients, Options::default(), caches.registry().clone(), Host::real());
    let context = Context::new(operator.context(), caches, Defaults::default());
    operator.add(ControllerReconciler::new(context));
    tokio::spawn(operator.run(std::future::pending()))
}

/// The StatefulSet controller and the kubelet: one pod, which starts with the bundle.
async fn run_pods(server: FakeServer, agent: FakeAgent, port: u16) {
    loop {
        sleep(Duration::from_millis(10)).await;
        let Ok(set) = server.store().get(&at("statefulsets", "slurm-controller")) else {
            continue;
        };
        if server.store().get(&at("pods", "slurm-controller-0")).is_ok() {
            continue;
        }
        let bundle = server.store().get(&at("configmaps", "slurm-bundle")).unwrap();
        let bundle = serde_json::from_value(bundle).unwrap();
        let stored = agent.lock().live.clone();
        let bundled = crate::configuration::render::read_bundle(&bundle);
        agent.lock().live = [stored, bundled]
            .into_iter()
            .flatten()
            .max_by_key(|revision| revision.sequence);
        let mut pod = super::pod(0);
        pod["metadata"]["ownerReferences"][0]["uid"] = set["metadata"]["uid"].clone();
        pod["metadata"].as_object_mut().unwrap().remove("uid");
        pod["status"]["podIP"] = "127.0.0.1".into();
        pod["spec"]["initContainers"][0]["ports"][0]["containerPort"] = port.into();
        server
            .edit(|store| store.create(&at("pods", ""), pod, "kubelet"))
            .unwrap();
    }
}

#[tokio::test]
async fn a_change_is_pushed_before_it_is_written_and_an_unchanged_cluster_causes_no_writes() {
    let world = World::new(&json!({})).await;
    world.until_settled().await;
    assert!(
        world.agent.lock().pushes.is_empty(),
        "the first pod starts with the bundle"
    );

    sleep(Duration::from_millis(300)).await;
    world.server.writes();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.server.writes(), [], "nothing is written without a change");

    let begin = Instant::now();
    world.extra_conf("SchedulerParameters=defer");
    world
        .until("served", |world| world.agent.lock().pushes.len() == 1)
        .await;
    let served = begin.elapsed();
    world
        .until("written", |world| world.slurm_conf().contains("defer"))
        .await;
    world.until_settled().await;
    assert_eq!(world.agent.lock().live.as_ref().unwrap().sequence, 2);
    assert!(served < Duration::from_secs(1), "{served:?}");
}

#[tokio::test]
async fn a_burst_of_edits_causes_few_reconfigures_and_ends_with_the_last_edit() {
    let world = World::new(&json!({})).await;
    world.until_settled().await;
    let begin = Instant::now();
    for edit in 0..100 {
        world.extra_conf(&format!("# {edit}"));
        sleep(Duration::from_millis(8)).await;
    }
    // A busy machine takes longer.
    let seconds = usize::try_from(begin.elapsed().as_secs()).unwrap();
    world
        .until("written", |world| world.slurm_conf().contains("# 99\n"))
        .await;
    let pushes = world.agent.lock().pushes.len();
    assert!(
        (1..=3 + seconds).contains(&pushes),
        "{pushes} reconfigures in {seconds} s"
    );
}

#[tokio::test]
async fn a_bad_configuration_is_reported_and_tried_once_and_the_next_good_one_is_applied() {
    let world = World::new(&json!({})).await;
    world.until_settled().await;
    world.extra_conf("SchedulerParameters=Nonsense");
    world
        .until("reported", |world| {
            world.condition("ConfigurationApplied") == "False: ConfigRejected"
        })
        .await;
    assert_eq!(world.condition("Ready"), "False: ConfigRejected");
    assert!(!world.slurm_conf().contains("Nonsense"));
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(
        world.agent.lock().pushes.len(),
        1,
        "a rejected configuration is not retried"
    );
    world.extra_conf("SchedulerParameters=defer");
    world.until_settled().await;
    assert!(world.slurm_conf().contains("defer"));
}

#[tokio::test]
async fn an_input_that_slurmctld_rejects_does_not_delay_others() {
    let world = World::new(&json!({ "extraConf": "SchedulerTimeSlice=10" })).await;
    world.until_settled().await;
    let node_set = |name: &str, config: &str| {
        let spec = json!({ "partition": { "config": config } });
        super::node_set(name, "2026-01-01T00:00:00Z", spec)
    };
    world.server.edit(|store| {
        for node_set in [node_set("a", "MaxTime=5"), node_set("b", "AllowGroups=Nonsense")] {
            store.create(&at("nodesets", ""), node_set, "kubectl").unwrap();
        }
        let patch = json!({ "spec": { "extraConf": "SchedulerTimeSlice=20\nFoo=1" } });
        store.merge(&at("controllers", "slurm"), &patch, "kubectl").unwrap();
    });
    let sources = |world: &World| -> Vec<String> {
        let held = world.configuration()["heldInputs"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        held.iter()
            .map(|held| held["source"].as_str().unwrap().to_owned())
            .collect()
    };
    world
        .until("held", |world| {
            world.slurm_conf().contains("PartitionName=a Nodes=a MaxTime=5\n")
                && sources(world) == ["spec.extraConf", "NodeSet \"b\" spec.partition"]
        })
        .await;
    let conf = world.slurm_conf();
    assert!(
        conf.contains("NodeSet=b ") && !conf.contains("PartitionName=b"),
        "{conf}"
    );
    assert!(
        conf.contains("SchedulerTimeSlice=10") && !conf.contains("Foo"),
        "{conf}"
    );
    let live = world.agent.lock().live.clone().unwrap();
    let live = live
        .files
        .iter()
        .find(|(name, _)| name.as_str() == "slurm.conf")
        .unwrap()
        .1
        .content
        .clone();
    assert_eq!(String::from_utf8(live).unwrap(), conf);

    world.extra_conf("SchedulerTimeSlice=20");
    world
        .server
        .edit(|store| {
            store.merge(
                &at("nodesets", "b"),
                &json!({ "spec": { "partition": { "config": "" } } }),
                "kubectl",
            )
        })
        .unwrap();
    world.until_settled().await;
    let conf = world.slurm_conf();
    assert!(
        conf.contains("PartitionName=b") && conf.contains("SchedulerTimeSlice=20"),
        "{conf}"
    );
}

#[tokio::test]
async fn a_change_waits_while_the_agent_does_not_respond() {
    let world = World::new(&json!({})).await;
    world.until_settled().await;
    world.agent.lock().silent = true;
    world.extra_conf("SchedulerParameters=defer");
    world
        .until("reported", |world| {
            world.condition("ConfigurationApplied") == "False: AgentAway"
        })
        .await;
    assert!(!world.slurm_conf().contains("defer"));
    world.agent.lock().silent = false;
    world.until_settled().await;
    assert!(world.slurm_conf().contains("defer"));
}

#[tokio::test]
async fn a_child_that_is_edited_or_deleted_is_restored() {
    let world = World::new(&json!({})).await;
    world.until_settled().await;
    let conf = world.slurm_conf();
    world.server.edit(|store| {
        store.delete(&at("services", "slurm-controller"), &json!({})).unwrap();
        store.delete(&at("configmaps", "slurm-bundle"), &json!({})).unwrap();
        let edit = json!({ "data": { "slurm.conf": "x", "extra": "y" } });
        store
            .merge(&at("configmaps", "slurm-config"), &edit, "kubectl")
            .unwrap();
    });
    world
        .until("recreated", |world| world.get("services", "slurm-controller").is_some())
        .await;
    world
        .until("recreated", |world| world.get("configmaps", "slurm-bundle").is_some())
        .await;
    world.until("restored", |world| world.slurm_conf() == conf).await;
    world
        .until("removed", |world| {
            world.get("configmaps", "slurm-config").unwrap()["data"]
                .get("extra")
                .is_none()
        })
        .await;
}

#[tokio::test]
async fn a_restart_trigger_changes_the_template_once() {
    let world = World::new(&json!({})).await;
    world.until_settled().await;
    let template = |world: &World| world.get("statefulsets", "slurm-controller").unwrap()["spec"]["template"].clone();
    world.patch(&json!({ "metadata": { "annotations": { "restart-trigger": "1" } } }));
    world
        .until("triggered", |world| {
            template(world)["metadata"]["annotations"]["restart-trigger"] == "1"
        })
        .await;
    let after = template(&world);
    world.extra_conf("SchedulerParameters=defer");
    world
        .until("written", |world| world.slurm_conf().contains("defer"))
        .await;
    assert_eq!(template(&world), after);
}

#[tokio::test]
async fn a_missing_secret_is_named_and_the_cluster_starts_once_it_exists() {
    let world = World::new(&json!({ "slurmKeyRef": { "name": "mine", "key": "k" } })).await;
    world
        .until("reported", |world| world.condition("Ready") == "False: SecretMissing")
        .await;
    assert!(world.get("statefulsets", "slurm-controller").is_none());
    world
        .server
        .edit(|store| store.create(&at("secrets", ""), super::secret("mine", "k", "YQ=="), "kubectl"))
        .unwrap();
    world.until_settled().await;
}

#[tokio::test]
async fn a_change_is_pushed_without_a_poll_while_the_agents_status_is_known() {
    let world = World::new(&json!({})).await;
    world.until_settled().await;
    let polls = world.agent.lock().polls;
    for edit in 1..4 {
        world.extra_conf(&format!("# {edit}"));
        world
            .until("served", |world| world.agent.lock().pushes.len() == edit)
            .await;
        world.until_settled().await;
    }
    assert_eq!(world.agent.lock().polls, polls);
}
