use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use tokio::time::sleep;

use super::*;
use crate::{
    Change, Delta, Error, Key, Lost, Outcome, Writer,
    fake::{FakeServer, Fault, Path},
    registry::tests::registry,
};

/// Copies every ConfigMap named `source-*` to one named `copy-*`, and reads its own writes.
struct Copier {
    context: Context,
    writer: Writer,
    runs: Arc<AtomicUsize>,
    stale: Arc<AtomicUsize>,
}

impl Reconciler for Copier {
    const NAME: &'static str = "copier";
    type Object = ConfigMap;

    fn interested(&self, change: &Change) -> Vec<Key> {
        let key = change.delta::<ConfigMap>().and_then(Delta::key);
        let Some(key) = key else { return Vec::new() };
        match key.name.strip_prefix("copy-") {
            Some(name) => vec![Key::new(key.namespace.clone(), format!("source-{name}"))],
            None if key.name.starts_with("source-") => vec![key],
            None => Vec::new(),
        }
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let config_maps = self.context.registry.cache::<ConfigMap>();
        let Some(source) = config_maps.get(&key.namespace, &key.name) else {
            return Ok(Outcome::settled());
        };
        let copy = key.name.replace("source", "copy");
        let runs = self.runs.fetch_add(1, Ordering::SeqCst);
        if (1..3).contains(&runs) && config_maps.get(&key.namespace, &copy).is_none() {
            self.stale.fetch_add(1, Ordering::SeqCst);
        }
        let desired = ConfigMap {
            metadata: kube::core::ObjectMeta {
                namespace: Some(key.namespace.clone()),
                name: Some(copy),
                ..Default::default()
            },
            data: source.data.clone(),
            ..ConfigMap::default()
        };
        self.writer.apply(&desired).await?;
        if runs < 3 {
            // As if a second event came right behind.
            self.context.triggers.wake::<ConfigMap>(key.clone());
        }
        Ok(Outcome::settled())
    }
}

struct Started {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<anyhow::Result<()>>,
    runs: Arc<AtomicUsize>,
    stale: Arc<AtomicUsize>,
    context: Context,
}

fn start(server: &FakeServer, identity: &str) -> Started {
    let options = Options {
        lease: Some(Contender {
            namespace: "n".to_owned(),
            name: "l".to_owned(),
            identity: identity.to_owned(),
        }),
        ..Options::default()
    };
    let clients = Clients::same(server.client());
    let mut operator = Operator::new(clients, options, registry(), Host::real());
    let context = operator.context();
    let (runs, stale) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let copier = Copier {
        writer: Writer::new::<ConfigMap>(&context),
        context: context.clone(),
        runs: Arc::clone(&runs),
        stale: Arc::clone(&stale),
    };
    operator.add(copier);
    let stop = CancellationToken::new();
    let task = tokio::spawn(operator.run(stop.clone().cancelled_owned()));
    Started {
        stop,
        task,
        runs,
        stale,
        context,
    }
}

fn path(name: &str) -> Path {
    Path::parse(&format!("/api/v1/namespaces/n/configmaps/{name}"))
}

fn put_source(server: &FakeServer, value: &str) {
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "source-1"}, "data": {"a": value}});
    server.edit(|store| match store.get(&path("source-1")) {
        Err(_) => store.create(&path("source-1"), object, "user").map(drop).unwrap(),
        Ok(_) => store.merge(&path("source-1"), &object, "user").map(drop).unwrap(),
    });
}

fn copied(server: &FakeServer) -> Option<String> {
    let copy = server.store().get(&path("copy-1")).ok()?;
    Some(copy["data"]["a"].as_str()?.to_owned())
}

async fn seconds(count: u64) {
    sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn from_watch_to_write_and_quiet_at_rest() {
    let server = FakeServer::new();
    put_source(&server, "1");
    let started = start(&server, "a");
    seconds(5).await;
    assert_eq!(copied(&server).as_deref(), Some("1"));
    put_source(&server, "2");
    seconds(1).await;
    assert_eq!(copied(&server).as_deref(), Some("2"));

    server
        .edit(|store| store.delete(&path("copy-1"), &serde_json::Value::Null))
        .unwrap();
    seconds(1).await;
    assert_eq!(
        copied(&server).as_deref(),
        Some("2"),
        "a child that is deleted comes back"
    );

    server.writes();
    seconds(180).await;
    let writes: Vec<_> = server
        .writes()
        .into_iter()
        .filter(|seen| !seen.path.contains("leases"))
        .collect();
    assert!(writes.is_empty(), "{writes:?}");
    assert!(started.runs.load(Ordering::SeqCst) > 3);
    assert_eq!(
        started.stale.load(Ordering::SeqCst),
        0,
        "a reconcile sees what the one before wrote"
    );
}

#[tokio::test(start_paused = true)]
async fn a_standby_is_warm_and_takes_over_when_the_leader_ends() {
    let server = FakeServer::new();
    put_source(&server, "1");
    let first = start(&server, "a");
    seconds(5).await;
    let second = start(&server, "b");
    seconds(60).await;
    assert!(first.runs.load(Ordering::SeqCst) > 0);
    assert_eq!(second.runs.load(Ordering::SeqCst), 0, "a standby does nothing");
    assert!(
        second
            .context
            .registry
            .cache::<ConfigMap>()
            .get("n", "source-1")
            .is_some()
    );

    first.stop.cancel();
    first.task.await.unwrap().unwrap();
    put_source(&server, "2");
    seconds(3).await;
    assert_eq!(copied(&server).as_deref(), Some("2"), "it was released, not waited for");
    assert!(second.context.fence.next() > first.context.fence.next());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_loses_its_lease_ends() {
    let server = FakeServer::new();
    put_source(&server, "1");
    let started = start(&server, "a");
    seconds(5).await;
    for _ in 0..10 {
        server.fail(Fault::Refuse("replace", 500));
    }
    let ended = started.task.await.unwrap().unwrap_err();
    assert!(matches!(ended.downcast_ref(), Some(Lost::Expired)), "{ended}");
    assert_eq!(started.context.fence.remaining(), None);
}

#[tokio::test(start_paused = true)]
async fn a_stop_before_leading_is_a_clean_end() {
    let server = FakeServer::new();
    let first = start(&server, "a");
    seconds(5).await;
    let second = start(&server, "b");
    seconds(5).await;
    second.stop.cancel();
    second.task.await.unwrap().unwrap();
    assert!(!first.task.is_finished());
}
