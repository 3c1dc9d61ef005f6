use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use super::*;
use crate::{Cache, Delta, State, fake::FakeServer, registry::tests::registry};

/// Does with each object what its name says.
#[derive(Default)]
struct Kind {
    reconciled: Mutex<Vec<(Duration, String)>>,
    started: Mutex<Option<Instant>>,
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
}

impl Kind {
    fn times(&self, name: &str) -> Vec<u64> {
        let reconciled = self.reconciled.lock().unwrap();
        reconciled
            .iter()
            .filter(|(_, of)| of == name)
            .map(|(at, _)| at.as_secs())
            .collect()
    }
}

struct Shared(Arc<Kind>);

impl Reconciler for Shared {
    const NAME: &'static str = "test";
    type Object = ConfigMap;

    fn interested(&self, change: &Change) -> Vec<Key> {
        let key = change.delta::<ConfigMap>().unwrap().key().unwrap();
        assert!(key.name != "poison", "a change nobody thought of");
        vec![key]
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let kind = &self.0;
        let since = kind.started.lock().unwrap().get_or_insert_with(Instant::now).elapsed();
        kind.reconciled.lock().unwrap().push((since, key.name.clone()));
        let now = kind.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        kind.most_at_once.fetch_max(now, Ordering::SeqCst);
        let result = match key.name.split('-').next().unwrap_or_default() {
            "slow" => {
                tokio::time::sleep(Duration::from_secs(5)).await;
                Ok(Outcome::settled())
            }
            "hang" => std::future::pending().await,
            "panic" => panic!("as its name says"),
            "fail" => Err(Error::other("as its name says")),
            "again" => Ok(Outcome::from(State::Progressing { why: "so".to_owned() }).requeue(Duration::from_secs(7))),
            _ => Ok(Outcome::settled()),
        };
        kind.at_once.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

struct Running {
    kind: Arc<Kind>,
    config_maps: Cache<ConfigMap>,
    context: Context,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

fn object(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"namespace": "n", "name": name}})).unwrap()
}

fn run(names: &[&str]) -> Running {
    let kind = Arc::new(Kind::default());
    let registry = registry();
    let config_maps = registry.cache::<ConfigMap>();
    for name in names {
        config_maps.insert(object(name));
    }
    let stop = CancellationToken::new();
    let context = Context::for_tests(FakeServer::new().client(), registry);
    let task = tokio::spawn(work(Shared(Arc::clone(&kind)), context.clone(), stop.clone()));
    Running {
        kind,
        config_maps,
        context,
        stop,
        task,
    }
}

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_starts_reconciles_every_object_once() {
    let running = run(&["a", "b"]);
    seconds(60).await;
    assert_eq!(running.kind.times("a"), [0]);
    assert_eq!(running.kind.times("b"), [0]);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_hangs_or_panics_delays_no_other() {
    let running = run(&["hang", "panic", "a"]);
    seconds(1).await;
    assert_eq!(running.kind.times("a"), [0]);
    running.context.triggers.wake::<ConfigMap>(Key::new("n", "b"));
    seconds(1).await;
    assert_eq!(running.kind.times("b").len(), 1);
    seconds(100).await;
    assert!(
        running.kind.times("hang").len() >= 2,
        "aborted at its deadline and retried"
    );
    assert!(running.kind.times("panic").len() >= 3);
    let metrics = running.context.metrics.render().unwrap();
    for outcome in ["deadline", "panic", "settled"] {
        assert!(
            metrics.contains(&format!("outcome=\"{outcome}\"")),
            "{outcome}\n{metrics}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_on_a_change_does_not_end_the_loop() {
    let running = run(&["poison", "a"]);
    seconds(1).await;
    assert_eq!(running.kind.times("a"), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_failing_object_is_retried_with_back_off() {
    let running = run(&["fail"]);
    seconds(3600).await;
    let times = running.kind.times("fail").len();
    // Twelve of five minutes each, and the shorter ones before, on average twice as many with full jitter.
    assert!((10..60).contains(&times), "{times}");
}

#[tokio::test(start_paused = true)]
async fn an_outcome_schedules_the_next_reconcile() {
    let running = run(&["again"]);
    seconds(15).await;
    assert_eq!(running.kind.times("again"), [0, 7, 14]);
}

#[tokio::test(start_paused = true)]
async fn one_object_never_runs_twice_concurrently_and_misses_no_change() {
    let running = run(&["slow"]);
    for _ in 0..4 {
        seconds(1).await;
        let change = Delta::appeared(Arc::new(object("slow"))).into();
        running.context.triggers.send(&Signal::Change(change));
    }
    seconds(60).await;
    assert_eq!(running.kind.times("slow"), [0, 5]);
    assert_eq!(running.kind.most_at_once.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn many_objects_run_concurrently_up_to_a_limit() {
    let names: Vec<String> = (0..100).map(|number| format!("slow-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let running = run(&names);
    seconds(30).await;
    assert_eq!(running.kind.most_at_once.load(Ordering::SeqCst), AT_ONCE);
    assert_eq!(running.kind.reconciled.lock().unwrap().len(), 100);
}

#[tokio::test(start_paused = true)]
async fn every_object_is_reconciled_again_periodically() {
    let running = run(&["a"]);
    seconds(RESYNC.as_secs() + RESYNC_SPREAD.as_secs() + 10).await;
    assert_eq!(running.kind.times("a").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_running_reconciles_and_starts_no_new_one() {
    let running = run(&["slow"]);
    seconds(1).await;
    running.config_maps.insert(object("b"));
    running.stop.cancel();
    running.context.triggers.wake::<ConfigMap>(Key::new("n", "b"));
    let stopped = Instant::now();
    running.task.await.unwrap();
    assert_eq!(stopped.elapsed().as_secs(), 4, "a running reconcile completes");
    assert!(running.kind.times("b").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_ever() {
    let running = run(&["hang"]);
    seconds(1).await;
    running.stop.cancel();
    let stopped = Instant::now();
    running.task.await.unwrap();
    assert_eq!(stopped.elapsed(), FINISH);
}
