//! A sample of crash points; `make crash-points` plays all of them.

use std::thread::{self, ScopedJoinHandle};

use simulation::crash_points::{self, Scenario};

/// Deaths of each scenario, spread over its effects. Each takes about 1.6 s in a debug build, as does the run without one.
const DEATHS: u64 = 1;

#[test]
fn a_sample_of_crash_points_comes_to_the_same_end() {
    let half = Scenario::ALL.len().div_ceil(2);
    let check = |scenarios: &[Scenario]| {
        let reports = scenarios.iter().map(|scenario| crash_points::sample(*scenario, DEATHS));
        reports.flat_map(|report| report.failures).collect()
    };
    let failures: Vec<Vec<String>> = thread::scope(|scope| {
        let halves: Vec<_> = Scenario::ALL
            .chunks(half)
            .map(|half| scope.spawn(move || check(half)))
            .collect();
        halves
            .into_iter()
            .map(ScopedJoinHandle::join)
            .map(Result::unwrap)
            .collect()
    });
    assert!(failures.concat().is_empty(), "{failures:?}");
}
