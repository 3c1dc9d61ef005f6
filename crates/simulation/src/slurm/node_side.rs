//! What happens on the hosts of slurmd: messages that arrive, scripts that start, end and are killed, registrations.

use std::time::Duration;

use super::controller::{Requester, ToController, ToNode};
use super::engine::{Event, Slurm};
use super::host::{Host, Process, Queued};
use super::ids::{ControllerId, HostId};
use super::ledger::{End, Run};
use super::settings::{EPILOG, FROZEN_TIMEOUT, KILL_DELAY, LATENCY, RETRY, TERMINATED};
use super::state::{Job, JobKey};

impl Slurm {
    pub(super) fn reply(&mut self, to: ControllerId, after: Duration, message: ToController) {
        self.plan(self.now + after, Event::Deliver { to, message });
    }

    pub(super) fn deliver_to_node(
        &mut self,
        from: ControllerId,
        address: &str,
        node: String,
        message: ToNode,
        sent: Duration,
    ) {
        // A slurmctld that was killed had sent it already; one that is frozen too.
        let reachable = |(index, host): &(usize, &Host)| {
            host.slurmd.is_some()
                && !host.removed
                && host.spec.address == address
                && host.spec.name == node
                && !self.cut.contains(&(from, HostId(*index)))
        };
        let found = self.hosts.iter().enumerate().find(reachable);
        let Some((index, host)) = found else {
            self.reply(
                from,
                LATENCY,
                ToController::NotResponding {
                    node: node.clone(),
                    sent,
                },
            );
            self.plan(self.now + RETRY, Event::SendAgain { from, node, message });
            return;
        };
        let id = HostId(index);
        if host.frozen.is_some() {
            // It is in the queue of the socket, and read when the host thaws.
            let message = Queued { from, message, sent };
            self.hosts[index].queue.push(message);
            self.plan(sent + FROZEN_TIMEOUT, Event::Unread { host: id, from, sent });
            return;
        }
        match message {
            ToNode::Register => {
                let slurmd = host.slurmd.unwrap_or_default();
                self.plan(
                    self.now + LATENCY,
                    Event::Register {
                        host: id,
                        slurmd,
                        requester: Requester::Slurmctld,
                    },
                );
                return;
            }
            ToNode::Ping => {}
            ToNode::Launch {
                job,
                id: number,
                launch,
                batch,
                work,
                exit_code,
            } => {
                let process = Process {
                    job,
                    id: number,
                    launch,
                    batch,
                    exit_code,
                    ends: None,
                    suspended: None,
                };
                self.launch(from, id, process, work);
            }
            ToNode::Suspend(job, suspend) => self.suspend(id, job, suspend),
            ToNode::Kill { id: number } => self.kill_processes(id, number),
        }
        self.reply(from, LATENCY, ToController::Responded { node });
    }

    /// slurmctld does not wait longer for a response to a message. That stays in the queue.
    pub(super) fn unread(&mut self, host: HostId, from: ControllerId, sent: Duration) {
        let Host { queue, spec, .. } = &mut self.hosts[host.0];
        let is_it = |queued: &Queued| queued.from == from && queued.sent == sent;
        if queue.iter().any(is_it) {
            // Whoever pings has closed the connection, and pings again.
            queue.retain(|queued| !is_it(queued) || queued.message != ToNode::Ping);
            let node = spec.name.clone();
            self.reply(from, LATENCY, ToController::NotResponding { node, sent });
        }
    }

    /// A host that thaws reads what waited for it in the order in which it came; of one that ended, slurmctld learns that.
    pub(super) fn read_queue(&mut self, host: HostId) {
        let Host { queue, spec, .. } = &mut self.hosts[host.0];
        let (address, node) = (spec.address.clone(), spec.name.clone());
        for Queued { from, message, sent } in std::mem::take(queue) {
            let (address, node) = (address.clone(), node.clone());
            let event = Event::ToNode {
                from,
                address,
                node,
                message,
                sent,
            };
            self.plan(self.now, event);
        }
    }

