//! The container of slurmctld: the processes that `supervise` starts, made of the model of slurmctld.

use std::{
    collections::VecDeque,
    fmt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use agent::supervise::{
    Error,
    daemon::Exit,
    kernel::{Event, Kernel},
    notify::Message,
    process::{self, Ended},
};
use futures::future::BoxFuture;
use host::Files as _;
use nix::{errno::Errno, sys::signal::Signal, unistd::Pid};
use slurm::rpc::ServedFile;
use tokio::{sync::Notify, time::sleep};

use super::reading::{self, Death, Place, Reading};
use crate::{
    slurm::{ControllerId, settings::START},
    world::{World, machine::Simulated},
};

const ETC: &str = "/etc/slurm";
/// From exec to READY: slurm.conf is parsed.
const PARSE: Duration = Duration::from_millis(20);
/// From SIGHUP to the end of all requests that slurmctld had accepted. From then on requests wait for the new process.
const QUIESCE: Duration = Duration::from_millis(20);
/// From then until the new process serves (measured from SIGHUP on: 14 to 52 ms until it fails, 150 ms until it serves).
const HAND_OVER: Duration = Duration::from_millis(130);
/// How often a stopped process is looked at.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// From SIGTERM to the exit, in milliseconds: a volume may be slow.
const STOP: (u64, u64) = (50, 2000);

/// The container. A clone is the same one.
#[derive(Clone)]
pub(super) struct Container {
    world: World,
    machine: Simulated,
    /// The UID of its pod.
    pod: String,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

impl fmt::Debug for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Container").finish_non_exhaustive()
    }
}

/// The files that slurmctld shows on its port.
#[derive(Debug, Clone, Default)]
pub(super) struct Served {
    pub(super) files: Vec<ServedFile>,
    pub(super) hash: u32,
}

#[derive(Debug, Default)]
struct State {
    /// The supervisor is process 1.
    last_pid: i32,
    main: Option<Main>,
    served: Served,
    notifications: VecDeque<Message>,
    signals: VecDeque<Signal>,
    output: Vec<u8>,
    ended: Vec<Ended>,
}

/// The main process of the daemon.
#[derive(Debug, Clone, Copy)]
struct Main {
    pid: Pid,
    /// `None` if it dies of its files.
    id: Option<ControllerId>,
    /// It has got SIGTERM.
    ending: bool,
}

