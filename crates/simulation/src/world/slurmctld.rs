//! A pod of slurmctld: the production agent (`prepare`, `supervise`, `serve`) around the model of the daemon.

mod container;
mod port;
mod programs;
mod reading;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use agent::cli;
use clap::Parser as _;
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::time::sleep;

use self::container::Container;
use super::{
    World,
    files::Disk,
    kubelet::environment,
    machine::{Life, Simulated},
    objects::uid_of,
};
use crate::slurm::ControllerId;

/// The kubelet restarts a container.
const CONTAINER_RESTART: Duration = Duration::from_secs(2);

/// What runs in the pod. A clone is the same one.
#[derive(Clone, Debug)]
pub struct ControllerPod {
    world: World,
    pub(super) machine: Simulated,
    /// The kubelet's part: it starts containers again. Each of them has a life of its own.
    life: Life,
    state: Arc<Mutex<State>>,
    pod: Arc<Value>,
}

#[derive(Debug, Default)]
struct State {
    agent: Life,
    supervisor: Life,
    /// The last one of slurmctld.
    container: Option<Container>,
    stopping: bool,
    /// The last container of slurmctld has ended with the pod.
    ended: bool,
}

impl ControllerPod {
    /// Starts the pod, which has just got its address.
    pub(super) fn start(world: &World, pod: &Value, mut machine: Simulated) -> Self {
        let state_dir = environment(pod, "reconfigure")
            .remove("SLURM_AGENT_STATE_DIR")
            .unwrap_or_default();
        machine.files.mount("/etc/slurm", Disk::default());
        machine.files.mount(&state_dir, world.state_disk());
        machine.files.mount("/run", Disk::default());
        let started = Self {
            world: world.clone(),
            life: machine.life.clone(),
            state: Arc::default(),
            pod: Arc::new(pod.clone()),
            machine,
        };
        let running = started.clone();
        started.spawn(async move { running.run().await });
        started
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(host::Machine::spawn(&self.machine, "pod", Box::pin(task)));
    }

    async fn run(self) {
        loop {
            let cli::Command::Prepare(options) = self.command("prepare", "prepare") else {
                unreachable!()
            };
            let life = Life::default();
            let machine = Simulated {
                life: life.clone(),
                change: "file of prepare",
                ..self.machine.clone()
            };
            match agent::prepare::run(&machine.host(), &options) {
                Ok(()) if !life.is_dead() => break,
                Ok(()) => self.world.tell("prepare dies"),
                Err(error) => self.world.tell(format!("prepare fails: {error}")),
            }
            sleep(Duration::from_secs(10)).await;
        }
        self.spawn(self.clone().listen_port());
        self.spawn(self.clone().keep_agent());
        self.keep_supervisor().await;
    }

    /// The command line of a container.
    fn command(&self, command: &str, container: &str) -> cli::Command {
        let mut environment = environment(&self.pod, container);
        if command == "supervise" && !self.world.fenced.load(Ordering::Relaxed) {
            environment.remove("SLURM_AGENT_POD_UID");
        }
        let words = arguments(command, &environment);
        cli::Args::try_parse_from(words).unwrap().command
    }

    /// `serve`, restarted by the kubelet whenever it ends.
    async fn keep_agent(self) {
        loop {
            let life = Life::default();
            self.state.lock().unwrap().agent = life.clone();
            let machine = Simulated {
                life: life.clone(),
                programs: Some(Arc::new(self.clone())),
                change: "file of serve",
                ..self.machine.clone()
            };
            let cli::Command::Serve(options) = self.command("serve", "reconfigure") else {
                unreachable!()
            };
            let (world, host) = (self.world.clone(), machine.host());
            let serve = async move {
                if let Err(error) = agent::serve::run_until(host, options, std::future::pending()).await {
                    world.tell(format!("serve ends: {error}"));
                }
            };
            // It is aborted with its life.
            let _ = host::Machine::spawn(&machine, "serve", Box::pin(serve)).await;
            life.kill();
            sleep(CONTAINER_RESTART).await;
        }
    }

