//! One process of slurmctld. It changes its own state and returns what it sends; the daemons around it are [`super::Slurm`]'s.

use std::collections::BTreeSet;
use std::time::Duration;

use slurm::node::NodeFlag;

use super::ids::ControllerId;
use super::request::{Code, Reply, Request};
use super::settings::{
    CHECKPOINT, Conf, LIMITS, PING_NOW_DELAY, PINGS_PER_REGISTRATION, SAVE_INTERVAL, SCHEDULE_DELAY,
};
use super::state::{Job, JobKey, JobPhase, Node, Partition, State};

/// The files of the state volume that a change makes old.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one for each file")]
pub(super) struct Dirty {
    pub(super) jobs: bool,
    pub(super) nodes: bool,
    pub(super) reservations: bool,
    /// Not read again, but a write delays the next one.
    pub(super) partitions: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Timer {
    Save,
    Schedule,
    Ping,
    /// Everything is saved from time to time.
    Checkpoint,
    /// Time limits are checked from time to time.
    Limits,
}

/// A message to the slurmd at a node's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToNode {
    Ping,
    Register,
    Launch {
        job: JobKey,
        id: u32,
        launch: u64,
        batch: bool,
        work: Duration,
        exit_code: i32,
    },
    Suspend(JobKey, bool),
    /// Ends the processes of a job number; the epilog is reported if slurmctld has the job completing.
    Kill {
        id: u32,
    },
}

/// A registration of slurmd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) cpus: u32,
    pub(super) features: Vec<String>,
    pub(super) boot_time: Duration,
    pub(super) slurmd_start_time: Duration,
    /// The numbers of jobs with processes, and whether the script is among them.
    pub(super) jobs: Vec<(u32, bool)>,
    pub(super) requester: Requester,
}

