//! The events between the daemons, in the order of time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::accounting::{Record, Slurmdbd};
use super::controller::{Controller, Dirty, Effect, Requester, Timer, ToController, ToNode};
use super::host::Host;
use super::ids::{ControllerId, HostId, VolumeId};
use super::ledger::{JobHistory, Launch, Ledger, Order, RecordedEnd, Start, Write};
use super::request::{Failure, Reply, Request};
use super::settings::{ACCOUNTING_DELAY, Conf, LATENCY, RETRY};
use super::state::{JobKey, State};

#[derive(Debug, Clone)]
pub(super) enum Event {
    /// slurmctld has read its state and opens its port.
    Ready(ControllerId),
    Timer(ControllerId, Timer),
    Deliver {
        to: ControllerId,
        message: ToController,
    },
    ToNode {
        from: ControllerId,
        address: String,
        node: String,
        message: ToNode,
        sent: Duration,
    },
    /// What a node did not accept is due again.
    SendAgain {
        from: ControllerId,
        node: String,
        message: ToNode,
    },
    /// Nobody waits any longer for the response to a message to a frozen host.
    Unread {
        host: HostId,
        from: ControllerId,
        sent: Duration,
    },
    FromHost {
        host: HostId,
        message: ToController,
    },
    Register {
        host: HostId,
        slurmd: Duration,
        requester: Requester,
    },
    ProcessEnds {
        host: HostId,
        launch: u64,
    },
    ProcessKilled {
        host: HostId,
        launch: u64,
    },
    Accounting(ControllerId),
    /// A request that waited for a frozen slurmctld.
    Request {
        to: ControllerId,
        sender: String,
        request: Request,
    },
}

/// A slurmctld from its exec to its end.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) volume: VolumeId,
    pub(super) conf: Conf,
    /// `None` until it is ready.
    pub(super) controller: Option<Controller>,
    pub(super) frozen: bool,
    pub(super) deferred: Vec<Event>,
    /// For slurmdbd; kept in memory.
    pub(super) reports: Vec<Record>,
}

/// All daemons of one cluster. See the module's documentation.
#[derive(Debug, Default)]
pub struct Slurm {
    pub(super) now: Duration,
    pub(super) sequence: u64,
    pub(super) events: BTreeMap<(Duration, u64), Event>,
    pub(super) volumes: Vec<State>,
    pub(super) daemons: BTreeMap<ControllerId, Daemon>,
    pub(super) next_controller: u64,
    pub(super) service: Option<ControllerId>,
    pub(super) hosts: Vec<Host>,
    pub(super) cut: BTreeSet<(ControllerId, HostId)>,
    pub(super) launches: u64,
    /// How far the clock of slurmctld is behind. Jobs show it, nothing else does.
    pub clock_behind: Duration,
    pub slurmdbd: Slurmdbd,
    pub ledger: Ledger,
}

impl Slurm {
    pub(super) fn plan(&mut self, at: Duration, event: Event) {
        self.sequence += 1;
        self.events.insert((at.max(self.now), self.sequence), event);
    }

