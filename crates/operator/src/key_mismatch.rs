//! Finds daemons of one cluster with different keys.
//!
//! The agent of slurmctld reports the peers that slurmctld refuses for a signature with another `slurm.key`, and which key
//! slurmctld itself has read. The files in the pods would say less: a kubelet replaces them under daemons that read them
//! long before.

use std::{net::IpAddr, sync::Arc};

use api::{
    Controller,
    keys::{annotations, apps, labels},
    wellknown::SLURM_KEY_FILE,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use slurm::{
    agent::{KeyDigest, RefusedPeer},
    revision::Digest,
};

use crate::{
    cluster::{Clusters, KeyReport, Knowledge},
    runtime::{Caches, Key},
    secret::entry,
    unix_time::timestamp,
    worker::Worker,
};

/// A refused daemon retries within seconds. One that was last refused longer ago, and is healthy otherwise, has the right
/// key.
const QUIET: SignedDuration = SignedDuration::from_secs(60);
/// Pods that a message names; it counts the rest.
const NAMED: usize = 10;

/// Daemons with the wrong key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyMismatch {
    /// Name of the Secret with the right key.
    secret: String,
    pods: Vec<Arc<Pod>>,
    /// The file in which slurmctld has another key than the Secret. `None` if the pods are those of other daemons.
    file_of_slurmctld: Option<&'static str>,
}

/// What the decision is made from.
#[derive(Clone, Debug)]
struct KeyFacts<'a> {
    /// Names of the Secrets with the cluster's keys.
    slurm_secret: &'a str,
    jwt_secret: Option<&'a str>,
    /// The key in the Secret.
    slurm_key: Option<&'a [u8]>,
    report: &'a KeyReport,
    /// Slurm's pods in the namespace of the cluster.
    pods: &'a [Arc<Pod>],
    knowledge: &'a Knowledge,
    now: Timestamp,
}

/// Returns the daemons of this Controller's cluster with the wrong key.
pub(crate) fn find_key_mismatch(
    controller: &Controller,
    caches: &Caches,
    clusters: &Clusters,
    now: Timestamp,
) -> Option<KeyMismatch> {
    let key = Key::of(controller);
    let report = clusters.key_report(&key)?;
    let slurm_key = controller.slurm_key()?;
    let secret = caches.secrets.get(&key.namespace, &slurm_key.name);
    decide(&KeyFacts {
        slurm_secret: &slurm_key.name,
        jwt_secret: controller.jwt_key().map(|key| key.name).as_deref(),
        slurm_key: entry(secret.as_deref(), &slurm_key.key),
        report: &report,
        pods: &caches.pods.list(&key.namespace),
        knowledge: &clusters.knowledge(&key),
        now,
    })
}

/// Returns why no pod is made with the key that is this file in /etc/slurm: its Secret has another one than the cluster
/// runs with, which the template of slurmctld's StatefulSet records. Slurm has one key for all daemons: a pod with the new
/// one would be cut off, and a slurmctld with it would lose all jobs.
pub(crate) fn find_other_key(controller: &Controller, caches: &Caches, file: &str) -> Option<String> {
    let (key, annotation, workers) = if file == SLURM_KEY_FILE {
        let workers = " and then the pods of the workers, which ends their jobs";
        (controller.slurm_key()?, annotations::SLURM_KEY_HASH, workers)
    } else {
        (controller.jwt_key()?, annotations::JWT_KEY_HASH, "")
    };
    let namespace = controller.namespace().unwrap_or_default();
    let (secret, set) = (&key.name, controller.child_names().stateful_set());
    let wanted = Digest::of(entry(caches.secrets.get(&namespace, secret).as_deref(), &key.key)?);
    let slurmctld = caches.stateful_sets.child_of(controller, &set)?;
    let template = slurmctld.spec.as_ref()?.template.metadata.as_ref()?;
    let running = template.annotations.as_ref()?.get(annotation)?;
    (*running != wanted.to_string()).then(|| {
        format!(
            "Secret {secret:?} has another {file} than the cluster runs with; running daemons keep theirs, and no pod is made or changed \
             until it has the former one again: write that back; to run with the new one, delete StatefulSet {set:?}{workers}"
        )
    })
}

