//! A fixed sample of histories.

use std::thread::{self, ScopedJoinHandle};

use simulation::{history, script, world};

/// A fixed sample; `make simulate` plays new ones.
const SEEDS: [u64; 4] = [1, 4, 5, 6];

#[test]
fn a_cluster_is_installed_used_scaled_and_quiet_at_the_end() {
    world::run(async || script::play(&world::World::new(1, 5)).await);
}

#[test]
fn the_same_seed_gives_the_same_story() {
    // Watches break in this one, and kube retries with jitter.
    let (first, second) = (history::play(3), history::play(3));
    for (first, second) in first.story.iter().zip(&second.story) {
        assert_eq!(first, second);
    }
    assert_eq!(first.story.len(), second.story.len());
}

#[test]
fn no_history_of_the_sample_fails() {
    let outcomes = thread::scope(|scope| {
        SEEDS
            .map(|seed| scope.spawn(move || history::play(seed)))
            .map(ScopedJoinHandle::join)
    });
    for outcome in outcomes.map(Result::unwrap) {
        let seed = outcome.seed;
        assert!(
            outcome.failures.is_empty(),
            "make replay SEED={seed}: {:?}",
            outcome.failures
        );
    }
}
