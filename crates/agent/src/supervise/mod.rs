//! `slurm-agent supervise`: the service manager of one Slurm daemon.
//!
//! A daemon started with `--systemd` survives a failed reconfigure, which one started with `-D` does not. In return it needs a
//! service manager: a notify socket, a supervisor that follows its main process across re-executions, and a parent for the
//! processes it leaves behind. [`daemon`], [`backoff`], [`notify`], [`remedy`], [`refused_peers`], [`stderr_tail`] and
//! [`line_buffer`] decide and make no system calls; [`socket`], [`signals`] and [`process`], from which
//! [`kernel`] is made, make system calls and decide nothing. [`arbitration`] prevents several slurmctld from writing to one volume.

pub mod arbitration;
pub mod backoff;
pub mod control;
pub mod daemon;
pub mod kernel;
pub mod line_buffer;
pub mod notify;
pub mod process;
pub mod refused_peers;
pub mod remedy;
pub mod signals;
pub mod socket;
pub mod stderr_tail;
pub mod user;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use host::{FileError, Host};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use slurm::agent::{Daemon as DaemonStatus, KeyDigest, Superseded};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::cli;
use crate::config_dir;
use crate::control::{Reconfigured, Request, State};
use arbitration::{Action, Arbiter};
use control::{ControlRequest, Reply};
use daemon::{Announced, Daemon, ExitAction};
use kernel::{Event, Kernel};
use line_buffer::LineBuffer;
use notify::Message;
use process::Ended;
use refused_peers::RefusedPeers;
use stderr_tail::StderrTail;

#[derive(Debug, Error)]
pub enum Error {
    #[error(transparent)]
    User(#[from] user::Error),
    #[error(transparent)]
    Socket(#[from] socket::Error),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Process(#[from] process::Error),
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] std::io::Error),
    #[error("cannot read the daemon's standard error: {0}")]
    Stderr(#[source] std::io::Error),
}

/// Runs until the daemon has stopped on request; returns the exit code.
pub async fn run(host: Host, options: &cli::Supervise) -> Result<u8, Error> {
    let kernel = kernel::Real::new(&host, options)?;
    run_on(host, options, Box::new(kernel)).await
}

/// The same on a kernel that a simulation provides.
pub async fn run_on(host: Host, options: &cli::Supervise, kernel: Box<dyn Kernel>) -> Result<u8, Error> {
    let requests = control::listen(&host, options.control.as_deref())?;
    let hostname = options.hostname.clone().unwrap_or_else(|| host.hostname());
    let mut supervisor = Supervisor {
        daemon: Daemon::default(),
        config_dir: options.config_dir.clone(),
        started_at: None,
        reconfigure_callers: Vec::new(),
        command: options.command.join(OsStr::new(" ")).to_string_lossy().into_owned(),
        kernel,
        tail: StderrTail::default(),
        lines: LineBuffer::default(),
        refused_peers: RefusedPeers::default(),
        restart_at: None,
        arbiter: Arbiter::new(
            host.clone(),
            options.config_dir.clone(),
            hostname,
            options.pod_uid.clone(),
        ),
        host,
    };
    if !supervisor.must_wait() {
        // A command that cannot be executed is a mistake in the pod, which the kubelet reports.
        supervisor.start()?;
    }
    let exited = supervisor.run(requests).await;
    supervisor.arbiter.leave().await;
    exited
}

/// slurmctld's log line once it has acted on all its files and accepts requests.
pub(crate) const PRIMARY: &str = "Running as primary controller";
/// slurmctld's log line when it waits to take over.
const STANDBY: &str = "slurmctld running in background mode";
/// slurmctld's and slurmd's log line when they continue with their old configuration.
const FAILED: &str = "reconfigure failed";

/// Beside slurm.conf.
const KEY_FILE: &str = "slurm.key";

struct Supervisor {
    host: Host,
    daemon: Daemon,
    config_dir: PathBuf,
    /// When the current run of the daemon began.
    started_at: Option<SystemTime>,
    /// The callers that wait for the end of a reconfigure.
    reconfigure_callers: Vec<Reply>,
    command: String,
    kernel: Box<dyn Kernel>,
    tail: StderrTail,
    lines: LineBuffer,
    refused_peers: RefusedPeers,
    restart_at: Option<Instant>,
    arbiter: Arbiter,
}

impl Supervisor {
    async fn run(&mut self, mut requests: mpsc::Receiver<ControlRequest>) -> Result<u8, Error> {
        loop {
            let now = self.host.instant();
            let restart = self.restart_at.map(|at| at.saturating_duration_since(now));
            let deadline = self.arbiter.deadline(now);
            let deadline = deadline.map(|at| at.saturating_duration_since(now));
            tokio::select! {
                biased;
                event = self.kernel.next() => {
                    if let Some(code) = self.handle_event(event?)? {
                        return Ok(code);
                    }
                }
                Some(request) = requests.recv() => self.handle_request(request),
                () = self.arbiter.changed() => {
                    if self.arbiter.is_primary_by_heartbeat() {
                        self.record_primary();
                    }
                    self.arbitrate();
                }
                () = sleep(deadline.unwrap_or(Duration::ZERO)), if deadline.is_some() => self.arbitrate(),
                () = sleep(restart.unwrap_or(Duration::ZERO)), if restart.is_some() => self.restart(),
            }
        }
    }

