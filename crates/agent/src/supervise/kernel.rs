//! What the supervisor gets from its kernel: the daemon's processes, their messages and output, and its own signals. A simulation
//! implements [`Kernel`] with a model of the daemon.

use std::fmt;
use std::io::Write as _;

use futures::future::BoxFuture;
use host::Host;
use nix::errno::Errno;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

use super::Error;
use super::notify::Message;
use super::process::{self, Ended, Launcher};
use super::signals::Signals;
use super::socket::NotifySocket;
use super::user::User;
use crate::cli;

/// What the kernel brings.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The daemon notifies.
    Notification(Message),
    /// This process got a signal. SIGCHLD: there is something to reap.
    Signal(Signal),
    /// The daemon wrote to its standard error.
    Output(Vec<u8>),
}

pub trait Kernel: fmt::Debug + Send {
    /// The next event. Of several, notifications come first and output last.
    fn next(&mut self) -> BoxFuture<'_, Result<Event, Error>>;

    /// A notification that has arrived.
    fn pending_notification(&mut self) -> Result<Option<Message>, Error>;

    /// Output that is still in the pipe.
    fn pending_output(&mut self) -> Vec<u8>;

    /// Starts the daemon. `extra` is an argument for this run only.
    fn launch(&mut self, extra: Option<&str>) -> Result<Pid, process::Error>;

    /// Reaps every child that has exited.
    fn reap(&mut self) -> Vec<Ended>;

    /// Sends a signal, or with `None` finds out whether there is such a process.
    fn send(&self, pid: Pid, signal: Option<Signal>) -> Result<(), Errno>;

    /// Writes the daemon's output to the container's log.
    fn log(&self, text: &[u8]);
}

#[derive(Debug)]
pub(super) struct Real {
    host: Host,
    signals: Signals,
    socket: NotifySocket,
    launcher: Launcher,
    stderr: Receiver,
}

impl Real {
    pub(super) fn new(host: &Host, options: &cli::Supervise) -> Result<Self, Error> {
        let user = options.as_user.as_deref().map(|name| User::find(host, name));
        let user = user.transpose()?;
        // Before the first child, so that none of its signals is missed.
        let signals = Signals::listen().map_err(Error::Signals)?;
        process::adopt_orphans()?;
        let socket = NotifySocket::bind(host, user.as_ref())?;
        let launcher = Launcher::new(&options.command, user, socket.path())?;
        let stderr = launcher.stderr().map_err(Error::Stderr)?;
        Ok(Self {
            host: host.clone(),
            signals,
            socket,
            launcher,
            stderr,
        })
    }
}

impl Kernel for Real {
    fn next(&mut self) -> BoxFuture<'_, Result<Event, Error>> {
        Box::pin(async {
            let mut chunk = [0; 8192];
            tokio::select! {
                biased;
                message = self.socket.recv() => Ok(Event::Notification(message?)),
                signal = self.signals.next() => Ok(Event::Signal(signal)),
                read = self.stderr.read(&mut chunk) => {
                    let read = read.map_err(Error::Stderr)?;
                    Ok(Event::Output(chunk.get(..read).unwrap_or_default().to_vec()))
                }
            }
        })
    }

    fn pending_notification(&mut self) -> Result<Option<Message>, Error> {
        Ok(self.socket.try_recv()?)
    }

    fn pending_output(&mut self) -> Vec<u8> {
        let mut output = Vec::new();
        let mut chunk = [0; 8192];
        while let Ok(read @ 1..) = self.launcher.read_pending(&mut chunk) {
            output.extend_from_slice(chunk.get(..read).unwrap_or_default());
        }
        output
    }

    fn launch(&mut self, extra: Option<&str>) -> Result<Pid, process::Error> {
        self.launcher.launch(extra)
    }

    fn reap(&mut self) -> Vec<Ended> {
        process::reap_all(&self.host, &self.launcher)
    }

    fn send(&self, pid: Pid, signal: Option<Signal>) -> Result<(), Errno> {
        signal::kill(pid, signal)
    }

    fn log(&self, text: &[u8]) {
        // Nothing can be reported once our own standard error is closed.
        let _ = std::io::stderr().write_all(text);
    }
}
