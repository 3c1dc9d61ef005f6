//! Carries out each order once, and gives a repeated one the same answer. Other orders are protected by the sequence of their
//! subject ([`Fences`](super::fences::Fences)); those to jobs and partitions may overtake each other, and a copy of one could
//! otherwise requeue a job again until its token expires.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use slurm::agent::Fence;
use slurm::revision::Digest;
use tokio::sync::OnceCell;

/// More than the orders that a leader sends at once.
const REMEMBERED: usize = 256;

/// The answers to the last orders.
#[derive(Debug)]
pub(super) struct Answers<T>(Mutex<Orders<T>>);

#[derive(Debug)]
struct Orders<T> {
    term: u64,
    /// The highest sequence that was forgotten. An order up to it may have been carried out.
    floor: u64,
    /// By sequence and body.
    known: BTreeMap<(u64, Digest), Arc<OnceCell<T>>>,
}

/// The order is so old that it may have been carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooOld;

impl<T> Default for Answers<T> {
    fn default() -> Self {
        Self(Mutex::new(Orders {
            term: 0,
            floor: 0,
            known: BTreeMap::new(),
        }))
    }
}

impl<T: Clone> Answers<T> {
    /// Carries out an order that was accepted, or returns the answer of the first time.
    pub(super) async fn once(&self, fence: Fence, body: Digest, order: impl Future<Output = T>) -> Result<T, TooOld> {
        let answer = self.find(fence, body)?;
        Ok(answer.get_or_init(|| order).await.clone())
    }

    fn find(&self, fence: Fence, body: Digest) -> Result<Arc<OnceCell<T>>, TooOld> {
        let mut orders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if fence.term > orders.term {
            *orders = Orders {
                term: fence.term,
                floor: 0,
                known: BTreeMap::new(),
            };
        }
        if fence.term < orders.term || fence.sequence <= orders.floor {
            return Err(TooOld);
        }
        let answer = Arc::clone(orders.known.entry((fence.sequence, body)).or_default());
        if orders.known.len() > REMEMBERED
            && let Some(((forgotten, _), _)) = orders.known.pop_first()
        {
            orders.floor = forgotten;
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn fence(term: u64, sequence: u64) -> Fence {
        Fence { term, sequence }
    }

    #[tokio::test]
    async fn a_repeated_order_is_carried_out_once_and_gets_the_same_answer() {
        let (answers, done) = (Answers::default(), AtomicU64::new(0));
        let order = |fence| {
            answers.once(fence, Digest::of(b"order"), async {
                done.fetch_add(1, Ordering::Relaxed)
            })
        };
        assert_eq!(order(fence(1, 5)).await, Ok(0));
        assert_eq!(order(fence(1, 5)).await, Ok(0));
        let other = answers.once(fence(1, 5), Digest::of(b"other"), async { 7 });
        assert_eq!(other.await, Ok(7));
        // Orders may overtake each other.
        assert_eq!(order(fence(1, 4)).await, Ok(1));
        assert_eq!(order(fence(1, 5)).await, Ok(0));
        // Another leader counts from the beginning.
        assert_eq!(order(fence(2, 5)).await, Ok(2));
        assert_eq!(order(fence(1, 6)).await, Err(TooOld));
        assert_eq!(done.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn a_forgotten_order_is_rejected() {
        let answers = Answers::default();
        let last = u64::try_from(REMEMBERED).unwrap() + 1;
        for sequence in 1..=last {
            assert_eq!(
                answers
                    .once(fence(1, sequence), Digest::of(b"order"), async { sequence })
                    .await,
                Ok(sequence)
            );
        }
        assert_eq!(
            answers.once(fence(1, 1), Digest::of(b"order"), async { 0 }).await,
            Err(TooOld)
        );
        assert_eq!(
            answers.once(fence(1, 2), Digest::of(b"order"), async { 0 }).await,
            Ok(2)
        );
        assert_eq!(answers.0.lock().unwrap().known.len(), REMEMBERED);
    }

    #[tokio::test]
    async fn a_copy_that_arrives_meanwhile_waits_for_the_first() {
        let answers = Answers::default();
        let first = answers.once(fence(1, 1), Digest::of(b"order"), async {
            tokio::task::yield_now().await;
            1
        });
        let copy = answers.once(fence(1, 1), Digest::of(b"order"), async { 2 });
        assert_eq!(tokio::join!(first, copy), (Ok(1), Ok(1)));
    }
}
