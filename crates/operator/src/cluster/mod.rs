//! Everything the operator keeps per Slurm cluster, wherever its slurmctld runs: one task, one memory, one [`Snapshot`].
//!
//! Each cluster has a task of its own, so a cluster that hangs delays no other. The task polls Slurm ([`poll`]), reads
//! the agent's report about keys ([`key_report`]), delivers the configuration ([`deliver`]) and polls an external
//! slurmctld ([`external`]). Reconcilers use the latest results without waiting; a decision about a deletion reads
//! again ([`Clusters::observe`]).

pub(crate) mod connection;
pub(crate) mod deliver;
pub(crate) mod external;
mod job_summary;
mod key_report;
mod knowledge;
pub(crate) mod lagging;
pub mod load;
pub(crate) mod partition_reports;
pub(crate) mod pods;
mod poll;
mod route;
pub(crate) mod sent_revisions;
mod snapshot;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::{Controller, NodeSet, Partition};
use host::watch;
use host::{Host, Task};
use jiff::Timestamp;
use runtime::{Clock, Fence, Key, Triggers};
use slurm::{
    AdminState, JobHandle,
    agent::{JobCommand, NodeCommand, NodeName, ReservationCommand},
};
use tokio::time::Instant;

pub(crate) use self::snapshot::Snapshot;
pub use self::{
    connection::{CommandError, JobOrder, NodeOrder},
    job_summary::JobSummary,
    key_report::KeyReport,
    knowledge::{Knowledge, Seen, Source},
    poll::Follower,
};
use self::{
    connection::{Connection, Order, Unanswered},
    deliver::Delivery,
    external::External,
    partition_reports::{PartitionReport, PartitionReports},
    poll::{Poll, Polled},
    sent_revisions::SentRevision,
    snapshot::Memory,
};
use crate::{configuration_metrics::ConfigurationMetrics, kinds::Caches, partition::rules::manual_state::ManualStates};

/// The minimum time between two requested polls.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// All Slurm clusters. This is the only map by cluster.
#[derive(Debug)]
pub struct Clusters {
    shared: Arc<Shared>,
    /// Each with its task, which is aborted when it is dropped.
    clusters: Mutex<BTreeMap<Key, (Arc<Cluster>, Task)>>,
}

/// The dependencies that the tasks of all clusters share.
#[derive(Debug)]
struct Shared {
    caches: Caches,
    fence: Fence,
    clock: Clock,
    triggers: Triggers,
    metrics: ConfigurationMetrics,
}

/// One Slurm cluster, identified by the key of its Controller.
#[derive(Debug)]
pub(crate) struct Cluster {
    key: Key,
    shared: Arc<Shared>,
    connection: Mutex<Option<Arc<Connection>>>,
    unanswered: Unanswered,
    followers: Mutex<BTreeSet<Follower>>,
    poll: Poll,
    key_report: watch::Sender<Option<KeyReport>>,
    delivery: Delivery,
    external: watch::Sender<Option<External>>,
    memory: Mutex<Memory>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.shared.metrics.forget(&self.key);
    }
}

impl Clusters {
    /// The `triggers` wake NodeSets whose nodes changed in Slurm, and every object that follows jobs.
    pub fn new(caches: Caches, fence: Fence, clock: Clock, triggers: Triggers, metrics: ConfigurationMetrics) -> Self {
        let shared = Arc::new(Shared {
            caches,
            fence,
            clock,
            triggers,
            metrics,
        });
        Self {
            shared,
            clusters: Mutex::default(),
        }
    }

    /// Everything known about the cluster of this Controller.
    pub(crate) fn snapshot(&self, controller: &Controller) -> Snapshot {
        let cluster = self.cluster(&Key::of(controller));
        cluster.update_external(controller);
        cluster.snapshot(controller, self.knowledge(&cluster.key))
    }

    /// The last response of the cluster's Slurm. Polling starts with this call, and stops once no NodeSet and no Partition
    /// refers to the Controller and nothing follows its jobs.
    pub fn knowledge(&self, controller: &Key) -> Knowledge {
        let poll = &self.cluster(controller).poll;
        poll.start();
        let latest = poll.latest.borrow().clone();
        latest.map_or_else(Knowledge::default, |latest| latest.current(self.instant()))
    }

    /// Like [`knowledge`](Self::knowledge), but waits for the first response of a cluster that is not polled yet.
    pub async fn knowledge_within(&self, controller: &Key, timeout: Duration) -> Knowledge {
        let cluster = self.cluster(controller);
        cluster.poll.start();
        let mut polls = cluster.poll.latest.subscribe();
        // On a timeout, the next line returns `Unknown`.
        drop(tokio::time::timeout(timeout, polls.wait_for(Option::is_some)).await);
        self.knowledge(controller)
    }