/// Who made a slurmd register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Requester {
    /// It starts or reloads, and registers until it reaches slurmctld.
    Slurmd,
    Slurmctld,
    /// It joins even if slurmctld does not know it.
    Agent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToController {
    Register(Registration),
    Responded {
        node: String,
    },
    NotResponding {
        node: String,
        sent: Duration,
    },
    BatchEnded {
        id: u32,
        launch: u64,
        exit_code: i32,
    },
    EpilogDone {
        node: String,
        id: u32,
    },
    /// The node has processes of this number already.
    LaunchRefused {
        node: String,
        id: u32,
        launch: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    Send {
        address: String,
        node: String,
        message: ToNode,
    },
    Wake {
        at: Duration,
        timer: Timer,
    },
    Started {
        job: Job,
    },
    Ended {
        job: Job,
        requeued: bool,
    },
}

#[derive(Debug)]
pub(super) struct Controller {
    pub(super) id: ControllerId,
    pub(super) conf: Conf,
    pub(super) state: State,
    pub(super) booted: Duration,
    pub(super) dirty: Dirty,
    pub(super) last_save: Option<Duration>,
    pub(super) effects: Vec<Effect>,
    pub(super) next_launch: u64,
    save_planned: bool,
    schedule_planned: bool,
    last_ping: Option<Duration>,
    next_ping: Duration,
    pings: u64,
    /// Nodes whose response to a ping is due. No ping is sent before all have come: one frozen node delays all others.
    pub(super) pinged: BTreeSet<String>,
}

impl Controller {
    /// Starts on the saved state. Partitions come from the file.
    pub(super) fn start(id: ControllerId, conf: Conf, saved: State, now: Duration, next_launch: u64) -> Self {
        let mut controller = Self {
            id,
            conf,
            state: saved,
            booted: now,
            dirty: Dirty::default(),
            last_save: None,
            effects: Vec::new(),
            next_launch,
            save_planned: false,
            schedule_planned: false,
            last_ping: None,
            next_ping: now,
            pings: 0,
            pinged: BTreeSet::new(),
        };
        controller.recover(now);
        // All nodes are asked to register at once.
        controller.effects.push(Effect::Wake {
            at: now,
            timer: Timer::Ping,
        });
        controller.plan_schedule(now);
        controller.plan_checkpoint(now);
        controller.plan_limits(now);
        controller
    }

    /// Reads the configuration again, as a restart that keeps the live state.
    pub(super) fn reconfigure(&mut self, conf: Conf, now: Duration) {
        self.conf = conf;
        self.booted = now;
        self.recover(now);
        self.ping_soon(now);
        self.plan_schedule(now);
    }

    fn recover(&mut self, now: Duration) {
        self.state.allocates_memory = self.conf.allocates_memory;
        let lines = self.conf.partitions.iter();
        self.state.partitions = lines
            .map(|(name, line)| (name.clone(), Partition::of_line(name, line)))
            .collect();
        self.state.update_members(&self.conf);
        // Nodes are read in their order, without gaps.
        let mut nodes: Vec<&mut Node> = self.state.nodes.values_mut().collect();
        nodes.sort_by_key(|node| node.slot);
        for (slot, node) in nodes.into_iter().enumerate() {
            node.slot = slot;
            node.boot_time = None;
            node.last_response = Some(now);
        }
        let nodes: BTreeSet<String> = self.state.nodes.keys().cloned().collect();
        let down: BTreeSet<String> = self
            .state
            .nodes
            .values()
            .filter(|node| node.down)
            .map(|node| node.name.clone())
            .collect();
        let mut defunct = Vec::new();
        for job in self.state.jobs.values_mut() {
            job.completing.retain(|node| nodes.contains(node));
            if job.phase.is_end() {
                continue;
            }
            job.last_active = now;
            let partitions = &self.state.partitions;
            let kept: Vec<&str> = job
                .partition
                .split(',')
                .filter(|name| partitions.contains_key(*name))
                .collect();
            let lost_node = job.phase.has_nodes() && job.nodes.iter().any(|node| !nodes.contains(node));
            let waits_for_lost = job.spec.required.iter().any(|node| !nodes.contains(node));
            // The end of a node's jobs is saved later than the node.
            let down_node = job.phase == JobPhase::Running && job.nodes.iter().any(|node| down.contains(node));
            if kept.is_empty() || lost_node || waits_for_lost || down_node {
                // A job that names a node which does not exist any more cannot start again.
                let requeue = (lost_node || down_node) && job.spec.requeue && !waits_for_lost && !kept.is_empty();
                defunct.push((job.id, requeue));
            } else {
                job.partition = kept.join(",");
            }
        }
        for (id, requeue) in defunct {
            self.end_job(id, JobPhase::NodeFail, 1, requeue, now);
        }
        for job in self.state.jobs.values() {
            for node in &job.completing {
                let address = self.state.nodes[node].address.clone();
                let message = ToNode::Kill { id: job.id };
                self.effects.push(Effect::Send {
                    address,
                    node: node.clone(),
                    message,
                });
            }
        }
    }

    pub(super) fn wake(&mut self, timer: &Timer, now: Duration) {
        match timer {
            // The volume is the caller's.
            Timer::Save => self.save_planned = false,
            Timer::Schedule => {
                self.schedule_planned = false;
                self.schedule(now);
            }
            Timer::Checkpoint => {
                self.save_nodes(now);
                self.save_jobs(now);
                self.plan_checkpoint(now);
            }
            Timer::Limits => {
                self.end_by_limit(now);
                self.end_reservations(now);
                self.plan_limits(now);
            }
            Timer::Ping if now >= self.next_ping => self.ping(now),
            Timer::Ping => {}
        }
    }

    pub(super) fn receive(&mut self, message: ToController, now: Duration) {
        match message {
            ToController::Register(registration) => self.register(registration, now),
            ToController::Responded { node } => self.responded(&node, now),
            ToController::NotResponding { node, sent } => self.not_responding(&node, sent, now),
            ToController::BatchEnded { id, launch, exit_code } => {
                let current = self.state.jobs.get(&id).is_some_and(|job| job.launch == launch);
                if current {
                    self.complete_batch(id, exit_code, now);
                }
            }
            ToController::EpilogDone { node, id } => {
                self.epilog_done(&node, id, now);
                self.save_jobs(now);
                self.save_nodes(now);
            }
            ToController::LaunchRefused { node, id, launch } => self.launch_refused(&node, id, launch, now),
        }
    }

    pub(super) fn request(&mut self, request: &Request, key: JobKey, now: Duration) -> Result<Reply, Code> {
        let done = match request {
            Request::Submit(submission) => return self.submit(submission, key, now).map(Reply::Submitted),
            Request::Cancel(id) => self.cancel(*id, now),
            Request::Requeue(id) => self.requeue(*id, now),
            Request::Suspend(id) => self.suspend(*id, now),
            Request::Continue(id) => self.continue_job(*id, now),
            Request::UpdateJob {
                job,
                hold,
                admin_comment,
            } => self.update_job(*job, *hold, admin_comment.as_deref(), now),
            Request::CompleteJob { job, exit_code } => self.complete_again(*job, *exit_code, now),
            Request::UpdateNode { node, update } => self.update_node(node, update, now),
            Request::DeleteNode(node) => self.delete_node(node, now),
            Request::CreatePartition { name, update } => self.create_partition(name, update, now),
            Request::UpdatePartition { name, update } => self.update_partition(name, update, now),
            Request::DeletePartition(name) => self.delete_partition(name),
            Request::CreateReservation(update) => self.create_reservation(update, now),
            Request::UpdateReservation(update) => self.update_reservation(update, now),
            Request::DeleteReservation(name) => self.delete_reservation(name, now),
        };
        done.map(|()| Reply::Done)
    }

    /// Not every change of a node is followed by this: a registration and a death are not.
    pub(super) fn save_nodes(&mut self, now: Duration) {
        self.dirty.nodes = true;
        self.plan_save(now);
        self.plan_schedule(now);
    }

    /// Not every change of a job is followed by this: the cancellation of a pending job and the requeue after a node's death are
    /// not.
    pub(super) fn save_jobs(&mut self, now: Duration) {
        self.dirty.jobs = true;
        self.plan_save(now);
        self.plan_schedule(now);
    }

    fn plan_checkpoint(&mut self, now: Duration) {
        let at = now + CHECKPOINT;
        self.effects.push(Effect::Wake {
            at,
            timer: Timer::Checkpoint,
        });
    }

    fn plan_limits(&mut self, now: Duration) {
        let at = now + LIMITS;
        let timer = Timer::Limits;
        self.effects.push(Effect::Wake { at, timer });
    }

    pub(super) fn plan_save(&mut self, now: Duration) {
        if !self.save_planned {
            self.save_planned = true;
            let earliest = self.last_save.map_or(now, |last| last + SAVE_INTERVAL);
            let at = earliest.max(now);
            self.effects.push(Effect::Wake { at, timer: Timer::Save });
        }
    }

    pub(super) fn plan_schedule(&mut self, now: Duration) {
        if !self.schedule_planned {
            self.schedule_planned = true;
            let at = now + SCHEDULE_DELAY;
            self.effects.push(Effect::Wake {
                at,
                timer: Timer::Schedule,
            });
        }
    }

    pub(super) fn ping_soon(&mut self, now: Duration) {
        self.plan_ping(now + PING_NOW_DELAY);
    }

    fn ping(&mut self, now: Duration) {
        self.pinged.retain(|node| self.state.nodes.contains_key(node));
        if !self.pinged.is_empty() {
            self.plan_ping(now + Duration::from_secs(1));
            return;
        }
        let timeout = self.conf.slurmd_timeout;
        let dead = self.last_ping.and_then(|last| last.checked_sub(timeout));
        let still_live = now.checked_sub(timeout / 3);
        self.last_ping = Some(now);
        self.pings += 1;
        let by_turn = self.pings.is_multiple_of(PINGS_PER_REGISTRATION);
        let names: Vec<String> = self.state.nodes.keys().cloned().collect();
        for name in names {
            let node = &self.state.nodes[&name];
            let silent = node.has(NodeFlag::NotResponding);
            if !node.down && dead.is_some_and(|dead| node.last_response.is_some_and(|last| last <= dead)) {
                self.node_died(&name, now);
                continue;
            }
            let message = if node.boot_time.is_none() || by_turn {
                ToNode::Register
            } else if silent && node.down || !silent && node.last_response >= still_live {
                continue;
            } else {
                self.pinged.insert(name.clone());
                ToNode::Ping
            };
            let address = node.address.clone();
            self.effects.push(Effect::Send {
                address,
                node: name,
                message,
            });
        }
        self.lift_expired(now);
        self.plan_ping(now + (timeout / 3).max(Duration::from_secs(1)));
    }

    fn plan_ping(&mut self, at: Duration) {
        self.next_ping = at;
        self.effects.push(Effect::Wake { at, timer: Timer::Ping });
    }
}