/// Whether this output of slurmctld's programs means that slurmdbd has another key.
pub(crate) fn is_refusal(words: &str) -> bool {
    words.contains("authentication error")
}

impl KeyMismatch {
    /// Returns the part that concerns the owner of these pods: all of it, if slurmctld has the wrong key.
    pub(crate) fn of_pods(&self, own: &[Arc<Pod>]) -> Option<Self> {
        let mut part = self.clone();
        if self.file_of_slurmctld.is_none() {
            part.pods.retain(|pod| own.iter().any(|own| own.uid() == pod.uid()));
        }
        (!part.pods.is_empty()).then_some(part)
    }

    /// Returns the mismatch of a slurmdbd that refuses slurmctld.
    pub(crate) fn of_slurmdbd(pod: &Arc<Pod>, secret: &str) -> Self {
        Self {
            secret: secret.to_owned(),
            pods: vec![Arc::clone(pod)],
            file_of_slurmctld: None,
        }
    }

    /// Returns the pods, their nodes and the remedy.
    pub(crate) fn message(&self) -> String {
        let secret = &self.secret;
        let pods = shortened(&self.pods);
        match self.file_of_slurmctld {
            Some(file) => format!(
                "slurmctld in {pods} has another {file} than Secret {secret:?}, which the cluster's other daemons are given; if the \
                 Secret was changed, put its former key back; otherwise delete the pod, and it starts with the Secret's; if it comes back with the old one, {CACHED_SECRET_REMEDY}"
            ),
            None => format!(
                "{pods} and slurmctld have different keys and refuse each other; delete the pods named here, and they start with the \
                 key in Secret {secret:?}; if one comes back with the old key, {CACHED_SECRET_REMEDY}; if the Secret was replaced under \
                 running jobs, put its former key back instead"
            ),
        }
    }
}

/// The remedy for a kubelet with an immutable Secret of that name in its cache.
const CACHED_SECRET_REMEDY: &str = "its kubelet still has an earlier Secret of that name in its cache: cordon the node, delete all its \
                           pods that mount the Secret, and uncordon it when they are gone";

fn shortened(pods: &[Arc<Pod>]) -> String {
    let place = |pod: &Arc<Pod>| {
        let worker = Worker(pod);
        format!(
            "pod {} (node {})",
            worker.name(),
            worker.kubernetes_node().unwrap_or_default()
        )
    };
    let named: Vec<String> = pods.iter().take(NAMED).map(place).collect();
    let named = named.join(", ");
    match pods.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

fn decide(facts: &KeyFacts<'_>) -> Option<KeyMismatch> {
    let report = facts.report;
    let wrong_slurmctld = |secret: &str, file: &'static str| {
        let mut pods = facts.pods.iter();
        let pod = pods.find(|pod| pod.uid().as_deref() == Some(&report.pod))?;
        Some(KeyMismatch {
            secret: secret.to_owned(),
            pods: vec![Arc::clone(pod)],
            file_of_slurmctld: Some(file),
        })
    };
    if report.has_other_jwt_key {
        return wrong_slurmctld(facts.jwt_secret?, "jwt.key");
    }
    if let (Some(wanted), Some(has)) = (facts.slurm_key.map(KeyDigest::of), &report.slurm_key)
        && wanted != *has
    {
        return wrong_slurmctld(facts.slurm_secret, "slurm.key");
    }
    let is_wrong = |pod: &&Arc<Pod>| {
        let mut refused = report.refused.iter().filter(|peer| is_at(Worker(pod), &peer.host));
        pod.metadata.deletion_timestamp.is_none()
            && (refused.any(|peer| facts.still_holds(pod, peer)) || facts.has_former_key(pod))
    };
    let mut pods: Vec<Arc<Pod>> = facts.pods.iter().filter(is_wrong).cloned().collect();
    pods.sort_by_key(|pod| pod.name_any());
    (!pods.is_empty()).then(|| KeyMismatch {
        secret: facts.slurm_secret.to_owned(),
        pods,
        file_of_slurmctld: None,
    })
}

