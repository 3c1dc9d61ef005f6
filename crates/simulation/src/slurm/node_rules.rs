//! What slurmctld does with nodes. The rules are those of `update_node`, `validate_node_specs` and `ping_nodes` of Slurm 26.05.

use std::time::Duration;

use slurm::node::NodeFlag::{Drain, DynamicNorm, Fail, NotResponding};

use super::controller::{Controller, Effect, Registration, Requester, ToNode};
use super::request::{Code, NodeOrder, NodeUpdate};
use super::settings::{BATCH_START_TIMEOUT, MESSAGE_TIMEOUT};
use super::state::{JobPhase, Node};

const NOT_RESPONDING: &str = "Not responding";

impl Controller {
    /// By name, without a comparison: whoever comes last wins.
    pub(super) fn update_node(&mut self, name: &str, update: &NodeUpdate, now: Duration) -> Result<(), Code> {
        let node = self.state.nodes.get_mut(name).ok_or(Code::InvalidNodeName)?;
        if let Some(available) = &update.features {
            let active = update.active_features.as_ref().unwrap_or(&node.active_features);
            if !active.iter().all(|feature| available.contains(feature)) {
                return Err(Code::ActiveFeaturesNotSubset);
            }
            node.features.clone_from(available);
        }
        let set = |field: &mut String, value: &Option<String>| {
            if let Some(value) = value {
                field.clone_from(value);
            }
        };
        if let Some(active) = &update.active_features {
            node.active_features.clone_from(active);
        }
        set(&mut node.comment, &update.comment);
        set(&mut node.extra, &update.extra);
        set(&mut node.topology, &update.topology);
        set(&mut node.address, &update.address);
        self.save_nodes(now);
        self.change_state(name, update, now)
    }

    fn change_state(&mut self, name: &str, update: &NodeUpdate, now: Duration) -> Result<(), Code> {
        let busy = self.state.jobs_on(name).any(|job| job.phase == JobPhase::Running);
        let node = self.state.nodes.get_mut(name).ok_or(Code::InvalidNodeName)?;
        let resumes = update.resume_after.map(|seconds| now + Duration::from_secs(seconds));
        let same = match update.state {
            None => true,
            Some(NodeOrder::Down) => node.down,
            Some(NodeOrder::Drain) => node.has(Drain),
            Some(NodeOrder::Fail) => node.has(Fail),
            Some(_) => false,
        };
        if same {
            node.resume_after = resumes.or(node.resume_after);
            if update.reason.as_deref().unwrap_or_default() == node.reason {
                return Ok(());
            }
        } else {
            node.resume_after = resumes;
        }
        if let Some(reason) = update.reason.as_ref().filter(|reason| !reason.is_empty()) {
            node.reason.clone_from(reason);
            node.reason_time = now;
        }
        let refused = update.state.is_some_and(|order| !is_valid(node, order));
        let mut needs_registration = false;
        match update.state.filter(|_| !refused) {
            Some(order @ (NodeOrder::Drain | NodeOrder::Fail)) => {
                node.flags.remove(&Drain);
                node.flags.remove(&Fail);
                node.flags.insert(if order == NodeOrder::Drain { Drain } else { Fail });
            }
            Some(NodeOrder::Undrain) => {
                node.flags.remove(&Drain);
                // Measured: it lifts FAIL too, if no job runs there.
                if !busy && !node.down {
                    node.flags.remove(&Fail);
                }
                needs_registration = true;
            }
            Some(NodeOrder::Resume) => {
                needs_registration = node.down || node.has(Drain);
                node.down = false;
                node.flags.remove(&Drain);
                node.flags.remove(&Fail);
            }
            Some(NodeOrder::Idle) => {
                node.down = false;
                node.flags.remove(&Drain);
                node.flags.remove(&Fail);
            }
            Some(NodeOrder::Down) => {
                node.down = true;
            }
            None => {}
        }
        if needs_registration {
            node.flags.insert(NotResponding);
            node.last_response = Some(now);
            node.boot_time = None;
        }
        if !node.down && !node.has(Drain) && !node.has(Fail) {
            node.clear_reason();
        }
        if update.state == Some(NodeOrder::Down) {
            self.end_jobs_of(name, now);
        }
        if needs_registration {
            self.ping_soon(now);
        }
        if refused {
            Err(Code::InvalidNodeStateTransition)
        } else {
            Ok(())
        }
    }

    pub(super) fn delete_node(&mut self, name: &str, now: Duration) -> Result<(), Code> {
        let node = self.state.nodes.get(name).ok_or(Code::InvalidNodeName)?;
        if !node.has(DynamicNorm) {
            return Err(Code::InvalidNodeState);
        }
        // A suspended job does not protect its node.
        let busy = |phase| phase == JobPhase::Running;
        if self
            .state
            .jobs_on(name)
            .any(|job| busy(job.phase) || job.is_completing())
        {
            return Err(Code::NodesBusy);
        }
        if self
            .state
            .reservations
            .values()
            .any(|reservation| reservation.nodes.contains(name))
        {
            return Err(Code::NodesBusy);
        }
        self.state.nodes.remove(name);
        self.state.update_members(&self.conf);
        self.save_nodes(now);
        Ok(())
    }

