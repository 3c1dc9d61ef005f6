//! The model of slurmctld, slurmd and slurmdbd: a deterministic state machine without threads, clocks or I/O.
//!
//! [`Slurm`] has all daemons of one cluster. All times are [`Duration`]s since the start of the simulation, at
//! [`settings::EPOCH`].
//!
//! * Time: [`Slurm::advance`] does what is due until a time; [`Slurm::next_event`] says when the next thing is due.
//! * slurmctld: [`Slurm::start_controller`] on a state volume ([`Slurm::add_volume`]), [`Slurm::kill_controller`] (SIGKILL:
//!   forgets what was not saved), [`Slurm::stop_controller`] (SIGTERM: saves), [`Slurm::freeze_controller`] and
//!   [`Slurm::thaw_controller`], [`Slurm::reconfigure`]. Several may run on one volume: every write is in [`ledger::Ledger::writes`].
//!   [`Slurm::set_service`] says which one the workers reach.
//! * Workers: [`Slurm::add_host`] is a pod, [`Slurm::start_slurmd`], [`Slurm::kill_slurmd`] (jobs go on),
//!   [`Slurm::reload_slurmd`] (HUP: registers again), [`Slurm::freeze_host`], [`Slurm::thaw_host`], [`Slurm::remove_host`] (all its
//!   processes die), [`Slurm::set_cut`] (network). [`host::Host::processes`] is the truth about jobs.
//! * Requests: [`Slurm::request`], with the sender for the ledger. One that a frozen slurmctld does not answer is carried out when
//!   it thaws, as with real sockets. [`Slurm::state`] is what slurmctld shows.
//! * Interfaces over the same requests: [`Slurm::rest`] (slurmrestd's JSON), [`Slurm::run`] (the programs that the agent runs) and
//!   [`Slurm::rpc`] (Slurm's own protocol).
//! * slurmdbd: [`Slurm::slurmdbd`], which may be stopped (`running`).
//! * Oracles: [`Slurm::ledger`].
//!
//! The rules come from measurements and from Slurm's source, 26.05. `crates/testbed/tests/operator/replay.rs` compares them with a
//! real slurmctld.

use std::collections::BTreeSet;
use std::time::Duration;

pub mod accounting;
pub mod command_line;
mod controller;
mod engine;
pub mod host;
mod ids;
mod job_rules;
mod json;
pub mod ledger;
mod node_rules;
mod node_side;
mod partition_rules;
pub mod request;
mod reservation_rules;
pub mod rest;
mod rpc;
mod schedule;
pub mod settings;
pub mod state;
#[cfg(test)]
mod tests;

pub use engine::Slurm;
pub use host::{Host, HostSpec};
pub use ids::{ControllerId, HostId, VolumeId};
pub use request::{Code, Failure, NodeOrder, NodeUpdate, PartitionUpdate, Reply, Request, ReservationUpdate};
pub use rpc::is_order;
pub use settings::Conf;
pub use state::{State, Submission};

use controller::Requester;
use engine::{Daemon, Event};
use ledger::End;
use settings::{LATENCY, RETRY, START};
use state::JobKey;

impl Slurm {
    pub fn now(&self) -> Duration {
        self.now
    }

    pub fn add_volume(&mut self) -> VolumeId {
        self.volumes.push(State::default());
        VolumeId(self.volumes.len() - 1)
    }

    /// Executes slurmctld; it is ready a little later.
    pub fn start_controller(&mut self, volume: VolumeId, conf: Conf) -> ControllerId {
        self.next_controller += 1;
        let id = ControllerId(self.next_controller);
        let daemon = Daemon {
            volume,
            conf,
            controller: None,
            frozen: false,
            deferred: Vec::new(),
            reports: Vec::new(),
        };
        self.daemons.insert(id, daemon);
        self.plan(self.now + START, Event::Ready(id));
        id
    }

