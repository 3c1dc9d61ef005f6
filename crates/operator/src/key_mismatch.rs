//! Daemons of one cluster with different keys: who they are, and what helps.
//!
//! slurmctld hears from all of them, and its agent tells whom it refuses for a signature by another `slurm.key`, and which one
//! slurmctld itself has read. The files in the pods would tell less: a kubelet replaces them under daemons that have read them
//! long before.

use std::{net::IpAddr, sync::Arc};

use api::{
    Controller,
    keys::{annotations, apps, labels},
    references::SecretKeyRef,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;
use slurm::{
    agent::{KeyDigest, RefusedPeer},
    revision::Digest,
};

use crate::{
    cluster::{Clusters, KeyReport, Knowledge},
    runtime::{Caches, Key},
    secret::entry,
    worker::Worker,
};

/// Daemons of the cluster have different keys.
pub(crate) const KEY_MISMATCH: &str = "KeyMismatch";

/// What Slurm's programs print when who they ask has another key.
const REFUSED: &str = "authentication error";

/// A daemon that is refused asks again within seconds. One that has not been refused for so long, and is well otherwise, has the
/// right key by now.
const QUIET: SignedDuration = SignedDuration::from_secs(60);
/// A message names this many pods, and counts the rest.
const NAMED: usize = 10;

/// Who has another key than it should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyMismatch {
    /// Where the right key is.
    secret: String,
    odd: Odd,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Odd {
    /// slurmctld itself: it has not the key, the name of whose file is given, that the Secret has.
    Slurmctld { pod: Place, file: &'static str },
    /// Pods that slurmctld refuses.
    Others(Vec<Place>),
}

/// A pod, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    pod: String,
    uid: String,
    node: String,
}

/// What the decision is made from.
#[derive(Clone, Debug)]
struct Situation<'a> {
    /// Where the cluster's keys are.
    slurm_key: &'a SecretKeyRef,
    jwt_key: Option<&'a SecretKeyRef>,
    /// Of the key that the Secret has.
    digest: Option<KeyDigest>,
    /// The same as pods are annotated with it.
    noted: Option<String>,
    report: &'a KeyReport,
    /// Slurm's pods in the cluster's namespace.
    pods: &'a [Arc<Pod>],
    knowledge: &'a Knowledge,
    now: Timestamp,
}

/// Whether daemons of this Controller's cluster have different keys, by what is known now.
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
    let bytes = entry(secret.as_deref(), &slurm_key.key);
    let jwt_key = controller.jwt_key();
    decide(&Situation {
        digest: bytes.map(KeyDigest::of),
        noted: bytes.map(|bytes| Digest::of(bytes).to_string()),
        slurm_key: &slurm_key,
        jwt_key: jwt_key.as_ref(),
        report: &report,
        pods: &caches.pods.list(&key.namespace),
        knowledge: &clusters.knowledge(&key),
        now,
    })
}

/// Whether these words of slurmctld's programs tell that slurmdbd has another key.
pub(crate) fn is_refusal(words: &str) -> bool {
    words.contains(REFUSED)
}

impl KeyMismatch {
    /// What concerns whoever has these pods: all of it, if slurmctld is the odd one.
    pub(crate) fn of_pods(&self, own: &[Arc<Pod>]) -> Option<Self> {
        let Odd::Others(pods) = &self.odd else {
            return Some(self.clone());
        };
        let is_own = |place: &&Place| own.iter().any(|pod| pod.uid().as_ref() == Some(&place.uid));
        let pods: Vec<Place> = pods.iter().filter(is_own).cloned().collect();
        (!pods.is_empty()).then(|| Self {
            secret: self.secret.clone(),
            odd: Odd::Others(pods),
        })
    }

    /// That slurmdbd in this pod refuses slurmctld, which is not odd itself.
    pub(crate) fn of_slurmdbd(pod: &Pod, secret: &str) -> Self {
        Self {
            secret: secret.to_owned(),
            odd: Odd::Others(vec![Place::of(pod)]),
        }
    }

    /// Who, where, and what to do, for people.
    pub(crate) fn message(&self) -> String {
        let secret = &self.secret;
        match &self.odd {
            Odd::Slurmctld { pod, file } => format!(
                "slurmctld in {pod} has another {file} than Secret {secret:?}, which the cluster's other daemons are given; \
                 delete the pod, and it starts with the Secret's; if it comes back with the old one, {ALL_OF_NODE}"
            ),
            Odd::Others(pods) => format!(
                "{} and slurmctld have different keys and refuse each other; delete the pods named here, and they start with the \
                 key in Secret {secret:?}; if one comes back with the old key, {ALL_OF_NODE}; if the Secret was replaced under \
                 running jobs, put its former key back instead",
                shortened(pods)
            ),
        }
    }
}