    /// slurmctld repeats what a node did not accept, if it still wants it then: a job that was requeued or cancelled meanwhile is not
    /// launched (`_batch_launch_defer`).
    pub(super) fn send_again(&mut self, from: ControllerId, node: String, message: ToNode) {
        let Some(state) = self.state_of(from) else { return };
        let wanted = match &message {
            ToNode::Launch { id, launch, .. } => {
                let launched = |job: &Job| job.launch == *launch && job.phase.has_nodes();
                state.jobs.get(id).is_some_and(launched)
            }
            ToNode::Kill { id } => state.jobs.get(id).is_some_and(|job| job.completing.contains(&node)),
            ToNode::Ping | ToNode::Register | ToNode::Suspend(..) => false,
        };
        // It looks the address up again: a new worker may have the name by then.
        let known = state.nodes.get(&node).filter(|_| wanted);
        if let Some(address) = known.map(|known| known.address.clone()) {
            let sent = self.now;
            self.deliver_to_node(from, &address, node, message, sent);
        }
    }

    pub(super) fn launch(&mut self, from: ControllerId, host: HostId, mut process: Process, work: Duration) {
        let processes = &mut self.hosts[host.0].processes;
        if processes.iter().any(|other| other.launch == process.launch) {
            return;
        }
        if processes.iter().any(|other| other.id == process.id) {
            // slurmd does not start a second copy of a number.
            let node = self.hosts[host.0].spec.name.clone();
            let message = ToController::LaunchRefused {
                node,
                id: process.id,
                launch: process.launch,
            };
            self.reply(from, LATENCY, message);
            return;
        }
        let now = self.now;
        let node = self.hosts[host.0].spec.name.clone();
        let run = Run {
            launch: process.launch,
            host,
            node,
            began: now,
            ended: None,
        };
        let history = self.ledger.job_mut(process.job);
        if process.batch {
            history.runs.push(run);
            process.ends = Some(now + work);
            self.plan(
                now + work,
                Event::ProcessEnds {
                    host,
                    launch: process.launch,
                },
            );
        } else {
            history.parts.push(run);
        }
        self.hosts[host.0].processes.push(process);
    }

    pub(super) fn suspend(&mut self, host: HostId, job: JobKey, suspend: bool) {
        let now = self.now;
        let mut resumed = Vec::new();
        for process in self.hosts[host.0]
            .processes
            .iter_mut()
            .filter(|process| process.job == job)
        {
            if suspend {
                process.suspended = process
                    .suspended
                    .or(process.ends.take().map(|ends| ends.saturating_sub(now)));
            } else if let Some(rest) = process.suspended.take() {
                process.ends = Some(now + rest);
                resumed.push((now + rest, process.launch));
            }
        }
        for (at, launch) in resumed {
            self.plan(at, Event::ProcessEnds { host, launch });
        }
    }

    pub(super) fn kill_processes(&mut self, host: HostId, id: u32) {
        let node = self.hosts[host.0].spec.name.clone();
        let launches: Vec<u64> = self.hosts[host.0]
            .processes
            .iter()
            .filter(|process| process.id == id)
            .map(|process| process.launch)
            .collect();
        for launch in launches {
            self.plan(self.now + KILL_DELAY, Event::ProcessKilled { host, launch });
        }
        let message = ToController::EpilogDone { node, id };
        self.plan(self.now + KILL_DELAY + EPILOG, Event::FromHost { host, message });
    }

    pub(super) fn process_killed(&mut self, host: HostId, launch: u64) {
        if self.hosts[host.0].frozen.is_some() {
            self.plan(self.now + RETRY, Event::ProcessKilled { host, launch });
            return;
        }
        let ended = self.end_process(host, launch, End::Killed);
        // A slurmctld that forgot its order takes this for the end of the job.
        if let Some(Process { id, .. }) = ended.filter(|process| process.batch) {
            self.report_end(host, id, launch, TERMINATED);
        }
    }

