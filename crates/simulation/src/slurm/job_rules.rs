//! What slurmctld does with jobs.

use std::collections::BTreeSet;
use std::time::Duration;

use slurm::Number;
use slurm::node::NodeFlag;

use super::controller::{Controller, Effect, ToNode};
use super::request::Code;
use super::state::{Job, JobKey, JobPhase, Node, Partition, Submission};

impl Controller {
    pub(super) fn submit(&mut self, spec: &Submission, key: JobKey, now: Duration) -> Result<u32, Code> {
        self.check_submission(spec)?;
        let id = self.state.next_job.max(1);
        self.state.next_job = id + 1;
        // Slurm looks at nodes last, when the job has its number, and not for a job that is held.
        let refused = !spec.hold && !self.has_required_nodes(spec);
        let job = Job {
            key: if refused { JobKey::REFUSED } else { key },
            id,
            partition: spec.partition.clone(),
            held: spec.hold,
            spec: spec.clone(),
            phase: if refused { JobPhase::Failed } else { JobPhase::Pending },
            nodes: Vec::new(),
            completing: BTreeSet::new(),
            admin_comment: String::new(),
            submitted: now,
            eligible: now,
            started: None,
            ended: None,
            last_active: now,
            suspended: None,
            time_limit: spec.time_limit.map_or(Number::Unset, Number::Finite),
            limit: None,
            restarts: 0,
            exit_code: 0,
            launch: 0,
        };
        self.state.jobs.insert(id, job);
        if refused {
            return Err(Code::NodeConfigUnavailable);
        }
        self.save_jobs(now);
        self.save_nodes(now);
        Ok(id)
    }

    fn check_submission(&self, spec: &Submission) -> Result<(), Code> {
        if spec.required.iter().any(|node| !self.state.nodes.contains_key(node)) {
            return Err(Code::InvalidNodeName);
        }
        let partitions: Option<Vec<&Partition>> =
            spec.partitions().map(|name| self.state.partitions.get(name)).collect();
        let partitions = partitions
            .filter(|found| !found.is_empty())
            .ok_or(Code::InvalidPartitionName)?;
        let known = |feature: &String| self.state.nodes.values().any(|node| node.features.contains(feature));
        if spec.constraint.as_ref().is_some_and(|feature| !known(feature)) {
            return Err(Code::InvalidFeature);
        }
        if !partitions.iter().all(|partition| partition.accepts_jobs()) {
            return Err(Code::PartitionNotAvailable);
        }
        Ok(())
    }

    /// More nodes, or larger ones, than there are may come; those that are named must be there.
    fn has_required_nodes(&self, spec: &Submission) -> bool {
        let suits = |node: &Node| spec.cpus <= node.cpus && spec.constraint.iter().all(|f| node.features.contains(f));
        let has = |partition: &Partition| {
            let named = spec.required.iter();
            named.clone().all(|name| partition.members.contains(name))
                && named.clone().all(|name| suits(&self.state.nodes[name]))
        };
        spec.partitions()
            .filter_map(|name| self.state.partitions.get(name))
            .any(has)
    }

    fn job_mut(&mut self, id: u32) -> Result<&mut Job, Code> {
        self.state.jobs.get_mut(&id).ok_or(Code::InvalidJobId)
    }

    pub(super) fn cancel(&mut self, id: u32, now: Duration) -> Result<(), Code> {
        let job = self.job_mut(id)?;
        if job.phase.is_end() {
            return Err(Code::AlreadyDone);
        }
        self.end_job(id, JobPhase::Cancelled, 0, false, now);
        Ok(())
    }

