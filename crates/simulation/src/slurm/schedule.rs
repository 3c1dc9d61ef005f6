//! The start of pending jobs: in the order of their submission; a later job starts earlier only if it delays none before it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::controller::{Controller, Effect, Timer, ToNode};
use super::state::{Job, JobPhase, Node, Partition};

/// A job without a limit counts as one of a year.
const YEAR: Duration = Duration::from_hours(365 * 24);

const DAY: Duration = Duration::from_hours(24);

/// CPUs of a node that a blocked job will have. A later job may have them until then.
struct Plan {
    starts: Duration,
    node: String,
    cpus: u32,
}

impl Controller {
    pub(super) fn schedule(&mut self, now: Duration) {
        let pending = self.pending_jobs(now);
        let later = self.start_in_order(pending, now);
        self.backfill(later, now);
    }

    /// Returns the jobs that could start now, in the order of their numbers: a requeued job keeps its number and its priority.
    fn pending_jobs(&mut self, now: Duration) -> Vec<u32> {
        let mut pending = Vec::new();
        let (nodes, partitions) = (&self.state.nodes, &self.state.partitions);
        for job in self.state.jobs.values_mut() {
            if job.phase != JobPhase::Pending || job.held || job.is_completing() {
                continue;
            }
            if job.eligible > now {
                let (at, timer) = (job.eligible, Timer::Schedule);
                self.effects.push(Effect::Wake { at, timer });
                continue;
            }
            // It waits for a person if a node that it names is gone, and for the others if they are not available.
            let mut open = job.spec.partitions().filter_map(|name| partitions.get(name));
            let is_tried = open.any(Partition::starts_jobs);
            let named: Vec<&Node> = job.spec.required.iter().filter_map(|name| nodes.get(name)).collect();
            let is_gone = named.len() < job.spec.required.len();
            job.held = is_tried && is_gone && named.iter().all(|node| node.is_available());
            if !job.held {
                pending.push(job.id);
            }
        }
        pending
    }

    /// The main scheduler: a blocked job blocks its partition, or the nodes that it names. Returns the jobs that did not start.
    fn start_in_order(&mut self, pending: Vec<u32>, now: Duration) -> Vec<u32> {
        let (mut closed, mut taken) = (BTreeSet::new(), BTreeSet::new());
        let mut later = Vec::new();
        for id in pending {
            let spec = self.state.jobs[&id].spec.clone();
            let free = |node: &Node| if taken.contains(&node.name) { 0 } else { self.free(node) };
            let found = self.find(id, now, |partition| !closed.contains(partition), free);
            if let Some((partition, nodes)) = found {
                self.start_job(id, &partition, &nodes, now);
                self.save_jobs(now);
                self.save_nodes(now);
                continue;
            }
            later.push(id);
            if spec.required.is_empty() {
                closed.extend(spec.partitions().map(str::to_owned));
            } else if !self.plan_start(id, now).is_empty() {
                taken.extend(spec.required);
            }
        }
        later
    }

    /// The backfill scheduler: a job starts if it delays none before it. It does not save.
    fn backfill(&mut self, pending: Vec<u32>, now: Duration) {
        let mut plans: Vec<Plan> = Vec::new();
        for id in pending {
            let ends = now + self.time_of(&self.state.jobs[&id]);
            let free = |node: &Node| {
                let planned = plans.iter().filter(|plan| plan.node == node.name && plan.starts < ends);
                self.free(node).saturating_sub(planned.map(|plan| plan.cpus).sum())
            };
            match self.find(id, now, |_| true, free) {
                Some((partition, nodes)) => self.start_job(id, &partition, &nodes, now),
                // It looks no further than a day ahead (`bf_window`).
                None => plans.extend(
                    self.plan_start(id, now)
                        .into_iter()
                        .filter(|plan| plan.starts < now + DAY),
                ),
            }
        }
    }

    fn free(&self, node: &Node) -> u32 {
        node.cpus.saturating_sub(self.state.allocated_cpus(node))
    }