    /// Returns the exit code if the daemon has stopped on request.
    fn handle_event(&mut self, event: Event) -> Result<Option<u8>, Error> {
        match event {
            Event::Notification(message) => self.handle_notification(&message),
            Event::Signal(Signal::SIGCHLD) => return self.reap(),
            Event::Signal(signal) => return Ok(self.forward_signal(signal)),
            Event::Output(bytes) => self.handle_output(&bytes),
        }
        Ok(None)
    }

    /// Returns whether the daemon has to wait until other slurmctld have yielded.
    fn must_wait(&mut self) -> bool {
        self.arbiter.must_wait(self.daemon.previous_run, self.host.instant())
    }

    fn record_primary(&mut self) {
        if self.daemon.mark_primary() {
            self.arbiter.record_primary();
        }
    }

    fn arbitrate(&mut self) {
        let now = self.host.instant();
        match self.arbiter.next_action(self.daemon.is_primary(), now) {
            None => {}
            // A daemon that was taken for dead may have notified meanwhile.
            Some(Action::Start) if self.daemon.main().is_some() => {}
            Some(Action::Start) => self.start_or_retry(),
            Some(Action::Yield) => match self.daemon.restart() {
                Some(pid) => self.send(pid, Signal::SIGTERM),
                None => self.arbiter.record_exit(now),
            },
            Some(Action::Restart) => {
                if let Some(pid) = self.daemon.restart() {
                    self.send(pid, Signal::SIGTERM);
                }
            }
            Some(Action::Kill) => {
                if let Some(pid) = self.daemon.main() {
                    self.send(pid, Signal::SIGKILL);
                }
            }
        }
    }

    fn start(&mut self) -> Result<(), process::Error> {
        let remedy = remedy::remedy(self.tail.lines());
        if let Some(remedy) = remedy {
            warn!(last_words = %self.tail, "starting the daemon with {remedy}, since it would die of the same error again");
        }
        self.tail.clear();
        // Before the start: if the files change during it, the daemon's files are not known to be the new ones.
        let files = config_dir::live_name(&self.host, &self.config_dir);
        self.read_key();
        let pid = self.kernel.launch(remedy)?;
        self.daemon.started(pid, files, self.host.instant());
        self.started_at = Some(self.host.now());
        info!(%pid, command = self.command, "daemon started");
        Ok(())
    }

    fn restart(&mut self) {
        self.restart_at = None;
        if !self.must_wait() {
            self.start_or_retry();
        }
    }

    fn start_or_retry(&mut self) {
        self.restart_at = None;
        if let Err(error) = self.start() {
            let after = self.daemon.failed_to_start();
            warn!(%error, ?after, "cannot start the daemon, retrying");
            self.restart_at = Some(self.host.instant() + after);
        }
    }

    fn handle_notification(&mut self, message: &Message) {
        let now = self.host.instant();
        if let Some(pid) = message.main_pid
            && self.kernel.send(pid, None).is_ok()
        {
            let files = config_dir::live_name(&self.host, &self.config_dir);
            let announced = self.daemon.announced(pid, files.as_deref(), now);
            if announced != Announced::Known {
                self.handle_new_main(pid);
            }
            if announced == Announced::Reconfigured {
                self.report_reconfigured(&Reconfigured::Done);
            }
        }
        if message.ready {
            self.daemon.mark_ready(now);
        }
        if let Some(status) = &message.status {
            info!(%status, "daemon reports");
        }
    }

    /// A daemon reads its key when it starts and when it re-executes itself.
    fn read_key(&mut self) {
        let key = self.host.files().read(&self.config_dir.join(KEY_FILE)).ok();
        self.refused_peers.set_key(key.map(|key| KeyDigest::of(&key)));
    }

    fn handle_new_main(&mut self, pid: Pid) {
        self.read_key();
        self.restart_at = None;
        self.started_at.get_or_insert_with(|| self.host.now());
        info!(%pid, "main process changed");
        if self.daemon.is_ending() {
            // The signal went to the process before it.
            self.send(pid, Signal::SIGTERM);
        }
    }