/// For a kubelet that has an immutable Secret of that name in its cache.
const ALL_OF_NODE: &str = "its kubelet still has an earlier Secret of that name in its cache: cordon the node, delete all its \
                           pods that mount the Secret, and uncordon it when they are gone";

fn shortened(pods: &[Place]) -> String {
    let named: Vec<String> = pods.iter().take(NAMED).map(ToString::to_string).collect();
    let named = named.join(", ");
    match pods.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

impl Place {
    fn of(pod: &Pod) -> Self {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        Self {
            pod: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            node: node.unwrap_or_default(),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pod {} (node {})", self.pod, self.node)
    }
}

fn decide(situation: &Situation<'_>) -> Option<KeyMismatch> {
    let Situation {
        slurm_key,
        jwt_key,
        digest,
        report,
        pods,
        ..
    } = situation;
    let odd_slurmctld = |secret: &SecretKeyRef, file: &'static str| {
        let pod = pods.iter().find(|pod| pod.uid().as_deref() == Some(&report.pod))?;
        Some(KeyMismatch {
            secret: secret.name.clone(),
            odd: Odd::Slurmctld {
                pod: Place::of(pod),
                file,
            },
        })
    };
    if report.has_other_jwt_key {
        return odd_slurmctld((*jwt_key)?, "jwt.key");
    }
    if let (Some(wanted), Some(has)) = (digest, &report.slurm_key)
        && wanted != has
    {
        return odd_slurmctld(slurm_key, "slurm.key");
    }
    let is_odd = |pod: &&Arc<Pod>| {
        let mut refused = report.refused.iter().filter(|peer| is_at(pod, &peer.host));
        pod.metadata.deletion_timestamp.is_none()
            && (refused.any(|peer| situation.still_holds(pod, peer)) || situation.is_left_behind(pod))
    };
    let mut odd: Vec<Place> = pods.iter().filter(is_odd).map(|pod| Place::of(pod)).collect();
    odd.sort();
    (!odd.is_empty()).then(|| KeyMismatch {
        secret: slurm_key.name.clone(),
        odd: Odd::Others(odd),
    })
}

impl Situation<'_> {
    /// Whether the pod still has the key for which it was refused then.
    fn still_holds(&self, pod: &Pod, peer: &RefusedPeer) -> bool {
        let Some(last) = i64::try_from(peer.last)
            .ok()
            .and_then(|last| Timestamp::from_second(last).ok())
        else {
            return false;
        };
        let daemon = daemon_of(pod);
        let running = daemon.and_then(|daemon| daemon.state.as_ref()?.running.as_ref());
        // Not it, but who had the address before, or a daemon of an earlier life of the container.
        let started = running.and_then(|running| Some(running.started_at.as_ref()?.0));
        if started.is_some_and(|started| last < started) || pod_began(pod).is_some_and(|began| last < began) {
            return false;
        }
        if self.now.duration_since(last) < QUIET {
            return true;
        }
        // It may be asked seldom: slurmctld tries a node that does not respond every 100 s, and a kubelet starts a container that
        // keeps ending every 5 min.
        if app_of(pod) == Some(apps::SLURMD) {
            !self.responds(pod)
        } else {
            running.is_none()
        }
    }

    /// Whether it is a worker that was made with another key than slurmctld has read since, and that slurmctld has not accepted.
    /// It refuses slurmctld, of which slurmctld's log says nothing, and asks for nothing by itself.
    fn is_left_behind(&self, pod: &Pod) -> bool {
        let made_with = pod.annotations().get(annotations::SLURM_KEY_HASH);
        app_of(pod) == Some(apps::SLURMD)
            && self.report.slurm_key.is_some()
            && made_with.is_some()
            && made_with != self.noted.as_ref()
            && self.knowledge.known().is_some()
            && !self.responds(pod)
    }

    /// Whether slurmctld has the node, hears from it, and has accepted its registration since it started: before that it has no
    /// start of its slurmd. That it responds is not enough: a refusal is a response.
    fn responds(&self, pod: &Pod) -> bool {
        let node = self.knowledge.known().zip(Worker(pod).slurm_name());
        node.and_then(|(seen, name)| seen.nodes.get(name))
            .is_some_and(|node| node.state.is_responding() && node.slurmd_start_time.finite().is_some_and(|at| at > 0))
    }
}

