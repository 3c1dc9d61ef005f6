//! The signals that a supervisor handles.

use std::io;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// All but SIGCHLD are forwarded to the daemon.
const HANDLED: [Signal; 6] = [
    Signal::SIGCHLD,
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

#[derive(Debug)]
pub struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    pub fn listen() -> io::Result<Self> {
        let listen = |kind: Signal| Ok((kind, signal(SignalKind::from_raw(kind as i32))?));
        HANDLED.into_iter().map(listen).collect::<io::Result<_>>().map(Self)
    }

    pub async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            let ready =
                |(signal, stream): &mut (Signal, Stream)| stream.poll_recv(context).is_ready().then_some(*signal);
            let received = self.0.iter_mut().find_map(ready);
            received.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
