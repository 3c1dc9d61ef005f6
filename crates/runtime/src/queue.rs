//! The order in which objects are reconciled. Pure: the caller passes the time.
//!
//! A key waits once, however often it is added. It never runs twice at the same time: a key that is added while it runs
//! runs once more afterwards.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::{Key, backoff::Backoff};

/// The keys of one kind.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The keys of `waiting` in the order they were added.
    order: VecDeque<Key>,
    waiting: HashSet<Key>,
    /// By time, then by key.
    later: BTreeSet<(Instant, Key)>,
    /// When a key of `later` is due.
    due: HashMap<Key, Instant>,
    running: HashSet<Key>,
    /// Added while running.
    again: HashSet<Key>,
    backoffs: HashMap<Key, Backoff>,
}

impl Queue {
    /// Queues a key as soon as possible. This replaces a scheduled time: the reconcile returns the next one.
    pub(crate) fn add(&mut self, key: Key) {
        if self.running.contains(&key) {
            self.again.insert(key);
        } else if self.waiting.insert(key.clone()) {
            self.cancel(&key);
            self.order.push_back(key);
        }
    }

    /// Schedules a key, unless it is due earlier anyway.
    pub(crate) fn add_at(&mut self, key: Key, at: Instant) {
        if self.waiting.contains(&key) || self.again.contains(&key) || self.due.get(&key).is_some_and(|due| *due <= at)
        {
            return;
        }
        self.cancel(&key);
        self.due.insert(key.clone(), at);
        self.later.insert((at, key));
    }

    /// Takes the next key, which counts as running until [`Queue::finish`] or [`Queue::fail`].
    pub(crate) fn take(&mut self, now: Instant) -> Option<Key> {
        while self.later.first().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, key)) = self.later.pop_first() {
                self.due.remove(&key);
                self.add(key);
            }
        }
        let key = self.order.pop_front()?;
        self.waiting.remove(&key);
        self.running.insert(key.clone());
        Some(key)
    }

    /// Records a success.
    pub(crate) fn finish(&mut self, key: &Key, requeue: Option<Duration>, now: Instant) {
        self.backoffs.remove(key);
        self.ended(key, requeue.map(|after| now + after));
    }

    /// Records a failure and returns how long the key waits.
    pub(crate) fn fail(&mut self, key: &Key, now: Instant, jitter: f64) -> Duration {
        let backoff = self.backoffs.entry(key.clone()).or_insert_with(|| Backoff::new(now));
        let until = backoff.fail(now, jitter);
        self.ended(key, Some(until));
        until.saturating_duration_since(now)
    }

    fn ended(&mut self, key: &Key, next: Option<Instant>) {
        self.running.remove(key);
        if self.again.remove(key) {
            self.add(key.clone());
        } else if let Some(at) = next {
            self.add_at(key.clone(), at);
        }
    }

    /// When the next scheduled key is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.later.first().map(|(due, _)| *due)
    }

    /// How many keys are ready to run.
    pub(crate) fn depth(&self) -> usize {
        self.order.len() + self.again.len()
    }

    fn cancel(&mut self, key: &Key) {
        if let Some(due) = self.due.remove(key) {
            self.later.remove(&(due, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> Key {
        Key::new("n", name)
    }

    fn second(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_key_waits_once_and_in_its_place() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for name in ["a", "b", "a", "a"] {
            queue.add(key(name));
        }
        assert_eq!(queue.depth(), 2);
        assert_eq!(queue.take(now), Some(key("a")));
        assert_eq!(queue.take(now), Some(key("b")));
        assert_eq!(queue.take(now), None);
    }

    #[test]
    fn a_key_never_runs_twice_concurrently() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"));
        assert_eq!(queue.take(now), Some(key("a")));
        queue.add(key("a"));
        queue.add(key("a"));
        assert_eq!(queue.take(now), None);
        queue.finish(&key("a"), None, now);
        assert_eq!(queue.take(now), Some(key("a")));
        queue.finish(&key("a"), None, now);
        assert_eq!(queue.take(now), None);
    }

    #[test]
    fn a_change_does_not_wait_for_the_requeue() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"));
        queue.take(now);
        queue.finish(&key("a"), Some(second(10)), now);
        assert_eq!(queue.next_due(), Some(now + second(10)));
        queue.add(key("a"));
        assert_eq!(queue.take(now), Some(key("a")));
        queue.finish(&key("a"), None, now);
        assert_eq!(queue.next_due(), None, "the requeue was superseded");
    }

    #[test]
    fn a_change_seen_while_running_comes_before_the_backoff() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"));
        queue.take(now);
        queue.add(key("a"));
        queue.fail(&key("a"), now, 1.0);
        assert_eq!(queue.take(now), Some(key("a")));
        assert_eq!(
            queue.fail(&key("a"), now, 1.0),
            second(1),
            "and its failure does not count"
        );
        assert_eq!(queue.take(now), None);
        assert_eq!(queue.take(now + second(1)), Some(key("a")));
        assert_eq!(queue.fail(&key("a"), now + second(1), 1.0), second(2));
    }

    #[test]
    fn success_ends_the_backoff() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"));
        queue.take(now);
        queue.fail(&key("a"), now, 1.0);
        queue.take(now + second(1));
        queue.finish(&key("a"), None, now);
        queue.add(key("a"));
        queue.take(now);
        assert_eq!(queue.fail(&key("a"), now, 1.0), second(1));
    }

    #[test]
    fn of_two_times_the_earlier_counts() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add_at(key("a"), now + second(5));
        queue.add_at(key("a"), now + second(9));
        assert_eq!(queue.next_due(), Some(now + second(5)));
        queue.add_at(key("a"), now + second(2));
        assert_eq!(queue.take(now + second(2)), Some(key("a")));
        assert_eq!(queue.next_due(), None);
    }

    proptest! {
        /// Whatever happens, every added key runs after it was added, and none runs twice at once.
        #[test]
        fn no_addition_is_lost(steps in prop::collection::vec((0..5_u8, 0..4_u8), 1..200)) {
            let (mut queue, mut now) = (Queue::default(), Instant::now());
            let mut running = BTreeSet::new();
            let mut wanted = HashSet::new();
            for (step, which) in steps {
                let name = key(&which.to_string());
                match step {
                    0 => { queue.add(name.clone()); wanted.insert(name); }
                    1 => if let Some(taken) = queue.take(now) {
                        prop_assert!(running.insert(taken.clone()));
                        wanted.remove(&taken);
                    },
                    2 => if running.remove(&name) { queue.finish(&name, Some(second(1)), now); },
                    3 => if running.remove(&name) { queue.fail(&name, now, 1.0); },
                    _ => now += second(1),
                }
            }
            for name in running { queue.finish(&name, None, now); }
            while let Some(taken) = queue.take(now) { wanted.remove(&taken); }
            prop_assert!(wanted.is_empty(), "{wanted:?}");
        }
    }
}