    fn handle_output(&mut self, bytes: &[u8]) {
        self.tail.push(bytes);
        let lines = self.lines.push(bytes);
        let (now, unix) = (self.host.instant(), self.host.unix_time().as_secs());
        for line in String::from_utf8_lossy(&lines).lines() {
            self.refused_peers.observe(line, now, unix);
            if line.contains(PRIMARY) {
                self.record_primary();
            }
            if line.contains(STANDBY) {
                self.daemon.mark_standby();
                self.arbiter.record_standby();
            }
            if line.contains(FAILED) && self.daemon.reconfigure_failed() {
                self.report_reconfigure_failed();
            }
        }
        self.kernel.log(&lines);
    }

    fn reap(&mut self) -> Result<Option<u8>, Error> {
        // The old main process exits right after the new one has notified: the notification comes first.
        while let Some(message) = self.kernel.pending_notification()? {
            self.handle_notification(&message);
        }
        for Ended { pid, exit, own } in self.kernel.reap() {
            let now = self.host.instant();
            let action = self.daemon.reaped(pid, exit, own, now);
            if action != ExitAction::Ignore {
                self.read_pending_output();
            }
            match action {
                ExitAction::Ignore => {}
                ExitAction::ReconfigureFailed => self.report_reconfigure_failed(),
                ExitAction::Exit(code) => {
                    info!(%pid, %exit, "daemon stopped");
                    return Ok(Some(code));
                }
                ExitAction::Restart(after) => {
                    warn!(%pid, %exit, ?after, last_words = %self.tail, "daemon exited, restarting it");
                    self.restart_at = Some(now + after);
                    self.started_at = None;
                    self.arbiter.record_exit(now);
                    self.report_reconfigured(&Reconfigured::Died);
                }
            }
        }
        Ok(None)
    }

    fn report_reconfigure_failed(&mut self) {
        warn!(last_words = %self.tail, "reconfigure failed, the daemon continues with its old configuration");
        let last_words = self.tail.lines().collect();
        self.report_reconfigured(&Reconfigured::Failed { last_words });
    }

    fn report_reconfigured(&mut self, outcome: &Reconfigured) {
        for caller in self.reconfigure_callers.drain(..) {
            caller.send(outcome);
        }
    }

    fn handle_request(&mut self, ControlRequest { request, reply }: ControlRequest) {
        let now = self.host.instant();
        match request {
            Request::Status => reply.send(&self.state()),
            Request::Reconfigure => {
                let files = config_dir::live_name(&self.host, &self.config_dir);
                match self.daemon.reconfigure(files, now) {
                    Some(pid) => {
                        self.tail.clear();
                        self.reconfigure_callers.push(reply);
                        self.send(pid, Signal::SIGHUP);
                    }
                    None => reply.send(&Reconfigured::NotReady),
                }
            }
            Request::Start | Request::Restart => {
                let running = self.daemon.main();
                if let Some(pid) = running.filter(|_| request == Request::Restart) {
                    self.daemon.restart();
                    self.send(pid, Signal::SIGTERM);
                } else if running.is_none() && !self.arbiter.is_waiting() && !self.daemon.stopping {
                    self.restart_at = Some(now);
                }
                reply.send(&self.state());
            }
        }
    }

    /// The later pod of this name, once no daemon is left here.
    fn superseded(&self) -> Option<Superseded> {
        let (by, responds) = self.arbiter.later_pod().filter(|_| self.daemon.main().is_none())?;
        let by = by.to_owned();
        Some(Superseded { by, responds })
    }

    fn state(&self) -> State {
        let since = self.started_at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let now = self.host.instant();
        State {
            daemon: DaemonStatus {
                state: self.daemon.state(now),
                pid: self.daemon.main().map(Pid::as_raw),
                since: since.map(|since| since.as_secs()),
                restarts: self.daemon.restarts,
                last_words: self.tail.lines().collect(),
                key: self.refused_peers.key(),
                refused_peers: self.refused_peers.list(self.host.unix_time().as_secs()),
                superseded: self.superseded(),
            },
            files: self.daemon.files.clone(),
            reconfiguring: self.daemon.is_reconfiguring(now),
            failed_starts: self.daemon.failed_starts,
        }
    }

    /// Reads the output that is still in the pipe when the daemon is reaped.
    fn read_pending_output(&mut self) {
        let output = self.kernel.pending_output();
        self.handle_output(&output);
        self.kernel.log(&self.lines.take());
    }

    fn forward_signal(&mut self, signal: Signal) -> Option<u8> {
        if matches!(signal, Signal::SIGTERM | Signal::SIGINT)
            && let Some(code) = self.daemon.stop()
        {
            info!(%signal, "stopping while no daemon runs");
            return Some(code);
        }
        self.send(self.daemon.main()?, signal);
        None
    }

    fn send(&self, pid: Pid, signal: Signal) {
        info!(%signal, %pid, "sending a signal");
        if let Err(error) = self.kernel.send(pid, Some(signal)) {
            warn!(%error, %signal, %pid, "cannot send the signal");
        }
    }
}