impl KeyFacts<'_> {
    /// Whether the pod still has the key for which this peer was refused.
    fn still_holds(&self, pod: &Pod, peer: &RefusedPeer) -> bool {
        let Some(last) = timestamp(peer.last) else {
            return false;
        };
        let worker = Worker(pod);
        let app = worker.label(labels::NAME);
        let containers = pod.status.iter().flat_map(|status| &status.container_statuses);
        let daemon = containers.flatten().find(|status| Some(&*status.name) == app);
        let running = daemon.and_then(|daemon| daemon.state.as_ref()?.running.as_ref());
        // The refusal was about the previous owner of the address, or a previous run of the container.
        let started = running.and_then(|running| Some(running.started_at.as_ref()?.0));
        if [started, worker.created()]
            .into_iter()
            .flatten()
            .any(|began| last < began)
        {
            return false;
        }
        if self.now.duration_since(last) < QUIET {
            return true;
        }
        // Some daemons retry rarely: slurmctld contacts an unresponsive node every 100 s, and a kubelet restarts a crashing
        // container every 5 min.
        if app == Some(apps::SLURMD) {
            !self.responds(worker)
        } else {
            running.is_none()
        }
    }

    /// Whether it is a worker that started with another key than slurmctld has read since, and that slurmctld has not
    /// accepted. It refuses slurmctld, which does not log that, and sends nothing by itself.
    fn has_former_key(&self, pod: &Pod) -> bool {
        let worker = Worker(pod);
        let made_with = worker.annotation(annotations::SLURM_KEY_HASH);
        let current = self.slurm_key.map(|key| Digest::of(key).to_string());
        worker.label(labels::NAME) == Some(apps::SLURMD)
            && self.report.slurm_key.is_some()
            && made_with.is_some()
            && made_with != current.as_deref()
            && self.knowledge.known().is_some()
            && !self.responds(worker)
    }

    /// Whether slurmctld has accepted the node's registration since it started: before that the start time of slurmd is
    /// unknown. A response alone is not enough, since a refusal is one.
    fn responds(&self, worker: Worker<'_>) -> bool {
        let node = self.knowledge.known().zip(worker.slurm_name());
        node.and_then(|(seen, name)| seen.nodes.get(name))
            .is_some_and(|node| node.state.is_responding() && node.slurmd_start_time.finite().is_some_and(|at| at > 0))
    }
}

