//! One kind's loop: hears of changes, and reconciles what they concern.

use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tokio::{
    task::{Id, JoinError, JoinSet},
    time::{Instant, sleep_until, timeout},
};
use tracing::Instrument;

use super::{
    Caches, Change, Error, Inbox, Key, Metrics, Outcome, Reconciler,
    gate::Journal,
    health::{Health, TURN},
    hub::{Hub, Signal},
    queue::Queue,
    stop::Stop,
};

/// A reconcile talks to one API server and one Slurm, whose own limits are far below this.
const DEADLINE: Duration = Duration::from_mins(1);
/// Objects of one kind in work at once. One that waits for a silent Slurm must not hold up the others; all of them
/// together must not flood the API server.
const AT_ONCE: usize = 32;
/// A watch brings a write back within milliseconds.
const READ_OWN_WRITES: Duration = Duration::from_secs(2);
/// Against what nobody thought of, everything is looked at this often…
const RESYNC: Duration = Duration::from_mins(10);
/// …over this time, not all at once.
const RESYNC_SPREAD: Duration = Duration::from_mins(1);
/// Within the 30 s a pod is given to end, with time left to hand over the lease.
const FINISH: Duration = Duration::from_secs(20);

/// What a kind's loop works with.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) caches: Caches,
    pub(super) hub: Hub,
    pub(super) inbox: Inbox,
    pub(super) metrics: Metrics,
    pub(super) health: Health,
}

/// Runs the kind until it is to stop, then lets what is under way come to its end.
pub(super) async fn work<R: Reconciler>(reconciler: Arc<R>, mut desk: Desk, mut stop: Stop) {
    // First listen, then look: what changes in between is seen twice, not never.
    let mut signals = desk.hub.listen();
    let mut work = Work::new(reconciler, desk.caches.clone(), desk.metrics.clone());
    work.hear(&Signal::Everything);
    let mut resync = Instant::now() + RESYNC;
    while !stop.is_requested() {
        desk.health.turned(R::NAME);
        work.start_what_can();
        let turn = Instant::now() + TURN;
        let wake = work.next_due().into_iter().chain([turn, resync]).min().unwrap_or(turn);
        tokio::select! {
            () = stop.requested() => break,
            Some(signal) = signals.recv() => {
                work.hear(&signal);
                // A burst of changes becomes one set of keys before anything runs.
                while let Ok(signal) = signals.try_recv() {
                    work.hear(&signal);
                }
            }
            Some(key) = desk.inbox.recv() => work.queue.add(key),
            Some(ended) = work.running.join_next_with_id() => work.ended(ended),
            () = sleep_until(wake) => {}
        }
        if Instant::now() >= resync {
            resync = Instant::now() + RESYNC;
            work.look_at_everything_again();
        }
    }
    work.come_to_an_end().await;
    desk.health.ended(R::NAME);
}

struct Work<R> {
    reconciler: Arc<R>,
    caches: Caches,
    metrics: Metrics,
    queue: Queue,
    running: JoinSet<Result<Outcome, Error>>,
    jobs: HashMap<Id, Job>,
    /// Writes that the caches may not hold yet, by the object whose reconcile made them.
    written: HashMap<Key, Journal>,
}

struct Job {
    key: Key,
    journal: Journal,
    started: Instant,
}

impl<R: Reconciler> Work<R> {
    fn new(reconciler: Arc<R>, caches: Caches, metrics: Metrics) -> Self {
        Self {
            reconciler,
            caches,
            metrics,
            queue: Queue::default(),
            running: JoinSet::new(),
            jobs: HashMap::new(),
            written: HashMap::new(),
        }
    }

    fn hear(&mut self, signal: &Signal) {
        match signal {
            Signal::Change(change) => {
                for key in self.interested(change) {
                    self.queue.add(key);
                }
            }
            Signal::Everything => {
                for change in self.caches.clone().appearances() {
                    for key in self.interested(&change) {
                        self.queue.add(key);
                    }
                }
            }
        }
    }