/// Whether a host of slurmctld's log is this pod: an address, or a name that DNS has for it.
fn is_at(pod: &Pod, host: &str) -> bool {
    let status = pod.status.as_ref();
    let addresses = status.into_iter().flat_map(|status| {
        let more = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
        status.pod_ip.as_deref().into_iter().chain(more)
    });
    if let Ok(address) = host.parse::<IpAddr>() {
        return addresses.into_iter().any(|own| own.parse() == Ok(address));
    }
    let first = host.split('.').next().unwrap_or(host);
    // Endpoints without a name of their own have their address for one: 10-244-1-5.
    let mut dashed = addresses.map(|own| own.replace(['.', ':'], "-"));
    Worker(pod).slurm_name() == Some(first) || pod.name_any() == first || dashed.any(|own| own == first)
}

fn app_of(pod: &Pod) -> Option<&str> {
    pod.labels().get(labels::NAME).map(String::as_str)
}

/// The container that bears the daemon's name.
fn daemon_of(pod: &Pod) -> Option<&ContainerStatus> {
    let app = app_of(pod)?;
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == app)
}

fn pod_began(pod: &Pod) -> Option<Timestamp> {
    Some(pod.metadata.creation_timestamp.as_ref()?.0)
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
        let reference: SecretKeyRef = serde_json::from_value(json!({ "name": "keys", "key": "slurm.key" })).unwrap();
        decide(&Situation {
            slurm_key: &reference,
            jwt_key: Some(&reference),
            digest: Some(KeyDigest::of(b"right")),
            noted: Some("right".to_owned()),
            report: &KeyReport {
                pod: "slurm-controller-0".to_owned(),
                has_other_jwt_key: slurm_key.is_empty(),
                slurm_key: Some(KeyDigest::of(slurm_key)),
                refused,
            },
            pods: &pods,
            knowledge,
            now: Timestamp::from_second(NOW).unwrap(),
        })
    }

    fn unknown() -> Knowledge {
        Knowledge::unknown("nobody was asked")
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
    fn those_whom_slurmctld_refuses_are_named_with_their_nodes_and_the_remedy() {
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
    fn a_slurmctld_that_has_another_key_than_the_secret_is_the_odd_one() {
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
    fn everybody_is_told_of_their_own_pods() {
        let refused = vec![peer("10.0.0.2", 5), peer("10.0.0.3", 5)];
        let all = told(&cluster(), b"right", refused, &unknown()).unwrap();
        let own: Arc<Pod> = Arc::new(serde_json::from_value(cluster().remove(2)).unwrap());
        let words = named(all.of_pods(&[own]));
        assert!(words.contains("pod login-x") && !words.contains("w-0"), "{words}");
        assert_eq!(all.of_pods(&[]), None);
    }

    #[test]
    fn whoever_started_after_the_refusal_has_another_key_by_now() {
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
    fn one_that_is_asked_seldom_is_not_taken_for_well() {
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

    #[test]
    fn a_worker_that_is_older_than_the_key_and_does_not_respond_has_another() {
        let not_responding = ["IDLE", "NOT_RESPONDING"];
        for (made_with, state, holds) in [
            ("former", &not_responding[..], true),
            ("former", &["IDLE"], false),
            ("right", &not_responding, false),
        ] {
            let mut pods = cluster();
            pods[1]["metadata"]["annotations"] = json!({ "slinky.slurm.net/slurm-key-hash": made_with });
            let told = told(&pods, b"right", vec![], &known(state));
            assert_eq!(told.is_some(), holds, "{made_with} {state:?}");
        }
        assert_eq!(
            told(&cluster(), b"right", vec![], &known(&not_responding)),
            None,
            "what it was made with is not known"
        );
        // Slurm takes the refusal for a response.
        let mut pods = cluster();
        pods[1]["metadata"]["annotations"] = json!({ "slinky.slurm.net/slurm-key-hash": "former" });
        assert!(told(&pods, b"right", vec![], &known_since(&["IDLE"], 0)).is_some());
    }

    #[test]
    fn many_are_counted() {
        let place = |number: usize| Place {
            pod: format!("w-{number}"),
            uid: String::new(),
            node: "n".to_owned(),
        };
        let words = shortened(&(0..12).map(place).collect::<Vec<_>>());
        assert!(words.ends_with("pod w-9 (node n) and 2 more"), "{words}");
    }
}
