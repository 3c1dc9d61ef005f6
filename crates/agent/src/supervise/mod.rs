//! `slurm-agent supervise`: plays systemd for one Slurm daemon.
//!
//! A daemon started with `--systemd` survives a reconfigure it cannot digest, which one started with `-D` does not. In
//! return it wants a service manager: a notify socket, somebody who follows its main process from one re-execution to the
//! next, and a parent for the processes it leaves behind. [`daemon`], [`backoff`], [`notify`], [`remedy`], [`refused_peers`],
//! [`last_words`] and [`line_buffer`] decide and know no system calls; [`socket`] and [`process`] talk to the kernel and decide nothing.
//! [`standing`] keeps several slurmctld from writing to one volume.

pub mod backoff;
pub mod control;
pub mod daemon;
pub mod last_words;
pub mod line_buffer;
pub mod notify;
pub mod process;
pub mod refused_peers;
pub mod remedy;
pub mod signals;
pub mod socket;
pub mod standing;
pub mod user;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use slurm::agent::{Daemon as Shown, KeyDigest};
use thiserror::Error;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::cli;
use crate::config_dir;
use crate::control::{Reconfigured, State};
use crate::durable::hostname;
use control::Asked;
use daemon::{Announced, Daemon, Verdict};
use last_words::LastWords;
use line_buffer::LineBuffer;
use notify::Message;
use process::{Ended, Launcher};
use refused_peers::RefusedPeers;
use signals::{Received, Signals};
use socket::NotifySocket;
use standing::{Order, Standing};
use user::User;

