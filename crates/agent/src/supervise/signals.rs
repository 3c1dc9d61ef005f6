//! The signals that a supervisor handles.

use std::io;

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// A child ended.
    Child,
    /// To be forwarded to the daemon.
    Other(Signal),
}

#[derive(Debug)]
pub struct Signals {
    child: Stream,
    terminate: Stream,
    interrupt: Stream,
    hangup: Stream,
    user1: Stream,
    user2: Stream,
}

impl Signals {
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            child: signal(SignalKind::child())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    pub async fn next(&mut self) -> Received {
        tokio::select! {
            _ = self.child.recv() => Received::Child,
            _ = self.terminate.recv() => Received::Other(Signal::SIGTERM),
            _ = self.interrupt.recv() => Received::Other(Signal::SIGINT),
            _ = self.hangup.recv() => Received::Other(Signal::SIGHUP),
            _ = self.user1.recv() => Received::Other(Signal::SIGUSR1),
            _ = self.user2.recv() => Received::Other(Signal::SIGUSR2),
        }
    }
}
