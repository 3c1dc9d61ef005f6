//! Every durable job ends once. It starts again only if its worker's processes died, or because a person asked.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    slurm::{
        ControllerId, HostId, NodeOrder, Request, Slurm,
        ledger::{End, JobHistory, Ledger, Run},
        state::JobPhase,
    },
    world::World,
};

/// slurmctld knows a new worker this long after its start: slurmd registers at once, and again after 15 s.
const REGISTERED: Duration = Duration::from_secs(20);

/// For the agent to look at the state volume after its machine went on, and to kill a slurmctld that was replaced meanwhile: nobody can
/// stop a process that goes on before it goes on. What it wrote is written again by the slurmctld that replaced it.
const NOTICE: Duration = Duration::from_millis(250);

/// The jobs with a process on a host at a time. Those of a node that a person has set DOWN are over, though their processes may go on
/// where slurmctld cannot reach them. Launches that a killed slurmctld forgot do not count: it kills their processes.
pub(super) fn on_host(world: &World, host: HostId, at: Duration) -> Vec<u32> {
    let slurm = world.slurm();
    let ran = |run: &&Run| run.host == host && run.began < at && run.ended.is_none_or(|(ended, _)| ended > at);
    let jobs = slurm.ledger.jobs.iter();
    jobs.filter(|job| processes(job).any(|run| ran(&run) && !is_given_up(&slurm, job, run, at)))
        .map(|job| job.id)
        .collect()
}