    fn look_at_everything_again(&mut self) {
        let now = Instant::now();
        for change in self.caches.clone().appearances() {
            for key in self.interested(&change) {
                self.queue.add_at(key, now + RESYNC_SPREAD.mul_f64(fastrand::f64()));
            }
        }
    }

    /// A defect in a kind must not end its loop.
    fn interested(&self, change: &Change) -> Vec<Key> {
        catch_unwind(AssertUnwindSafe(|| self.reconciler.interested(change, &self.caches))).unwrap_or_else(|panic| {
            tracing::error!(
                kind = R::NAME,
                error = words_of(panic.as_ref()),
                "Change not understood"
            );
            Vec::new()
        })
    }

    fn next_due(&self) -> Option<Instant> {
        // With all hands full nothing can be started before something ends.
        (self.jobs.len() < AT_ONCE).then(|| self.queue.next_due()).flatten()
    }

    fn start_what_can(&mut self) {
        while self.jobs.len() < AT_ONCE {
            let Some(key) = self.queue.take(Instant::now()) else {
                break;
            };
            self.start(key);
        }
        self.metrics.queue(R::NAME, self.queue.depth(), self.jobs.len());
    }

    fn start(&mut self, key: Key) {
        let journal = Journal::default();
        let span = tracing::info_span!("reconcile", kind = R::NAME, object = %key);
        let (reconciler, before) = (Arc::clone(&self.reconciler), self.written.remove(&key));
        let (object, own) = (key.clone(), journal.clone());
        let reconcile = async move {
            if let Some(before) = before
                && !before.settled(READ_OWN_WRITES).await
            {
                tracing::debug!("The watch has not brought back the last writes yet");
            }
            timeout(DEADLINE, own.note(reconciler.reconcile(&object)))
                .await
                .unwrap_or(Err(Error::Deadline(DEADLINE)))
        };
        let task = self.running.spawn(reconcile.instrument(span));
        let started = Instant::now();
        self.jobs.insert(task.id(), Job { key, journal, started });
    }

    fn ended(&mut self, ended: Result<(Id, Result<Outcome, Error>), JoinError>) {
        let (id, result) = match ended {
            Ok((id, result)) => (id, result),
            Err(error) => (error.id(), Err(defect(error))),
        };
        let Some(Job { key, journal, started }) = self.jobs.remove(&id) else {
            return;
        };
        let now = Instant::now();
        let word = match result {
            Ok(outcome) => {
                let word = outcome.state.label();
                tracing::debug!(kind = R::NAME, object = %key, outcome = word, state = ?outcome.state, "Reconciled");
                self.queue.finish(&key, outcome.requeue, now);
                word
            }
            Err(error) => {
                let again_in = self.queue.fail(&key, now, fastrand::f64());
                match &error {
                    // Somebody was faster: that is how writers share an object.
                    Error::Conflict { .. } => {
                        tracing::debug!(kind = R::NAME, object = %key, %error, "Reconcile overtaken");
                    }
                    Error::Leftover { .. } => {
                        tracing::info!(kind = R::NAME, object = %key, %error, "Reconcile waits");
                    }
                    error => tracing::warn!(kind = R::NAME, object = %key, %error, ?again_in, "Reconcile failed"),
                }
                error.label()
            }
        };
        self.metrics
            .reconciled(R::NAME, word, now.duration_since(started).as_secs_f64());
        if !journal.is_empty() {
            self.written.insert(key, journal);
        }
    }

    async fn come_to_an_end(mut self) {
        let all = async {
            while let Some(ended) = self.running.join_next_with_id().await {
                self.ended(ended);
            }
        };
        if timeout(FINISH, all).await.is_err() {
            tracing::warn!(
                kind = R::NAME,
                reconciles = self.jobs.len(),
                "Given up on reconciles that do not end"
            );
        }
    }
}

fn defect(error: JoinError) -> Error {
    match error.try_into_panic() {
        Ok(panic) => Error::Panic(words_of(panic.as_ref()).to_owned()),
        Err(error) => Error::other(error),
    }
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a word")
}

#[cfg(test)]
mod tests;
