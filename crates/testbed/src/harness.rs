//! Clusters and namespaces for tests, waiting, and diagnostics of failed tests.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::cluster::{Cluster, Size};
use crate::command;
use crate::faults::Pod;
use crate::paths::{Layout, TEST_CLUSTERS};

/// The cluster that all tests of this checkout share. It is brought up if necessary.
pub fn cluster() -> &'static Cluster {
    bring_up(0)
}

/// A cluster that no other test uses while this value exists. Create it first in a test, so that it is dropped last.
#[derive(Debug)]
pub struct Alone {
    pub cluster: &'static Cluster,
    _lane: MutexGuard<'static, ()>,
}

pub fn alone() -> Alone {
    static LANES: [Mutex<()>; TEST_CLUSTERS] = [const { Mutex::new(()) }; TEST_CLUSTERS];
    loop {
        for (index, lane) in LANES.iter().enumerate() {
            let free = match lane.try_lock() {
                Ok(free) => free,
                // The failed test has restored the cluster as far as it could.
                Err(TryLockError::Poisoned(failed)) => failed.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            return Alone {
                cluster: bring_up(index),
                _lane: free,
            };
        }
        thread::sleep(Duration::from_millis(100));
    }
}

#[allow(clippy::panic)] // Without a cluster there is no test.
fn bring_up(index: usize) -> &'static Cluster {
    type Up = OnceLock<Result<Cluster, String>>;
    static CLUSTERS: [Up; TEST_CLUSTERS] = [const { Up::new() }; TEST_CLUSTERS];
    let up = || {
        let size = Size {
            nodes: 3,
            fake_nodes: 0,
        };
        let names = Layout::test_clusters();
        let name = names.get(index).ok_or("there is no such cluster")?;
        Cluster::up(name, size).map_err(|error| format!("{error:#}"))
    };
    match CLUSTERS.get(index).map(|cluster| cluster.get_or_init(up)) {
        Some(Ok(cluster)) => cluster,
        Some(Err(error)) => panic!("no cluster to test on: {error}"),
        None => panic!("there is no test cluster {index}"),
    }
}

/// Runs `act` once per cluster, however many tests call this. All of them wait for it.
pub fn once_for(cluster: &Cluster, what: &'static str, act: impl FnOnce()) {
    type Done = BTreeMap<(String, &'static str), Arc<OnceLock<()>>>;
    static DONE: Mutex<Done> = Mutex::new(Done::new());
    let key = (cluster.layout.cluster.clone(), what);
    let done = {
        let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(done.entry(key).or_default())
    };
    done.get_or_init(act);
}

/// The namespace of a test, removed at its end. When the test fails, diagnostics are printed first.
#[derive(Debug)]
pub struct Namespace {
    pub cluster: &'static Cluster,
    pub name: String,
}

impl Namespace {
    pub fn create(cluster: &'static Cluster, name: &str) -> Result<Self> {
        // A namespace of an earlier run may still be terminating; with a suffix of its own the test does not wait for
        // it.
        let name = format!("{name}-{}", std::process::id());
        cluster.ask(&["create", "namespace", &name])?;
        let namespace = Self { cluster, name };
        // Pods are rejected until the ServiceAccount exists.
        namespace.ask(&["wait", "--for=create", "serviceaccount/default", "--timeout=30s"])?;
        Ok(namespace)
    }

    pub fn pod<'a>(&'a self, name: &'a str) -> Pod<'a> {
        Pod {
            namespace: &self.name,
            name,
        }
    }

    pub fn kubectl(&self, arguments: &[&str]) -> Command {
        self.cluster.kubectl_in(&self.name, arguments)
    }

    /// Returns the output of kubectl.
    pub fn ask(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.ask_in(&self.name, arguments)
    }

    pub fn apply(&self, manifest: &str) -> Result<()> {
        command::output_with_input(&mut self.kubectl(&["apply", "-f", "-"]), manifest).map(drop)
    }

    /// Waits for a condition of `kubectl wait`, such as "condition=Ready" or "delete".
    pub fn wait(&self, condition: &str, object: &str) -> Result<()> {
        self.ask(&["wait", &format!("--for={condition}"), object, "--timeout=120s"])
            .map(drop)
    }

    /// Waits until an object exists and then for `condition`.
    pub fn wait_new(&self, condition: &str, object: &str) -> Result<()> {
        self.wait("create", object)?;
        self.wait(condition, object)
    }

    pub fn rollout(&self, object: &str) -> Result<()> {
        self.ask(&["rollout", "status", object, "--timeout=120s"]).map(drop)
    }

    /// Runs a shell command in a container like `exec`, at a tenth of its cost.
    pub fn inside(&self, pod: &str, container: &str, line: &str) -> Result<String> {
        let mut command = self.cluster.inside(self.pod(pod), container, "bash")?;
        command::output(command.args(["-c", line]))
    }

    /// Runs a shell command in a pod ("pod" or "pod -c container") with `kubectl exec`.
    pub fn exec(&self, pod: &str, line: &str) -> Result<String> {
        let mut command = self.kubectl(&["exec"]);
        command::output(command.args(pod.split(' ')).args(["--", "bash", "-c", line]))
    }

    /// The value at a JSONPath of an object.
    pub fn field(&self, object: &str, path: &str) -> Result<String> {
        self.ask(&["get", object, "-o", &format!("jsonpath={{{path}}}")])
    }

    /// The UID of an object, which distinguishes it from a later one of the same name.
    pub fn uid(&self, object: &str) -> Result<String> {
        self.field(object, ".metadata.uid")
    }

    fn explain(&self) {
        let show = |title: &str, arguments: &[&str]| {
            let text = self.ask(arguments).unwrap_or_else(|error| format!("{error:#}"));
            eprintln!("--- {title} ({})\n{text}", self.name);
        };
        show("pods", &["get", "pods", "-o", "wide"]);
        show("claims", &["get", "pvc"]);
        show("events", &["get", "events", "--sort-by=.lastTimestamp"]);
        let pods = self.ask(&["get", "pods", "-o", "name"]).unwrap_or_default();
        for pod in pods.lines() {
            show(pod, &["logs", pod, "--all-containers", "--prefix", "--tail=25"]);
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if thread::panicking() {
            self.explain();
        }
        if std::env::var_os("TESTBED_KEEP").is_some() {
            return;
        }
        // A longer grace period would delay the next test.
        let _ = self.ask(&["delete", "pods", "--all", "--grace-period=1", "--wait=false"]);
        let _ = self.cluster.ask(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}

/// Polls what cannot be watched (the response of a daemon) until it succeeds, with pauses that grow to half a second.
pub fn eventually<T: Debug>(what: &str, timeout: Duration, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_millis(50);
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("{what}: not within {timeout:?}"));
            }
            Err(_) => thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// For `eventually`: an error with the response, unless it is the expected one.
pub fn expect(holds: bool, answer: impl Debug) -> Result<()> {
    if holds { Ok(()) } else { Err(anyhow!("{answer:?}")) }
}

/// How often a test repeats what may fail only sometimes: as often as `TESTBED_ROUNDS` says, else `default` times.
pub fn rounds(default: usize) -> usize {
    let rounds = std::env::var("TESTBED_ROUNDS").ok();
    rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(default)
}