    /// `supervise`, restarted by the kubelet whenever it ends.
    async fn keep_supervisor(self) {
        while !self.state.lock().unwrap().stopping {
            let life = Life::default();
            let container = Container::new(&self.world, &self.machine, &uid_of(&self.pod));
            {
                let mut state = self.state.lock().unwrap();
                state.supervisor = life.clone();
                state.container = Some(container.clone());
            }
            let machine = Simulated {
                life: life.clone(),
                change: "file of supervise",
                ..self.machine.clone()
            };
            let cli::Command::Supervise(options) = self.command("supervise", "slurmctld") else {
                unreachable!()
            };
            let (world, host, kernel) = (self.world.clone(), machine.host(), container.clone());
            let supervise = async move {
                let ended = agent::supervise::run_on(host, &options, Box::new(kernel)).await;
                world.tell(format!("supervise ends: {ended:?}"));
            };
            let _ = host::Machine::spawn(&machine, "supervise", Box::pin(supervise)).await;
            life.kill();
            container.kill_daemon();
            if !self.state.lock().unwrap().stopping {
                sleep(CONTAINER_RESTART).await;
            }
        }
        self.state.lock().unwrap().ended = true;
    }

    fn container(&self) -> Option<Container> {
        self.state.lock().unwrap().container.clone()
    }

    pub(super) fn daemon(&self) -> Option<ControllerId> {
        self.container()?.daemon()
    }

    /// SIGKILL to slurmctld alone; it is started again.
    pub(super) fn kill_daemon(&self) {
        if let Some(container) = self.container() {
            container.kill_daemon();
        }
    }

    pub(super) fn kill_agent(&self) {
        self.state.lock().unwrap().agent.kill();
    }

    pub(super) fn freeze_agent(&self, frozen: bool) {
        let agent = self.state.lock().unwrap().agent.clone();
        freeze(&agent, frozen);
    }

    /// SIGSTOP or SIGCONT to every process.
    pub fn freeze(&self, frozen: bool) {
        self.freeze_agent(frozen);
        let supervisor = self.state.lock().unwrap().supervisor.clone();
        freeze(&supervisor, frozen);
        freeze(&self.life, frozen);
        if let Some(id) = self.daemon() {
            let mut slurm = self.world.slurm();
            if frozen {
                slurm.freeze_controller(id);
            } else {
                slurm.thaw_controller(id);
            }
        }
    }

    /// SIGKILL to the first process of slurmctld's container.
    pub fn kill_supervisor(&self) {
        self.state.lock().unwrap().supervisor.kill();
    }

    /// Whether slurmctld responds.
    pub fn is_ready(&self) -> bool {
        self.daemon().is_some_and(|id| self.world.slurm().state(id).is_ok())
    }

    /// SIGTERM to everything, as at the end of a pod. Returns whether slurmctld's container has ended.
    pub(super) fn stop(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        let first = !std::mem::replace(&mut state.stopping, true);
        let Some(container) = state.container.clone() else {
            return true;
        };
        let ended = state.ended;
        drop(state);
        if first {
            container.signal(Signal::SIGTERM);
        }
        ended
    }

    /// The machine or the pod is gone.
    pub(super) fn kill(&self) {
        self.life.kill();
        self.kill_agent();
        self.state.lock().unwrap().supervisor.kill();
        self.kill_daemon();
    }
}

fn freeze(life: &Life, frozen: bool) {
    if frozen { life.freeze() } else { life.thaw() }
}

fn arguments(command: &str, environment: &BTreeMap<String, String>) -> Vec<String> {
    let mut words = vec!["slurm-agent".to_owned(), command.to_owned()];
    for (name, value) in environment {
        let Some(name) = name.strip_prefix("SLURM_AGENT_") else {
            continue;
        };
        let known: &[&str] = match command {
            "supervise" => &["CONTROL", "POD_UID", "CONFIG_DIR"],
            "serve" => &["CONTROL", "CANDIDATE", "POD_UID"],
            _ => &["KEY_DIGEST", "BUNDLE"],
        };
        let is_place = ["CONTROLLER_UID", "KEYS_DIR", "STATE_DIR", "POD_NAME", "CONFIG_DIR"].contains(&name);
        if known.contains(&name) || (is_place && command != "supervise") {
            words.push(format!("--{}", name.to_ascii_lowercase().replace('_', "-")));
            words.push(value.clone());
        }
    }
    if command == "supervise" {
        words.extend(["--", "slurmctld", "--systemd"].map(str::to_owned));
    }
    words
}
