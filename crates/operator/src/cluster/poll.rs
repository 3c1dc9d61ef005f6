//! Polls one cluster's Slurm, and wakes the objects for which something changed and those that follow jobs. Writes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use api::{NodeSet, Partition};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use runtime::Key;
use tokio::sync::{Notify, watch};
use tracing::info;

use super::{
    Cluster, Knowledge, Seen,
    deadlines::{self, Reading},
    load, lock, oldest_job,
};
use crate::worker::Worker;

/// The interval while something changes or is followed.
const BUSY: Duration = Duration::from_secs(1);
/// The longest interval while nothing changes. Each poll without a change makes the interval 1.5 times as long.
const QUIET: Duration = Duration::from_secs(5);

/// An object that follows jobs. Listing jobs is slow, so they are listed only while a decision depends on them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Follower {
    /// The cluster's Controller itself.
    Controller,
    NodeSet(Key),
    Partition(Key),
}

/// The results of polling, and requests for more.
#[derive(Debug)]
pub(super) struct Poll {
    /// `None` until the first poll has ended, and while polling is stopped.
    latest: watch::Sender<Option<Knowledge>>,
    requests: Notify,
    jobs_requested: AtomicBool,
    is_idle: AtomicBool,
}

impl Default for Poll {
    fn default() -> Self {
        Self {
            latest: watch::Sender::new(None),
            requests: Notify::new(),
            jobs_requested: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
        }
    }
}

impl Poll {
    pub(super) fn latest(&self) -> Knowledge {
        self.start();
        let latest = self.latest.borrow().clone();
        latest.unwrap_or_else(|| Knowledge::unknown("Slurm has not been polled yet"))
    }

    /// Restarts polling if it has stopped.
    pub(super) fn start(&self) {
        if self.is_idle.swap(false, Ordering::AcqRel) {
            self.request();
        }
    }

    /// Returns a receiver that reports the end of every poll.
    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Knowledge>> {
        self.latest.subscribe()
    }

    pub(super) fn request(&self) {
        self.requests.notify_one();
    }

    /// Polls now, jobs included: the caller has a worker that is leaving, though the caches may not show it yet.
    pub(super) fn request_with_jobs(&self) {
        self.jobs_requested.store(true, Ordering::Release);
        self.request();
    }
}

/// Polls while an object refers to the Controller or follows its jobs. Returns once the Controller is deleted too.
pub(super) async fn run(cluster: &Cluster) {
    let mut pause = BUSY;
    let mut reading = Reading::default();
    let Poll {
        latest,
        requests,
        jobs_requested,
        is_idle,
    } = &cluster.poll;
    loop {
        let sets = cluster.node_sets();
        let partitions = cluster.partitions_of();
        let followers = lock(&cluster.followers).clone();
        if sets.is_empty() && partitions.is_empty() && followers.is_empty() {
            if cluster.controller().is_none() {
                return;
            }
            latest.send_replace(None);
            is_idle.store(true, Ordering::Release);
            requests.notified().await;
            continue;
        }
        let with_jobs = jobs_requested.swap(false, Ordering::AcqRel) || !followers.is_empty();
        let mut now = cluster.observe(with_jobs).await;
        if let Knowledge::Known(seen) = &mut now {
            cluster.add_details(Arc::make_mut(seen), &sets, &followers).await;
            cluster
                .add_jobs(Arc::make_mut(seen), &sets, !partitions.is_empty(), &mut reading)
                .await;
        }
        let before = cluster.replace(now.clone());
        let mut woken = followers;
        let changed = cluster.changed_node_sets(&sets, before.as_ref(), &now);
        woken.extend(changed.into_iter().map(Follower::NodeSet));
        let changed = changed_partitions(&partitions, before.as_ref(), &now);
        woken.extend(changed.into_iter().map(Follower::Partition));
        if have_partitions_changed(before.as_ref(), &now) {
            woken.insert(Follower::Controller);
        }
        pause = if woken.is_empty() {
            (pause + pause / 2).min(QUIET)
        } else {
            BUSY
        };
        for follower in woken {
            cluster.wake(follower);
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = requests.notified() => {}
        }
    }
}