    fn report_end(&mut self, host: HostId, id: u32, launch: u64, exit_code: i32) {
        self.hosts[host.0].unreported.push((id, launch));
        let message = ToController::BatchEnded { id, launch, exit_code };
        self.plan(self.now + LATENCY, Event::FromHost { host, message });
    }

    pub(super) fn end_process(&mut self, host: HostId, launch: u64, how: End) -> Option<Process> {
        let processes = &mut self.hosts[host.0].processes;
        let index = processes.iter().position(|process| process.launch == launch)?;
        let process = processes.remove(index);
        let now = self.now;
        let history = self.ledger.job_mut(process.job);
        let runs = if process.batch {
            &mut history.runs
        } else {
            &mut history.parts
        };
        let is_it = |run: &&mut Run| run.launch == launch && run.host == host && run.ended.is_none();
        if let Some(run) = runs.iter_mut().rev().find(is_it) {
            run.ended = Some((now, how));
        }
        Some(process)
    }

    pub(super) fn process_ends(&mut self, host: HostId, launch: u64) {
        let state = &self.hosts[host.0];
        let Some(process) = state.processes.iter().find(|process| process.launch == launch) else {
            return;
        };
        // Suspended, or frozen in the meantime.
        let Some(ends) = process.ends else { return };
        if state.frozen.is_some() || ends > self.now {
            let at = if state.frozen.is_some() { self.now + RETRY } else { ends };
            self.plan(at, Event::ProcessEnds { host, launch });
            return;
        }
        let exit_code = process.exit_code;
        if let Some(Process { id, exit_code, .. }) = self.end_process(host, launch, End::Exited(exit_code)) {
            self.report_end(host, id, launch, exit_code);
        }
    }

    /// Returns the slurmctld that a host reaches, if it accepts connections.
    pub(super) fn peer_of(&self, host: HostId) -> Option<ControllerId> {
        let service = self.service.filter(|service| !self.cut.contains(&(*service, host)))?;
        self.daemons.get(&service)?.controller.as_ref().map(|_| service)
    }

    pub(super) fn deliver_from_host(&mut self, host: HostId, message: ToController) {
        let state = &self.hosts[host.0];
        let needs_slurmd = !matches!(message, ToController::BatchEnded { .. });
        if state.removed || needs_slurmd && state.slurmd.is_none() {
            return;
        }
        match self.peer_of(host).filter(|_| state.frozen.is_none()) {
            Some(to) => {
                // A frozen slurmctld takes it when it thaws. If it is killed before, the sender tries again.
                if let Some(daemon) = self.daemons.get_mut(&to).filter(|daemon| daemon.frozen) {
                    daemon.deferred.push(Event::FromHost { host, message });
                    return;
                }
                if let ToController::BatchEnded { launch, .. } = &message {
                    self.hosts[host.0].unreported.retain(|(_, other)| other != launch);
                }
                self.handle(Event::Deliver { to, message });
            }
            None => self.plan(self.now + RETRY, Event::FromHost { host, message }),
        }
    }

    pub(super) fn register(&mut self, host: HostId, slurmd: Duration, requester: Requester) {
        let state = &self.hosts[host.0];
        if state.removed || state.slurmd != Some(slurmd) {
            return;
        }
        let registration = state.registration(requester).filter(|_| state.frozen.is_none());
        match (registration, self.peer_of(host)) {
            (Some(registration), Some(to)) => {
                self.handle(Event::Deliver {
                    to,
                    message: ToController::Register(registration),
                });
            }
            _ if requester == Requester::Slurmd => self.plan(
                self.now + RETRY,
                Event::Register {
                    host,
                    slurmd,
                    requester,
                },
            ),
            _ => {}
        }
    }
}
