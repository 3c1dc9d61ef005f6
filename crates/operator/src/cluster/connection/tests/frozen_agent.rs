//! Polls of a cluster whose agent is frozen while its slurmrestd responds, in virtual time.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    time::SystemTime,
};

use host::{Files, Listener, Machine};
use prometheus_client::registry::Registry;
use runtime::{Clock, Triggers};
use serde_json::json;
use slurm::agent::{AgentKey, DEFAULT_PORT, PROOF_HEADER, path};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    task::JoinHandle,
    time::sleep,
};

use super::*;
use crate::{
    cluster::{Follower, route::tests::cluster_objects},
    configuration_metrics::ConfigurationMetrics,
    kinds::Caches,
};

type Opening<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

/// This machine with an agent and a slurmrestd that both show the same Slurm. Of its partitions, slurmrestd does not list the hidden one.
#[derive(Debug)]
struct Network {
    real: Host,
    is_frozen: Arc<AtomicBool>,
}

impl Machine for Network {
    fn now(&self) -> SystemTime {
        self.real.now()
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.real.fill(bytes);
    }

    fn hostname(&self) -> String {
        self.real.hostname()
    }

    fn files(&self) -> &dyn Files {
        self.real.files()
    }

    fn connect(&self, address: String) -> Opening<host::Connection> {
        let is_frozen = Arc::clone(&self.is_frozen);
        Box::pin(async move {
            let (near, far) = duplex(64 * 1024);
            if address.ends_with(&format!(":{DEFAULT_PORT}")) {
                tokio::spawn(run_agent(far, is_frozen));
            } else {
                tokio::spawn(run_slurmrestd(far, is_frozen));
            }
            Ok(Box::new(near) as host::Connection)
        })
    }

    fn connect_unix(&self, path: PathBuf) -> Opening<host::Connection> {
        Machine::connect_unix(&*self.real, path)
    }

    fn listen(&self, address: SocketAddr) -> Opening<Listener> {
        Machine::listen(&*self.real, address)
    }

    fn listen_unix(&self, path: &Path) -> io::Result<Listener> {
        Machine::listen_unix(&*self.real, path)
    }

    fn spawn(&self, name: &'static str, task: Pin<Box<dyn Future<Output = ()> + Send>>) -> JoinHandle<()> {
        Machine::spawn(&*self.real, name, task)
    }

    fn spawn_thread(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        Machine::spawn_thread(&*self.real, name, work)
    }
}

