//! Access to the state volume, which may hang: a network file system that does not respond blocks its callers for minutes or
//! forever.
//!
//! One thread owns the [`Store`], so nothing else in `serve` accesses the volume. It does one piece of work after the other:
//! writes keep their order, and a hung volume blocks this one thread.
//! A caller gives up after its timeout. Work that has not begun by then is dropped, except for work that must happen
//! ([`Volume::ensure`]); work that has begun may still succeed later, before any work that is submitted after it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use host::Worker;
use thiserror::Error;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::fail_point;
use crate::store::Store;

/// After this time [`Volume::wait`] reports that the volume is slow.
const SLOW: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the state volume does not respond")]
pub(super) struct Unresponsive;

/// A handle to the thread. Pending work is bounded: once a caller has given up, others fail at once until the volume responds.
#[derive(Debug, Clone)]
pub(super) struct Volume {
    worker: Worker,
    store: Arc<Store>,
    progress: Arc<Progress>,
}

/// While the thread works: the longest time that a caller has waited before it gave up.
#[derive(Debug, Default)]
struct Progress(Mutex<Option<Duration>>);

impl Volume {
    pub(super) fn open(store: Store) -> io::Result<Self> {
        let worker = store.host().worker("volume")?;
        Ok(Self {
            worker,
            store: Arc::new(store),
            progress: Arc::default(),
        })
    }

    /// Fails after `limit`, and at once if another caller has already waited that long for the current operation.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> Result<T, Unresponsive> {
        if self.progress.is_hung(limit) {
            return Err(Unresponsive);
        }
        self.await_response(limit, self.submit(false, work)).await
    }

    /// The same for work that must happen: it is done in its turn even if the caller has given up.
    pub(super) async fn ensure<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> Result<T, Unresponsive> {
        let response = self.submit(true, work);
        if self.progress.is_hung(limit) {
            return Err(Unresponsive);
        }
        self.await_response(limit, response).await
    }

    /// Waits without a limit, and calls `slow` once if that takes long.
    pub(super) async fn wait<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> T + Send + 'static,
        slow: impl FnOnce(),
    ) -> Result<T, Unresponsive> {
        let mut response = self.submit(true, work);
        let limit = if self.progress.is_hung(SLOW) {
            Duration::ZERO
        } else {
            SLOW
        };
        let done = if let Ok(done) = timeout(limit, &mut response).await {
            done
        } else {
            self.progress.give_up(SLOW);
            slow();
            response.await
        };
        done.map_err(|_| Unresponsive)
    }

    /// Work that need not happen is dropped if its caller has given up before it begins.
    fn submit<T: Send + 'static>(
        &self,
        must_happen: bool,
        work: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (reply, response) = oneshot::channel();
        let work = move |store: &Store| {
            if must_happen || !reply.is_closed() {
                fail_point::hold_volume(store.host());
                let _ = reply.send(work(store));
            }
        };
        let (progress, store) = (Arc::clone(&self.progress), Arc::clone(&self.store));
        self.worker.submit(move || progress.run(|| work(&store)));
        response
    }

    async fn await_response<T>(&self, limit: Duration, mut response: oneshot::Receiver<T>) -> Result<T, Unresponsive> {
        let done = if let Ok(done) = timeout(limit, &mut response).await {
            done.ok()
        } else {
            // From here on the thread drops the work; a response of the last moment counts.
            response.close();
            response.try_recv().ok()
        };
        if done.is_none() {
            self.progress.give_up(limit);
        }
        done.ok_or(Unresponsive)
    }
}

impl Progress {
    fn run(&self, work: impl FnOnce()) {
        *self.lock() = Some(Duration::ZERO);
        // The panic is in the log, and the caller gets an error.
        let _ = catch_unwind(AssertUnwindSafe(work));
        if self.lock().take().is_some_and(|in_vain| !in_vain.is_zero()) {
            info!("the state volume responds again");
        }
    }

    fn is_hung(&self, limit: Duration) -> bool {
        self.lock().is_some_and(|in_vain| in_vain >= limit)
    }

    fn give_up(&self, waited: Duration) {
        let mut progress = self.lock();
        if let Some(in_vain) = progress.as_mut() {
            if in_vain.is_zero() {
                warn!(?waited, "the state volume does not respond");
            }
            *in_vain = waited.max(*in_vain);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Duration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{self, Sender};
    use std::time::Instant;

    use slurm::revision::ControllerUid;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(200);

    fn volume() -> Volume {
        let controller = ControllerUid::new("a").unwrap();
        Volume::open(Store::new(
            &host::Host::real(),
            std::path::Path::new("/nowhere"),
            &controller,
        ))
        .unwrap()
    }

    /// Work that lasts until the sender is dropped.
    fn hang(volume: &Volume) -> Sender<()> {
        let (release, held) = mpsc::channel();
        drop(volume.submit(true, move |_| held.recv()));
        release
    }

    #[tokio::test]
    async fn a_caller_gives_up_in_time_and_the_next_at_once() {
        let volume = volume();
        let release = hang(&volume);
        assert_eq!(volume.run(LIMIT, |_| ()).await, Err(Unresponsive));
        let start = Instant::now();
        for _ in 0..1000 {
            assert_eq!(volume.run(LIMIT, |_| ()).await, Err(Unresponsive));
        }
        assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
        drop(release);
        assert_eq!(volume.wait(|_| 1, || {}).await, Ok(1));
        assert_eq!(volume.run(LIMIT, |_| 2).await, Ok(2));
    }

    #[tokio::test]
    async fn work_that_had_not_begun_is_dropped_unless_it_must_happen() {
        let volume = volume();
        let release = hang(&volume);
        let done = Arc::new(AtomicUsize::new(0));
        let add = |amount| {
            let done = Arc::clone(&done);
            move |_: &Store| done.fetch_add(amount, Ordering::SeqCst)
        };
        assert_eq!(volume.run(LIMIT, add(1)).await, Err(Unresponsive));
        assert_eq!(volume.ensure(LIMIT, add(10)).await, Err(Unresponsive));
        drop(release);
        assert_eq!(volume.wait(|_| (), || {}).await, Ok(()));
        assert_eq!(done.load(Ordering::SeqCst), 10);
    }

    #[tokio::test]
    async fn a_caller_with_a_longer_timeout_waits_longer() {
        let volume = volume();
        let release = hang(&volume);
        assert_eq!(volume.run(LIMIT, |_| ()).await, Err(Unresponsive));
        let patient = volume.run(Duration::from_secs(20), |_| 1);
        let (answer, ()) = tokio::join!(patient, async {
            tokio::time::sleep(LIMIT).await;
            drop(release);
        });
        assert_eq!(answer, Ok(1));
    }

    #[tokio::test]
    async fn work_that_panics_does_not_block_other_work() {
        let volume = volume();
        assert_eq!(
            volume.run(LIMIT, |_| panic!("as the test wants it")).await,
            Err::<(), _>(Unresponsive)
        );
        // The thread may still be writing the backtrace of the panic.
        assert_eq!(volume.wait(|_| 1, || {}).await, Ok(1));
    }
}
