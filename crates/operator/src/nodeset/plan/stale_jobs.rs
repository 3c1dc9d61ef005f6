//! Stale jobs: jobs that Slurm shows on a worker although they ended with the previous worker of that name.
//!
//! A slurmctld that is killed within 5 s of learning that a worker is dead has lost that when it is back. If the successor
//! has registered by then, Slurm takes it for the dead worker and keeps showing its jobs as running.
//!
//! Two proofs are needed that a job cannot be alive, because clocks of several machines are compared: it started before the
//! pod was created, by the clock of the API server, and before its slurmd started, by the clock of the worker.

use api::keys;
use jiff::{SignedDuration, Timestamp};
use slurm::{Job, JobHandle, Node};

use super::{Effect, Plan, Situation, Wait, drains::has_manual_reason, proof::Evidence};
use crate::{cluster::Seen, nodeset::observe::Observed, unix_time::timestamp, worker::Worker};

/// How much older than the worker a job has to be if slurmctld has restarted since and may have lost state. The clocks of
/// slurmctld, API server and worker may be a minute apart, and their times are in whole seconds.
const MARGIN_AFTER_RESTART: SignedDuration = SignedDuration::from_secs(65);
/// The same if slurmctld has not restarted. A job whose worker's clock is so far ahead of slurmctld's does not start at
/// all: its credential has expired, by Slurm's default of 120 s.
const MARGIN: SignedDuration = SignedDuration::from_mins(2);
/// The reason that Slurm gets.
const REASON: &str = "lost: the worker before this one, with its jobs";

/// Stale jobs of a worker and how to end them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleJobs {
    pub jobs: Vec<JobHandle>,
    /// The jobs to requeue, if other jobs are on the node. If not, the node is set down for a moment, and Slurm requeues or
    /// fails the stale jobs by its own rules.
    pub requeue: Option<Vec<JobHandle>>,
}

/// Ends stale jobs. The last list of jobs shows which workers are suspicious; those are checked against the evidence.
pub(super) fn plan_stale_jobs(situation: &Situation<'_>, plan: &mut Plan) {
    let Some(evidence) = &situation.evidence else { return };
    for worker in situation.workers() {
        let Some(node) = worker.slurm_name() else { continue };
        if !is_suspicious(evidence.seen, node, worker) || is_one_of_several(situation.observed, node) {
            continue;
        }
        plan.needs_jobs = true;
        let Some(stale_jobs) = stale_jobs(evidence, worker) else {
            continue;
        };
        let jobs: Vec<String> = stale_jobs.jobs.iter().map(|job| format!("job {job}")).collect();
        plan.waits.push(Wait::Other(format!(
            "Slurm shows jobs on node {node} that ended with its previous worker: {}; the operator ends them in Slurm; end what \
             remains with scontrol requeue or scancel",
            jobs.join(", ")
        )));
        plan.effects.push(Effect::EndStaleJobs {
            pod: worker.id(),
            node: node.to_owned(),
            stale_jobs,
        });
    }
}

/// Returns the jobs that Slurm shows on a worker and that are proven to have ended.
pub fn stale_jobs(evidence: &Evidence<'_>, worker: Worker<'_>) -> Option<StaleJobs> {
    let seen = evidence.seen;
    let node = seen.nodes.get(worker.slurm_name()?);
    let node = node.filter(|node| can_be_set_down(node))?;
    let started = timestamp(node.slurmd_start_time.finite()?)?;
    seen.process.filter(|_| seen.doubt().is_none())?;
    let is_dead = |job: &&Job| {
        let since = job.on_its_nodes_since().and_then(timestamp);
        since.is_some_and(|since| is_older(seen, since, worker) && is_before(seen, since, started))
    };
    let (dead, others): (Vec<&Job>, Vec<&Job>) = evidence.jobs_on(&node.name).partition(is_dead);
    let willing = dead.iter().filter(|job| job.can_be_requeued());
    let requeue = (!others.is_empty()).then(|| willing.map(|job| job.handle()).collect());
    let jobs: Vec<JobHandle> = dead.iter().map(|job| job.handle()).collect();
    (!jobs.is_empty()).then_some(StaleJobs { jobs, requeue })
}

