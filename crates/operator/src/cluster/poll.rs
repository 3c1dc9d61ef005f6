//! Polls one cluster's Slurm, and wakes the objects for which something changed and those that follow jobs. Writes nothing.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use api::{Controller, NodeSet, Partition};
use host::watch;
use kube::ResourceExt;
use runtime::Key;
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tracing::info;

use super::{
    Cluster, Knowledge, Seen,
    job_summary::{JobSummary, Reading},
    load, lock,
};
use crate::{slurm_release::Release, worker::Worker};

/// The interval while something changes or is followed.
const BUSY: Duration = Duration::from_secs(1);
/// The longest interval while nothing changes. Each poll without a change makes the interval 1.5 times as long.
const QUIET: Duration = Duration::from_secs(5);

/// The poll interval is at most 5 s and a poll times out after 20 s: an older result counts as unknown.
const MAX_AGE: Duration = Duration::from_secs(30);

/// The agent lists partitions within a fraction of a second. Nodes and jobs do not wait longer for them: a decision on the state before
/// an order would follow.
const DETAILS_PATIENCE: Duration = Duration::from_secs(1);

/// An object that follows jobs. Listing jobs is slow, so they are listed only while a decision depends on them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Follower {
    /// The cluster's Controller itself.
    Controller,
    NodeSet(Key),
    Partition(Key),
}

/// The results of polling, and requests for more.
#[derive(Debug, Default)]
pub(super) struct Poll {
    /// `None` until the first poll has ended, and while polling is stopped.
    pub(super) latest: watch::Sender<Option<Polled>>,
    pub(super) requests: Notify,
    jobs_requested: AtomicBool,
}

impl Cluster {
    /// The release of Slurm that responded to the last poll.
    pub(super) fn release(&self) -> Option<Release> {
        let latest = self.poll.latest.borrow();
        latest.as_ref()?.knowledge.known()?.release
    }
}

/// The result of one poll.
#[derive(Clone, Debug)]
pub(super) struct Polled {
    pub(super) knowledge: Knowledge,
    /// When the poll began, by the monotonic clock: a step of the wall clock makes no old result new.
    pub(super) begun: Instant,
}

impl Polled {
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begun)
    }

    /// What is known now: an old result is not.
    pub(super) fn current(self, now: Instant) -> Knowledge {
        let age = self.age(now);
        match self.knowledge {
            Knowledge::Known(_) if age > MAX_AGE => {
                Knowledge::unknown(format!("Slurm has not responded for more than {} s", MAX_AGE.as_secs()))
            }
            knowledge => knowledge,
        }
    }
}

impl Poll {
    /// Restarts polling if it has stopped.
    pub(super) fn start(&self) {
        if self.latest.borrow().is_none() {
            self.requests.notify_one();
        }
    }

    /// Waits for the details of a poll, and publishes the poll without them if they take long.
    async fn publish_if_late(&self, early: Polled, details: impl Future<Output = ()>) {
        let mut details = pin!(details);
        if timeout(DETAILS_PATIENCE, &mut details).await.is_err() {
            self.latest.send_replace(Some(early));
            details.await;
        }
    }

    /// Polls now, jobs included: the caller has a worker that is leaving, though the caches may not show it yet.
    pub(super) fn request_with_jobs(&self) {
        self.jobs_requested.store(true, Ordering::Release);
        self.requests.notify_one();
    }
}

