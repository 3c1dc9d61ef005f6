//! Two pods of slurmctld on one state volume: only one of them writes to it.

use std::time::Duration;

use serde_json::json;
use simulation::{
    arbitration::{Trouble, play},
    script,
    world::{self, World},
};
use tokio::time::sleep;

#[test]
fn a_pod_that_was_deleted_by_force_saves_its_state_before_its_successor_starts() {
    let ending = play(Trouble::Nothing);
    assert_eq!(ending.failures, [""; 0], "{ending:?}");
    assert!(ending.job_lives && ending.overlap.is_zero(), "{ending:?}");
    assert!(ending.outage < Duration::from_secs(20), "{ending:?}");
}

#[test]
fn a_slurmctld_that_hangs_is_killed_before_its_successor_starts() {
    let ending = play(Trouble::SlurmctldHangs);
    assert_eq!(ending.failures, [""; 0], "{ending:?}");
    assert!(ending.overlap.is_zero(), "{ending:?}");
    assert!(
        ending.outage > Duration::from_secs(30),
        "it is not given the time to end: {ending:?}"
    );
}

#[test]
fn a_pod_that_was_replaced_does_not_start_slurmctld_again() {
    let ending = play(Trouble::ContainerRestarts);
    assert_eq!(ending.failures, [""; 0], "{ending:?}");
    assert!(ending.job_lives && ending.overlap.is_zero(), "{ending:?}");
}

/// A process that resumes can only be killed after it has resumed.
#[test]
fn a_pod_that_stood_still_is_killed_at_its_next_look_at_the_volume() {
    let ending = play(Trouble::Stops);
    assert_eq!(ending.failures, [""; 0], "{ending:?}");
    assert!(ending.overlap < Duration::from_millis(300), "{ending:?}");
}

/// The judge can accuse.
#[test]
fn without_the_uid_of_their_pods_two_slurmctld_write() {
    let ending = play(Trouble::NoUid);
    assert!(!ending.failures.is_empty(), "{ending:?}");
}

/// `serve` finds a slurmctld that does not run yet, and asks for a start while `supervise` starts it.
#[test]
fn a_new_pod_starts_slurmctld_once() {
    let starts = world::run(async || {
        let world = World::new(1, 3);
        script::install(&world, 2).await;
        let before = world.slurm().ledger.starts.len();
        world.delete("pods", "slurm-controller-0", &json!({}));
        sleep(Duration::from_mins(1)).await;
        world.slurm().ledger.starts.len() - before
    });
    assert_eq!(starts, 1);
}
