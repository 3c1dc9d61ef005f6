//! How the operator reaches one cluster's Slurm: through slurmrestd where the cluster has a RestApi, else through the agent
//! beside its slurmctld. Both give the same answers.
//!
//! Each cluster is asked by a task of its own, so that one that hangs delays no other. What it answered last is at hand
//! at once ([`Access::knowledge`]); what decides over a deletion is asked for again ([`Access::observe`]).

mod beginnings;
mod connection;
mod deadlines;
mod followers;
mod keys;
mod knowledge;
pub mod load;
mod poller;
mod route;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use slurm::{AdminState, JobHandle, Reservation, ReservationName, ReservationRequest, agent::Restored, rest};

pub use self::{
    beginnings::Beginnings,
    connection::{CommandError, JobOrder, NodeOrder},
    deadlines::Deadlines,
    followers::Follower,
    keys::KeyReport,
    knowledge::{Knowledge, Seen},
};
use self::{
    connection::{Connections, Order, Unanswered},
    followers::Followers,
    poller::Poller,
};
use crate::runtime::{Caches, Clock, Fence, Key, Triggers};

/// A poller looks at least every five seconds and gives up on a look after twenty: what is older than this is no longer
/// knowledge.
const OLDEST: Duration = Duration::from_secs(30);

/// Between two looks that are asked for.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// The ways to all clusters' Slurm.
#[derive(Debug)]
pub struct Access {
    shared: Arc<Shared>,
    pollers: Mutex<HashMap<Key, Poller>>,
}

#[derive(Debug)]
struct Shared {
    caches: Caches,
    fence: Fence,
    clock: Clock,
    /// Into the queues of those who wait for news.
    triggers: Triggers,
    connections: Connections,
    unanswered: Unanswered,
    followers: Followers,
}

/// For tests of a kind alone: no cluster is known.
impl Default for Access {
    fn default() -> Self {
        Self::new(
            Caches::default(),
            Fence::default(),
            Clock::system(),
            Triggers::default(),
        )
    }
}

impl Access {
    /// `triggers` are told of NodeSets whose nodes have changed in Slurm, and of all who follow jobs.
    pub fn new(caches: Caches, fence: Fence, clock: Clock, triggers: Triggers) -> Self {
        Self {
            shared: Arc::new(Shared {
                caches,
                fence,
                clock,
                triggers,
                connections: Connections::default(),
                unanswered: Unanswered::default(),
                followers: Followers::default(),
            }),
            pollers: Mutex::default(),
        }
    }

    /// What the cluster of this Controller answered last. It begins to be asked from now on, until no NodeSet refers to
    /// the Controller any more and nobody follows its jobs.
    pub fn knowledge(&self, controller: &Key) -> Knowledge {
        let knowledge = self.poller(controller, Poller::latest);
        match knowledge {
            Knowledge::Known(seen) if self.age(&seen) > OLDEST => {
                Knowledge::unknown(format!("Slurm has not answered for more than {} s", OLDEST.as_secs()))
            }
            knowledge => knowledge,
        }
    }

    /// The same, but a cluster that has just begun to be asked is given this long for its first answer.
    pub async fn knowledge_within(&self, controller: &Key, patience: Duration) -> Knowledge {
        let mut first_look = self.poller(controller, Poller::looks);
        // Who has no answer by then has none: that is what the next line says.
        drop(tokio::time::timeout(patience, first_look.wait_for(Option::is_some)).await);
        self.knowledge(controller)
    }

    /// Has the cluster looked at now rather than in a few seconds, and waits this long for what is seen. After a command
    /// the next decision is then not made on how things were before it.
    pub async fn look_now(&self, controller: &Key, patience: Duration) {
        let begin = self.shared.clock.now();
        let mut looks = self.poller(controller, Poller::looks);
        looks.mark_unchanged();
        self.poller(controller, Poller::wake);
        let is_new = |latest: &Option<Knowledge>| match latest {
            Some(Knowledge::Known(seen)) => seen.at >= begin,
            Some(Knowledge::Unknown { .. }) => true,
            None => false,
        };
        let looked = async {
            while looks.changed().await.is_ok() {
                if is_new(&looks.borrow_and_update()) {
                    return;
                }
            }
        };
        // Without an answer in time the next reconcile sees what there is.
        drop(tokio::time::timeout(patience, looked).await);
    }