/// Whether a host in slurmctld's log is this pod: by address, or by DNS name.
fn is_at(pod: Worker<'_>, host: &str) -> bool {
    if let Ok(address) = host.parse::<IpAddr>() {
        return pod.addresses().any(|own| own.parse() == Ok(address));
    }
    let first = host.split('.').next().unwrap_or(host);
    // Endpoints without a host name are named after their address: 10-244-1-5.
    let mut dashed = pod.addresses().map(|own| own.replace(['.', ':'], "-"));
    pod.slurm_name() == Some(first) || pod.name() == first || dashed.any(|own| own == first)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::Seen;

    /// 2026-01-01T00:10:00Z.
    const NOW: i64 = 1_767_226_200;

    fn time(second: i64) -> String {
        Timestamp::from_second(second).unwrap().to_string()
    }

    fn pod(app: &str, name: &str, address: &str, begun: i64) -> Value {
        json!({
            "metadata": {
                "name": name, "namespace": "hpc", "uid": name, "creationTimestamp": time(begun),
                "labels": { "app.kubernetes.io/name": app },
            },
            "spec": { "nodeName": format!("on-{address}"), "containers": [] },
            "status": {
                "podIP": address,
                "containerStatuses": [{
                    "name": app, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "state": { "running": { "startedAt": time(begun) } },
                }],
            },
        })
    }

    fn peer(host: &str, ago: i64) -> RefusedPeer {
        RefusedPeer {
            host: host.to_owned(),
            last: u64::try_from(NOW - ago).unwrap(),
        }
    }

    fn cluster() -> Vec<Value> {
        vec![
            pod("slurmctld", "slurm-controller-0", "10.0.0.1", NOW - 500),
            pod("slurmd", "w-0", "10.0.0.2", NOW - 500),
            pod("login", "login-x", "10.0.0.3", NOW - 500),
        ]
    }

    fn told(pods: &[Value], slurm_key: &[u8], refused: Vec<RefusedPeer>, knowledge: &Knowledge) -> Option<KeyMismatch> {
        let pods: Vec<Arc<Pod>> = pods
            .iter()
            .map(|pod| Arc::new(serde_json::from_value(pod.clone()).unwrap()))
            .collect();
        decide(&KeyFacts {
            slurm_secret: "keys",
            jwt_secret: Some("keys"),
            slurm_key: Some(b"right"),
            report: &KeyReport {
                pod: "slurm-controller-0".to_owned(),
                has_other_jwt_key: slurm_key.is_empty(),
                slurm_key: Some(KeyDigest::of(slurm_key)),
                refused,
                superseded: None,
            },
            pods: &pods,
            knowledge,
            now: Timestamp::from_second(NOW).unwrap(),
        })
    }

    fn unknown() -> Knowledge {
        Knowledge::unknown("not polled")
    }

    fn known(state: &[&str]) -> Knowledge {
        known_since(state, 1000)
    }

    fn known_since(state: &[&str], slurmd_start: u64) -> Knowledge {
        let node =
            json!({ "name": "w-0", "state": state, "slurmd_start_time": { "set": true, "number": slurmd_start } });
        let node = serde_json::from_value(node).unwrap();
        Knowledge::Known(Arc::new(Seen::of_nodes(
            vec![node],
            Timestamp::from_second(NOW).unwrap(),
        )))
    }

    fn named(mismatch: Option<KeyMismatch>) -> String {
        mismatch.map(|mismatch| mismatch.message()).unwrap_or_default()
    }

    #[test]
    fn refused_peers_are_named_with_their_nodes_and_the_remedy() {
        for host in ["10.0.0.2", "w-0.slurm-workers.hpc.svc.cluster.local", "10-0-0-2.x.y"] {
            let words = named(told(&cluster(), b"right", vec![peer(host, 5)], &unknown()));
            assert!(
                words.starts_with("pod w-0 (node on-10.0.0.2) and slurmctld have different keys"),
                "{host}: {words}"
            );
            assert!(
                words.contains("delete the pods") && words.contains("Secret \"keys\""),
                "{words}"
            );
        }
        assert_eq!(
            told(&cluster(), b"right", vec![peer("10.0.0.9", 5)], &unknown()),
            None,
            "no pod"
        );
        assert_eq!(told(&cluster(), b"right", vec![], &unknown()), None);
    }

    #[test]
    fn a_slurmctld_with_another_key_than_the_secret_has_the_wrong_one() {
        let refused = vec![peer("10.0.0.2", 5), peer("10.0.0.3", 5)];
        let mismatch = told(&cluster(), b"wrong", refused, &unknown());
        let words = named(mismatch.clone());
        assert!(
            words.starts_with(
                "slurmctld in pod slurm-controller-0 (node on-10.0.0.1) has another slurm.key than Secret \"keys\""
            ),
            "{words}"
        );
        assert!(
            mismatch.is_some_and(|mismatch| mismatch.of_pods(&[]).is_some()),
            "it concerns everybody"
        );
        let words = named(told(&cluster(), b"", vec![], &unknown()));
        assert!(words.contains("has another jwt.key"), "{words}");
    }

    #[test]
    fn each_owner_gets_its_own_pods() {
        let refused = vec![peer("10.0.0.2", 5), peer("10.0.0.3", 5)];
        let all = told(&cluster(), b"right", refused, &unknown()).unwrap();
        let own: Arc<Pod> = Arc::new(serde_json::from_value(cluster().remove(2)).unwrap());
        let words = named(all.of_pods(&[own]));
        assert!(words.contains("pod login-x") && !words.contains("w-0"), "{words}");
        assert_eq!(all.of_pods(&[]), None);
    }

    #[test]
    fn a_daemon_that_started_after_the_refusal_is_not_reported() {
        let mut pods = cluster();
        pods[1] = pod("slurmd", "w-0", "10.0.0.2", NOW - 4);
        assert_eq!(told(&pods, b"right", vec![peer("10.0.0.2", 5)], &unknown()), None);
        assert!(told(&pods, b"right", vec![peer("10.0.0.2", 3)], &unknown()).is_some());
        pods[1] = pod("slurmd", "w-0", "10.0.0.2", NOW - 500);
        pods[1]["metadata"]["deletionTimestamp"] = time(NOW).into();
        assert_eq!(
            told(&pods, b"right", vec![peer("10.0.0.2", 3)], &unknown()),
            None,
            "it goes"
        );
    }

    #[test]
    fn a_daemon_that_retries_rarely_is_not_considered_healthy() {
        let worker = || vec![peer("10.0.0.2", 90)];
        for (knowledge, holds) in [
            (unknown(), true),
            (known(&["IDLE"]), false),
            (known(&["IDLE", "NOT_RESPONDING"]), true),
            (known(&["DOWN", "NOT_RESPONDING"]), true),
        ] {
            let told = told(&cluster(), b"right", worker(), &knowledge);
            assert_eq!(told.is_some(), holds, "{knowledge:?}");
        }
        let login = || vec![peer("10.0.0.3", 90)];
        let mut pods = cluster();
        assert_eq!(
            told(&pods, b"right", login(), &unknown()),
            None,
            "sackd asks all the time"
        );
        pods[2]["status"]["containerStatuses"][0]["state"] = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
        assert!(told(&pods, b"right", login(), &unknown()).is_some());
    }

    fn made_with_key(key: &str) -> Value {
        json!({ "slinky.slurm.net/slurm-key-hash": Digest::of(key.as_bytes()).to_string() })
    }

    #[test]
    fn a_worker_that_is_older_than_the_key_and_does_not_respond_has_another() {
        let not_responding = ["IDLE", "NOT_RESPONDING"];
        for (made_with, state, holds) in [
            ("former", &not_responding[..], true),
            ("former", &["IDLE"], false),
            ("right", &not_responding, false),
        ] {
            let mut pods = cluster();
            pods[1]["metadata"]["annotations"] = made_with_key(made_with);
            let told = told(&pods, b"right", vec![], &known(state));
            assert_eq!(told.is_some(), holds, "{made_with} {state:?}");
        }
        assert_eq!(
            told(&cluster(), b"right", vec![], &known(&not_responding)),
            None,
            "what it was made with is not known"
        );
        // Slurm considers the refusal a response.
        let mut pods = cluster();
        pods[1]["metadata"]["annotations"] = made_with_key("former");
        assert!(told(&pods, b"right", vec![], &known_since(&["IDLE"], 0)).is_some());
    }

    #[test]
    fn many_are_counted() {
        let pod = |number: usize| -> Arc<Pod> {
            let pod = pod("slurmd", &format!("w-{number}"), "10.0.0.2", NOW);
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let words = shortened(&(0..12).map(pod).collect::<Vec<_>>());
        assert!(words.ends_with("pod w-9 (node on-10.0.0.2) and 2 more"), "{words}");
    }
}
