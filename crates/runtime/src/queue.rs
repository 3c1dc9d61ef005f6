//! The order in which objects are reconciled. Pure: the caller passes the time.
//!
//! A key waits once, however often it is added. It never runs twice at the same time: a key that is added while it runs
//! runs once more afterwards.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::Key;

/// The longest wait after the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait after many failures.
const LONGEST: Duration = Duration::from_mins(5);
/// Full jitter may be zero; an API server that has just rejected a request gets at least this long.
const SHORTEST: Duration = Duration::from_millis(100);
/// The least time between two reconciles, so that a deadline that is just over makes no busy loop.
const SOONEST: Duration = Duration::from_millis(10);

/// The keys of one kind.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The waiting keys by time, then in the order they were added.
    waiting: BTreeSet<(Instant, u64, Key)>,
    /// The time and the number of each waiting key.
    places: HashMap<Key, (Instant, u64)>,
    /// The number of the key that was added last.
    added: u64,
    running: HashSet<Key>,
    /// The consecutive failures of a key, and the time of its retry.
    failed: HashMap<Key, (u32, Instant)>,
}

impl Queue {
    /// Schedules a key, unless it is due earlier anyway.
    pub(crate) fn add(&mut self, key: Key, at: Instant) {
        match self.places.get(&key) {
            Some((due, _)) if *due <= at => return,
            Some((due, number)) => drop(self.waiting.remove(&(*due, *number, key.clone()))),
            None => {}
        }
        self.added += 1;
        self.places.insert(key.clone(), (at, self.added));
        self.waiting.insert((at, self.added, key));
    }

    /// The keys that are waiting, running or failed.
    pub(crate) fn len(&self) -> usize {
        self.places.len() + self.running.len() + self.failed.len()
    }

    /// Takes the next key, which counts as running until [`Queue::finish`] or [`Queue::fail`].
    pub(crate) fn take(&mut self, now: Instant) -> Option<Key> {
        let place = self.next().filter(|(due, ..)| *due <= now)?.clone();
        self.waiting.remove(&place);
        let (_, _, key) = place;
        self.places.remove(&key);
        self.running.insert(key.clone());
        Some(key)
    }

    fn next(&self) -> Option<&(Instant, u64, Key)> {
        self.waiting.iter().find(|(_, _, key)| !self.running.contains(key))
    }

    /// Records a success.
    pub(crate) fn finish(&mut self, key: &Key, requeue: Option<Duration>, now: Instant) {
        self.failed.remove(key);
        self.running.remove(key);
        if let Some(after) = requeue {
            self.add(key.clone(), now + after.max(SOONEST));
        }
    }

    /// Records a failure and returns how long the key waits. A failure before the wait is over (a change in Kubernetes woke
    /// the object) does not count: else frequent changes would make the wait ever longer. `jitter` is between 0 and 1.
    pub(crate) fn fail(&mut self, key: &Key, now: Instant, jitter: f64) -> Duration {
        let (failures, retry) = self.failed.entry(key.clone()).or_insert((0, now));
        if now >= *retry {
            *failures = failures.saturating_add(1);
            *retry = now + delay(*failures, jitter);
        }
        let retry = *retry;
        self.running.remove(key);
        self.add(key.clone(), retry);
        retry.saturating_duration_since(now)
    }

    /// When the next key is due that does not run.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.next().map(|(due, ..)| *due)
    }

    /// How many keys are due.
    pub(crate) fn depth(&self, now: Instant) -> usize {
        self.waiting.iter().take_while(|(due, ..)| *due <= now).count()
    }
}

/// The wait: full jitter below a ceiling that doubles with every failure.
fn delay(failures: u32, jitter: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let ceiling = FIRST.saturating_mul(1 << doublings).min(LONGEST);
    ceiling.mul_f64(jitter.clamp(0.0, 1.0)).max(SHORTEST)
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
            queue.add(key(name), now);
        }
        assert_eq!(queue.depth(now), 2);
        assert_eq!(queue.take(now), Some(key("a")));
        assert_eq!(queue.take(now), Some(key("b")));
        assert_eq!(queue.take(now), None);
    }

    #[test]
    fn time_passes_before_a_key_runs_again() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"), now);
        assert_eq!(queue.take(now), Some(key("a")));
        queue.finish(&key("a"), Some(Duration::ZERO), now);
        assert_eq!(queue.take(now), None);
        assert_eq!(queue.take(now + SOONEST), Some(key("a")));
    }

    #[test]
    fn a_key_never_runs_twice_concurrently() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"), now);
        assert_eq!(queue.take(now), Some(key("a")));
        queue.add(key("a"), now);
        queue.add(key("a"), now);
        assert_eq!(queue.take(now), None);
        queue.finish(&key("a"), None, now);
        assert_eq!(queue.take(now), Some(key("a")));
        queue.finish(&key("a"), None, now);
        assert_eq!(queue.take(now), None);
    }

    #[test]
    fn a_change_does_not_wait_for_the_requeue() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"), now);
        queue.take(now);
        queue.finish(&key("a"), Some(second(10)), now);
        assert_eq!(queue.next_due(), Some(now + second(10)));
        queue.add(key("a"), now);
        assert_eq!(queue.take(now), Some(key("a")));
        queue.finish(&key("a"), None, now);
        assert_eq!(queue.next_due(), None, "the requeue was superseded");
    }

    #[test]
    fn a_change_seen_while_running_comes_before_the_backoff() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"), now);
        queue.take(now);
        queue.add(key("a"), now);
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
        queue.add(key("a"), now);
        queue.take(now);
        queue.fail(&key("a"), now, 1.0);
        queue.take(now + second(1));
        queue.finish(&key("a"), None, now);
        queue.add(key("a"), now);
        queue.take(now);
        assert_eq!(queue.fail(&key("a"), now, 1.0), second(1));
    }

    #[test]
    fn of_two_times_the_earlier_counts() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add(key("a"), now + second(5));
        queue.add(key("a"), now + second(9));
        assert_eq!(queue.next_due(), Some(now + second(5)));
        queue.add(key("a"), now + second(2));
        assert_eq!(queue.take(now + second(2)), Some(key("a")));
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn the_wait_doubles_from_a_second_to_five_minutes() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..11 {
            let wait = queue.fail(&key("a"), now, 1.0);
            waits.push(wait.as_secs());
            now += wait;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }

    #[test]
    fn a_failure_before_the_wait_is_over_does_not_count() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.fail(&key("a"), now, 1.0);
        let (half, rest) = (Duration::from_millis(500), Duration::from_millis(500));
        assert_eq!(queue.fail(&key("a"), now + half, 1.0), rest);
    }

    #[test]
    fn jitter_shortens_the_wait_but_never_to_nothing() {
        assert_eq!(delay(4, 0.5), Duration::from_secs(4));
        assert_eq!(delay(4, 0.0), SHORTEST);
        assert_eq!(delay(u32::MAX, 1.0), LONGEST);
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
                    0 => { queue.add(name.clone(), now); wanted.insert(name); }
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