    pub(super) fn register(&mut self, registration: Registration, now: Duration) {
        let Registration {
            name,
            address,
            cpus,
            features,
            boot_time,
            slurmd_start_time,
            jobs,
            requester,
        } = registration;
        if !self.state.nodes.contains_key(&name) {
            // A registration that slurmctld asked for comes from a node that was deleted since.
            if requester == Requester::Slurmctld {
                return;
            }
            let node = Node {
                name: name.clone(),
                slot: self.state.free_slot(),
                cpus,
                flags: [DynamicNorm].into(),
                active_features: features.clone(),
                features,
                ..Node::default()
            };
            self.state.nodes.insert(name.clone(), node);
            self.state.update_members(&self.conf);
        }
        self.check_jobs(&name, &jobs, now);
        let returns_all = self.conf.return_to_service == 2;
        let returns_silent = self.conf.return_to_service == 1;
        let node = self.state.nodes.get_mut(&name).expect("it exists");
        let last = node.last_response;
        node.boot_time = Some(boot_time);
        node.slurmd_start_time = slurmd_start_time;
        node.address = address;
        node.flags.remove(&NotResponding);
        let rebooted = last.is_some_and(|last| boot_time > last);
        if node.down && (returns_all || returns_silent && node.reason == NOT_RESPONDING && !rebooted) {
            node.down = false;
            node.resume_after = None;
            if !node.has(Drain) && !node.has(Fail) {
                node.clear_reason();
            }
        } else if rebooted && !returns_all && !node.has(Drain) {
            if node.reason.is_empty() || node.reason == NOT_RESPONDING {
                "Node unexpectedly rebooted".clone_into(&mut node.reason);
                node.reason_time = now;
            }
            node.down = true;
            node.last_response = Some(now);
            self.end_jobs_of(&name, now);
        }
        if let Some(node) = self.state.nodes.get_mut(&name) {
            node.last_response = Some(now);
        }
        self.plan_schedule(now);
    }

    /// Compares the jobs that a node has with those that it should have.
    fn check_jobs(&mut self, name: &str, present: &[(u32, bool)], now: Duration) {
        for (id, is_batch) in present {
            let id = *id;
            let belongs = self.state.jobs.get_mut(&id).is_some_and(|job| {
                let belongs = job.phase.has_nodes() && job.nodes.iter().any(|node| node == name);
                if belongs && *is_batch && job.batch_host() == Some(name) {
                    job.last_active = now;
                }
                belongs
            });
            if !belongs {
                // An orphan, a job that is pending or elsewhere, or one that is completing.
                self.send(name, ToNode::Kill { id });
            }
        }
        let limit = BATCH_START_TIMEOUT + MESSAGE_TIMEOUT;
        let old = |time: Duration| time + limit < now;
        let missing: Vec<u32> = self
            .state
            .jobs
            .values()
            .filter(|job| job.phase.has_nodes() && job.batch_host() == Some(name))
            .filter(|job| old(job.last_active) && job.started.is_some_and(old))
            .map(|job| job.id)
            .collect();
        for id in missing {
            let requeue = self.state.jobs[&id].spec.requeue;
            self.end_job(id, JobPhase::NodeFail, 1, requeue, now);
        }
    }

    pub(super) fn responded(&mut self, name: &str, now: Duration) {
        self.pinged.remove(name);
        let policy = self.conf.return_to_service;
        let Some(node) = self.state.nodes.get_mut(name) else {
            return;
        };
        node.last_response = Some(now);
        let mut changed = node.flags.remove(&NotResponding);
        if node.down && (policy == 2 || policy == 1 && node.reason == NOT_RESPONDING) {
            node.down = false;
            node.resume_after = None;
            changed = true;
            if !node.has(Drain) && !node.has(Fail) {
                node.clear_reason();
            }
        }
        if changed {
            self.plan_schedule(now);
        }
    }

    pub(super) fn not_responding(&mut self, name: &str, sent: Duration, now: Duration) {
        self.pinged.remove(name);
        let Some(node) = self.state.nodes.get_mut(name) else {
            return;
        };
        if node.last_response.is_none_or(|last| last < sent) && node.flags.insert(NotResponding) {
            self.plan_schedule(now);
        }
    }

    /// `SlurmdTimeout` is over.
    pub(super) fn node_died(&mut self, name: &str, now: Duration) {
        let Some(node) = self.state.nodes.get_mut(name) else {
            return;
        };
        node.append_reason(NOT_RESPONDING, now);
        node.down = true;
        self.end_jobs_of(name, now);
        self.plan_schedule(now);
    }

    /// Resumes nodes whose `ResumeAfter` is over.
    pub(super) fn lift_expired(&mut self, now: Duration) {
        let expired: Vec<String> = self
            .state
            .nodes
            .values()
            .filter(|node| node.resume_after.is_some_and(|at| at <= now))
            .map(|node| node.name.clone())
            .collect();
        for name in expired {
            let resume = NodeUpdate {
                state: Some(NodeOrder::Resume),
                ..NodeUpdate::default()
            };
            // A node that was resumed by hand in the meantime refuses it.
            let _ = self.update_node(&name, &resume, now);
        }
    }

    /// A node is down: its jobs start again elsewhere, or end.
    fn end_jobs_of(&mut self, name: &str, now: Duration) {
        let jobs: Vec<u32> = self.state.jobs_on(name).map(|job| job.id).collect();
        for id in jobs {
            if self.state.jobs[&id].phase.has_nodes() {
                let requeue = self.state.jobs[&id].spec.requeue;
                self.end_job(id, JobPhase::NodeFail, 1, requeue, now);
            }
            // Nobody waits for the epilog of a node that is down.
            self.epilog_done(name, id, now);
        }
    }

    pub(super) fn send(&mut self, name: &str, message: ToNode) {
        if let Some(node) = self.state.nodes.get(name) {
            let address = node.address.clone();
            let node = name.to_owned();
            self.effects.push(Effect::Send { address, node, message });
        }
    }
}

fn is_valid(node: &Node, order: NodeOrder) -> bool {
    match order {
        NodeOrder::Resume => node.down || node.has(Drain) || node.has(Fail),
        NodeOrder::Down | NodeOrder::Drain | NodeOrder::Fail | NodeOrder::Undrain | NodeOrder::Idle => true,
    }
}