/// What became of some jobs, for a person who reads the story.
pub(super) fn histories(world: &World, ids: &[u32]) -> String {
    let slurm = world.slurm();
    let jobs = slurm.ledger.jobs.iter().filter(|job| ids.contains(&job.id));
    let lines = jobs.map(|job| {
        let (ends, forgotten) = (&job.ends, &job.forgotten_launches);
        let (id, launches, processes) = (job.id, &job.launches, processes(job).collect::<Vec<_>>());
        format!("job {id}: launches {launches:?}\nforgotten {forgotten:?}\nprocesses {processes:?}\nends {ends:?}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// All processes of a job, the script first.
fn processes(job: &JobHistory) -> impl Iterator<Item = &Run> {
    job.runs.iter().chain(&job.parts)
}

/// `deleted` are workers whose pods were deleted because of us.
pub(super) fn judge(world: &World, deleted: &[(HostId, Duration)]) -> Vec<String> {
    let active = world.active();
    let severed = world.severed.lock().unwrap().clone();
    let slurm = world.slurm();
    let mut failures = Vec::new();
    for job in &slurm.ledger.jobs {
        // slurmctld may forget what it did not save.
        let durable = job.durable.filter(|at| !is_overrun(&slurm.ledger, *at));
        let Some(durable) = durable else { continue };
        if job.forgotten.is_some() {
            failures.push(format!("job {} was saved at {durable:?} and is forgotten", job.id));
            continue;
        }
        failures.extend(judge_runs(&slurm, &severed, job, deleted));
        let Some(state) = active.and_then(|active| slurm.state(active).ok()) else {
            continue;
        };
        let shown = state.jobs.get(&job.id).filter(|shown| shown.key == job.key);
        let Some(shown) = shown else {
            failures.push(format!("job {} vanished", job.id));
            continue;
        };
        let returned = job
            .runs
            .iter()
            .any(|run| matches!(run.ended, Some((_, End::Exited(_)))));
        let is_right = returned && shown.phase == JobPhase::Completed;
        if shown.phase.is_end() && !is_right && !is_asked(&slurm, job, None) {
            failures.push(format!(
                "job {} ended as {:?}, its script returned: {returned}\nlaunches {:?}",
                job.id, shown.phase, job.launches
            ));
        }
    }
    failures
}

fn judge_runs(
    slurm: &Slurm,
    severed: &BTreeSet<HostId>,
    job: &JobHistory,
    deleted: &[(HostId, Duration)],
) -> Vec<String> {
    let mut failures = Vec::new();
    let whole = job
        .runs
        .iter()
        .filter(|run| matches!(run.ended, Some((_, End::Exited(_)))));
    // slurmctld starts a job elsewhere, beside the copy on a worker that it gave up.
    let whole = whole.filter(|run| !severed.contains(&run.host) && !is_unreported(slurm, job, run));
    let whole = whole.filter(|run| !was_over(slurm, job, run));
    let whole = whole.count();
    if whole > 1 && !is_asked(slurm, job, None) {
        failures.push(format!(
            "job {} ran to its end {whole} times\n{:?}\nlaunches {:?}\nends {:?}, forgotten {:?}",
            job.id, job.runs, job.launches, job.ends, job.forgotten_ends
        ));
    }
    for run in processes(job) {
        let Some((at, how)) = run.ended else { continue };
        match how {
            End::Exited(_) => {}
            End::HostLost => {
                // We ended this pod, whatever the order of our commands was.
                let by_us = |(host, since): &&(HostId, Duration)| {
                    *host == run.host && *since <= at && !is_given_up(slurm, job, run, *since)
                };
                if deleted.iter().any(|deleted| by_us(&deleted)) {
                    failures.push(format!(
                        "job {} on {} ended with its pod, which we deleted",
                        job.id, run.node
                    ));
                }
            }
            End::Killed => {
                if let Some(why) = unexplained(slurm, severed, job, run, at) {
                    failures.push(why);
                }
            }
        }
    }
    failures
}

/// Whether slurmctld cannot know that a script returned: the pod died before it could report that, or slurmctld was killed or replaced
/// before it saved that or the launch, and no slurmdbd has it.
fn is_unreported(slurm: &Slurm, job: &JobHistory, run: &Run) -> bool {
    let died = slurm.host(run.host).died;
    let completed = job.ends.iter();
    let completed = completed.filter(|end| end.launch == run.launch && end.phase == JobPhase::Completed);
    let (overrun, recorded): (Vec<_>, Vec<_>) = completed.partition(|end| is_overrun(&slurm.ledger, end.at));
    let is_lost = died.is_some_and(|died| !recorded.iter().any(|end| end.at <= died));
    let is_overrun = !overrun.is_empty() && recorded.is_empty();
    let was_recorded = job.ends.iter().any(|end| end.launch == run.launch);
    let is_unknown = job.forgotten_launches.contains(&run.launch) && !was_recorded;
    is_lost || is_overrun || is_unknown || job.forgotten_ends.contains(&run.launch)
}

/// Whether what a slurmctld recorded or saved at this time is unknown to the one that replaced it: it stood still before it saved that, or
/// until it had been replaced. What it saves when it goes on is too late: the other one has read the volume and writes its own state.
fn is_overrun(ledger: &Ledger, at: Duration) -> bool {
    let current = ledger.starts.iter().rev().find(|start| start.at <= at);
    let write = ledger.writes.iter().find(|write| write.at >= at);
    let (Some(current), Some(write)) = (current, write) else {
        return false;
    };
    let went_on_replaced = |id: ControllerId| {
        let mut thaws = ledger.thaws.iter().filter(|(thawed, _)| *thawed == id);
        thaws.any(|(_, thaw)| {
            let mut later = ledger.starts.iter().filter(|start| start.controller > id);
            later.any(|start| start.at < *thaw)
        })
    };
    // One that goes on after a long time saves at once what it records.
    let is_late = write.at == at && went_on_replaced(write.writer);
    write.writer != current.controller && (is_late || went_on_replaced(current.controller))
}

/// Whether slurmctld had ended the launch before its script returned, because another of its workers died. It requeues the job although
/// it may not reach the script to kill it.
fn was_over(slurm: &Slurm, job: &JobHistory, run: &Run) -> bool {
    let has_failed = |at: Duration| lost_worker(slurm, job, run.launch, at);
    let mut ends = job.ends.iter().filter(|end| end.launch == run.launch);
    ends.any(|end| {
        end.phase == JobPhase::NodeFail && run.ended.is_some_and(|(at, _)| end.at < at) && has_failed(end.at)
    })
}

/// Whether a worker of a launch died before slurmctld could know, or during the launch.
fn lost_worker(slurm: &Slurm, job: &JobHistory, launch: u64, at: Duration) -> bool {
    let Some(launch) = job.launches.iter().find(|found| found.launch == launch) else {
        return false;
    };
    launch.nodes.iter().any(|node| {
        let of_node = || slurm.hosts().filter(|(_, host)| host.spec.name == *node);
        // A successor registers within seconds of its start.
        let replaced = |died: Duration| {
            let mut later = of_node().map(|(_, host)| host.spec.boot_time);
            later.any(|booted| booted > died && booted + REGISTERED < launch.at)
        };
        of_node()
            .filter_map(|(_, host)| host.died)
            .any(|died| died <= at && !replaced(died))
    })
}

/// Why nothing but an order of ours, or nothing at all, explains that a process was killed.
fn unexplained(slurm: &Slurm, severed: &BTreeSet<HostId>, job: &JobHistory, run: &Run, at: Duration) -> Option<String> {
    let returned = |other: &Run| other.launch == run.launch && matches!(other.ended, Some((_, End::Exited(_))));
    // The parts on further nodes are killed when the script has returned.
    let is_over = job.runs.iter().any(returned);
    let is_lost = lost_worker(slurm, job, run.launch, at) && !was_set_down(slurm, job, run.launch, at);
    // The slurmctld that launched it stood still before it saved that, and was replaced.
    let mut launches = job.launches.iter().filter(|launch| launch.launch == run.launch);
    let is_unsaved = launches.any(|launch| is_overrun(&slurm.ledger, launch.at));
    let is_forgotten = is_unsaved || job.forgotten_launches.contains(&run.launch);
    // The launch reached a frozen worker, which started it after slurmctld had given it up (`BatchStartTimeout`).
    let is_late = job
        .ends
        .iter()
        .any(|end| end.launch == run.launch && end.at <= run.began);
    // slurmctld gave up a worker of it (`SlurmdTimeout`).
    let is_severed = processes(job).any(|other| other.launch == run.launch && severed.contains(&other.host));
    if is_over || is_lost || is_forgotten || is_late || is_severed || is_asked(slurm, job, Some(run)) {
        return None;
    }
    let orders = slurm
        .ledger
        .orders
        .iter()
        .rev()
        .filter(|order| order.at <= at && order.failure.is_none());
    let last = orders.into_iter().find(|order| concerns(&order.request, job, run));
    let last = last.map(|order| {
        format!(
            "; last order: {:?} by {} at {:?}",
            order.request, order.sender, order.at
        )
    });
    Some(format!(
        "job {} on {} was killed, and neither its worker died nor a person asked\nat {at:?}{}\nlaunches {:?}, forgotten {:?}",
        job.id,
        run.node,
        last.unwrap_or_default(),
        job.launches,
        job.forgotten_launches
    ))
}

/// Whether an order of ours set a node down on which a process of this launch was alive. Then the death of an earlier worker explains
/// nothing.
fn was_set_down(slurm: &Slurm, job: &JobHistory, launch: u64, by: Duration) -> bool {
    let mut orders = slurm.ledger.orders.iter();
    orders.any(|order| {
        let Request::UpdateNode { node: name, update } = &order.request else {
            return false;
        };
        let is_ours = order.sender == "agent" && order.failure.is_none() && order.at <= by;
        let was_alive = |run: &Run| {
            let has_ended = run.ended.is_some_and(|(ended, _)| ended < order.at);
            let is_dead = slurm.host(run.host).died.is_some_and(|died| died <= order.at);
            run.launch == launch && run.node == *name && run.began <= order.at && !has_ended && !is_dead
        };
        is_ours && update.state == Some(NodeOrder::Down) && processes(job).any(was_alive)
    })
}

fn concerns(request: &Request, job: &JobHistory, run: &Run) -> bool {
    // slurmctld ends a job with any of its nodes, also if it never had a process there.
    let of_launch = |node: &String| {
        let mut launches = job.launches.iter();
        *node == run.node || launches.any(|launch| launch.launch == run.launch && launch.nodes.contains(node))
    };
    match request {
        Request::Cancel(id) | Request::Requeue(id) | Request::CompleteJob { job: id, .. } => *id == job.id,
        Request::DeleteNode(node) => of_launch(node),
        Request::UpdateNode { node, update } => of_launch(node) && update.state == Some(NodeOrder::Down),
        _ => false,
    }
}

/// Whether slurmctld had given up this run by then: a person set a node of it DOWN, or a killed slurmctld forgot the launch.
fn is_given_up(slurm: &Slurm, job: &JobHistory, run: &Run, by: Duration) -> bool {
    let orders = slurm.ledger.orders.iter();
    let mut in_time = orders.filter(|order| order.at >= run.began && order.at <= by && order.failure.is_none());
    job.forgotten_launches.contains(&run.launch)
        || in_time.any(|order| {
            let is_down = matches!(order.request, Request::UpdateNode { .. });
            order.sender == "person" && is_down && concerns(&order.request, job, run)
        })
}

/// Whether a person ended the job, or a node of it (of this run, or of any).
fn is_asked(slurm: &Slurm, job: &JobHistory, run: Option<&Run>) -> bool {
    let by_person = slurm
        .ledger
        .orders
        .iter()
        .filter(|order| order.sender == "person" && order.failure.is_none() && order.at >= job.acknowledged);
    let of_launch: Vec<&Run> = processes(job)
        .filter(|other| run.is_none_or(|run| run.launch == other.launch))
        .collect();
    by_person.into_iter().any(|order| {
        let in_time = |run: &&&Run| order.at >= run.began && run.ended.is_none_or(|(ended, _)| order.at <= ended);
        match &order.request {
            Request::Cancel(id) | Request::Requeue(id) => *id == job.id,
            request => of_launch.iter().filter(in_time).any(|run| concerns(request, job, run)),
        }
    })
}

/// From the time a slurmctld has read the state volume, no earlier one writes to it.
pub fn judge_writers(world: &World) -> Vec<String> {
    let slurm = world.slurm();
    let began: BTreeMap<ControllerId, Duration> = slurm
        .ledger
        .starts
        .iter()
        .map(|start| (start.controller, start.at))
        .collect();
    let mut failures = Vec::new();
    for write in &slurm.ledger.writes {
        let since = began.get(&write.writer).copied().unwrap_or_default();
        let thawed = slurm.ledger.thaws.iter();
        let mut thawed = thawed.filter(|(id, at)| *id == write.writer && *at <= write.at);
        if thawed.any(|(_, at)| write.at.saturating_sub(*at) <= NOTICE) {
            continue;
        }
        let successor = slurm.ledger.starts.iter().find(|start| {
            start.volume == write.volume && start.controller != write.writer && start.at >= since && start.at < write.at
        });
        if let Some(successor) = successor {
            failures.push(format!(
                "{:?} wrote to the state volume although {:?} had read it\nat {:?}, {:?}",
                write.writer, successor.controller, write.at, successor.at
            ));
        }
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::{
        VolumeId,
        ledger::{Start, Write},
    };

    /// The first slurmctld saves at 10 s and stands still from 20 s on, the second one starts at 30 s and saves at 31 s and 50 s. If the
    /// first one goes on, at 40 s, it saves once more.
    fn ledger(goes_on: bool) -> Ledger {
        let volume = VolumeId(0);
        let start = |(id, at)| Start {
            at: Duration::from_secs(at),
            volume,
            controller: ControllerId(id),
        };
        let write = |(id, at)| Write {
            at: Duration::from_secs(at),
            volume,
            writer: ControllerId(id),
        };
        let late = goes_on.then_some((1, 40));
        Ledger {
            starts: [(1, 0), (2, 30)].map(start).into(),
            writes: [(1, 10), (2, 31)]
                .into_iter()
                .chain(late)
                .chain([(2, 50)])
                .map(write)
                .collect(),
            thaws: late
                .map(|(id, at)| (ControllerId(id), Duration::from_secs(at)))
                .into_iter()
                .collect(),
            ..Ledger::default()
        }
    }

    #[test]
    fn what_a_slurmctld_has_not_saved_when_it_is_replaced_is_excused() {
        let ledger = ledger(true);
        let excused = |at| is_overrun(&ledger, Duration::from_secs(at));
        assert!(!excused(9), "it was saved in time");
        assert!(excused(19), "it was never saved in time");
        assert!(excused(40), "the slurmctld that was replaced recorded it");
        assert!(!excused(31) && !excused(39) && !excused(41), "the other one saved it");
    }

    #[test]
    fn what_a_killed_slurmctld_has_not_saved_is_not_excused_so() {
        assert!(!is_overrun(&ledger(false), Duration::from_secs(19)));
    }
}