    /// Does everything that is due until then.
    pub fn advance(&mut self, to: Duration) {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= to) {
            let ((at, _), event) = entry.remove_entry();
            self.now = at;
            self.handle(event);
        }
        self.now = self.now.max(to);
    }

    /// When the next thing happens by itself.
    pub fn next_event(&self) -> Option<Duration> {
        self.events.keys().next().map(|(at, _)| *at)
    }

    pub(super) fn handle(&mut self, event: Event) {
        if let Event::Timer(id, _)
        | Event::Deliver { to: id, .. }
        | Event::Request { to: id, .. }
        | Event::SendAgain { from: id, .. }
        | Event::Accounting(id) = &event
        {
            match self.daemons.get_mut(id) {
                None => return,
                Some(daemon) if daemon.frozen => return daemon.deferred.push(event),
                Some(_) => {}
            }
        }
        match event {
            Event::Ready(id) => self.ready(id),
            Event::Timer(id, timer) => {
                if timer == Timer::Save {
                    self.save(id);
                }
                self.with(id, |controller, now| controller.wake(&timer, now));
            }
            Event::Deliver { to, message } => {
                self.with(to, |controller, now| controller.receive(message, now));
            }
            Event::ToNode {
                from,
                address,
                node,
                message,
                sent,
            } => self.deliver_to_node(from, &address, node, message, sent),
            Event::SendAgain { from, node, message } => self.send_again(from, node, message),
            Event::Unread { host, from, sent } => self.unread(host, from, sent),
            Event::FromHost { host, message } => self.deliver_from_host(host, message),
            Event::Register {
                host,
                slurmd,
                requester,
            } => self.register(host, slurmd, requester),
            Event::ProcessEnds { host, launch } => self.process_ends(host, launch),
            Event::ProcessKilled { host, launch } => self.process_killed(host, launch),
            Event::Accounting(id) => self.account(id),
            Event::Request { to, sender, request } => drop(self.carry_out(to, &sender, request)),
        }
    }

    /// Runs one step of a slurmctld and sends what it wants to send.
    pub(super) fn with<T>(&mut self, id: ControllerId, step: impl FnOnce(&mut Controller, Duration) -> T) -> Option<T> {
        let now = self.now;
        let controller = self.daemons.get_mut(&id)?.controller.as_mut()?;
        controller.next_launch = controller.next_launch.max(self.launches);
        let done = step(controller, now);
        self.launches = controller.next_launch;
        let effects = std::mem::take(&mut controller.effects);
        for effect in effects {
            self.effect(id, effect);
        }
        Some(done)
    }

    fn effect(&mut self, id: ControllerId, effect: Effect) {
        match effect {
            Effect::Send { address, node, message } => {
                let sent = self.now;
                self.plan(
                    self.now + LATENCY,
                    Event::ToNode {
                        from: id,
                        address,
                        node,
                        message,
                        sent,
                    },
                );
            }
            Effect::Wake { at, timer } => self.plan(at, Event::Timer(id, timer)),
            Effect::Started { job } => {
                self.report(id, Record::of(&job));
                self.ledger.job_mut(job.key).launches.push(Launch {
                    launch: job.launch,
                    at: self.now,
                    nodes: job.nodes,
                });
            }
            Effect::Ended { job, requeued } => {
                self.report(id, Record::of(&job));
                self.ledger.job_mut(job.key).ends.push(RecordedEnd {
                    at: self.now,
                    phase: job.phase,
                    launch: job.launch,
                    requeued,
                    durable: None,
                });
            }
        }
    }

    fn report(&mut self, id: ControllerId, record: Record) {
        if let Some(daemon) = self.daemons.get_mut(&id) {
            daemon.reports.push(record);
            self.plan(self.now + ACCOUNTING_DELAY, Event::Accounting(id));
        }
    }

    fn account(&mut self, id: ControllerId) {
        let Some(daemon) = self.daemons.get_mut(&id).filter(|daemon| !daemon.reports.is_empty()) else {
            return;
        };
        if self.slurmdbd.running {
            for record in std::mem::take(&mut daemon.reports) {
                self.slurmdbd.receive(record);
            }
        } else {
            self.plan(self.now + RETRY, Event::Accounting(id));
        }
    }

    fn ready(&mut self, id: ControllerId) {
        let (now, launches) = (self.now, self.launches);
        let Some(daemon) = self.daemons.get_mut(&id) else {
            return;
        };
        let saved = self.volumes[daemon.volume.0].clone();
        let controller = Controller::start(id, daemon.conf.clone(), saved, now, launches);
        self.ledger.starts.push(Start {
            at: now,
            volume: daemon.volume,
            controller: id,
        });
        daemon.controller = Some(controller);
        self.with(id, |_, _| ());
    }

    /// Writes what has changed to the volume.
    pub(super) fn save(&mut self, id: ControllerId) {
        let now = self.now;
        let Some(daemon) = self.daemons.get_mut(&id) else {
            return;
        };
        let volume = daemon.volume;
        let Some(controller) = &mut daemon.controller else {
            return;
        };
        let dirty = std::mem::take(&mut controller.dirty);
        if dirty == Dirty::default() {
            return;
        }
        let Dirty {
            jobs,
            nodes,
            reservations,
            partitions: _,
        } = dirty;
        controller.last_save = Some(now);
        let saved = &mut self.volumes[volume.0];
        if reservations {
            saved.reservations.clone_from(&controller.state.reservations);
        }
        if nodes {
            saved.nodes.clone_from(&controller.state.nodes);
        }
        if jobs {
            saved.jobs.clone_from(&controller.state.jobs);
            saved.next_job = controller.state.next_job;
            for job in saved.jobs.values().filter(|job| job.key != JobKey::REFUSED) {
                let history = self.ledger.job_mut(job.key);
                history.durable.get_or_insert(now);
                let forgotten = &history.forgotten_ends;
                for end in history.ends.iter_mut().filter(|end| !forgotten.contains(&end.launch)) {
                    end.durable.get_or_insert(now);
                }
            }
        }
        self.ledger.writes.push(Write {
            at: now,
            volume,
            writer: controller.id,
        });
    }

    pub(super) fn save_all(&mut self, id: ControllerId) {
        let daemon = self.daemons.get_mut(&id);
        if let Some(controller) = daemon.and_then(|daemon| daemon.controller.as_mut()) {
            controller.dirty = Dirty {
                jobs: true,
                nodes: true,
                reservations: true,
                partitions: true,
            };
        }
        self.save(id);
    }

    pub(super) fn carry_out(&mut self, to: ControllerId, sender: &str, request: Request) -> Result<Reply, Failure> {
        let key = JobKey(self.ledger.jobs.len() as u64);
        let answer = self.with(to, |controller, now| controller.request(&request, key, now));
        let answer = answer.ok_or(Failure::Unreachable)?.map_err(Failure::Refused);
        if let (Request::Submit(spec), Ok(Reply::Submitted(id))) = (&request, &answer) {
            self.ledger.jobs.push(JobHistory {
                key,
                id: *id,
                spec: spec.clone(),
                controller: to,
                acknowledged: self.now,
                durable: None,
                forgotten: None,
                forgotten_launches: Vec::new(),
                forgotten_ends: Vec::new(),
                launches: Vec::new(),
                runs: Vec::new(),
                parts: Vec::new(),
                ends: Vec::new(),
            });
        }
        self.ledger.orders.push(Order {
            at: self.now,
            sender: sender.to_owned(),
            controller: to,
            request,
            failure: answer.err(),
        });
        answer
    }

    pub(super) fn state_of(&self, id: ControllerId) -> Option<&State> {
        Some(&self.daemons.get(&id)?.controller.as_ref()?.state)
    }
}
