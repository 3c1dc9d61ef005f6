//! How tests use a cluster: one for all, or one to themselves; a namespace for each test, waiting on events, and the logs
//! one needs when a test fails.

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

/// The cluster that all tests of this checkout share, brought up if it is not.
pub fn cluster() -> &'static Cluster {
    bring_up(0)
}

/// A cluster that no other test uses as long as this lives. Make it the first thing in a test, so that it goes last.
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
                // A test that failed there has put back what it could.
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

/// Does something once for a cluster, however many tests ask for it; all of them wait for it.
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

/// A namespace of a test's own, removed at its end. When the test fails, what is needed to see why is printed first.
#[derive(Debug)]
pub struct Namespace {
    pub cluster: &'static Cluster,
    pub name: String,
}

impl Namespace {
    pub fn create(cluster: &'static Cluster, name: &str) -> Result<Self> {
        // A namespace of an earlier run may still be going; an own suffix does not have to wait for it.
        let name = format!("{name}-{}", std::process::id());
        cluster.ask(&["create", "namespace", &name])?;
        let namespace = Self { cluster, name };
        // Pods are refused until its ServiceAccount is there.
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

    /// What kubectl answers.
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

    /// Runs a shell line in a container as `exec` does, for a tenth of its cost.
    pub fn inside(&self, pod: &str, container: &str, line: &str) -> Result<String> {
        let mut command = self.cluster.inside(self.pod(pod), container, "bash")?;
        command::output(command.args(["-c", line]))
    }

    /// Runs a shell line in a pod ("pod" or "pod -c container") with `kubectl exec`.
    pub fn exec(&self, pod: &str, line: &str) -> Result<String> {
        let mut command = self.kubectl(&["exec"]);
        command::output(command.args(pod.split(' ')).args(["--", "bash", "-c", line]))
    }

    /// A server's address or any other single value of an object.
    pub fn field(&self, object: &str, path: &str) -> Result<String> {
        self.ask(&["get", object, "-o", &format!("jsonpath={{{path}}}")])
    }

    /// The UID of an object, which tells it from a later one of the same name.
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
        // Grace is for the pods of people: here every second of it delays the next test.
        let _ = self.ask(&["delete", "pods", "--all", "--grace-period=1", "--wait=false"]);
        let _ = self.cluster.ask(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}

/// For what nobody can watch (a daemon's answer): asks again until it succeeds, soon at first, then every half second.
pub fn eventually<T: Debug>(what: &str, patience: Duration, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_millis(50);
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("{what}: not within {patience:?}"));
            }
            Err(_) => thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// For `eventually`: an answer that is not the one waited for.
pub fn expect(holds: bool, answer: impl Debug) -> Result<()> {
    if holds { Ok(()) } else { Err(anyhow!("{answer:?}")) }
}

/// How often a test repeats what may fail only sometimes: as often as `TESTBED_ROUNDS` says, else `default` times.
pub fn rounds(default: usize) -> usize {
    let rounds = std::env::var("TESTBED_ROUNDS").ok();
    rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(default)
}