/// Returns the Partitions whose nodes, jobs or settings changed in Slurm.
fn changed_partitions(partitions: &[Arc<Partition>], before: Option<&Knowledge>, now: &Knowledge) -> Vec<Key> {
    if partitions.is_empty() {
        return Vec::new();
    }
    let (before, now) = (before.and_then(Knowledge::known), now.known());
    let loads = |seen: Option<&Seen>| load::of_nodes(seen.into_iter().flat_map(|seen| seen.nodes.values()));
    let (loads_before, loads) = (loads(before), loads(now));
    let jobs = |seen: Option<&Seen>, name: &str| seen?.job_loads.as_ref()?.get(name).cloned();
    let live = |seen: Option<&Seen>, name: &str| seen?.partitions.as_ref()?.get(name).cloned();
    let differs = |partition: &&Arc<Partition>| {
        let name = partition.slurm_name();
        loads_before.get(&name) != loads.get(&name)
            || jobs(before, &name) != jobs(now, &name)
            || live(before, &name) != live(now, &name)
    };
    let changed = partitions.iter().filter(differs);
    changed.map(|partition| Key::of(partition.as_ref())).collect()
}

/// Whether a partition was created or deleted, or its settings changed. Its nodes do not count.
fn have_partitions_changed(before: Option<&Knowledge>, now: &Knowledge) -> bool {
    let Some(now) = now.known().and_then(|seen| seen.partitions.as_ref()) else {
        return false;
    };
    let before = before
        .and_then(Knowledge::known)
        .and_then(|seen| seen.partitions.as_ref());
    before.is_none_or(|before| {
        before.len() != now.len()
            || now.iter().any(|(name, now)| {
                before
                    .get(name)
                    .is_none_or(|before| before.state != now.state || before.settings() != now.settings())
            })
    })
}

impl Cluster {
    /// Adds partitions, and reservations and QOS where something depends on them.
    async fn add_details(&self, seen: &mut Seen, sets: &[Arc<NodeSet>], followers: &BTreeSet<Follower>) {
        if sets.iter().any(|set| set.may_have_reservation()) {
            seen.reservations = self.reservations().await.ok();
        }
        let partitions = self.partitions().await.ok();
        let by_name = |partitions: Vec<slurm::Partition>| -> BTreeMap<String, slurm::Partition> {
            let named = partitions.into_iter();
            named.map(|partition| (partition.name.clone(), partition)).collect()
        };
        seen.partitions = partitions.map(by_name).map(Arc::new);
        if seen.release.is_none() {
            // A request for jobs does not return the release; it is the same Slurm as before.
            let latest = self.poll.latest.borrow();
            let before = latest.as_ref().and_then(Knowledge::known);
            seen.release = before.and_then(|before| before.release);
        }
        let has_database = || {
            self.controller()
                .is_some_and(|object| object.spec.accounting_name().is_some())
        };
        if followers.contains(&Follower::Controller) && has_database() {
            seen.qos = Some(self.qos().await);
        }
    }

    /// Adds results derived from jobs, which are read if that is due; otherwise the last results are kept.
    async fn add_jobs(&self, seen: &mut Seen, sets: &[Arc<NodeSet>], counts_jobs: bool, reading: &mut Reading) {
        if seen.jobs.is_some() {
            reading.was_done(seen.at);
            return;
        }
        let before = self.poll.latest.borrow().clone();
        let before = before.as_ref().and_then(Knowledge::known);
        seen.deadlines = before.and_then(|before| before.deadlines.clone());
        seen.oldest_jobs = before.and_then(|before| before.oldest_jobs.clone());
        seen.job_loads = before.and_then(|before| before.job_loads.clone());
        if before.is_none_or(|before| !seen.changed_since(before).is_empty()) {
            reading.something_changed();
        }
        let for_deadlines = reading.is_due(seen.at) && self.has_busy_worker(sets, seen);
        let for_counts = counts_jobs && reading.is_due_for_counts(seen.at);
        if !for_deadlines && !for_counts {
            return;
        }
        // After a failure the next poll tries again.
        if let Ok(jobs) = self.jobs().await {
            seen.deadlines = Some(Arc::new(deadlines::of_jobs(&jobs)));
            seen.oldest_jobs = Some(Arc::new(oldest_job::of_jobs(&jobs)));
            seen.job_loads = Some(Arc::new(load::of_jobs(&jobs)));
            reading.was_done(seen.at);
        }
    }

