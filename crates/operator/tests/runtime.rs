//! The runtime against a real API server: what our in-process one only pretends.
//!
//! `testbed --cluster runtime up --control-plane-only`, `eval "$(testbed --cluster runtime env)"`, then
//! `cargo test -p slurm-operator --test runtime -- --ignored --test-threads=1`.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::needless_pass_by_value,
    reason = "tests say what they expect by panicking, also in what they share"
)]

use std::time::Duration;

use api::Controller;
use host::Host;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Namespace, Pod, PodCondition, Service},
    policy::v1::PodDisruptionBudget,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use operator::kinds::Caches;
use runtime::{Clients, Contender, Context, Error, Object, Operator, Options, Writer};
use serde_json::{Value, json};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

const NEEDS: &str = "needs a control plane in KUBECONFIG";

/// A namespace, an operator without kinds whose caches follow it, and a writer.
struct World {
    client: Client,
    context: Context,
    writer: Writer,
    namespace: String,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<anyhow::Result<()>>,
}

async fn world() -> World {
    world_of(&format!("runtime-{:016x}", Host::real().random().u64()), "a").await
}

async fn world_of(namespace: &str, identity: &str) -> World {
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let config = kube::Config::infer().await.expect(NEEDS);
    let clients = Clients::new(config).expect(NEEDS);
    let client = clients.calls.clone();
    let object: Namespace = from(json!({"metadata": {"name": namespace}}));
    drop(Api::all(client.clone()).create(&PostParams::default(), &object).await);
    let options = Options {
        namespaces: vec![namespace.to_owned()],
        lease: Some(Contender {
            namespace: namespace.to_owned(),
            name: "lease".to_owned(),
            identity: identity.to_owned(),
        }),
        ..Options::default()
    };
    let operator = Operator::new(clients, options, Caches::default().registry().clone(), Host::real());
    let context = operator.context();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(operator.run(async { drop(stopped.await) }));
    World {
        writer: Writer::new::<Controller>(&context),
        client,
        context,
        namespace: namespace.to_owned(),
        stop,
        task,
    }
}

impl World {
    async fn leads(&self) {
        self.until("it leads", || self.context.fence.remaining().is_some())
            .await;
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let wait = async {
            while !holds() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(30), wait)
            .await
            .unwrap_or_else(|_| panic!("not within 30 s: {what}"));
    }

    /// The caches hold this version of the object, or a later one.
    async fn seen<K: Object>(&self, object: &K) {
        let version = |object: &K| object.resource_version().and_then(|text| text.parse::<u64>().ok());
        self.until("the watch brings the write", || {
            let cached = self
                .context
                .registry
                .cache::<K>()
                .get(&self.namespace, &object.name_any());
            cached.is_some_and(|cached| version(&cached) >= version(object))
        })
        .await;
    }

    fn count(&self, what: &str) -> u64 {
        let text = self.context.metrics.render().unwrap();
        let lines = text.lines().filter(|line| line.starts_with(what));
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }

    fn writes(&self) -> u64 {
        self.count("slurm_operator_api_writes_total")
    }

    fn config_map(&self, data: Value) -> ConfigMap {
        from(json!({"metadata": {"namespace": self.namespace, "name": "a"}, "data": data}))
    }

    fn service(&self, ports: &[u16]) -> Service {
        let ports: Vec<Value> = ports
            .iter()
            .map(|port| json!({"name": format!("p{port}"), "port": port}))
            .collect();
        from(json!({
            "metadata": {"namespace": self.namespace, "name": "a", "labels": {"app.kubernetes.io/name": "slurmctld"}},
            "spec": {"ports": ports, "selector": {"app": "a"}},
        }))
    }