/// Reads the head of a request without a body. `None` at the end of the connection.
async fn read_request(stream: &mut DuplexStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

async fn respond(stream: &mut DuplexStream, header: &str, body: &str) {
    let response = format!(
        "HTTP/1.1 200 OK\r\n{header}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(response.as_bytes()).await.unwrap();
}

/// A response to every read of Slurm.
fn slurm_with(node: &str, partitions: &[&str]) -> String {
    let partitions = partitions
        .iter()
        .map(|name| json!({ "name": name, "partition": { "state": ["UP"] }, "nodes": { "configured": "" } }));
    let meta = json!({ "BOOT_TIME": 1000, "LastUpdate": 2000, "HashValue": 1 });
    json!({
        "pings": [], "nodes": [{ "name": node, "state": ["IDLE", "DYNAMIC_NORM"] }], "jobs": [], "reservations": [],
        "partitions": partitions.collect::<Vec<_>>(), "slurm_conf_meta": meta, "errors": []
    })
    .to_string()
}

/// Slurm has another node while the agent is frozen.
async fn run_slurmrestd(mut stream: DuplexStream, is_frozen: Arc<AtomicBool>) {
    while read_request(&mut stream).await.is_some() {
        let node = if is_frozen.load(Ordering::Acquire) {
            "n-1"
        } else {
            "n-0"
        };
        respond(&mut stream, "", &slurm_with(node, &["shown"])).await;
    }
}

async fn run_agent(mut stream: DuplexStream, is_frozen: Arc<AtomicBool>) {
    let key = AgentKey::derive(b"key").unwrap();
    while let Some(request) = read_request(&mut stream).await {
        while is_frozen.load(Ordering::Acquire) {
            sleep(Duration::from_millis(100)).await;
        }
        let body = if request.contains(path::REVISION) {
            let fence = json!({ "term": 0, "sequence": 0 });
            json!({ "protocol": 2, "agent": "1", "live": null, "phase": "verified", "slurmctld": null, "fence": fence })
                .to_string()
        } else {
            slurm_with("n-0", &["shown", "hidden"])
        };
        let mut headers = request.lines().filter_map(|line| line.split_once(": Bearer "));
        let token = headers.find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        let proof = key.prove(token.unwrap().1, 200, body.as_bytes());
        respond(&mut stream, &format!("{PROOF_HEADER}: {proof}\r\n"), &body).await;
    }
}

/// What the operator knows of a cluster with one NodeSet, which may follow jobs.
struct Poller {
    clusters: Clusters,
    controller: Key,
    is_frozen: Arc<AtomicBool>,
}

impl Poller {
    fn new(follows_jobs: bool) -> Self {
        let is_frozen = Arc::new(AtomicBool::new(false));
        let machine = Network {
            real: Host::real(),
            is_frozen: Arc::clone(&is_frozen),
        };
        let node_set = json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
            "metadata": { "namespace": "ns", "name": "n", "uid": "n" }, "spec": { "controllerRef": { "name": "slurm" } } });
        let objects = [cluster_objects(), vec![node_set]].concat();
        let clusters = Clusters::new(
            Caches::of(objects),
            Fence::default(),
            Clock::of(Host::of(machine)),
            Triggers::default(),
            ConfigurationMetrics::new(&mut Registry::default()),
        );
        let controller = Key::new("ns", "slurm");
        clusters.note_hidden_records(&controller, false);
        clusters.follow_jobs(&controller, &Follower::NodeSet(Key::new("ns", "n")), follows_jobs);
        Self {
            clusters,
            controller,
            is_frozen,
        }
    }

    /// Waits for some seconds and returns the last response, which has to be known at every second after the first.
    async fn known_for(&self, seconds: u64) -> Arc<Seen> {
        let mut known = None;
        for second in 1..=seconds {
            self.clusters.knowledge(&self.controller);
            sleep(Duration::from_secs(1)).await;
            match self.clusters.knowledge(&self.controller) {
                Knowledge::Known(seen) => known = Some(seen),
                Knowledge::Unknown { why } => panic!("after {second} s: {why}"),
            }
        }
        known.unwrap()
    }

    fn freeze(&self, is_frozen: bool) {
        self.is_frozen.store(is_frozen, Ordering::Release);
    }
}

fn partitions(seen: &Seen) -> Option<Vec<&str>> {
    Some(seen.partitions.as_ref()?.keys().map(String::as_str).collect())
}

#[tokio::test(start_paused = true)]
async fn nodes_and_jobs_are_known_while_the_agent_is_frozen_and_partitions_are_not() {
    for follows_jobs in [true, false] {
        let poller = Poller::new(follows_jobs);
        let seen = poller.known_for(20).await;
        assert_eq!(partitions(&seen), Some(vec!["hidden", "shown"]));
        poller.freeze(true);
        let seen = poller.known_for(180).await;
        assert_eq!(partitions(&seen), None, "slurmrestd shows only a part of them");
        assert_eq!(seen.source, Source::Unsigned);
        assert_eq!(seen.jobs.is_some(), follows_jobs);
        assert!(seen.nodes.contains_key("n-1"));
        // The agent is asked for its status every 15 s, and then for everything again.
        poller.freeze(false);
        let seen = poller.known_for(25).await;
        assert_eq!(partitions(&seen), Some(vec!["hidden", "shown"]));
        assert_eq!(seen.source == Source::Agent, follows_jobs);
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_do_not_wait_for_partitions() {
    let poller = Poller::new(false);
    poller.known_for(20).await;
    poller.freeze(true);
    // At most 5 s until the next poll, and one for partitions.
    let seen = poller.known_for(7).await;
    assert!(seen.nodes.contains_key("n-1"), "{:?}", seen.nodes);
}
