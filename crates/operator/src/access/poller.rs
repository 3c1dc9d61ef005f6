//! Looks at one cluster again and again, and wakes the NodeSets whose nodes have changed and those who follow jobs. It writes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use api::{Controller, NodeSet, Partition};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::{
    sync::{Notify, watch},
    task::{JoinHandle, JoinSet},
};
use tracing::info;

use super::{
    Follower, Knowledge, Seen, Shared, beginnings,
    deadlines::{self, Reading},
    keys::{self, KeyReport},
    load,
};
use crate::{
    nodeset::plan::{Worker, reservation::may_have_one},
    runtime::Key,
};

/// While something is waited for.
const BUSY: Duration = Duration::from_secs(1);
/// While nothing is. Each look without news is half as long again after the one before.
const QUIET: Duration = Duration::from_secs(5);

/// The task that looks at one cluster.
#[derive(Debug)]
pub(super) struct Poller {
    /// `None` until the first look is over.
    latest: watch::Receiver<Option<Knowledge>>,
    keys: watch::Receiver<Option<KeyReport>>,
    wake: Arc<Notify>,
    jobs_wanted: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Poller {
    pub(super) fn start(controller: Key, shared: &Arc<Shared>) -> Self {
        let (latest, reader) = watch::channel(None);
        let (keys, keys_reader) = watch::channel(None);
        let mut key_looks = JoinSet::new();
        key_looks.spawn(keys::look_again_and_again(
            controller.clone(),
            Arc::downgrade(shared),
            keys,
        ));
        let wake = Arc::new(Notify::new());
        let jobs_wanted = Arc::new(AtomicBool::new(false));
        let rounds = Rounds {
            controller,
            shared: Arc::downgrade(shared),
            latest,
            wake: Arc::clone(&wake),
            jobs_wanted: Arc::clone(&jobs_wanted),
            _keys: key_looks,
        };
        Self {
            latest: reader,
            keys: keys_reader,
            wake,
            jobs_wanted,
            task: tokio::spawn(rounds.run()),
        }
    }

    pub(super) fn latest(&self) -> Knowledge {
        let latest = self.latest.borrow().clone();
        latest.unwrap_or_else(|| Knowledge::unknown("Slurm has not been asked yet"))
    }

    pub(super) fn key_report(&self) -> Option<KeyReport> {
        self.keys.borrow().clone()
    }

    /// Tells when a look is over.
    pub(super) fn looks(&self) -> watch::Receiver<Option<Knowledge>> {
        self.latest.clone()
    }

    /// Looks now.
    pub(super) fn look(&self) {
        self.wake.notify_one();
    }

    /// Looks now, at jobs too: who is in a hurry has a worker on its way out, though the caches may not show it yet.
    pub(super) fn wake(&self) {
        self.jobs_wanted.store(true, Ordering::Release);
        self.look();
    }

    /// It has ended, or died; another one is to be started.
    pub(super) fn is_done(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Rounds {
    controller: Key,
    /// Weak, so that it ends with the process's other work.
    shared: Weak<Shared>,
    latest: watch::Sender<Option<Knowledge>>,
    wake: Arc<Notify>,
    jobs_wanted: Arc<AtomicBool>,
    /// Ends with the rounds.
    _keys: JoinSet<()>,
}

impl Rounds {
    async fn run(self) {
        let mut pause = BUSY;
        let mut reading = Reading::default();
        loop {
            let Some(shared) = self.shared.upgrade() else { return };
            let sets = shared.node_sets_of(&self.controller);
            let partitions = shared.partitions_of(&self.controller);
            // Slurm counts jobs faster than it lists them, so they are listed only while they decide something.
            let waiting = shared.followers.of(&self.controller);
            if sets.is_empty() && partitions.is_empty() && waiting.is_empty() {
                return;
            }
            let with_jobs = self.jobs_wanted.swap(false, Ordering::AcqRel) || !waiting.is_empty();
            let now = shared.observe(&self.controller, with_jobs).await;
            let now = shared.with_reservations(&self.controller, &sets, now).await;
            let mut now = shared.with_partitions(&self.controller, now).await;
            self.add_release(&mut now);
            if waiting.contains(&Follower::Controller) {
                shared.add_qos(&self.controller, &mut now).await;
            }
            self.add_deadlines(&shared, &sets, !partitions.is_empty(), &mut now, &mut reading)
                .await;
            let before = self.replace(now.clone());
            let mut concerned = waiting;
            let changed = shared.concerned(&sets, before.as_ref(), &now);
            concerned.extend(changed.into_iter().map(Follower::NodeSet));
            let changed = concerned_partitions(&partitions, before.as_ref(), &now);
            concerned.extend(changed.into_iter().map(Follower::Partition));
            if are_partitions_different(before.as_ref(), &now) {
                concerned.insert(Follower::Controller);
            }
            pause = if concerned.is_empty() {
                (pause + pause / 2).min(QUIET)
            } else {
                BUSY
            };
            for follower in concerned {
                match follower {
                    Follower::Controller => shared.triggers.wake::<Controller>(self.controller.clone()),
                    Follower::NodeSet(key) => shared.triggers.wake::<NodeSet>(key),
                    Follower::Partition(key) => shared.triggers.wake::<Partition>(key),
                }
            }
            drop(shared);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Who was asked for jobs may not have told; it is the same Slurm as before.
    fn add_release(&self, now: &mut Knowledge) {
        let Knowledge::Known(seen) = now else { return };
        if seen.release.is_none() {
            let before = self.latest.borrow();
            let before = before.as_ref().and_then(Knowledge::known);
            Arc::make_mut(seen).release = before.and_then(|before| before.release);
        }
    }

    /// Where jobs were not read anyway, they are if they are due. Until then the deadlines of before hold.
    async fn add_deadlines(
        &self,
        shared: &Shared,
        sets: &[Arc<NodeSet>],
        counts_jobs: bool,
        now: &mut Knowledge,
        reading: &mut Reading,
    ) {
        let Knowledge::Known(seen) = now else { return };
        let seen = Arc::make_mut(seen);
        if seen.jobs.is_some() {
            reading.was_done(seen.at);
            return;
        }
        let before = self.latest.borrow().clone();
        let before = before.as_ref().and_then(Knowledge::known);
        seen.deadlines = before.and_then(|before| before.deadlines.clone());
        seen.beginnings = before.and_then(|before| before.beginnings.clone());
        seen.job_loads = before.and_then(|before| before.job_loads.clone());
        if before.is_none_or(|before| !seen.changed_since(before).is_empty()) {
            reading.something_changed();
        }
        let for_deadlines = reading.is_due(seen.at) && shared.has_busy_worker(sets, seen);
        let for_counts = counts_jobs && reading.is_due_for_counts(seen.at);
        if !for_deadlines && !for_counts {
            return;
        }
        // Without an answer the next look asks again.
        if let Ok(jobs) = shared.jobs(&self.controller).await {
            seen.deadlines = Some(Arc::new(deadlines::of_jobs(&jobs)));
            seen.beginnings = Some(Arc::new(beginnings::of_jobs(&jobs)));
            seen.job_loads = Some(Arc::new(load::of_jobs(&jobs)));
            reading.was_done(seen.at);
        }
    }

    fn replace(&self, now: Knowledge) -> Option<Knowledge> {
        let was_known = self
            .latest
            .borrow()
            .as_ref()
            .is_some_and(|latest| latest.known().is_some());
        match &now {
            Knowledge::Unknown { why } if was_known => {
                info!(controller = %self.controller, %why, "Slurm does not answer any more");
            }
            Knowledge::Known(_) if !was_known => info!(controller = %self.controller, "Slurm answers"),
            _ => {}
        }
        self.latest.send_replace(Some(now))
    }
}

/// The Partitions for which Slurm has other words than before.
fn concerned_partitions(partitions: &[Arc<Partition>], before: Option<&Knowledge>, now: &Knowledge) -> Vec<Key> {
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

/// Whether a partition came, went, or has other settings. Its nodes are nobody's business here.
fn are_partitions_different(before: Option<&Knowledge>, now: &Knowledge) -> bool {
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

impl Shared {
    fn partitions_of(&self, controller: &Key) -> Vec<Arc<Partition>> {
        let all = self.caches.partitions.list(&controller.namespace);
        all.into_iter()
            .filter(|partition| partition.spec.controller_ref.name == controller.name)
            .collect()
    }

    async fn with_partitions(&self, controller: &Key, now: Knowledge) -> Knowledge {
        let Knowledge::Known(mut seen) = now else { return now };
        let partitions = self.partitions(controller).await.ok();
        let by_name = |partitions: Vec<slurm::Partition>| -> BTreeMap<String, slurm::Partition> {
            partitions
                .into_iter()
                .map(|partition| (partition.name.clone(), partition))
                .collect()
        };
        Arc::make_mut(&mut seen).partitions = partitions.map(by_name).map(Arc::new);
        Knowledge::Known(seen)
    }

    pub(super) fn node_sets_of(&self, controller: &Key) -> Vec<Arc<NodeSet>> {
        let all = self.caches.node_sets.list(&controller.namespace);
        all.into_iter()
            .filter(|set| set.spec.controller_ref.name == controller.name)
            .collect()
    }

    /// Reservations are read only where a NodeSet may have one.
    async fn with_reservations(&self, controller: &Key, sets: &[Arc<NodeSet>], now: Knowledge) -> Knowledge {
        match now {
            Knowledge::Known(mut seen) if sets.iter().any(|set| may_have_one(set)) => {
                Arc::make_mut(&mut seen).reservations = self.reservations(controller).await.ok();
                Knowledge::Known(seen)
            }
            now => now,
        }
    }

    /// QOS are read where there is a database, for a Controller that waits to hear of them.
    async fn add_qos(&self, controller: &Key, now: &mut Knowledge) {
        let Knowledge::Known(seen) = now else { return };
        let object = self.caches.controllers.get(&controller.namespace, &controller.name);
        if object.is_some_and(|object| object.spec.accounting_name().is_some()) {
            Arc::make_mut(seen).qos = Some(self.qos(controller).await);
        }
    }

    fn has_busy_worker(&self, sets: &[Arc<NodeSet>], seen: &Seen) -> bool {
        let is_busy = |name: &str| seen.nodes.get(name).is_some_and(|node| node.state.is_busy());
        sets.iter().any(|set| {
            let pods = self.caches.pods.owned_by(&set.uid().unwrap_or_default());
            pods.iter().any(|pod| Worker(pod).slurm_name().is_some_and(is_busy))
        })
    }

    /// The sets that have to know of the difference.
    fn concerned(&self, sets: &[Arc<NodeSet>], before: Option<&Knowledge>, now: &Knowledge) -> Vec<Key> {
        let changed: BTreeSet<&str> = match (before, now) {
            (Some(Knowledge::Known(before)), Knowledge::Known(now)) => Seen::changed_since(now, before),
            (Some(Knowledge::Unknown { why: before }), Knowledge::Unknown { why: now }) if before == now => {
                BTreeSet::new()
            }
            _ => return sets.iter().map(|set| Key::of(set.as_ref())).collect(),
        };
        let reservations = |knowledge: Option<&Knowledge>| knowledge.and_then(Knowledge::known)?.reservations.clone();
        let rebooked = reservations(before) != reservations(Some(now));
        if changed.is_empty() && !rebooked {
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
            if rebooked && may_have_one(set) {
                return true;
            }
            let uid = set.uid().unwrap_or_default();
            let pods = self.caches.pods.owned_by(&uid);
            let is_changed = |pod: &Arc<Pod>| Worker(pod).slurm_name().is_some_and(|name| changed.contains(name));
            // Records whose pod is gone tell by their comment whose they are.
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

    use super::{super::Access, *};

    #[test]
    fn a_record_without_a_pod_concerns_the_set_that_its_comment_names() {
        let shared = Access::default().shared;
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
        let concerned = |before: &str, now: &str| shared.concerned(&sets, Some(&seen(before)), &seen(now));
        let ours = r#"{"nodeSetUID":"uid-b"}"#;
        assert_eq!(concerned("", ours), [Key::new("ns", "b")]);
        assert_eq!(concerned(ours, ""), [Key::new("ns", "b")]);
        assert_eq!(concerned(ours, ours), []);
        assert_eq!(concerned("", "a note"), []);
    }
}