    /// SIGKILL.
    pub fn kill_controller(&mut self, id: ControllerId) {
        let now = self.now;
        let Some(mut daemon) = self.daemons.remove(&id) else {
            return;
        };
        // slurmd and slurmstepd repeat what was not acknowledged.
        for event in std::mem::take(&mut daemon.deferred) {
            if matches!(event, Event::FromHost { .. }) {
                self.plan(now + RETRY, event);
            }
        }
        let saved = &self.volumes[daemon.volume.0];
        let jobs = daemon
            .controller
            .iter()
            .flat_map(|controller| controller.state.jobs.values());
        for job in jobs.filter(|job| job.key != JobKey::REFUSED) {
            let history = self.ledger.job_mut(job.key);
            match saved.jobs.get(&job.id).filter(|kept| kept.key == job.key) {
                None => history.forgotten = Some(now),
                Some(kept) if kept.launch != job.launch => {
                    history.forgotten_launches.push(job.launch);
                    // It is pending again, and nobody knows that it ran.
                    if job.phase.is_end() {
                        history.forgotten_ends.push(job.launch);
                    }
                }
                Some(kept) if job.phase.is_end() && !kept.phase.is_end() => history.forgotten_ends.push(job.launch),
                Some(_) => {}
            }
        }
    }

    /// SIGTERM. A frozen process does not notice it.
    pub fn stop_controller(&mut self, id: ControllerId) -> bool {
        if self.daemons.get(&id).is_none_or(|daemon| daemon.frozen) {
            return false;
        }
        self.save_all(id);
        self.daemons.remove(&id);
        true
    }

    pub fn freeze_controller(&mut self, id: ControllerId) {
        if let Some(daemon) = self.daemons.get_mut(&id) {
            daemon.frozen = true;
        }
    }

    pub fn thaw_controller(&mut self, id: ControllerId) {
        let Some(daemon) = self.daemons.get_mut(&id) else {
            return;
        };
        daemon.frozen = false;
        self.ledger.thaws.push((id, self.now));
        for event in std::mem::take(&mut daemon.deferred) {
            self.plan(self.now, event);
        }
    }

    /// `scontrol reconfigure` with a good configuration.
    pub fn reconfigure(&mut self, id: ControllerId, conf: Conf) -> Result<(), Failure> {
        self.check_responds(id)?;
        self.save_all(id);
        self.with(id, |controller, now| controller.reconfigure(conf, now));
        Ok(())
    }

    /// The slurmctld behind the address that slurmd has.
    pub fn set_service(&mut self, controller: Option<ControllerId>) {
        self.service = controller;
    }

    pub fn is_ready(&self, id: ControllerId) -> bool {
        self.state_of(id).is_some()
    }

    /// When this process read its configuration.
    pub fn booted(&self, id: ControllerId) -> Option<Duration> {
        Some(self.daemons.get(&id)?.controller.as_ref()?.booted)
    }

    fn check_responds(&self, id: ControllerId) -> Result<(), Failure> {
        let daemon = self.daemons.get(&id).ok_or(Failure::Unreachable)?;
        match daemon.controller {
            None => Err(Failure::Unreachable),
            Some(_) if daemon.frozen => Err(Failure::NoAnswer),
            Some(_) => Ok(()),
        }
    }

    /// What slurmctld would show now.
    pub fn state(&self, id: ControllerId) -> Result<&State, Failure> {
        self.check_responds(id)?;
        self.state_of(id).ok_or(Failure::Unreachable)
    }

    pub fn conf(&self, id: ControllerId) -> Result<&Conf, Failure> {
        self.check_responds(id)?;
        let daemon = self.daemons.get(&id).ok_or(Failure::Unreachable)?;
        daemon
            .controller
            .as_ref()
            .map(|controller| &controller.conf)
            .ok_or(Failure::Unreachable)
    }

    /// What a start on this volume would read.
    pub fn saved(&self, volume: VolumeId) -> &State {
        &self.volumes[volume.0]
    }