#[derive(Debug, Error)]
pub enum Error {
    #[error(transparent)]
    User(#[from] user::Error),
    #[error(transparent)]
    Socket(#[from] socket::Error),
    #[error(transparent)]
    Control(#[from] control::Error),
    #[error(transparent)]
    Process(#[from] process::Error),
    #[error("cannot listen for signals: {0}")]
    Signals(#[source] std::io::Error),
    #[error("cannot read the daemon's standard error: {0}")]
    Stderr(#[source] std::io::Error),
}

/// Runs until the daemon has been told to stop and has stopped; the result is the code to exit with.
pub async fn run(options: &cli::Supervise) -> Result<u8, Error> {
    let user = options.as_user.as_deref().map(User::find).transpose()?;
    // Before the first child, so that none of its signals is missed.
    let signals = Signals::listen().map_err(Error::Signals)?;
    process::adopt_orphans()?;
    let socket = NotifySocket::bind(user.as_ref())?;
    let launcher = Launcher::new(&options.command, user, socket.path())?;
    let stderr = launcher.stderr().map_err(Error::Stderr)?;
    let asked = control::listen(options.control.as_deref())?;
    let mut supervisor = Supervisor {
        daemon: Daemon::default(),
        config_dir: options.config_dir.clone(),
        begun: None,
        waiting: Vec::new(),
        launcher,
        socket,
        words: LastWords::default(),
        lines: LineBuffer::default(),
        refused_peers: RefusedPeers::default(),
        restart_at: None,
        standing: Standing::new(
            options.config_dir.clone(),
            options.hostname.clone().unwrap_or_else(hostname),
        ),
    };
    if !supervisor.must_wait() {
        // A command that cannot be run at all is a mistake in the pod, which the kubelet reports better than we could.
        supervisor.start()?;
    }
    let ended = supervisor.follow(signals, stderr, asked).await;
    supervisor.standing.leave().await;
    ended
}

/// slurmctld's words when it has acted on all its files and takes requests.
pub(crate) const IN_CHARGE: &str = "Running as primary controller";
/// slurmctld's words when it waits to take over.
const STANDBY: &str = "slurmctld running in background mode";
/// slurmctld's and slurmd's words when they go on with what they had.
const FAILED: &str = "reconfigure failed";

/// Beside slurm.conf.
const KEY_FILE: &str = "slurm.key";

struct Supervisor {
    daemon: Daemon,
    config_dir: PathBuf,
    /// When the daemon's life began.
    begun: Option<SystemTime>,
    /// Who wants to know how the reconfigure under way ends.
    waiting: Vec<oneshot::Sender<Reconfigured>>,
    launcher: Launcher,
    socket: NotifySocket,
    words: LastWords,
    lines: LineBuffer,
    refused_peers: RefusedPeers,
    restart_at: Option<Instant>,
    standing: Standing,
}

impl Supervisor {
    async fn follow(
        &mut self,
        mut signals: Signals,
        mut stderr: Receiver,
        mut asked: mpsc::Receiver<Asked>,
    ) -> Result<u8, Error> {
        let mut chunk = [0; 8192];
        loop {
            let now = Instant::now();
            let pause = self.restart_at.map(|at| at.saturating_duration_since(now));
            let due = self.standing.deadline(now).map(|at| at.saturating_duration_since(now));
            tokio::select! {
                biased;
                message = self.socket.recv() => self.heard(&message?),
                received = signals.next() => match received {
                    Received::Child => {
                        if let Some(code) = self.reap()? {
                            return Ok(code);
                        }
                    }
                    Received::Other(signal) => {
                        if let Some(code) = self.pass_on(signal) {
                            return Ok(code);
                        }
                    }
                },
                read = stderr.read(&mut chunk) => {
                    let read = read.map_err(Error::Stderr)?;
                    self.said(chunk.get(..read).unwrap_or_default());
                }
                Some(asked) = asked.recv() => self.answer(asked),
                () = self.standing.changed() => {
                    if self.standing.is_beating() {
                        self.took_charge();
                    }
                    self.keep_standing();
                }
                () = sleep(due.unwrap_or(Duration::ZERO)), if due.is_some() => self.keep_standing(),
                () = sleep(pause.unwrap_or(Duration::ZERO)), if pause.is_some() => self.restart(),
            }
        }
    }

    /// Whether the daemon starts later, when others have stood back.
    fn must_wait(&mut self) -> bool {
        self.standing.must_wait(self.daemon.last_life(), Instant::now())
    }

    fn took_charge(&mut self) {
        if self.daemon.said_primary() {
            self.standing.took_charge();
        }
    }

    fn keep_standing(&mut self) {
        match self.standing.order(self.daemon.is_in_charge(), Instant::now()) {
            None => {}
            // One that was taken for dead may have come back meanwhile.
            Some(Order::Start) if self.daemon.main().is_some() => {}
            Some(Order::Start) => self.start_or_retry(),
            Some(Order::StandBack) => match self.daemon.restart() {
                Some(pid) => send(pid, Signal::SIGTERM),
                None => self.standing.ended(Instant::now()),
            },
            Some(Order::Kill) => {
                if let Some(pid) = self.daemon.main() {
                    send(pid, Signal::SIGKILL);
                }
            }
        }
    }

    fn start(&mut self) -> Result<(), process::Error> {
        let remedy = remedy::remedy(self.words.lines());
        if let Some(remedy) = remedy {
            warn!(last_words = %self.words, "starting it with {remedy}, or it would die of this for ever");
        }
        self.words.clear();
        // Before it starts: if others are put there while it does, what it has read is not known to be those.
        let files = config_dir::live_name(&self.config_dir);
        self.note_key();
        let pid = self.launcher.launch(remedy)?;
        self.daemon.started(pid, files, Instant::now());
        self.begun = Some(SystemTime::now());
        info!(%pid, command = %self.launcher, "daemon started");
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
            warn!(%error, ?after, "daemon does not start, trying again");
            self.restart_at = Some(Instant::now() + after);
        }
    }

    fn heard(&mut self, message: &Message) {
        let now = Instant::now();
        if let Some(pid) = message.main_pid
            && process::is_alive(pid)
        {
            let files = config_dir::live_name(&self.config_dir);
            match self.daemon.announced(pid, files.as_deref(), now) {
                Announced::Known => {}
                Announced::Moved => self.moved(pid),
                Announced::Reconfigured => {
                    self.moved(pid);
                    self.tell(&Reconfigured::Done);
                }
            }
        }
        if message.ready {
            self.daemon.said_ready(now);
        }
        if let Some(status) = &message.status {
            info!(%status, "daemon reports");
        }
    }

    /// A daemon reads its key when it starts and when it executes itself anew.
    fn note_key(&mut self) {
        let key = std::fs::read(self.config_dir.join(KEY_FILE)).ok();
        self.refused_peers.has_read(key.map(|key| KeyDigest::of(&key)));
    }

    fn moved(&mut self, pid: Pid) {
        self.note_key();
        self.restart_at = None;
        self.begun.get_or_insert_with(SystemTime::now);
        info!(%pid, "main process changed");
        if self.daemon.is_stopping() {
            // The signal went to the process before it.
            send(pid, Signal::SIGTERM);
        }
    }

    fn said(&mut self, bytes: &[u8]) {
        self.words.push(bytes);
        let lines = self.lines.push(bytes);
        let (now, unix) = (Instant::now(), unix_seconds());
        for line in String::from_utf8_lossy(&lines).lines() {
            self.refused_peers.hear(line, now, unix);
            if line.contains(IN_CHARGE) {
                self.took_charge();
            }
            if line.contains(STANDBY) {
                self.daemon.said_standby();
                self.standing.stood_back();
            }
            if line.contains(FAILED) && self.daemon.reconfigure_failed() {
                self.reconfigure_failed();
            }
        }
        pass_on_text(&lines);
    }

    fn reap(&mut self) -> Result<Option<u8>, Error> {
        // The old main process ends right after the new one has announced itself: what it said comes before its death.
        while let Some(message) = self.socket.try_recv()? {
            self.heard(&message);
        }
        for Ended { pid, exit, name } in process::reap_all() {
            let own = self.launcher.is_own(&name);
            match self.daemon.reaped(pid, exit, own, Instant::now()) {
                Verdict::Other => {}
                Verdict::ReconfigureFailed => {
                    self.drain();
                    self.reconfigure_failed();
                }
                Verdict::Finished(code) => {
                    self.drain();
                    info!(%pid, %exit, "daemon stopped");
                    return Ok(Some(code));
                }
                Verdict::Restart(after) => {
                    self.drain();
                    warn!(%pid, %exit, ?after, last_words = %self.words, "daemon died, restarting it");
                    self.restart_at = Some(Instant::now() + after);
                    self.begun = None;
                    self.standing.ended(Instant::now());
                    self.tell(&Reconfigured::Died);
                }
            }
        }
        Ok(None)
    }

    fn reconfigure_failed(&mut self) {
        warn!(last_words = %self.words, "reconfigure failed, the daemon goes on with what it had");
        let last_words = self.words.lines().collect();
        self.tell(&Reconfigured::Failed { last_words });
    }

    fn tell(&mut self, outcome: &Reconfigured) {
        for waiting in self.waiting.drain(..) {
            // Whoever asked may be gone.
            let _ = waiting.send(outcome.clone());
        }
    }

    fn answer(&mut self, asked: Asked) {
        match asked {
            Asked::Status(reply) => {
                let _ = reply.send(self.state());
            }
            Asked::Reconfigure(reply) => {
                let files = config_dir::live_name(&self.config_dir);
                match self.daemon.reconfigure(files, Instant::now()) {
                    Some(pid) => {
                        self.words.clear();
                        self.waiting.push(reply);
                        send(pid, Signal::SIGHUP);
                    }
                    None => {
                        let _ = reply.send(Reconfigured::Away);
                    }
                }
            }
            Asked::Restart(reply) => {
                match self.daemon.restart() {
                    Some(pid) => send(pid, Signal::SIGTERM),
                    None if self.standing.is_waiting() => {}
                    None if !self.daemon.is_stopping() => self.restart_at = Some(Instant::now()),
                    None => {}
                }
                let _ = reply.send(self.state());
            }
        }
    }

    fn state(&self) -> State {
        let since = self.begun.and_then(|begun| begun.duration_since(UNIX_EPOCH).ok());
        let now = Instant::now();
        State {
            daemon: Shown {
                state: self.daemon.state(now),
                pid: self.daemon.main().map(Pid::as_raw),
                since: since.map(|since| since.as_secs()),
                restarts: self.daemon.restarts(),
                last_words: self.words.lines().collect(),
                key: self.refused_peers.key(),
                refused_peers: self.refused_peers.list(unix_seconds()),
            },
            files: self.daemon.files().map(str::to_owned),
            reconfiguring: self.daemon.is_reconfiguring(now),
            stillborn: self.daemon.stillborn(),
        }
    }

    /// Its last words may still be in the pipe when it is reaped.
    fn drain(&mut self) {
        let mut chunk = [0; 8192];
        while let Ok(read @ 1..) = self.launcher.read_waiting(&mut chunk) {
            self.said(chunk.get(..read).unwrap_or_default());
        }
        pass_on_text(&self.lines.take());
    }

    fn pass_on(&mut self, signal: Signal) -> Option<u8> {
        if matches!(signal, Signal::SIGTERM | Signal::SIGINT)
            && let Some(code) = self.daemon.stop()
        {
            info!(%signal, "told to stop while no daemon runs");
            return Some(code);
        }
        send(self.daemon.main()?, signal);
        None
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

fn pass_on_text(text: &[u8]) {
    // Nobody is left to be told when our own standard error is gone.
    let _ = std::io::stderr().write_all(text);
}

fn send(pid: Pid, signal: Signal) {
    info!(%signal, %pid, "passing a signal on");
    if let Err(error) = process::send(pid, signal) {
        warn!(%error, %signal, %pid, "cannot pass the signal on");
    }
}