    pub(super) fn requeue(&mut self, id: u32, now: Duration) -> Result<(), Code> {
        let job = self.job_mut(id)?;
        if !job.spec.requeue {
            return Err(Code::Disabled);
        }
        match job.phase {
            JobPhase::Pending => Err(Code::JobPending),
            JobPhase::Running | JobPhase::Suspended => {
                self.end_job(id, JobPhase::Cancelled, 0, true, now);
                self.save_jobs(now);
                Ok(())
            }
            // Slurm starts a finished job again, too.
            _ => {
                job.phase = JobPhase::Pending;
                job.restarts += 1;
                if job.completing.is_empty() {
                    self.finish_requeue(id, now);
                }
                self.save_jobs(now);
                Ok(())
            }
        }
    }

    pub(super) fn suspend(&mut self, id: u32, now: Duration) -> Result<(), Code> {
        let job = self.job_mut(id)?;
        match job.phase {
            JobPhase::Pending => return Err(Code::JobPending),
            JobPhase::Suspended => return Ok(()),
            JobPhase::Running => {}
            _ => return Err(Code::AlreadyDone),
        }
        job.phase = JobPhase::Suspended;
        job.suspended = Some(now);
        // If it is requeued now, it stays held.
        job.held = true;
        self.tell_processes(id, true);
        self.save_jobs(now);
        Ok(())
    }

    pub(super) fn continue_job(&mut self, id: u32, now: Duration) -> Result<(), Code> {
        let job = self.job_mut(id)?;
        match job.phase {
            JobPhase::Pending => return Err(Code::JobPending),
            JobPhase::Suspended => {}
            JobPhase::Running => return Err(Code::JobNotSuspended),
            _ => return Err(Code::AlreadyDone),
        }
        job.phase = JobPhase::Running;
        job.held = false;
        let lost = job
            .suspended
            .take()
            .map_or(Duration::ZERO, |since| now.saturating_sub(since));
        job.limit = job.limit.map(|limit| limit + lost);
        self.tell_processes(id, false);
        self.save_jobs(now);
        Ok(())
    }

    fn tell_processes(&mut self, id: u32, suspend: bool) {
        let job = &self.state.jobs[&id];
        let (key, nodes) = (job.key, job.nodes.clone());
        for node in nodes {
            self.send(&node, ToNode::Suspend(key, suspend));
        }
    }

    pub(super) fn update_job(
        &mut self,
        id: u32,
        hold: Option<bool>,
        comment: Option<&str>,
        now: Duration,
    ) -> Result<(), Code> {
        let job = self.state.jobs.get_mut(&id).ok_or(Code::InvalidJobId)?;
        if job.phase.is_end() && hold.is_some() {
            return Err(Code::JobFinished);
        }
        if let Some(comment) = comment {
            comment.clone_into(&mut job.admin_comment);
        }
        job.held = hold.unwrap_or(job.held);
        let job = &self.state.jobs[&id];
        if !self.fits(job) {
            // The change stays.
            return Err(Code::PartConfigUnavailable);
        }
        self.save_jobs(now);
        self.save_nodes(now);
        Ok(())
    }

    /// Whether the partition of a job could have it, as Slurm judges at changes of it.
    fn fits(&self, job: &Job) -> bool {
        let name = job.partition.split(',').next();
        let Some(partition) = name.and_then(|name| self.state.partitions.get(name)) else {
            return true;
        };
        let members = partition.members.iter().filter_map(|name| self.state.nodes.get(name));
        let total: u32 = members.map(|node| node.cpus).sum();
        let needed = job.spec.cpus * u32::try_from(job.spec.nodes).unwrap();
        partition.state != "INACTIVE" && (needed <= total || !partition.starts_jobs())
    }

    /// The script's end, as its node reports it.
    pub(super) fn complete_batch(&mut self, id: u32, exit_code: i32, now: Duration) {
        if self.state.jobs.get(&id).is_some_and(|job| job.phase.has_nodes()) {
            let phase = if exit_code == 0 {
                JobPhase::Completed
            } else {
                JobPhase::Failed
            };
            self.end_job(id, phase, exit_code, false, now);
            self.save_jobs(now);
            self.save_nodes(now);
        }
    }

