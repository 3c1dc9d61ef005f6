//! The model of Slurm that the simulation uses is compared with a real slurmctld: the same random script for both.

use std::time::Duration;

use serde_json::json;
use simulation::replay::replay;
use testbed::harness::{Namespace, cluster, rounds};

use crate::common::pods::shell_pod;

const STEPS: usize = 15;
const AT_ONCE: usize = 5;
/// In which steps begin. Most take some seconds, and waiting for a frozen node takes a minute.
const TIME: Duration = Duration::from_mins(1);

/// One pod has all daemons: the image has slurmctld and slurmd.
fn lab(number: usize) -> Namespace {
    let namespace = Namespace::create(cluster(), &format!("replay{number}")).unwrap();
    // PID 1 has to wait for the daemons that are killed.
    let container = json!({
        "image": "ghcr.io/slinkyproject/slurmd:26.05-ubuntu26.04",
        "command": ["bash", "-c", "while :; do sleep 5; done"],
        "securityContext": { "privileged": true },
    });
    namespace
        .apply(&shell_pod("lab", &json!({ "container": container })))
        .unwrap();
    namespace.wait("condition=Ready", "pod/lab").unwrap();
    namespace
}

fn compare(seed: usize) {
    let namespace = lab(seed);
    let mut shell = |line: &str| namespace.exec("lab", line).map_err(|error| format!("{error:#}"));
    replay(seed as u64, STEPS, TIME, &mut shell).unwrap();
}

/// The scripts mostly wait, so some run at once.
#[test]
fn the_model_of_slurm_and_a_real_slurmctld_agree() {
    let first = std::env::var("REPLAY_FROM").map_or(1, |from| from.parse().unwrap());
    let seeds: Vec<usize> = (first..first + rounds(5)).collect();
    for some in seeds.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            for seed in some {
                scope.spawn(|| compare(*seed));
            }
        });
    }
}