    /// Has the cluster looked at now rather than in a few seconds, and does not wait for it. Not if Slurm did not answer last time, which
    /// asking more often does not help: the result says so. Nor if the last look is from just now: many may ask.
    pub fn look_soon(&self, controller: &Key) -> bool {
        let Knowledge::Known(seen) = self.knowledge(controller) else {
            return false;
        };
        if self.age(&seen) >= BETWEEN_LOOKS {
            self.poller(controller, Poller::look);
        }
        true
    }

    /// Says whether somebody waits for the end of jobs. While one does, its cluster's jobs are read at every look and it
    /// is told of each.
    pub fn follow_jobs(&self, controller: &Key, follower: &Follower, follows: bool) {
        if self.shared.followers.set(controller, follower, follows) {
            self.poller(controller, Poller::wake);
        }
    }

    /// Asks the cluster for nodes and jobs, both after this call.
    pub async fn observe(&self, controller: &Key) -> Knowledge {
        self.shared.observe(controller, true).await
    }

    /// Tells the cluster what to do with a node, if it is still in the state the order was planned on. Nothing is sent by a
    /// process that does not lead (any more).
    pub async fn command(
        &self,
        controller: &Key,
        node: &str,
        order: &NodeOrder,
        expect: Option<&AdminState>,
    ) -> Result<(), CommandError> {
        self.shared.command(controller, Order::Node(node, order, expect)).await
    }

    /// Tells the cluster what to do with a job ([`slurm::Job::handle`]). It may have been obeyed already.
    pub async fn command_job(&self, controller: &Key, job: &JobHandle, order: JobOrder) -> Result<(), CommandError> {
        self.shared.command(controller, Order::Job(job, order)).await
    }

    /// Has slurmctld told again what its files say for these keys of a partition.
    pub async fn restore_partition(
        &self,
        controller: &Key,
        partition: &str,
        keys: &[String],
    ) -> Result<Restored, CommandError> {
        self.shared.restore_partition(controller, partition, keys).await
    }

    /// The cluster's slurmrestd, for who has to be told there by nobody else. Fenced by whoever uses it.
    pub(crate) fn slurmrestd(&self, controller: &Key) -> Result<Arc<rest::Client>, String> {
        self.shared.slurmrestd(controller)
    }

    /// Why slurmdbd gives no answer out of its database, asked for now. `None` also where Slurm itself cannot be asked,
    /// which says nothing about the database.
    pub async fn database_trouble(&self, controller: &Key) -> Option<String> {
        self.knowledge(controller).known()?;
        self.shared.database_trouble(controller).await
    }

    /// What the agent of this Controller said last about keys, if it said something. Asked for as [`knowledge`](Self::knowledge) is.
    pub fn key_report(&self, controller: &Key) -> Option<KeyReport> {
        self.poller(controller, Poller::key_report)
    }

    /// All reservations of the cluster, asked for now; or why they are not known.
    pub async fn reservations(&self, controller: &Key) -> Result<Vec<Reservation>, String> {
        self.shared.reservations(controller).await
    }

    /// Changes the reservation of that name, or makes it.
    pub async fn reserve(&self, controller: &Key, request: &ReservationRequest) -> Result<(), CommandError> {
        self.shared.command(controller, Order::Reserve(request)).await
    }

    /// Removes a reservation. Slurm refuses while jobs run in it.
    pub async fn unreserve(&self, controller: &Key, name: &ReservationName) -> Result<(), CommandError> {
        self.shared.command(controller, Order::Unreserve(name)).await
    }

    fn poller<T>(&self, controller: &Key, ask: impl FnOnce(&Poller) -> T) -> T {
        let mut pollers = self.pollers.lock().unwrap_or_else(PoisonError::into_inner);
        pollers.retain(|_, poller| !poller.is_done());
        let poller = pollers
            .entry(controller.clone())
            .or_insert_with(|| Poller::start(controller.clone(), &self.shared));
        ask(poller)
    }

    fn age(&self, seen: &Seen) -> Duration {
        Duration::try_from(self.shared.clock.now().duration_since(seen.at)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_controller_that_follows_jobs_is_told_of_every_look_without_nodesets_too() {
        let triggers = Triggers::default();
        let mut inbox = triggers.inbox::<api::Controller>();
        let access = Access::new(Caches::default(), Fence::default(), Clock::system(), triggers);
        let controller = Key::new("hpc", "slurm");
        access.follow_jobs(&controller, &Follower::Controller, true);
        for _ in 0..3 {
            assert_eq!(inbox.recv().await, Some(controller.clone()));
        }
        access.follow_jobs(&controller, &Follower::Controller, false);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(
            access.poller(&controller, Poller::looks).borrow().is_none(),
            "it has ended"
        );
    }
}
