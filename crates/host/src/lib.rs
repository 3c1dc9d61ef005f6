//! What a process gets from its machine: time, randomness, connections and tasks.
//!
//! Operator, agent and Slurm's clients take all of it from one [`Host`], and clippy rejects every other way
//! (`disallowed-methods` in `clippy.toml`). A simulation can therefore replace the machine: it implements [`Machine`]
//! and runs the production code under tokio's paused clock.

mod connection;
mod random;
mod real;
mod task;

use std::{fmt, future::Future, io, sync::Arc, time::SystemTime};

use futures::future::BoxFuture;
use tokio::time::Instant;

pub use self::{
    connection::{Connection, Stream},
    random::Random,
    task::Task,
};

/// The machine this process runs on. A clone is the same machine.
#[derive(Clone)]
pub struct Host(Arc<dyn Machine>);

/// What a simulation implements.
pub trait Machine: fmt::Debug + Send + Sync {
    /// The wall clock.
    fn now(&self) -> SystemTime;

    /// Random bytes that are good enough for keys.
    fn fill(&self, bytes: &mut [u8]);

    /// Opens a TCP connection to `host:port`.
    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<Connection>>;

    /// Starts a task. `name` is for logs.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) -> tokio::task::JoinHandle<()>;
}

impl Host {
    /// The real machine.
    pub fn real() -> Self {
        Self(Arc::new(real::Real))
    }

    /// A machine that a simulation provides.
    pub fn of(machine: impl Machine + 'static) -> Self {
        Self(Arc::new(machine))
    }

    /// The wall clock. It can jump; [`Host::instant`] measures durations.
    pub fn now(&self) -> SystemTime {
        self.0.now()
    }

    /// The monotonic clock, which is tokio's: a simulation pauses it.
    #[allow(clippy::disallowed_methods, reason = "this is the one place that reads it")]
    #[allow(clippy::unused_self, reason = "callers state where they get the time from")]
    pub fn instant(&self) -> Instant {
        Instant::now()
    }

    /// Random numbers for jitter and names.
    pub fn random(&self) -> Random<'_> {
        Random(self)
    }

    /// Random bytes that are good enough for keys.
    pub fn fill(&self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }

    /// Opens a TCP connection to `host:port`.
    pub async fn connect(&self, address: impl Into<String>) -> io::Result<Connection> {
        self.0.connect(address.into()).await
    }

    /// Starts a task that runs until its future completes, or until the returned [`Task`] is dropped.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) -> Task {
        Task::new(self.0.spawn(name, Box::pin(task)))
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
