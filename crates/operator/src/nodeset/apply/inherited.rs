//! Jobs that ended with the worker before: Slurm is told what it has forgotten.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
};

use slurm::{JobHandle, rest::Process};
use tracing::info;

use super::{Applied, Hands, Ordered, PATIENCE};
use crate::{
    cluster::{CommandError, JobOrder, Knowledge, NodeOrder},
    nodeset::plan::{Effect, Evidence, Inherited, Plan, Remedy, inherited, reason_for_them},
    runtime::{Error, Key},
    worker::{ObjectId, Worker},
};

/// About which jobs each slurmctld was told, by NodeSet and by the UID of the pod they were shown on. The same one is never
/// told twice about the same: should a clock be wrong after all, that ends it.
#[derive(Debug, Default)]
pub(in crate::nodeset) struct Disinherited(Mutex<HashMap<Key, BTreeMap<String, Said>>>);

type Said = (Process, BTreeSet<JobHandle>);

impl Disinherited {
    /// Only what was said of these pods is of use.
    fn keep<'a>(&self, nodeset: &Key, uids: impl Iterator<Item = &'a str>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(said) = all.get_mut(nodeset) {
            let uids: BTreeSet<&str> = uids.collect();
            said.retain(|uid, _| uids.contains(uid.as_str()));
            if said.is_empty() {
                all.remove(nodeset);
            }
        }
    }

    fn is_news(&self, nodeset: &Key, uid: &str, process: Process, jobs: &[JobHandle]) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = all.get(nodeset).and_then(|said| said.get(uid));
        said.is_none_or(|(to, said)| *to != process || jobs.iter().any(|job| !said.contains(job)))
    }

    fn note(&self, nodeset: &Key, uid: &str, process: Process, jobs: &[JobHandle]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = all.entry(nodeset.clone()).or_default();
        let (to, said) = said.entry(uid.to_owned()).or_insert((process, BTreeSet::new()));
        if *to != process {
            *to = process;
            said.clear();
        }
        said.extend(jobs.iter().cloned());
    }
}

impl Hands<'_> {
    pub(super) async fn apply_inherited(&self, plan: &Plan, applied: &mut Applied) {
        self.disinherited
            .keep(&self.key(), self.observed.workers().map(Worker::uid));
        let mut told = false;
        for effect in &plan.effects {
            if let Effect::Disinherit { pod, node, inherited } = effect {
                told |= applied.take(self.disinherit(pod, node, inherited).await) == Some(true);
            }
        }
        if told {
            self.ctx.clusters.poll_now(&self.cluster(), PATIENCE).await;
        }
    }

    /// Whether Slurm was told.
    async fn disinherit(&self, pod: &ObjectId, node: &str, planned: &Inherited) -> Result<bool, Error> {
        let seen = self.observed.knowledge.known();
        let (Some(record), Some(process), Some(worker)) = (
            seen.and_then(|seen| seen.nodes.get(node)),
            seen.and_then(|seen| seen.process),
            self.worker(pod),
        ) else {
            return Ok(false);
        };
        let Inherited { jobs, remedy } = planned;
        if !self.disinherited.is_news(&self.key(), &pod.uid, process, jobs) {
            return Ok(false);
        }
        if *remedy == Remedy::Down && !record.state.is_drain() {
            // No job is to start there between the look and the word. If nothing comes of it, the next plan takes it back.
            let reason = reason_for_them(record, worker);
            let order = NodeOrder::Drain { reason };
            if self.command(node, &order, &record.admin_state()).await? == Ordered::Changed {
                return Ok(true);
            }
        }
        let Knowledge::Known(seen) = self.ctx.clusters.observe(&self.cluster()).await else {
            return Ok(false);
        };
        let still = inherited(&Evidence::new(&seen), worker);
        let (Some(record), Some(process)) = (
            seen.nodes.get(node),
            seen.process.filter(|_| still.as_ref() == Some(planned)),
        ) else {
            info!(nodeset = %self.key(), node, "Slurm shows other jobs by now");
            return Ok(true);
        };
        let names: Vec<&str> = jobs.iter().map(JobHandle::as_str).collect();
        let names = names.join(", ");
        info!(nodeset = %self.key(), node, jobs = names, ?remedy, "Telling Slurm about jobs that ended with the worker before");
        match remedy {
            Remedy::Down => {
                let reason = reason_for_them(record, worker);
                let order = NodeOrder::Down { reason };
                if self.command(node, &order, &record.admin_state()).await? == Ordered::Changed {
                    return Ok(true);
                }
            }
            Remedy::Requeue(willing) => {
                for job in willing {
                    let sent = self
                        .ctx
                        .clusters
                        .command_job(&self.cluster(), job, JobOrder::Requeue)
                        .await;
                    match sent {
                        Ok(()) | Err(CommandError::NotFound(_)) => {}
                        Err(error) => {
                            let error = format!(
                                "cannot requeue job {job}, which ended with the last worker of {node}: {error}"
                            );
                            return Err(Error::other(error));
                        }
                    }
                }
            }
        }
        self.disinherited.note(&self.key(), &pod.uid, process, jobs);
        let message = format!("Told Slurm that what it shows on node {node} ended with the worker before: job {names}");
        self.ctx.events.warn(self.nodeset(), "JobsLost", message);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slurmctld_is_told_once_about_a_job_on_a_worker() {
        let told = Disinherited::default();
        let key = Key::new("ns", "compute");
        let life = |boot_time| Process { boot_time };
        let jobs = |ids: &[&str]| -> Vec<JobHandle> { ids.iter().map(|id| JobHandle::new(*id).unwrap()).collect() };
        assert!(told.is_news(&key, "a", life(1), &jobs(&["7"])));
        told.note(&key, "a", life(1), &jobs(&["7"]));
        assert!(!told.is_news(&key, "a", life(1), &jobs(&["7"])));
        assert!(told.is_news(&key, "a", life(1), &jobs(&["7", "8"])));
        assert!(told.is_news(&key, "b", life(1), &jobs(&["7"])));
        // The next one may have forgotten it.
        assert!(told.is_news(&key, "a", life(2), &jobs(&["7"])));
        told.note(&key, "a", life(2), &jobs(&["8"]));
        assert!(told.is_news(&key, "a", life(2), &jobs(&["7"])));
        told.keep(&key, ["a"].into_iter());
        assert!(!told.is_news(&key, "a", life(2), &jobs(&["8"])));
        told.keep(&key, ["b"].into_iter());
        assert!(told.is_news(&key, "a", life(2), &jobs(&["8"])));
    }
}