    fn replace(&self, now: Knowledge) -> Option<Knowledge> {
        let latest = &self.poll.latest;
        let was_known = latest.borrow().as_ref().is_some_and(|latest| latest.known().is_some());
        match &now {
            Knowledge::Unknown { why } if was_known => {
                info!(controller = %self.key, %why, "Slurm stopped responding");
            }
            Knowledge::Known(_) if !was_known => info!(controller = %self.key, "Slurm responds"),
            _ => {}
        }
        latest.send_replace(Some(now))
    }

    fn has_busy_worker(&self, sets: &[Arc<NodeSet>], seen: &Seen) -> bool {
        let is_busy = |name: &str| seen.nodes.get(name).is_some_and(|node| node.state.is_busy());
        sets.iter().any(|set| {
            let pods = self.shared.caches.pods.owned_by(&set.uid().unwrap_or_default());
            pods.iter().any(|pod| Worker(pod).slurm_name().is_some_and(is_busy))
        })
    }

    /// Returns the NodeSets whose nodes or reservation changed.
    fn changed_node_sets(&self, sets: &[Arc<NodeSet>], before: Option<&Knowledge>, now: &Knowledge) -> Vec<Key> {
        let changed: BTreeSet<&str> = match (before, now) {
            (Some(Knowledge::Known(before)), Knowledge::Known(now)) => Seen::changed_since(now, before),
            (Some(Knowledge::Unknown { why: before }), Knowledge::Unknown { why: now }) if before == now => {
                BTreeSet::new()
            }
            _ => return sets.iter().map(|set| Key::of(set.as_ref())).collect(),
        };
        let reservations = |knowledge: Option<&Knowledge>| knowledge.and_then(Knowledge::known)?.reservations.clone();
        let reservations_changed = reservations(before) != reservations(Some(now));
        if changed.is_empty() && !reservations_changed {
            return Vec::new();
        }
        let seen = [before.and_then(Knowledge::known), now.known()];
        let comments: Vec<&str> = seen
            .into_iter()
            .flatten()
            .flat_map(|seen| changed.iter().filter_map(|name| seen.nodes.get(*name)))
            .map(|node| node.comment.as_str())
            .collect();
        let has_changed = |set: &&Arc<NodeSet>| {
            if reservations_changed && set.may_have_reservation() {
                return true;
            }
            let uid = set.uid().unwrap_or_default();
            let pods = self.shared.caches.pods.owned_by(&uid);
            let is_changed = |pod: &Arc<Pod>| Worker(pod).slurm_name().is_some_and(|name| changed.contains(name));
            // The comment of a record names its NodeSet even after its pod is deleted.
            pods.iter().any(is_changed) || comments.iter().any(|comment| comment.contains(&uid))
        };
        sets.iter()
            .filter(has_changed)
            .map(|set| Key::of(set.as_ref()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::{super::Clusters, *};

    #[tokio::test]
    async fn a_record_without_a_pod_belongs_to_the_set_in_its_comment() {
        let cluster = Clusters::default().cluster(&Key::new("ns", "slurm"));
        let sets: Vec<Arc<NodeSet>> = ["a", "b"]
            .into_iter()
            .map(|name| {
                let spec = json!({ "controllerRef": { "name": "slurm" } });
                let meta = json!({ "namespace": "ns", "name": name, "uid": format!("uid-{name}") });
                let set = json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": meta, "spec": spec });
                Arc::new(serde_json::from_value(set).unwrap())
            })
            .collect();
        let seen = |comment: &str| {
            let nodes = json!([{ "name": "n7", "state": ["IDLE", "DYNAMIC_NORM"], "comment": comment }]);
            let nodes = serde_json::from_value(nodes).unwrap();
            Knowledge::Known(Seen::of_nodes(nodes, Timestamp::UNIX_EPOCH).into())
        };
        let changed = |before: &str, now: &str| cluster.changed_node_sets(&sets, Some(&seen(before)), &seen(now));
        let ours = r#"{"nodeSetUID":"uid-b"}"#;
        assert_eq!(changed("", ours), [Key::new("ns", "b")]);
        assert_eq!(changed(ours, ""), [Key::new("ns", "b")]);
        assert_eq!(changed(ours, ours), []);
        assert_eq!(changed("", "a note"), []);
    }
}
