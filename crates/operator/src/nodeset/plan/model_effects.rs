//! The operator in the world of [`super::model`]: it reconciles, and its effects change the world.

use std::sync::Arc;

use jiff::Timestamp;
use slurm::AdminState;

use super::{
    Effect, Evidence, Occupancy, Plan, PlannedOrder, WorkerLoss, WorkerRemoval,
    model::{Event, Life, PROTECT, Pod, World, at, node_name, ordinal},
    plan, reason_to_leave,
};
use crate::{
    cluster::{Knowledge, NodeOrder, Seen},
    nodeset::fixture::{observed, unknown},
    worker::{Cause, DRAIN_REASON, DRAINED, ObjectId},
};

impl World {
    /// Checks that an update takes no serving worker while `maxUnavailable` are missing.
    fn check_update(&self, plan: &Plan) {
        let Some(seen) = &self.seen else { return };
        let serves = |ordinal: &u32, pod: &Pod| {
            let node = seen.nodes.get(&node_name(*ordinal));
            let open = node.is_some_and(|node| !node.state.is_drain() && !node.state.is_down());
            let goes = pod.leaving.is_some_and(|leaving| leaving.cause == Cause::Update);
            open && pod.life == Life::Running && !pod.terminating && !goes
        };
        let taken = plan
            .effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::MarkLeaving {
                    pod,
                    leaving: Some(leaving),
                } if leaving.cause == Cause::Update => Some(ordinal(pod)),
                _ => None,
            })
            .filter(|ordinal| serves(ordinal, &self.pods[ordinal]))
            .count();
        let serving = self.pods.iter().filter(|(ordinal, pod)| serves(ordinal, pod)).count();
        let least = usize::try_from(self.replicas - self.replicas.div_ceil(4)).unwrap();
        assert!(
            taken == 0 || serving - taken >= least,
            "{taken} of {serving} are taken, {least} should be left"
        );
    }

    pub(super) fn reconcile(&mut self, dies_after: usize, meanwhile: &[Event]) -> usize {
        let knowledge = match &self.seen {
            Some(seen) if !self.silent => Knowledge::Known(Arc::new(seen.clone())),
            _ => unknown(),
        };
        let mut observed = observed(self.objects(), knowledge);
        observed.now = at(self.time);
        let plan = plan(&observed);
        self.check_update(&plan);
        let mut meanwhile = meanwhile.iter();
        let needs_proof = |effect: &&Effect| matches!(effect, Effect::RemoveWorker(_) | Effect::Unprotect { .. });
        let (proven, others): (Vec<&Effect>, Vec<&Effect>) = plan.effects.iter().partition(needs_proof);
        let others = others.len().min(dies_after);
        for effect in plan.effects.iter().filter(|effect| !needs_proof(effect)).take(others) {
            self.carry_out(effect, None);
            meanwhile.next().inspect(|event| self.happen(event));
        }
        // One snapshot for all effects that need proof, which then follow one another.
        let fresh = self.look();
        for effect in proven.into_iter().take(dies_after - others) {
            meanwhile.next().inspect(|event| self.happen(event));
            self.carry_out(effect, Some(&fresh));
        }
        plan.effects.len()
    }

    /// Executes an order like the agent. Returns whether it was accepted.
    fn order(&mut self, node: &str, expect: &AdminState, order: impl FnOnce(&mut AdminState)) -> bool {
        let compares = self.agent_compares;
        let Some(truth) = self.nodes.get_mut(node).filter(|_| !self.silent) else {
            return false;
        };
        if compares && truth.admin != *expect {
            return false;
        }
        let before = truth.admin.clone();
        order(&mut truth.admin);
        if truth.theirs {
            let stands = truth.admin.reason == before.reason && truth.admin.down == before.down;
            assert!(
                stands && (truth.admin.drain || !before.drain),
                "{node}: a person's order is lost, {before} became {}",
                truth.admin
            );
        }
        true
    }

    fn carry_out(&mut self, effect: &Effect, fresh: Option<&Seen>) {
        let holds = |node: &str, occupancy: &Occupancy| {
            fresh.is_some_and(|fresh| Evidence::new(fresh).occupancy(node) == *occupancy)
        };
        match effect {
            Effect::CreatePod { pod, .. } => {
                let name = pod["metadata"]["name"].as_str().unwrap();
                let ordinal = name.rsplit_once('-').unwrap().1.parse().unwrap();
                let revision = pod["metadata"]["labels"]["controller.kubernetes.io/hash"].as_str();
                let made = Pod {
                    revision: revision.unwrap().to_owned(),
                    broken: self.broken,
                    created: self.time,
                    ..Pod::default()
                };
                assert!(self.pods.insert(ordinal, made).is_none(), "{name} was there already");
            }
            Effect::LoseWorker(WorkerLoss { pod: Some(pod), .. }) => self.delete_pod(ordinal(pod)),
            Effect::MarkLeaving {
                pod,
                leaving: Some(leaving),
            } => {
                let reason = reason_to_leave("slurm", &pod.name, leaving.cause);
                let before = self.pod(pod).leaving.replace(*leaving);
                self.pod(pod).drain_reason = Some(reason);
                if before.is_none() {
                    self.forget_resume(&pod.name);
                }
            }
            Effect::MarkLeaving { pod, leaving: None } => {
                self.pod(pod).leaving = None;
                if self.pod(pod).drained.is_none() {
                    self.pod(pod).drain_reason = None;
                }
                self.forget_resume(&pod.name);
            }
            Effect::MarkPod {
                pod,
                labels,
                annotations,
            } => {
                let pod = self.pod(pod);
                if let Some(protect) = labels.get(PROTECT) {
                    pod.unprotected = protect.is_none();
                }
                if let Some(drained) = annotations.get(DRAINED) {
                    let since = drained.as_ref().map(|since| since.parse::<Timestamp>().unwrap());
                    pod.drained = since.map(|since| since.as_second() - at(0).as_second());
                }
                if let Some(reason) = annotations.get(DRAIN_REASON) {
                    pod.drain_reason.clone_from(reason);
                }
            }
            Effect::OrderNode { order, note_on } => self.order_node(order, note_on.as_ref()),
            Effect::Unprotect { pod, node, occupancy } if !self.silent && holds(node, occupancy) => {
                self.pod(pod).unprotected = true;
            }
            Effect::RemoveWorker(WorkerRemoval {
                pod,
                node,
                occupancy,
                order,
                ..
            }) if !self.silent && holds(node, occupancy) => self.remove_worker(pod, order.as_ref()),
            _ => {}
        }
    }

    fn order_node(&mut self, order: &PlannedOrder, note_on: Option<&ObjectId>) {
        let PlannedOrder { node, order, expect } = order;
        match order {
            NodeOrder::Drain { reason } => {
                if let Some(pod) = note_on {
                    assert!(reason.is_some(), "{node}: a person's reason is noted as the operator's");
                    self.pod(pod).drain_reason = reason.as_ref().map(ToString::to_string);
                }
                let time = self.time;
                let resumed = self.nodes.get(node).is_some_and(|truth| truth.resumed);
                let ordered = self.order(node, expect, |admin| {
                    admin.drain = true;
                    if let Some(reason) = reason {
                        admin.reason = reason.to_string();
                        admin.reason_since = u64::try_from(at(time).as_second()).unwrap();
                    }
                });
                assert!(!(ordered && resumed), "{node}: a person's resume is lost");
                if let Some(pod) = note_on.filter(|_| ordered) {
                    self.pod(pod).drained = Some(time);
                }
            }
            NodeOrder::Undrain => {
                self.order(node, expect, |admin| {
                    admin.drain = false;
                    (admin.reason, admin.reason_since) = Default::default();
                });
            }
            NodeOrder::Resume => {
                self.order(node, expect, |admin| *admin = AdminState::default());
            }
            other => panic!("{node}: {other:?} needs proof"),
        }
    }

    fn remove_worker(&mut self, pod: &ObjectId, order: Option<&PlannedOrder>) {
        let ordered = match order {
            None => true,
            Some(PlannedOrder { node, order, expect }) if *order != NodeOrder::Delete => {
                assert_eq!(*order, NodeOrder::Drain { reason: None });
                self.order(node, expect, |admin| admin.drain = true)
            }
            Some(PlannedOrder { node, expect, .. }) => {
                // Like Slurm, which deletes a node with a suspended job.
                let refused = self.jobs.values().any(|(on, suspended)| on == node && !suspended);
                let theirs = self.nodes.get(node).is_some_and(|truth| truth.theirs);
                let ordered = !refused && self.order(node, expect, |_| {});
                if ordered {
                    let cause = self.pod(pod).leaving.map(|leaving| leaving.cause);
                    let is_lost = theirs && cause == Some(Cause::Update);
                    assert!(!is_lost, "{node}: a person's drain goes with an update");
                    self.nodes.remove(node);
                    self.saved.remove(node);
                }
                ordered
            }
        };
        if ordered {
            self.delete_pod(ordinal(pod));
        }
    }

    fn pod(&mut self, id: &ObjectId) -> &mut Pod {
        self.pods.get_mut(&ordinal(id)).unwrap()
    }

    /// Checks that no job is lost.
    pub(super) fn delete_pod(&mut self, ordinal: u32) {
        let name = node_name(ordinal);
        let pod = self.pods.get_mut(&ordinal).unwrap();
        assert!(
            pod.life == Life::Failed || !self.jobs.values().any(|(node, _)| *node == name),
            "{name} was deleted with a job on it"
        );
        pod.terminating = true;
    }

    /// Forgets a resume that no longer counts. Pods and nodes have the same names here.
    pub(super) fn forget_resume(&mut self, node: &str) {
        if let Some(truth) = self.nodes.get_mut(node) {
            truth.resumed = false;
        }
    }
}

/// Between the look at Slurm and the deletion of their pods, starting workers register and get jobs.
#[test]
fn workers_that_register_while_they_are_removed_keep_their_first_jobs() {
    let reconcile = |meanwhile| Event::Reconcile {
        dies_after: usize::MAX,
        meanwhile,
    };
    let mut world = World::new();
    for event in [
        Event::Poll,
        reconcile(vec![]),
        Event::KubeletCatchesUp,
        Event::Scale(0),
        Event::Poll,
        reconcile(vec![]),
        Event::Poll,
        reconcile(vec![Event::SlurmdsRegister { backlog: true }]),
    ] {
        world.happen(&event);
    }
    assert!(world.pods.values().all(|pod| pod.leaving.is_some() && !pod.terminating));
}