    /// Whether the last response of the cluster's Slurm is from before this time.
    pub fn is_older_than(&self, controller: &Key, then: Instant) -> bool {
        let latest = self.cluster(controller).poll.latest.borrow().clone();
        latest.is_some_and(|latest| latest.begun < then)
    }

    /// Polls now and waits for the result, so that the decision after an order is not made on the state before it. Returns when it
    /// was called, for [`is_older_than`](Self::is_older_than): there may be no response in time.
    pub async fn poll_now(&self, controller: &Key, timeout: Duration) -> Instant {
        let begin = self.instant();
        let cluster = self.cluster(controller);
        let mut polls = cluster.poll.latest.subscribe();
        cluster.poll.request_with_jobs();
        let is_new = |latest: &Polled| latest.knowledge.known().is_none() || latest.begun >= begin;
        let polled = async {
            while polls.changed().await.is_ok() {
                if polls.borrow_and_update().as_ref().is_some_and(is_new) {
                    return;
                }
            }
        };
        drop(tokio::time::timeout(timeout, polled).await);
        begin
    }

    /// Requests a poll without waiting for it. Returns false if Slurm did not respond last time: polling more often would not help.
    /// Skips the request if the last poll is recent, since many may call this.
    pub fn poll_soon(&self, controller: &Key) -> bool {
        if self.knowledge(controller).known().is_none() {
            return false;
        }
        let cluster = self.cluster(controller);
        let latest = cluster.poll.latest.borrow().clone();
        if latest.is_none_or(|latest| latest.age(self.instant()) >= MIN_POLL_INTERVAL) {
            cluster.poll.requests.notify_one();
        }
        true
    }

    /// While something follows jobs, every poll reads them, and wakes it.
    pub fn follow_jobs(&self, controller: &Key, follower: &Follower, follows: bool) {
        let cluster = self.cluster(controller);
        let mut followers = lock(&cluster.followers);
        if !follows {
            followers.remove(follower);
        } else if followers.insert(follower.clone()) {
            cluster.poll.request_with_jobs();
        }
    }

    /// Reads nodes and jobs from Slurm, both after this call.
    pub async fn observe(&self, controller: &Key) -> Knowledge {
        self.cluster(controller).observe(true).await
    }

    /// Sends an order for a node, if this process leads. It is carried out only if the node is in the expected state.
    pub async fn command(
        &self,
        controller: &Key,
        node: &str,
        order: &NodeOrder,
        expect: Option<&AdminState>,
    ) -> Result<(), CommandError> {
        let node = NodeName::new(node).map_err(|error| CommandError::Refused(error.to_string()))?;
        let (expect, action) = (expect.cloned(), order.clone());
        let command = NodeCommand { node, expect, action };
        self.cluster(controller).command(Order::Node(&command)).await
    }

    /// Sends an order for a job ([`slurm::Job::handle`]). It may have been carried out already.
    pub async fn command_job(&self, controller: &Key, job: &JobHandle, action: JobOrder) -> Result<(), CommandError> {
        let job = job.clone();
        let command = JobCommand { job, action };
        self.cluster(controller).command(Order::Job(&command)).await
    }

    /// Sends an order for a reservation. Slurm refuses to delete one while jobs run in it.
    pub async fn command_reservation(
        &self,
        controller: &Key,
        command: &ReservationCommand,
    ) -> Result<(), CommandError> {
        self.cluster(controller).command(Order::Reservation(command)).await
    }

    /// What the agent of this Controller last reported about keys.
    pub fn key_report(&self, controller: &Key) -> Option<KeyReport> {
        self.cluster(controller).key_report.borrow().clone()
    }

    /// Remembers a revision that is about to be sent.
    pub(crate) fn note_sent(&self, controller: &Key, sent: SentRevision) {
        lock(&self.cluster(controller).memory).revisions.note_sent(sent);
    }

    /// Remembers the manual states that Slurm has shown.
    pub(crate) fn note_manual_states(&self, controller: &Key, states: ManualStates) {
        lock(&self.cluster(controller).memory).manual_states = Some(states);
    }

    /// Remembers whether slurmctld hides records from users without privileges.
    pub(crate) fn note_hidden_records(&self, controller: &Key, hides: bool) {
        lock(&self.cluster(controller).memory).hides_records = Some(hides);
    }

