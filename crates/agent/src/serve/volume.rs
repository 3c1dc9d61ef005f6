//! Access to the state volume, which may hang: a network file system that does not respond blocks its callers for minutes or forever.
//!
//! One thread owns the [`Store`], so nothing else in `serve` can touch the volume. It does one piece of work after the other: writes
//! keep their order, and a volume that hangs holds up this one thread.
//! A caller gives up after its patience. Work that has not begun by then is dropped, except for what must happen
//! ([`Volume::ensure`]); work that has begun may still succeed later, and does so before anything that is asked for after it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::fail_point;
use crate::store::Store;

/// After this time [`Volume::wait`] reports that the volume is slow.
const SLOW: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the state volume does not answer")]
pub(super) struct NoAnswer;

type Work = Box<dyn FnOnce(&Store) + Send>;

/// A handle to the thread. Pending work is bounded: once a caller has given up, others are refused at once until the volume answers.
#[derive(Debug, Clone)]
pub(super) struct Volume {
    work: Sender<Work>,
    progress: Arc<Progress>,
}

/// While the thread works: the longest time that a caller has waited for it in vain.
#[derive(Debug, Default)]
struct Progress(Mutex<Option<Duration>>);

impl Volume {
    pub(super) fn open(store: Store) -> io::Result<Self> {
        let (sender, work) = mpsc::channel();
        let progress = Arc::new(Progress::default());
        let shared = Arc::clone(&progress);
        thread::Builder::new()
            .name("volume".to_owned())
            .spawn(move || shared.run(&store, &work))?;
        Ok(Self { work: sender, progress })
    }

    /// Fails after `patience`, and immediately if another caller has already waited that long for the current operation.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        patience: Duration,
        work: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        if self.progress.is_hung(patience) {
            return Err(NoAnswer);
        }
        let (reply, answer) = oneshot::channel();
        self.submit(move |store| {
            if !reply.is_closed() {
                fail_point::hold_volume();
                let _ = reply.send(work(store));
            }
        });
        self.await_answer(patience, answer).await
    }

    /// The same for work that must happen: it is done in its turn even if the caller has given up.
    pub(super) async fn ensure<T: Send + 'static>(
        &self,
        patience: Duration,
        work: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let answer = self.begin(work);
        if self.progress.is_hung(patience) {
            return Err(NoAnswer);
        }
        self.await_answer(patience, answer).await
    }

    /// Waits as long as it takes, and calls `slow` once if that is long.
    pub(super) async fn wait<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> T + Send + 'static,
        slow: impl FnOnce(),
    ) -> Result<T, NoAnswer> {
        let mut answer = self.begin(work);
        let patience = if self.progress.is_hung(SLOW) {
            Duration::ZERO
        } else {
            SLOW
        };
        let answered = if let Ok(answered) = timeout(patience, &mut answer).await {
            answered
        } else {
            self.progress.give_up(SLOW);
            slow();
            answer.await
        };
        answered.map_err(|_| NoAnswer)
    }

    fn begin<T: Send + 'static>(&self, work: impl FnOnce(&Store) -> T + Send + 'static) -> oneshot::Receiver<T> {
        let (reply, answer) = oneshot::channel();
        self.submit(move |store| {
            fail_point::hold_volume();
            let _ = reply.send(work(store));
        });
        answer
    }

    fn submit(&self, work: impl FnOnce(&Store) + Send + 'static) {
        // The thread ends after us.
        let _ = self.work.send(Box::new(work));
    }

    async fn await_answer<T>(&self, patience: Duration, mut answer: oneshot::Receiver<T>) -> Result<T, NoAnswer> {
        let answered = if let Ok(answered) = timeout(patience, &mut answer).await {
            answered.ok()
        } else {
            // After this the thread knows that nobody waits; an answer of the last moment counts.
            answer.close();
            answer.try_recv().ok()
        };
        if answered.is_none() {
            self.progress.give_up(patience);
        }
        answered.ok_or(NoAnswer)
    }
}

impl Progress {
    fn run(&self, store: &Store, all: &Receiver<Work>) {
        for work in all {
            *self.lock() = Some(Duration::ZERO);
            // The panic is in the log, and whoever waits hears that there is no answer.
            let _ = catch_unwind(AssertUnwindSafe(|| work(store)));
            if self.lock().take().is_some_and(|in_vain| !in_vain.is_zero()) {
                info!("the state volume answers again");
            }
        }
    }

    fn is_hung(&self, patience: Duration) -> bool {
        self.lock().is_some_and(|in_vain| in_vain >= patience)
    }

    fn give_up(&self, waited: Duration) {
        let mut progress = self.lock();
        if let Some(in_vain) = progress.as_mut() {
            if in_vain.is_zero() {
                warn!(?waited, "the state volume does not answer");
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
    use std::time::Instant;

    use slurm::revision::ControllerUid;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(200);

    fn volume() -> Volume {
        let controller = ControllerUid::new("a").unwrap();
        Volume::open(Store::new(std::path::Path::new("/nowhere"), &controller)).unwrap()
    }

    /// Work that lasts until the sender is dropped.
    fn hang(volume: &Volume) -> Sender<()> {
        let (release, held) = mpsc::channel();
        drop(volume.begin(move |_| held.recv()));
        release
    }

    #[tokio::test]
    async fn a_caller_gives_up_in_time_and_the_next_at_once() {
        let volume = volume();
        let release = hang(&volume);
        assert_eq!(volume.run(PATIENCE, |_| ()).await, Err(NoAnswer));
        let begun = Instant::now();
        for _ in 0..1000 {
            assert_eq!(volume.run(PATIENCE, |_| ()).await, Err(NoAnswer));
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        drop(release);
        assert_eq!(volume.wait(|_| 1, || {}).await, Ok(1));
        assert_eq!(volume.run(PATIENCE, |_| 2).await, Ok(2));
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
        assert_eq!(volume.run(PATIENCE, add(1)).await, Err(NoAnswer));
        assert_eq!(volume.ensure(PATIENCE, add(10)).await, Err(NoAnswer));
        drop(release);
        assert_eq!(volume.wait(|_| (), || {}).await, Ok(()));
        assert_eq!(done.load(Ordering::SeqCst), 10);
    }

    #[tokio::test]
    async fn who_is_more_patient_waits_longer() {
        let volume = volume();
        let release = hang(&volume);
        assert_eq!(volume.run(PATIENCE, |_| ()).await, Err(NoAnswer));
        let patient = volume.run(Duration::from_secs(20), |_| 1);
        let (answer, ()) = tokio::join!(patient, async {
            tokio::time::sleep(PATIENCE).await;
            drop(release);
        });
        assert_eq!(answer, Ok(1));
    }

    #[tokio::test]
    async fn work_that_panics_holds_up_nobody() {
        let volume = volume();
        assert_eq!(
            volume.run(PATIENCE, |_| panic!("as the test wants it")).await,
            Err::<(), _>(NoAnswer)
        );
        assert_eq!(volume.run(PATIENCE, |_| 1).await, Ok(1));
    }
}