/// Returns the reason for setting the node down. An administrator's reason is kept.
pub fn stale_jobs_reason(node: &Node, worker: Worker<'_>) -> Option<String> {
    (!has_manual_reason(node, Some(worker))).then(|| format!("{}{REASON}", keys::NODE_REASON_PREFIX))
}

/// Whether the node is down only to end stale jobs.
pub(super) fn is_down_for_stale_jobs(node: &Node) -> bool {
    node.reason.strip_prefix(keys::NODE_REASON_PREFIX) == Some(REASON)
}

/// Whether the oldest job on the node is older than the worker, by the last list of jobs.
fn is_suspicious(seen: &Seen, node: &str, worker: Worker<'_>) -> bool {
    let oldest = seen.job_summary.as_ref().and_then(|jobs| jobs.oldest.get(node));
    oldest.is_some_and(|since| is_older(seen, *since, worker)) && seen.nodes.get(node).is_some_and(can_be_set_down)
}

/// Whether a job that started then is older than the worker, whose processes end with it.
fn is_older(seen: &Seen, since: Timestamp, worker: Worker<'_>) -> bool {
    let created = worker.created().filter(|_| !worker.shares_machines_processes());
    created.is_some_and(|created| is_before(seen, since, created))
}

/// Whether `one` was before `other`, by clocks of different machines.
fn is_before(seen: &Seen, one: Timestamp, other: Timestamp) -> bool {
    // By the clock of slurmctld. If its start is unknown, the job is suspicious; nothing happens before it is known.
    let may_be_forgotten = seen.boot().is_none_or(|boot| one < boot);
    let margin = if may_be_forgotten { MARGIN_AFTER_RESTART } else { MARGIN };
    other.duration_since(one) > margin
}

/// Whether the node is up in Slurm and does not come from slurm.conf.
fn can_be_set_down(node: &Node) -> bool {
    !node.state.is_down() && node.state.is_dynamic()
}