/// Polls while an object refers to the Controller or follows its jobs. Returns once the Controller is deleted too.
pub(super) async fn run(cluster: &Cluster) {
    let mut pause = BUSY;
    let mut reading = Reading::default();
    let poll = &cluster.poll;
    loop {
        let sets = cluster.node_sets();
        let partitions = cluster.partitions_of();
        let followers = lock(&cluster.followers).clone();
        if sets.is_empty() && partitions.is_empty() && followers.is_empty() {
            if cluster.controller().is_none() {
                return;
            }
            poll.latest.send_replace(None);
            poll.requests.notified().await;
            continue;
        }
        let with_jobs = poll.jobs_requested.swap(false, Ordering::AcqRel) || !followers.is_empty();
        let before = poll.latest.borrow().clone().map(|polled| polled.knowledge);
        let seen_before = before.as_ref().and_then(Knowledge::known);
        let begun = cluster.host().instant();
        let mut now = cluster.observe(with_jobs).await;
        match &mut now {
            Knowledge::Known(seen) => {
                let seen = Arc::make_mut(seen);
                let early = Polled {
                    knowledge: Knowledge::Known(seen.without_details(seen_before).into()),
                    begun,
                };
                let details = cluster.add_details(seen, seen_before, &sets, &followers);
                poll.publish_if_late(early, details).await;
                let jobs = cluster.add_jobs(seen, seen_before, &sets, !partitions.is_empty(), &mut reading);
                jobs.await;
                if seen_before.is_none() {
                    info!(controller = %cluster.key, "Slurm responds");
                }
            }
            Knowledge::Unknown { why } if seen_before.is_some() => {
                info!(controller = %cluster.key, %why, "Slurm stopped responding");
            }
            Knowledge::Unknown { .. } => {}
        }
        poll.latest.send_replace(Some(Polled {
            knowledge: now.clone(),
            begun,
        }));
        let mut woken = followers;
        let changed = cluster.changed_node_sets(&sets, before.as_ref(), &now);
        woken.extend(changed.into_iter().map(Follower::NodeSet));
        let changed = changed_partitions(&partitions, seen_before, now.known());
        woken.extend(changed.into_iter().map(Follower::Partition));
        if have_partitions_changed(seen_before, now.known()) {
            woken.insert(Follower::Controller);
        }
        // A job waits for nodes that Slurm has started.
        let is_elastic = sets.iter().any(|set| set.spec.autoscaling().is_some());
        pause = if woken.is_empty() && !is_elastic {
            (pause + pause / 2).min(QUIET)
        } else {
            BUSY
        };
        for follower in woken {
            cluster.wake(follower);
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(pause) => {}
            () = poll.requests.notified() => {}
        }
    }
}

/// Returns the Partitions whose nodes, jobs or settings changed in Slurm.
fn changed_partitions(partitions: &[Arc<Partition>], before: Option<&Seen>, now: Option<&Seen>) -> Vec<Key> {
    if partitions.is_empty() {
        return Vec::new();
    }
    let loads = |seen: Option<&Seen>| load::of_nodes(seen.into_iter().flat_map(|seen| seen.nodes.values()));
    let (loads_before, loads) = (loads(before), loads(now));
    let jobs = |seen: Option<&Seen>, name: &str| seen?.job_summary.as_ref()?.loads.get(name).cloned();
    let live = |seen: Option<&Seen>, name: &str| seen?.partitions.as_ref()?.get(name).cloned();
    let state = |seen: Option<&Seen>, name: &str| (jobs(seen, name), live(seen, name));
    let differs = |partition: &&Arc<Partition>| {
        let name = partition.slurm_name();
        loads_before.get(&name) != loads.get(&name) || state(before, &name) != state(now, &name)
    };
    let changed = partitions.iter().filter(differs);
    changed.map(|partition| Key::of(partition.as_ref())).collect()
}

/// Whether a partition was created or deleted, or its settings changed. Its nodes do not count.
fn have_partitions_changed(before: Option<&Seen>, now: Option<&Seen>) -> bool {
    let settings = |seen: &Seen| {
        let all = seen.partitions.as_ref()?.iter();
        let settings = all.map(|(name, partition)| (name.clone(), partition.state.clone(), partition.settings()));
        Some(settings.collect::<Vec<_>>())
    };
    let now = now.and_then(settings);
    now.is_some() && before.and_then(settings) != now
}

impl Cluster {
    /// Adds partitions, and reservations and QOS where something depends on them.
    async fn add_details(
        &self,
        seen: &mut Seen,
        before: Option<&Seen>,
        sets: &[Arc<NodeSet>],
        followers: &BTreeSet<Follower>,
    ) {
        if sets.iter().any(|set| set.may_have_reservation()) {
            seen.reservations = self.reservations().await.ok();
        }
        seen.partitions = self.partitions().await.ok().map(|partitions| {
            let named = partitions.into_iter();
            Arc::new(named.map(|partition| (partition.name.clone(), partition)).collect())
        });
        // A request for jobs does not return the release; it is the same Slurm as before.
        seen.release = seen.release.or(before.and_then(|before| before.release));
        let has_database = |controller: Arc<Controller>| controller.spec.accounting_name().is_some();
        if followers.contains(&Follower::Controller) && self.controller().is_some_and(has_database) {
            seen.qos = Some(self.qos().await.map_err(|error| error.to_string()));
        }
    }