    fn stateful_set(&self, service: &str, limit: &str) -> StatefulSet {
        from(json!({
            "metadata": {"namespace": self.namespace, "name": "a", "labels": {"app.kubernetes.io/name": "slurmctld"}},
            "spec": {
                "replicas": 0, "serviceName": service, "selector": {"matchLabels": {"app": "a"}},
                "template": {
                    "metadata": {"labels": {"app": "a"}},
                    "spec": {
                        "containers": [{
                            "name": "slurmctld", "image": "i", "env": [{"name": "A", "value": "1"}],
                            "resources": {"limits": {"cpu": limit, "memory": "1024Mi"}},
                            "ports": [{"name": "p", "containerPort": 6817}],
                            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                        }],
                        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1024Mi"}}],
                        "terminationGracePeriodSeconds": 30,
                    },
                },
                "volumeClaimTemplates": [{
                    "metadata": {"name": "statesave"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}},
                }],
            },
        }))
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

#[tokio::test]
#[ignore = "needs a control plane in KUBECONFIG"]
async fn what_the_server_defaults_and_rewrites_is_no_difference() {
    let world = world().await;
    world.leads().await;
    let set = world.stateful_set("a", "0.5");
    let service = world.service(&[6817]);
    let made = world.writer.apply(&set).await.unwrap();
    world.seen(&made).await;
    let made = world.writer.apply(&service).await.unwrap();
    world.seen(&made).await;
    let before = world.writes();
    for _ in 0..3 {
        world.writer.apply(&set).await.unwrap();
        world.writer.apply(&service).await.unwrap();
    }
    assert_eq!(world.writes(), before);
    assert_eq!(world.count("slurm_operator_api_writes_skipped_total"), 6);
    world.end().await;
}

#[tokio::test]
#[ignore = "needs a control plane in KUBECONFIG"]
async fn what_is_not_desired_any_more_goes_also_after_a_restart() {
    let world = world().await;
    world.leads().await;
    let made = world
        .writer
        .apply(&world.config_map(json!({"a": "1", "b": "1"})))
        .await
        .unwrap();
    world.seen(&made).await;
    let started_again = Writer::new::<Controller>(&world.context);
    let applied = started_again.apply(&world.config_map(json!({"a": "1"}))).await.unwrap();
    assert_eq!(applied.data, Some([("a".to_owned(), "1".to_owned())].into()));
    world.end().await;
}

#[tokio::test]
#[ignore = "needs a control plane in KUBECONFIG"]
async fn what_somebody_adds_goes_and_labels_stay() {
    let world = world().await;
    world.leads().await;
    let (set, service) = (world.stateful_set("a", "1"), world.service(&[6817]));
    world.writer.apply(&set).await.unwrap();
    world.writer.apply(&service).await.unwrap();
    let sets: Api<StatefulSet> = Api::namespaced(world.client.clone(), &world.namespace);
    let services: Api<Service> = Api::namespaced(world.client.clone(), &world.namespace);
    let theirs = json!({
        "metadata": {"labels": {"theirs": "1"}},
        "spec": {"template": {"spec": {"containers": [{"name": "spy", "image": "i"}, {"name": "slurmctld", "env": [{"name": "B", "value": "2"}]}]}}},
    });
    let by_hand = PatchParams::default();
    let edited = sets.patch("a", &by_hand, &Patch::Strategic(theirs)).await.unwrap();
    world.seen(&edited).await;
    let theirs = json!({"spec": {"ports": [{"name": "x", "port": 99}], "selector": {"evil": "1"}}});
    let edited = services.patch("a", &by_hand, &Patch::Strategic(theirs)).await.unwrap();
    world.seen(&edited).await;

    let set = world.writer.apply(&set).await.unwrap();
    assert_eq!(set.labels()["theirs"], "1");
    let containers = set.spec.unwrap().template.spec.unwrap().containers;
    assert_eq!(containers.len(), 1);
    assert_eq!(containers[0].env.as_ref().unwrap().len(), 1);
    let service = world.writer.apply(&service).await.unwrap().spec.unwrap();
    assert_eq!(service.ports.unwrap().len(), 1);
    assert_eq!(service.selector, Some([("app".to_owned(), "a".to_owned())].into()));
    world.end().await;
}

#[tokio::test]
#[ignore = "needs a control plane in KUBECONFIG"]
async fn what_the_server_refuses_is_told_apart() {
    let world = world().await;
    world.leads().await;
    world.writer.apply(&world.stateful_set("a", "1")).await.unwrap();
    let error = world
        .writer
        .apply(&world.stateful_set("another", "1"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Immutable { .. }), "{error}");

    let mut service = world.service(&[6817]);
    world.writer.apply(&service).await.unwrap();
    service.spec.as_mut().unwrap().cluster_ip = Some("None".to_owned());
    let error = world.writer.apply(&service).await.unwrap_err();
    assert!(matches!(error, Error::Immutable { .. }), "{error}");

    let error = world.writer.apply(&world.service(&[0])).await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");

    let config_map = world.config_map(json!({}));
    assert!(world.writer.create(&config_map).await.unwrap().is_some());
    assert_eq!(world.writer.create(&config_map).await.unwrap(), None);
    world
        .writer
        .delete::<ConfigMap>(&world.namespace, "a", "another")
        .await
        .unwrap();
    let api: Api<ConfigMap> = Api::namespaced(world.client.clone(), &world.namespace);
    let uid = api.get("a").await.unwrap().uid().unwrap();
    world
        .writer
        .delete::<ConfigMap>(&world.namespace, "a", &uid)
        .await
        .unwrap();
    assert!(api.get_opt("a").await.unwrap().is_none());
    world.end().await;
}

#[tokio::test]
#[ignore = "needs a control plane in KUBECONFIG"]
async fn the_lease_goes_to_the_standby_when_the_leader_ends() {
    let first = world().await;
    first.leads().await;
    let second = world_of(&first.namespace, "b").await;
    sleep(Duration::from_secs(6)).await;
    assert!(second.context.fence.remaining().is_none());
    let old = first.context.fence.next();
    first.end().await;
    let released = std::time::Instant::now();
    second.leads().await;
    assert!(released.elapsed() < Duration::from_secs(4), "{:?}", released.elapsed());
    assert!(second.context.fence.next() > old);
    second.end().await;
}

#[tokio::test]
#[ignore = "needs a control plane in KUBECONFIG"]
async fn what_upstream_wrote_is_ours_to_remove() {
    let world = world().await;
    world.leads().await;
    let upstream = PostParams {
        field_manager: Some("manager".to_owned()),
        ..PostParams::default()
    };
    let meta = json!({"namespace": world.namespace, "name": "a", "labels": {"app.kubernetes.io/name": "slurmd"}});
    let budget = |limit: Value| -> PodDisruptionBudget {
        let mut spec = limit;
        spec["selector"] = json!({"matchLabels": {"a": "b"}});
        from(json!({"metadata": meta, "spec": spec}))
    };
    let mut set = world.stateful_set("a", "1");
    if let Some(pod) = set.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()) {
        pod.volumes = Some(from(json!([{"name": "v", "hostPath": {"path": "/"}}])));
        pod.containers[0].env = Some(from(
            json!([{"name": "A", "value": "theirs"}, {"name": "B", "value": "theirs"}]),
        ));
    }
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(world.client.clone(), &world.namespace);
    let sets: Api<StatefulSet> = Api::namespaced(world.client.clone(), &world.namespace);
    let made = budgets
        .create(&upstream, &budget(json!({"maxUnavailable": 0})))
        .await
        .unwrap();
    world.seen(&made).await;
    let made = sets.create(&upstream, &set).await.unwrap();
    world.seen(&made).await;