/// Whether several pods have this name in Slurm, where the jobs may be.
fn is_one_of_several(observed: &Observed, name: &str) -> bool {
    let same = observed.workers().filter(|other| other.slurm_name() == Some(name));
    same.count() > 1 || observed.foreign_hostnames.contains_key(name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use slurm::rest::{Observation, Process};

    use super::*;
    use crate::{
        cluster::{Knowledge, Seen},
        nodeset::{
            fixture::{nodeset, now, planned, with, worker},
            plan::tests::steps,
        },
    };

    fn number(at: &str) -> Value {
        let at: Timestamp = at.parse().unwrap();
        json!({ "set": true, "infinite": false, "number": at.as_second() })
    }

    /// A worker that replaced another, whose job Slurm still shows.
    #[derive(Clone)]
    struct Scene {
        pod: Value,
        state: &'static [&'static str],
        reason: &'static str,
        slurmd_started: &'static str,
        slurmctld_began: &'static str,
        jobs: Vec<Value>,
        jobs_were_read: bool,
    }

    fn job(id: u64, began: &str) -> Value {
        json!({ "job_id": id, "job_state": ["RUNNING"], "nodes": "compute-[0-3]", "start_time": number(began) })
    }

    const OLD: &str = "2026-01-01T00:28:50Z";
    const NEW: &str = "2026-01-01T00:31:00Z";
    const MIXED: &[&str] = &["MIXED", "DYNAMIC_NORM"];

    impl Default for Scene {
        fn default() -> Self {
            Self {
                pod: with(
                    worker(0),
                    &[("/metadata/creationTimestamp", json!("2026-01-01T00:30:00Z"))],
                ),
                state: MIXED,
                reason: "",
                slurmd_started: "2026-01-01T00:30:05Z",
                slurmctld_began: "2026-01-01T00:29:50Z",
                jobs: vec![job(7, OLD)],
                jobs_were_read: true,
            }
        }
    }

    impl Scene {
        fn knowledge(&self) -> Knowledge {
            let boot: Timestamp = self.slurmctld_began.parse().unwrap();
            let node = json!({ "name": "compute-0", "state": self.state, "reason": self.reason,
                "slurmd_start_time": number(self.slurmd_started) });
            let observation = Observation {
                nodes: vec![serde_json::from_value(node).unwrap()],
                jobs: serde_json::from_value(json!(self.jobs)).unwrap(),
                process: Some(Process {
                    boot_time: u64::try_from(boot.as_second()).unwrap(),
                }),
            };
            let seen = Seen::new(observation, now(), crate::cluster::Source::Agent);
            let unread = Seen {
                jobs: None,
                process: None,
                ..seen.clone()
            };
            let seen = if self.jobs_were_read { seen } else { unread };
            Knowledge::Known(std::sync::Arc::new(seen))
        }

        fn plan(&self) -> Plan {
            planned(&json!({ "replicas": 1 }), vec![self.pod.clone()], self.knowledge())
        }

        /// Checks its only step, and whether jobs are requested.
        fn step(&self) -> (String, bool) {
            let plan = self.plan();
            (steps(&plan).join("; "), plan.needs_jobs)
        }
    }

    const NOTHING: (&str, bool) = ("", false);

    fn expect(scene: &Scene, (step, closely): (&str, bool), case: &str) {
        assert_eq!(scene.step(), (step.to_owned(), closely), "{case}");
    }

    #[test]
    fn a_job_that_is_older_than_its_worker_ended_with_the_one_before() {
        expect(&Scene::default(), ("down compute-0", true), "it is proven");
        let message = Scene::default().plan().waits[0].message();
        assert!(message.contains("compute-0") && message.contains("job 7"), "{message}");
        let suspended = with(job(7, OLD), &[("/job_state", json!(["SUSPENDED"]))]);
        let suspended = Scene {
            jobs: vec![suspended],
            ..Scene::default()
        };
        expect(&suspended, ("down compute-0", true), "suspended jobs end too");
        let unread = Scene {
            jobs_were_read: false,
            ..Scene::default()
        };
        expect(&unread, ("", true), "an older list is no proof, but a reason to look");
    }

    #[test]
    fn both_clocks_have_to_say_so_and_clocks_differ() {
        let forgot = "2026-01-01T00:29:55Z";
        let ran_all_the_time = "2026-01-01T00:00:00Z";
        let down = ("down compute-0", true);
        for (case, began, slurmctld_began, expected) in [
            ("it began on this worker", NEW, "2026-01-01T00:40:00Z", NOTHING),
            ("it is more than a minute older", OLD, forgot, down),
            ("clocks may differ by seconds", "2026-01-01T00:29:50Z", forgot, NOTHING),
            ("clocks may differ by a minute", "2026-01-01T00:28:59Z", forgot, NOTHING),
            ("who was not killed forgets nothing", OLD, ran_all_the_time, NOTHING),
            (
                "but minutes are no matter of clocks",
                "2026-01-01T00:27:00Z",
                ran_all_the_time,
                down,
            ),
        ] {
            let scene = Scene {
                jobs: vec![job(7, began)],
                slurmctld_began,
                ..Scene::default()
            };
            expect(&scene, expected, case);
        }
        let skewed = Scene {
            slurmd_started: "2026-01-01T00:30:03Z",
            jobs: vec![job(7, "2026-01-01T00:29:39Z")],
            ..Scene::default()
        };
        expect(&skewed, NOTHING, "slurmctld's clock is half a minute behind");
        let not_registered = Scene {
            slurmd_started: "2026-01-01T00:00:30Z",
            ..Scene::default()
        };
        expect(&not_registered, ("", true), "the worker is yet to register");
    }

    #[test]
    fn jobs_that_may_be_alive_are_left_alone() {
        let with_job = |changes: &[(&str, Value)]| Scene {
            jobs: vec![with(job(7, OLD), changes)],
            ..Scene::default()
        };
        for (case, scene) in [
            (
                "it waits for the node to come up",
                with_job(&[("/job_state", json!(["RUNNING", "CONFIGURING"]))]),
            ),
            (
                "it ends anyway",
                with_job(&[("/job_state", json!(["COMPLETED", "COMPLETING"]))]),
            ),
            (
                "it was given the node later",
                with_job(&[("/resize_time", number(NEW))]),
            ),
            ("it is on another node", with_job(&[("/nodes", json!("compute-[1-3]"))])),
            (
                "jobs outlive slurmd where they are processes of the machine",
                Scene {
                    pod: with(Scene::default().pod, &[("/spec/hostPID", json!(true))]),
                    ..Scene::default()
                },
            ),
            (
                "Slurm knows",
                Scene {
                    state: &["DOWN", "DYNAMIC_NORM"],
                    ..Scene::default()
                },
            ),
            (
                "the node is from slurm.conf",
                Scene {
                    state: &["MIXED"],
                    ..Scene::default()
                },
            ),
        ] {
            expect(&scene, NOTHING, case);
        }
        // Two workers on one machine may have the same name for a while.
        let twin = with(
            worker(1),
            &[
                ("/spec/hostname", json!("compute-0")),
                ("/metadata/creationTimestamp", json!("2026-01-01T00:00:00Z")),
            ],
        );
        let scene = Scene::default();
        let plan = planned(
            &json!({ "replicas": 2 }),
            vec![scene.pod.clone(), twin],
            scene.knowledge(),
        );
        assert_eq!(steps(&plan), [""; 0]);
    }

    #[test]
    fn a_job_that_lives_there_is_not_taken_along() {
        let once_only = with(job(8, OLD), &[("/requeue", json!(false))]);
        let scene = Scene {
            jobs: vec![job(7, OLD), once_only, job(9, NEW)],
            ..Scene::default()
        };
        let plan = scene.plan();
        let [Effect::EndStaleJobs { stale_jobs, .. }] = plan.effects.as_slice() else {
            panic!("{:?}", plan.effects)
        };
        let handles = |ids: &[&str]| -> Vec<JobHandle> { ids.iter().map(|id| JobHandle::new(*id).unwrap()).collect() };
        assert_eq!(stale_jobs.jobs, handles(&["7", "8"]));
        assert_eq!(stale_jobs.requeue, Some(handles(&["7"])));
    }

    #[test]
    fn the_node_is_resumed_at_once_and_a_manual_reason_is_kept() {
        let node = |reason: &str| -> Node {
            serde_json::from_value(json!({ "name": "n", "state": MIXED, "reason": reason })).unwrap()
        };
        let ours = "slurm-operator: lost: the worker before this one, with its jobs";
        let pod = serde_json::from_value(worker(0)).unwrap();
        let given = |reason: &str| stale_jobs_reason(&node(reason), Worker(&pod));
        assert_eq!(given("").as_deref(), Some(ours));
        assert_eq!(given("slurm-operator: Pod is terminating").as_deref(), Some(ours));
        assert_eq!(given("broken fan"), None);
        let down = Scene {
            state: &["DOWN", "DRAIN", "DYNAMIC_NORM"],
            reason: ours,
            jobs: vec![],
            ..Scene::default()
        };
        expect(&down, ("resume compute-0", false), "it is down for them alone");
    }

    #[test]
    fn stale_jobs_do_not_delay_a_leaving_worker() {
        let mut deleted = nodeset(&json!({ "replicas": 1 }));
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:59:00Z");
        let scene = Scene::default();
        let objects = vec![
            crate::nodeset::fixture::controller(),
            crate::nodeset::fixture::slurm_key(),
            deleted,
            scene.pod.clone(),
        ];
        let plan = super::super::plan(&crate::nodeset::fixture::observed(objects, scene.knowledge()));
        assert!(
            steps(&plan).contains(&"down compute-0".to_owned()),
            "{:?}",
            steps(&plan)
        );
    }
}