impl Container {
    pub(super) fn new(world: &World, machine: &Simulated, pod: &str) -> Self {
        Self {
            world: world.clone(),
            machine: machine.clone(),
            pod: pod.to_owned(),
            state: Arc::new(Mutex::new(State {
                last_pid: 6,
                ..State::default()
            })),
            changed: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The process of the model that is the main process.
    pub(super) fn daemon(&self) -> Option<ControllerId> {
        self.state().main?.id
    }

    pub(super) fn served(&self) -> Served {
        self.state().served.clone()
    }

    /// A signal to the supervisor.
    pub(super) fn signal(&self, signal: Signal) {
        self.state().signals.push_back(signal);
        self.changed.notify_one();
    }

    /// SIGKILL to the main process.
    pub(super) fn kill_daemon(&self) {
        let main = self.state().main;
        if let Some(main) = main {
            self.kill(main);
        }
    }

    fn kill(&self, main: Main) {
        if let Some(id) = main.id {
            self.world.slurm().kill_controller(id);
        }
        self.exit(main.pid, Exit::Signal(Signal::SIGKILL));
    }

    fn exit(&self, pid: Pid, exit: Exit) {
        let mut state = self.state();
        if state.main.is_some_and(|main| main.pid == pid) {
            state.main = None;
        }
        state.ended.push(Ended { pid, exit, own: true });
        drop(state);
        self.signal(Signal::SIGCHLD);
    }

    fn write(&self, text: &str) {
        let mut state = self.state();
        for line in text.lines() {
            state.output.extend(format!("slurmctld: {line}\n").bytes());
        }
        drop(state);
        self.changed.notify_one();
    }

    fn notify(&self, pid: Pid) {
        self.state().notifications.push_back(Message {
            ready: true,
            main_pid: Some(pid),
            status: None,
        });
        self.changed.notify_one();
    }

    fn new_pid(&self) -> Pid {
        let mut state = self.state();
        state.last_pid += 1;
        Pid::from_raw(state.last_pid)
    }

    /// The main process, if it is still this one.
    fn main(&self, pid: Pid) -> Option<Main> {
        self.state().main.filter(|main| main.pid == pid)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(host::Machine::spawn(&self.machine, "slurmctld", Box::pin(task)));
    }

    /// Reads the files as slurmctld does, and what it will serve.
    fn read(&self, before: Option<ControllerId>) -> (Reading, Served) {
        let files = &self.machine.files;
        let entries = files.entries(Path::new(ETC)).unwrap_or_default();
        let names = entries.iter().map(|entry| entry.name.to_string_lossy().into_owned());
        let names = names.filter(|name| !name.starts_with('.') && name != "slurm.key" && name != "jwt.key");
        let served = names.map(|name| ServedFile {
            content: files.read(&Path::new(ETC).join(&name)).ok(),
            executable: false,
            name,
        });
        let served = served.collect();
        let slurm = self.world.slurm();
        let nodes = match before {
            Some(id) => slurm.state(id).ok(),
            None => Some(slurm.saved(self.world.volume())),
        };
        let nodes = nodes.map(|state| state.nodes.keys().cloned().collect());
        let read = reading::read(
            files,
            &Path::new(ETC).join("slurm.conf"),
            &Place::Live(nodes.unwrap_or_default()),
        );
        let hash = read.result.as_ref().map(|conf| conf.hash).unwrap_or_default();
        (read, Served { files: served, hash })
    }

    async fn start(self, pid: Pid, reading: Reading, served: Served) {
        let conf = match reading.result {
            Ok(conf) => conf,
            Err(Death { after, words }) => {
                self.write(&words);
                sleep(after).await;
                if self.main(pid).is_some() {
                    self.exit(pid, Exit::Code(1));
                }
                return;
            }
        };
        sleep(reading.hangs + PARSE).await;
        if self.main(pid).is_none() {
            return;
        }
        let id = self.world.slurm().start_controller(self.world.volume(), conf);
        {
            let mut state = self.state();
            state.served = served;
            state.main.as_mut().unwrap().id = Some(id);
        }
        self.world.tell(format!("slurmctld starts as {id:?}"));
        self.world.reach(&self.pod, id);
        self.notify(pid);
        sleep(START).await;
        while self.main(pid).is_some() {
            if self.world.slurm().state(id).is_ok() {
                self.write("Running as primary controller");
                return;
            }
            sleep(LOOK).await;
        }
    }

    /// SIGTERM.
    async fn terminate(self, pid: Pid) {
        sleep(Duration::from_millis(self.machine.random.between(STOP.0, STOP.1))).await;
        while let Some(main) = self.main(pid) {
            if main.id.is_none_or(|id| self.world.slurm().stop_controller(id)) {
                self.exit(pid, Exit::Code(0));
            } else {
                sleep(LOOK).await;
            }
        }
    }

    /// SIGHUP. Another process reads the files and becomes the main process; if it dies of them, the old one goes on.
    async fn reconfigure(self, pid: Pid) {
        let Some(id) = self.main(pid).and_then(|main| main.id) else {
            return;
        };
        if !self.world.slurm().is_ready(id) {
            self.world.slurm().kill_controller(id);
            self.exit(pid, Exit::Signal(Signal::SIGHUP));
            return;
        }
        let _activity = self.world.begin("reconfigure");
        sleep(QUIESCE).await;
        while self.main(pid).is_some() && self.world.slurm().state(id).is_err() {
            sleep(LOOK).await;
        }
        // A SIGTERM meanwhile ends the old process, or is lost with it.
        if self
            .main(pid)
            .is_none_or(|main| main.ending && self.machine.random.one_in(2))
        {
            return;
        }
        let (reading, served) = self.read(Some(id));
        let new = self.new_pid();
        sleep(reading.hangs).await;
        match reading.result {
            Ok(conf) => {
                // What arrives from now on is for the new process.
                if self.world.slurm().reconfigure(id, conf).is_err() {
                    return;
                }
                self.state().served = served;
                sleep(HAND_OVER).await;
                let mut state = self.state();
                if state.main.is_none_or(|main| main.pid != pid) {
                    return;
                }
                state.main = Some(Main {
                    pid: new,
                    id: Some(id),
                    ending: false,
                });
                drop(state);
                self.notify(new);
                self.exit(pid, Exit::Code(0));
                self.write("Running as primary controller");
            }
            Err(Death { after, words }) => {
                self.write(&words);
                sleep(after).await;
                // It serves the files on disk from now on, and acts on the old ones.
                self.state().served.files = served.files;
                self.exit(new, Exit::Code(1));
                self.write("error: Resuming operation, reconfigure failed.");
            }
        }
    }
}

impl Kernel for Container {
    fn next(&mut self) -> BoxFuture<'_, Result<Event, Error>> {
        Box::pin(async {
            loop {
                {
                    let mut state = self.state();
                    if let Some(message) = state.notifications.pop_front() {
                        return Ok(Event::Notification(message));
                    }
                    if let Some(signal) = state.signals.pop_front() {
                        return Ok(Event::Signal(signal));
                    }
                    if !state.output.is_empty() {
                        return Ok(Event::Output(std::mem::take(&mut state.output)));
                    }
                }
                self.changed.notified().await;
            }
        })
    }

    fn pending_notification(&mut self) -> Result<Option<Message>, Error> {
        Ok(self.state().notifications.pop_front())
    }

    fn pending_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.state().output)
    }

    fn launch(&mut self, _extra: Option<&str>) -> Result<Pid, process::Error> {
        let pid = self.new_pid();
        self.state().main = Some(Main {
            pid,
            id: None,
            ending: false,
        });
        let (reading, served) = self.read(None);
        self.spawn(self.clone().start(pid, reading, served));
        Ok(pid)
    }

    fn reap(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.state().ended)
    }

    fn send(&self, pid: Pid, signal: Option<Signal>) -> Result<(), Errno> {
        let Some(main) = self.main(pid) else {
            // It is not reaped yet.
            let is_zombie = self.state().ended.iter().any(|ended| ended.pid == pid);
            return if is_zombie { Ok(()) } else { Err(Errno::ESRCH) };
        };
        match signal {
            Some(Signal::SIGKILL) => self.kill(main),
            Some(Signal::SIGTERM | Signal::SIGINT) => {
                if let Some(main) = &mut self.state().main {
                    main.ending = true;
                }
                self.spawn(self.clone().terminate(pid));
            }
            Some(Signal::SIGHUP) => self.spawn(self.clone().reconfigure(pid)),
            _ => {}
        }
        Ok(())
    }

    fn log(&self, _text: &[u8]) {}
}
