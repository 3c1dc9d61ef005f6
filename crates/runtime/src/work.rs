//! The loop of one kind: receives changes and reconciles the objects that they affect.

use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::FutureExt as _;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    Change, Context, Error, Key, Outcome, Reconciler, Signal,
    gate::Journal,
    health::TURN,
    metrics::{number, of_kind},
    queue::Queue,
};

/// Far above the timeouts of the requests in a reconcile.
const DEADLINE: Duration = Duration::from_mins(1);
/// Concurrent reconciles of one kind. One that waits for a cluster that does not respond must not delay the others; all of
/// them together must not flood the API server.
const AT_ONCE: usize = 32;
/// A watch delivers a write within milliseconds.
const READ_OWN_WRITES: Duration = Duration::from_secs(2);
/// Every object is reconciled at least this often, in case a change was missed…
const RESYNC: Duration = Duration::from_mins(10);
/// …spread over this time.
const RESYNC_SPREAD: Duration = Duration::from_mins(1);
/// Below a pod's grace period of 30 s, with time left to release the lease.
const FINISH: Duration = Duration::from_secs(20);

/// Runs the kind until the stop is requested, then waits for running reconciles.
pub(crate) async fn work<R: Reconciler>(reconciler: R, context: Context, stop: CancellationToken) {
    // Listen first, then list: a change in between is seen twice instead of never.
    let mut signals = context.triggers.listen::<R::Object>();
    let health = context.health.clone();
    let remembered = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&remembered);
    let memory = format!("queue of {}", R::NAME);
    context.memories.add(memory, move || counted.load(Ordering::Relaxed));
    let mut work = Work {
        reconciler: Arc::new(reconciler),
        context,
        queue: Queue::default(),
        running: JoinSet::new(),
        written: HashMap::new(),
        remembered,
    };
    work.handle(Signal::Everything);
    let mut resync = work.instant() + RESYNC;
    while !stop.is_cancelled() {
        health.turned(R::NAME);
        work.start_ready();
        let turn = work.instant() + TURN;
        // At the limit nothing can start before a reconcile ends.
        let due = work.queue.next_due().filter(|_| work.running.len() < AT_ONCE);
        let wake = due.unwrap_or(turn).min(turn).min(resync);
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(signal) = signals.recv() => {
                work.handle(signal);
                // A burst of changes becomes one set of keys before a reconcile starts.
                while let Ok(signal) = signals.try_recv() {
                    work.handle(signal);
                }
            }
            Some(Ok(ended)) = work.running.join_next() => work.ended(ended),
            () = sleep_until(wake) => {}
        }
        if work.instant() >= resync {
            resync = work.instant() + RESYNC;
            work.resync();
        }
    }
    work.finish().await;
    health.ended(R::NAME);
}

struct Work<R> {
    reconciler: Arc<R>,
    context: Context,
    queue: Queue,
    running: JoinSet<Ended>,
    /// Writes that the caches may not hold yet, by the reconciled object.
    written: HashMap<Key, Journal>,
    /// How many objects the queue and the journals know.
    remembered: Arc<AtomicUsize>,
}

/// A reconcile that has ended: of which object, with its writes, its start and its result.
type Ended = (Key, Journal, Instant, Result<Outcome, Error>);

impl<R: Reconciler> Work<R> {
    fn instant(&self) -> Instant {
        self.context.clock.host().instant()
    }

    fn jitter(&self) -> f64 {
        self.context.clock.host().random().fraction()
    }

    fn handle(&mut self, signal: Signal) {
        let keys = match signal {
            Signal::Change(change) => self.interested(&change),
            Signal::Everything => self.everything(),
            Signal::Wake(key) => vec![key],
        };
        let now = self.instant();
        for key in keys {
            self.queue.add(key, now);
        }
    }

    fn resync(&mut self) {
        let now = self.instant();
        for key in self.everything() {
            self.queue.add(key, now + RESYNC_SPREAD.mul_f64(self.jitter()));
        }
    }

    fn everything(&self) -> Vec<Key> {
        let changes = self.context.registry.appearances();
        changes.flat_map(|change| self.interested(&change)).collect()
    }

    /// The objects to reconcile after a change. A panic in a kind must not end its loop.
    fn interested(&self, change: &Change) -> Vec<Key> {
        catch_unwind(AssertUnwindSafe(|| self.reconciler.interested(change))).unwrap_or_else(|panic| {
            let error = message_of(panic.as_ref());
            tracing::error!(kind = R::NAME, error, "panicked on a change");
            Vec::new()
        })
    }

    fn start_ready(&mut self) {
        while self.running.len() < AT_ONCE {
            let Some(key) = self.queue.take(self.instant()) else {
                break;
            };
            self.start(key);
        }
        let remembered = self.queue.len() + self.written.len();
        self.remembered.store(remembered, Ordering::Relaxed);
        let (metrics, kind) = (&self.context.metrics, of_kind(R::NAME));
        let depth = self.queue.depth(self.instant());
        metrics.depth.get_or_create(&kind).set(number(depth));
        metrics.running.get_or_create(&kind).set(number(self.running.len()));
    }

    fn start(&mut self, key: Key) {
        let span = tracing::info_span!("reconcile", kind = R::NAME, object = %key);
        let (reconciler, before) = (Arc::clone(&self.reconciler), self.written.remove(&key));
        let (journal, started) = (Journal::default(), self.instant());
        let reconcile = async move {
            if let Some(before) = before
                && !before.settled(READ_OWN_WRITES).await
            {
                tracing::debug!("the watch has not delivered the last writes yet");
            }
            let reconcile = AssertUnwindSafe(journal.clone().record(reconciler.reconcile(&key))).catch_unwind();
            let result = match timeout(DEADLINE, reconcile).await {
                Ok(Ok(result)) => result,
                Ok(Err(panic)) => Err(Error::Panic(message_of(panic.as_ref()).to_owned())),
                Err(_) => Err(Error::Deadline(DEADLINE)),
            };
            (key, journal, started, result)
        };
        let reconcile = self.context.clock.host().paced(reconcile);
        self.running.spawn(reconcile.instrument(span));
    }

    fn ended(&mut self, (key, journal, started, result): Ended) {
        let now = self.instant();
        let label = match result {
            Ok(outcome) => {
                let label = outcome.state.label();
                tracing::debug!(kind = R::NAME, object = %key, outcome = label, state = ?outcome.state, "reconciled");
                self.queue.finish(&key, outcome.requeue, now);
                label
            }
            Err(error) => {
                let retry_in = self.queue.fail(&key, now, self.jitter());
                match &error {
                    // Expected where several writers share an object.
                    Error::Conflict { .. } => {
                        tracing::debug!(kind = R::NAME, object = %key, %error, "reconcile conflicted with another writer");
                    }
                    Error::Leftover { .. } => {
                        tracing::info!(kind = R::NAME, object = %key, %error, "reconcile waits");
                    }
                    error => tracing::warn!(kind = R::NAME, object = %key, %error, ?retry_in, "reconcile failed"),
                }
                error.label()
            }
        };
        let seconds = now.duration_since(started).as_secs_f64();
        self.context.metrics.reconciled(R::NAME, label, seconds);
        if !journal.is_empty() {
            self.written.insert(key, journal);
        }
    }

    async fn finish(mut self) {
        let all = async {
            while let Some(ended) = self.running.join_next().await {
                if let Ok(ended) = ended {
                    self.ended(ended);
                }
            }
        };
        if timeout(FINISH, all).await.is_err() {
            let reconciles = self.running.len();
            tracing::warn!(kind = R::NAME, reconciles, "abandoning reconciles that do not end");
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests;