    /// Returns the partition in which a job can start, and the nodes.
    fn find(
        &self,
        id: u32,
        now: Duration,
        allows: impl Fn(&str) -> bool,
        free: impl Fn(&Node) -> u32,
    ) -> Option<(String, Vec<String>)> {
        let job = &self.state.jobs[&id];
        let names = job.spec.partitions().filter(|name| allows(name));
        names
            .filter_map(|name| self.state.partitions.get(name))
            .filter(|partition| partition.starts_jobs())
            .find_map(|partition| Some((partition.name.clone(), self.choose(job, partition, now, &free)?)))
    }

    /// How long a job may run; a year without a limit.
    fn time_of(&self, job: &Job) -> Duration {
        self.state
            .time_limit(job)
            .finite()
            .map_or(YEAR, |minutes| Duration::from_secs(60 * minutes))
    }

    /// Returns what a blocked job will need when the jobs on its nodes are over.
    fn plan_start(&self, id: u32, now: Duration) -> Vec<Plan> {
        let job = &self.state.jobs[&id];
        let future = self.find(id, now, |_| true, |node| node.cpus);
        let nodes = future.map_or(Vec::new(), |(_, nodes)| nodes);
        let before = nodes.iter().flat_map(|name| self.state.jobs_on(name));
        let ends = before.map(|job| job.limit.unwrap_or_else(|| job.started.unwrap_or(now) + YEAR));
        let starts = ends.max().unwrap_or(now);
        let plan = |node: String| Plan {
            starts,
            cpus: cpus(job, &self.state.nodes[&node]),
            node,
        };
        nodes.into_iter().map(plan).collect()
    }

    fn choose(
        &self,
        job: &Job,
        partition: &Partition,
        now: Duration,
        free: impl Fn(&Node) -> u32,
    ) -> Option<Vec<String>> {
        let suits = |node: &&Node| {
            node.is_available()
                && self
                    .state
                    .reserved(&node.name, now, now + self.time_of(job))
                    .next()
                    .is_none()
                && cpus(job, node) <= free(node)
                && job
                    .spec
                    .constraint
                    .iter()
                    .all(|feature| node.active_features.contains(feature))
        };
        let members = partition.members.iter().filter_map(|name| self.state.nodes.get(name));
        let suitable: Vec<&Node> = members.filter(suits).collect();
        let is_required = |node: &&&Node| job.spec.required.contains(&node.name);
        let required: Vec<&&Node> = suitable.iter().filter(is_required).collect();
        if required.len() < job.spec.required.len() {
            return None;
        }
        let others = suitable.iter().filter(|node| !job.spec.required.contains(&node.name));
        let mut chosen: Vec<String> = required
            .into_iter()
            .chain(others)
            .take(job.spec.nodes)
            .map(|node| node.name.clone())
            .collect();
        chosen.sort_by_key(|name| self.state.nodes[name].slot);
        (chosen.len() == job.spec.nodes).then_some(chosen)
    }

    fn start_job(&mut self, id: u32, partition: &str, nodes: &[String], now: Duration) {
        self.next_launch += 1;
        let launch = self.next_launch;
        let job = self.state.jobs.get_mut(&id).expect("it is pending");
        partition.clone_into(&mut job.partition);
        let limit = self.state.time_limit(&self.state.jobs[&id]);
        let job = self.state.jobs.get_mut(&id).expect("it is pending");
        job.phase = JobPhase::Running;
        job.nodes = nodes.to_vec();
        job.started = Some(now);
        job.suspended = None;
        job.time_limit = limit;
        job.limit = limit.finite().map(|minutes| now + Duration::from_secs(60 * minutes));
        job.last_active = now;
        job.launch = launch;
        let job = job.clone();
        for (index, node) in nodes.iter().enumerate() {
            let message = ToNode::Launch {
                job: job.key,
                id,
                launch,
                batch: index == 0,
                work: job.spec.work,
                exit_code: job.spec.exit_code,
            };
            self.send(node, message);
        }
        self.effects.push(Effect::Started { job });
    }
}

/// The CPUs that a job has on a node.
fn cpus(job: &Job, node: &Node) -> u32 {
    if job.spec.exclusive { node.cpus } else { job.spec.cpus }
}