    /// Sends a request. A frozen slurmctld carries it out when it thaws, though the sender gets [`Failure::NoAnswer`].
    pub fn request(&mut self, to: ControllerId, sender: &str, request: Request) -> Result<Reply, Failure> {
        match self.check_responds(to) {
            Ok(()) => self.carry_out(to, sender, request),
            Err(Failure::NoAnswer) => {
                let sender = sender.to_owned();
                self.plan(self.now, Event::Request { to, sender, request });
                Err(Failure::NoAnswer)
            }
            Err(failure) => Err(failure),
        }
    }

    pub fn add_host(&mut self, spec: HostSpec) -> HostId {
        self.hosts.push(Host::new(spec));
        HostId(self.hosts.len() - 1)
    }

    pub fn host(&self, id: HostId) -> &Host {
        &self.hosts[id.0]
    }

    pub fn hosts(&self) -> impl Iterator<Item = (HostId, &Host)> {
        self.hosts.iter().enumerate().map(|(index, host)| (HostId(index), host))
    }

    /// The numbers of jobs with processes that are suspended, whatever slurmctld believes.
    pub fn stopped_jobs(&self) -> BTreeSet<u32> {
        let processes = self.hosts.iter().flat_map(|host| &host.processes);
        let stopped = processes.filter(|process| process.suspended.is_some());
        stopped.map(|process| process.id).collect()
    }

    /// Starts slurmd; it registers by itself as soon as it reaches slurmctld.
    pub fn start_slurmd(&mut self, host: HostId) {
        if self.hosts[host.0].slurmd.is_none() && !self.hosts[host.0].removed {
            self.hosts[host.0].slurmd = Some(self.now);
            self.reload_slurmd(host);
        }
    }

    /// SIGHUP: slurmd registers again.
    pub fn reload_slurmd(&mut self, host: HostId) {
        if let Some(slurmd) = self.hosts[host.0].slurmd {
            self.plan(
                self.now + LATENCY,
                Event::Register {
                    host,
                    slurmd,
                    requester: Requester::Slurmd,
                },
            );
        }
    }

    /// Asks slurmd to register, as the agent does (REQUEST_NODE_REGISTRATION_STATUS). Returns whether it responds.
    pub fn request_registration(&mut self, host: HostId) -> bool {
        let slurmd = self.hosts[host.0].slurmd;
        let Some(slurmd) = slurmd.filter(|_| self.hosts[host.0].slurmd_responds()) else {
            return false;
        };
        let requester = Requester::Agent;
        self.plan(
            self.now + LATENCY,
            Event::Register {
                host,
                slurmd,
                requester,
            },
        );
        true
    }

    /// Ends slurmd alone; the processes of jobs go on.
    pub fn kill_slurmd(&mut self, host: HostId) {
        self.hosts[host.0].slurmd = None;
        self.read_queue(host);
    }

    pub fn freeze_host(&mut self, host: HostId) {
        let now = self.now;
        self.hosts[host.0].frozen.get_or_insert(now);
    }

    pub fn thaw_host(&mut self, host: HostId) {
        let now = self.now;
        self.hosts[host.0].thaw(now);
        self.read_queue(host);
    }

    /// The pod ends with all its processes.
    pub fn remove_host(&mut self, host: HostId) {
        let launches: Vec<u64> = self.hosts[host.0]
            .processes
            .iter()
            .map(|process| process.launch)
            .collect();
        for launch in launches {
            self.end_process(host, launch, End::HostLost);
        }
        self.hosts[host.0].slurmd = None;
        self.hosts[host.0].removed = true;
        let now = self.now;
        self.hosts[host.0].died.get_or_insert(now);
        self.read_queue(host);
    }

    /// Cuts or restores the network between a slurmctld and a host.
    pub fn set_cut(&mut self, controller: ControllerId, host: HostId, cut: bool) {
        if cut {
            self.cut.insert((controller, host));
        } else {
            self.cut.remove(&(controller, host));
        }
    }
}
