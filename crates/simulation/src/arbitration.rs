//! Histories without chance in which two pods of slurmctld exist at once: the machine of the older one cannot be reached and a person
//! deletes it by force, while its processes go on with the same state volume.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::{
    oracles::judge_writers,
    script::{install, submit, until},
    slurm::Submission,
    world::{World, elapsed},
};

/// What is wrong with the older pod beside its kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    Nothing,
    /// It does not know its UID, so that it cannot be distinguished from the newer one.
    NoUid,
    /// slurmctld does not respond to signals.
    SlurmctldHangs,
    /// Its container is killed when the newer one serves, and started again.
    ContainerRestarts,
    /// All its processes stop, and go on when the newer one serves.
    Stops,
}

/// What became of it.
#[derive(Debug)]
pub struct Ending {
    /// What the judge of writes says.
    pub failures: Vec<String>,
    /// From the deletion to the newer slurmctld.
    pub outage: Duration,
    /// Whether a job lives that was submitted just before the deletion.
    pub job_lives: bool,
    /// How long after the newer one served the older one still ran, with nothing that stopped it.
    pub overlap: Duration,
}

/// Plays such a history.
pub fn play(trouble: Trouble) -> Ending {
    crate::world::run(async || {
        let world = World::new(1, 5);
        world.set_fenced(trouble != Trouble::NoUid);
        install(&world, 1).await;
        submit(&world, Submission::new("compute", Duration::from_mins(20))).unwrap();
        let node = world.get("pods", "slurm-controller-0").unwrap_or_default()["spec"]["nodeName"].clone();
        let set_lost = |lost: Option<Duration>| {
            let mut nodes = world.nodes.lock().unwrap();
            nodes.get_mut(node.as_str().unwrap_or_default()).unwrap().lost = lost;
        };
        set_lost(Some(elapsed()));
        // Kubernetes places no pod on it any more.
        sleep(Duration::from_mins(1)).await;
        let ending = replace(&world, trouble).await;
        set_lost(None);
        sleep(Duration::from_mins(1)).await;
        if std::env::var_os("SIMULATION_STORY").is_some() {
            world.story().iter().for_each(|line| println!("{line}"));
        }
        Ending {
            failures: judge_writers(&world),
            ..ending
        }
    })
}

async fn replace(world: &World, trouble: Trouble) -> Ending {
    let (old, pod) = (world.active().unwrap(), world.controller_pod().unwrap());
    if trouble == Trouble::SlurmctldHangs {
        world.slurm().freeze_controller(old);
    }
    let job = submit(world, Submission::new("compute", Duration::from_secs(10)));
    if trouble == Trouble::Stops {
        pod.freeze(true);
    }
    let uid = |world: &World| world.get("pods", "slurm-controller-0").unwrap_or_default()["metadata"]["uid"].clone();
    let first = uid(world);
    world.delete("pods", "slurm-controller-0", &json!({ "gracePeriodSeconds": 0 }));
    let deleted = elapsed();
    until(world, "the newer pod serves", Duration::from_mins(5), |world| {
        let serves = world
            .active()
            .is_some_and(|id| id != old && world.slurm().state(id).is_ok());
        serves && uid(world) != first
    })
    .await;
    let outage = elapsed().saturating_sub(deleted);
    let new = world.active().unwrap();
    let job_lives = job.is_some_and(|job| {
        let slurm = world.slurm();
        slurm.state(new).is_ok_and(|state| state.jobs.contains_key(&job))
    });
    match trouble {
        Trouble::ContainerRestarts => pod.kill_supervisor(),
        Trouble::Stops => {
            sleep(Duration::from_mins(1)).await;
            pod.freeze(false);
        }
        _ => {}
    }
    let free = elapsed();
    while pod.is_ready() && elapsed().saturating_sub(free) < Duration::from_mins(6) {
        sleep(Duration::from_millis(10)).await;
    }
    let overlap = elapsed().saturating_sub(free);
    // Longer than slurmctld waits between two checkpoints.
    sleep(Duration::from_mins(6)).await;
    Ending {
        failures: Vec::new(),
        outage,
        job_lives,
        overlap,
    }
}