    /// Adds results derived from jobs, which are read if that is due; otherwise the last results are kept.
    async fn add_jobs(
        &self,
        seen: &mut Seen,
        before: Option<&Seen>,
        sets: &[Arc<NodeSet>],
        counts_jobs: bool,
        reading: &mut Reading,
    ) {
        if seen.jobs.is_some() {
            reading.was_done(seen.at);
            return;
        }
        seen.job_summary = before.and_then(|before| before.job_summary.clone());
        reading.is_outdated |= before.is_none_or(|before| !seen.changed_since(before).is_empty());
        let is_busy = |name: &str| seen.nodes.get(name).is_some_and(|node| node.state.is_busy());
        let has_busy_worker = || sets.iter().any(|set| self.has_worker(set, is_busy));
        let for_deadlines = reading.is_due(seen.at) && has_busy_worker();
        let for_counts = counts_jobs && reading.is_due_for_counts(seen.at);
        if !for_deadlines && !for_counts {
            return;
        }
        // After a failure the next poll tries again.
        if let Ok(jobs) = self.jobs().await {
            seen.job_summary = Some(Arc::new(JobSummary::of(&jobs)));
            reading.was_done(seen.at);
        }
    }

    /// Whether a worker of the NodeSet has such a name in Slurm.
    fn has_worker(&self, set: &NodeSet, is_such: impl Fn(&str) -> bool) -> bool {
        let pods = self.shared.caches.pods.owned_by(&set.uid().unwrap_or_default());
        pods.iter().any(|pod| Worker(pod).slurm_name().is_some_and(&is_such))
    }

    /// Returns the NodeSets whose nodes or reservation changed.
    fn changed_node_sets(&self, sets: &[Arc<NodeSet>], before: Option<&Knowledge>, now: &Knowledge) -> Vec<Key> {
        let (before, now) = match (before, now) {
            (Some(Knowledge::Known(before)), Knowledge::Known(now)) => (before, now),
            (Some(Knowledge::Unknown { why: before }), Knowledge::Unknown { why: now }) if before == now => {
                return Vec::new();
            }
            _ => return sets.iter().map(|set| Key::of(set.as_ref())).collect(),
        };
        let changed = now.changed_since(before);
        let reservations_changed = before.reservations != now.reservations;
        let nodes = [before, now]
            .into_iter()
            .flat_map(|seen| changed.iter().filter_map(|name| seen.nodes.get(*name)));
        let comments: Vec<&str> = nodes.map(|node| node.comment.as_str()).collect();
        let has_changed = |set: &&Arc<NodeSet>| {
            let uid = set.uid().unwrap_or_default();
            // The comment of a record names its NodeSet even after its pod is deleted.
            let is_named = || comments.iter().any(|comment| comment.contains(&uid));
            let has_worker = || self.has_worker(set, |name| changed.contains(name));
            let has_changed_node = !changed.is_empty() && (has_worker() || is_named());
            has_changed_node || (reservations_changed && set.may_have_reservation())
        };
        let changed = sets.iter().filter(has_changed);
        changed.map(|set| Key::of(set.as_ref())).collect()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use runtime::Triggers;
    use serde_json::json;

    use super::{super::tests::clusters, *};

    #[test]
    fn an_old_result_is_unknown_though_the_wall_clock_was_set_back() {
        let begun = Instant::now();
        // By the wall clock it is of the future.
        let seen = Seen::of_nodes(Vec::new(), Timestamp::MAX);
        let polled = Polled {
            knowledge: Knowledge::Known(seen.into()),
            begun,
        };
        let known = |age| polled.clone().current(begun + age).known().is_some();
        assert!(known(MAX_AGE));
        assert!(!known(MAX_AGE + Duration::from_secs(1)));
    }

    #[tokio::test]
    async fn a_record_without_a_pod_belongs_to_the_set_in_its_comment() {
        let cluster = clusters(Triggers::default()).cluster(&Key::new("ns", "slurm"));
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