    let applied = world
        .writer
        .apply(&budget(json!({"minAvailable": i32::MAX})))
        .await
        .unwrap();
    let spec = applied.spec.unwrap();
    assert_eq!(
        (spec.max_unavailable, spec.min_available),
        (None, Some(IntOrString::Int(i32::MAX)))
    );

    let mut wanted = world.stateful_set("a", "1");
    if let Some(pod) = wanted.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()) {
        let field = json!({"fieldRef": {"fieldPath": "metadata.name"}});
        pod.containers[0].env = Some(from(json!([{"name": "A", "valueFrom": field}])));
    }
    let applied = world.writer.apply(&wanted).await.unwrap();
    let pod = applied.spec.unwrap().template.spec.unwrap();
    let env = pod.containers[0].env.clone().unwrap();
    assert_eq!(env.len(), 1, "{env:?}");
    assert!(env[0].value.is_none() && env[0].value_from.is_some(), "{env:?}");
    let volumes = pod.volumes.unwrap();
    assert!(
        volumes[0].host_path.is_none() && volumes[0].empty_dir.is_some(),
        "{volumes:?}"
    );
    world.end().await;
}

#[tokio::test]
#[ignore = "needs a control plane in KUBECONFIG"]
async fn conditions_of_a_pod_are_written_beside_the_kubelets() {
    let world = world().await;
    world.leads().await;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), &world.namespace);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": world.namespace, "name": "p", "labels": {"app.kubernetes.io/name": "slurmd"}},
        "spec": {"containers": [{"name": "slurmd", "image": "i"}]},
    });
    let Some(made) = world.writer.create_json::<Pod>(&pod).await.unwrap() else {
        panic!("it is new")
    };
    world.seen(&made).await;
    let condition = |type_: &str| -> PodCondition { from(json!({"type": type_, "status": "True"})) };
    let kubelet = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let (by_hand, now) = (PatchParams::default(), jiff::Timestamp::UNIX_EPOCH);
    pods.patch_status("p", &by_hand, &Patch::Strategic(kubelet))
        .await
        .unwrap();
    let types = async || -> Vec<String> {
        let conditions = pods.get("p").await.unwrap().status.unwrap().conditions.unwrap();
        let mut types: Vec<String> = conditions.into_iter().map(|condition| condition.type_).collect();
        types.retain(|type_| type_ != "PodScheduled");
        types.sort();
        types
    };

    // The pod as it was before the kubelet spoke.
    let wanted = [condition("SlurmA"), condition("SlurmB")];
    assert!(world.writer.pod_conditions(&made, "Slurm", &wanted, now).await.unwrap());
    assert_eq!(types().await, ["Ready", "SlurmA", "SlurmB"]);
    let seen = pods.get("p").await.unwrap();
    assert!(!world.writer.pod_conditions(&seen, "Slurm", &wanted, now).await.unwrap());
    assert!(
        world
            .writer
            .pod_conditions(&seen, "Slurm", &wanted[..1], now)
            .await
            .unwrap()
    );
    assert_eq!(types().await, ["Ready", "SlurmA"]);

    let mut other = seen.clone();
    other.metadata.uid = Some("00000000-0000-0000-0000-000000000000".to_owned());
    assert!(!world.writer.pod_conditions(&other, "Slurm", &[], now).await.unwrap());
    assert_eq!(types().await, ["Ready", "SlurmA"]);
    world.end().await;
}