    /// Publishes the reports about the Partitions of a Controller, and wakes those whose report changed.
    pub(crate) fn publish(&self, controller: &Key, reports: PartitionReports) {
        let cluster = self.cluster(controller);
        let changed = partition_reports::publish(&mut lock(&cluster.memory).partitions, reports);
        for name in changed {
            cluster.wake(Follower::Partition(Key::new(&controller.namespace, name)));
        }
    }

    /// The report about a Partition. `None` until its Controller has been reconciled with it.
    pub(crate) fn partition_report(&self, controller: &Key, partition: &str) -> Option<PartitionReport> {
        let cluster = self.cluster(controller);
        let memory = lock(&cluster.memory);
        memory.partitions.get(partition).cloned()
    }

    /// The external slurmctld of this Controller, if it is polled.
    pub(crate) fn external(&self, controller: &Key) -> Option<External> {
        self.cluster(controller).external.borrow().clone()
    }

    /// How many clusters are known.
    pub fn count(&self) -> usize {
        lock(&self.clusters).len()
    }

    /// Ends the task of a cluster whose Controller was deleted, and forgets everything about it.
    pub(crate) fn remove(&self, controller: &Key) {
        lock(&self.clusters).remove(controller);
    }

    fn cluster(&self, controller: &Key) -> Arc<Cluster> {
        let mut clusters = lock(&self.clusters);
        clusters.retain(|_, (_, task)| !task.is_finished());
        let (cluster, _) = clusters
            .entry(controller.clone())
            .or_insert_with(|| Cluster::start(controller.clone(), Arc::clone(&self.shared)));
        Arc::clone(cluster)
    }

    fn instant(&self) -> Instant {
        self.shared.clock.host().instant()
    }
}

impl Cluster {
    fn start(key: Key, shared: Arc<Shared>) -> (Arc<Self>, Task) {
        let cluster = Arc::new(Self {
            key,
            shared,
            connection: Mutex::default(),
            unanswered: Unanswered::default(),
            followers: Mutex::default(),
            poll: Poll::default(),
            key_report: watch::Sender::default(),
            delivery: Delivery::default(),
            external: watch::Sender::default(),
            memory: Mutex::default(),
        });
        let running = Arc::clone(&cluster);
        let task = cluster.host().clone().spawn("cluster", async move {
            tokio::select! {
                biased;
                () = poll::run(&running) => {}
                () = key_report::run(&running) => {}
                () = deliver::run(&running) => {}
                () = external::run(&running) => {}
            }
        });
        (cluster, task)
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    fn host(&self) -> &Host {
        self.shared.clock.host()
    }

    fn controller(&self) -> Option<Arc<Controller>> {
        let Key { namespace, name } = &self.key;
        self.shared.caches.controllers.get(namespace, name)
    }

    fn node_sets(&self) -> Vec<Arc<NodeSet>> {
        let all = self.shared.caches.node_sets.list(&self.key.namespace).into_iter();
        all.filter(|set| set.spec.controller_ref.name == self.key.name)
            .collect()
    }

    fn partitions_of(&self) -> Vec<Arc<Partition>> {
        let all = self.shared.caches.partitions.list(&self.key.namespace).into_iter();
        all.filter(|partition| partition.spec.controller_ref.name == self.key.name)
            .collect()
    }

    fn wake(&self, follower: Follower) {
        let triggers = &self.shared.triggers;
        match follower {
            Follower::Controller => triggers.wake::<Controller>(self.key.clone()),
            Follower::NodeSet(key) => triggers.wake::<NodeSet>(key),
            Follower::Partition(key) => triggers.wake::<Partition>(key),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use runtime::Signal;

    use super::*;

    /// No cluster is known.
    pub(super) fn clusters(triggers: Triggers) -> Clusters {
        Clusters::new(
            Caches::default(),
            Fence::default(),
            Clock::system(),
            triggers,
            ConfigurationMetrics::new(&mut Registry::default()),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_that_follows_jobs_is_woken_by_every_poll_without_nodesets_too() {
        let triggers = Triggers::default();
        let mut signals = triggers.listen::<Controller>();
        let clusters = clusters(triggers);
        let controller = Key::new("hpc", "slurm");
        clusters.follow_jobs(&controller, &Follower::Controller, true);
        for _ in 0..3 {
            assert!(matches!(signals.recv().await, Some(Signal::Wake(woken)) if woken == controller));
        }
        clusters.follow_jobs(&controller, &Follower::Controller, false);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let running = lock(&clusters.clusters);
        assert!(
            running[&controller].1.is_finished(),
            "a cluster without a Controller has ended"
        );
    }
}