    /// The agent repeats a report that a killed slurmctld forgot.
    pub(super) fn complete_again(&mut self, id: u32, exit_code: Option<i32>, now: Duration) -> Result<(), Code> {
        let job = self.job_mut(id)?;
        match job.phase {
            JobPhase::Pending => Err(Code::JobPending),
            phase if phase.is_end() => Err(Code::AlreadyDone),
            _ => {
                match exit_code {
                    Some(exit_code) => self.complete_batch(id, exit_code, now),
                    None => self.end_job(id, JobPhase::Cancelled, 0, false, now),
                }
                Ok(())
            }
        }
    }

    /// Ends the jobs whose time limit is over.
    pub(super) fn end_by_limit(&mut self, now: Duration) {
        let over = |job: &&Job| job.phase == JobPhase::Running && job.limit.is_some_and(|limit| limit <= now);
        let over: Vec<u32> = self.state.jobs.values().filter(over).map(|job| job.id).collect();
        for id in over {
            self.end_job(id, JobPhase::Timeout, 0, false, now);
        }
    }

    /// Ends a job that is pending or has nodes, or puts it back into the queue.
    pub(super) fn end_job(&mut self, id: u32, phase: JobPhase, exit_code: i32, requeue: bool, now: Duration) {
        let Some(job) = self.state.jobs.get_mut(&id) else {
            return;
        };
        let had_nodes = job.phase.has_nodes();
        job.ended = Some(now);
        job.last_active = now;
        job.exit_code = exit_code;
        job.phase = phase;
        let nodes = if had_nodes { job.nodes.clone() } else { Vec::new() };
        if had_nodes || !requeue {
            let job = job.clone();
            self.effects.push(Effect::Ended { job, requeued: requeue });
        }
        let known: BTreeSet<String> = nodes
            .iter()
            .filter(|node| self.state.nodes.contains_key(*node))
            .cloned()
            .collect();
        for node in &nodes {
            self.send(node, ToNode::Kill { id });
        }
        let job = self.state.jobs.get_mut(&id).expect("it exists");
        if had_nodes {
            job.completing = known;
        }
        if requeue {
            job.phase = JobPhase::Pending;
            job.restarts += 1;
            if job.completing.is_empty() {
                self.finish_requeue(id, now);
            }
        }
        self.plan_schedule(now);
    }

    pub(super) fn epilog_done(&mut self, node: &str, id: u32, now: Duration) {
        let Some(job) = self.state.jobs.get_mut(&id) else {
            return;
        };
        if !job.completing.remove(node) {
            return;
        }
        if job.completing.is_empty() && job.phase == JobPhase::Pending {
            self.finish_requeue(id, now);
        }
        self.plan_schedule(now);
    }

    /// A node that has processes of the number already is drained, and the job is held.
    pub(super) fn launch_refused(&mut self, node: &str, id: u32, launch: u64, now: Duration) {
        let job = self.state.jobs.get_mut(&id);
        let Some(job) = job.filter(|job| job.launch == launch && job.phase.has_nodes()) else {
            return;
        };
        let requeue = job.spec.requeue;
        job.held = requeue;
        if let Some(node) = self.state.nodes.get_mut(node) {
            node.flags.insert(NodeFlag::Drain);
            node.append_reason("Duplicate jobid", now);
        }
        self.end_job(id, JobPhase::NodeFail, 1, requeue, now);
    }

    /// A requeued job becomes a new one.
    fn finish_requeue(&mut self, id: u32, now: Duration) {
        let wait = self.conf.cred_expire + Duration::from_secs(1);
        let job = self.state.jobs.get_mut(&id).expect("the caller has it");
        job.nodes.clear();
        job.started = None;
        job.ended = None;
        job.submitted = now;
        job.eligible = now + wait;
        job.partition.clone_from(&job.spec.partition);
    }
}
