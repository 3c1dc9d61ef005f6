//! What a process gets from its machine: time, randomness, connections, files and tasks.
//!
//! Operator, agent and Slurm's clients take all of it from one [`Host`], and clippy rejects every other way
//! (`disallowed-methods` in `clippy.toml`). A simulation can therefore replace the machine: it implements [`Machine`]
//! and runs the production code under tokio's paused clock.

#![warn(clippy::disallowed_methods)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod connection;
mod files;
mod listener;
mod paced;
mod program;
mod random;
mod real;
mod slots;
mod task;
mod temporary;
pub mod watch;
mod worker;

use std::{
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    ops::Deref,
    path::{Path, PathBuf},
    process::Output,
    sync::Arc,
    task::Poll,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::{
    sync::{mpsc::UnboundedReceiver, oneshot},
    time::Instant,
};

pub use self::{
    connection::{Connection, Stream},
    files::{Durability, Entry, FileError, FileKind, Files, Metadata},
    listener::{Accept, Listener},
    program::{Process, Program},
    random::Random,
    slots::{Held, Limits, Slot, Slots},
    task::Task,
    temporary::TemporaryDirectory,
    worker::{Work, Worker},
};

/// The machine this process runs on. A clone is the same machine.
#[derive(Clone)]
pub struct Host(Arc<dyn Machine>);

/// What a simulation implements.
pub trait Machine: fmt::Debug + Send + Sync {
    /// The wall clock. It can jump; [`Host::instant`] measures durations.
    fn now(&self) -> SystemTime;

    /// Random bytes that are good enough for keys.
    fn fill(&self, bytes: &mut [u8]);

    /// The name of the machine.
    fn hostname(&self) -> String;

    /// Prints a line to standard output.
    fn print(&self, line: &str) {
        println!("{line}");
    }

    /// The file system.
    fn files(&self) -> &dyn Files;

    /// Opens a TCP connection to `host:port`.
    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<Connection>>;

    /// Opens a connection to a unix socket.
    fn connect_unix(&self, path: PathBuf) -> BoxFuture<'static, io::Result<Connection>>;

    /// Listens for TCP connections.
    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Listener>>;

    /// Creates a unix socket and listens on it.
    fn listen_unix(&self, path: &Path) -> io::Result<Listener>;

    /// Starts a task. `name` is for logs.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) -> tokio::task::JoinHandle<()>;

    /// Starts a thread for work that blocks.
    fn spawn_thread(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// Does one piece of work after the other, each of which may block, until the sender is gone.
    fn start_worker(&self, name: &'static str, mut work: UnboundedReceiver<Work>) -> io::Result<()> {
        let run = move || {
            while let Some(work) = work.blocking_recv() {
                work();
            }
        };
        self.spawn_thread(name, Box::new(run))
    }

    /// Whether tasks of this machine may run. A simulation stops them here, as SIGSTOP does.
    fn poll_runnable(&self, _context: &mut std::task::Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Runs a program to its end, without input. It is killed if the future is dropped.
    fn run(&self, program: Program) -> BoxFuture<'static, io::Result<Output>> {
        Box::pin(program::run(program))
    }

    /// Starts a program in a process group of its own, with only its standard error. It is killed when this is dropped.
    fn start(&self, program: Program) -> io::Result<Box<dyn Process>> {
        program::start(program)
    }
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

    /// The wall clock as the time since 1970.
    pub fn unix_time(&self) -> Duration {
        self.now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    /// The wall clock for people and for files.
    pub fn timestamp(&self) -> Timestamp {
        Timestamp::try_from(self.now()).unwrap_or_default()
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

    /// Creates a directory in `parent`, under a name that begins with `prefix`.
    pub fn temporary_directory(&self, parent: &Path, prefix: &str) -> Result<TemporaryDirectory, FileError> {
        TemporaryDirectory::create(self, parent, prefix)
    }

    /// Listens for TCP connections.
    pub async fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        self.0.listen(address).await
    }

    /// Creates a unix socket and listens on it.
    pub fn listen_unix(&self, path: &Path) -> Result<Listener, FileError> {
        let listening = self.0.listen_unix(path);
        listening.map_err(|source| FileError::new("listen on", path, source))
    }

    /// Opens a connection to a unix socket.
    pub async fn connect_unix(&self, path: &Path) -> io::Result<Connection> {
        self.0.connect_unix(path.to_owned()).await
    }

    /// Opens a TCP connection to `host:port`.
    pub async fn connect(&self, address: impl Into<String>) -> io::Result<Connection> {
        self.0.connect(address.into()).await
    }

    /// Starts a task that runs until its future completes, or until the returned [`Task`] is dropped.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) -> Task {
        Task(Some(self.0.spawn(name, Box::pin(task))))
    }

    /// Starts a thread for work that blocks. It ends when the work does.
    pub fn spawn_thread(&self, name: &'static str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.0.spawn_thread(name, Box::new(work))
    }

    /// Starts a worker for a series of work that blocks.
    pub fn worker(&self, name: &'static str) -> io::Result<Worker> {
        let (worker, work) = Worker::new();
        self.start_worker(name, work)?;
        Ok(worker)
    }

    /// For a task that is not started by [`Host::spawn`]: it runs only while this machine does.
    pub fn paced<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        paced::paced(self.clone(), task)
    }

    /// Runs work that takes long on a thread of its own, and waits for its result.
    pub async fn compute<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (sender, result) = oneshot::channel();
        // The caller may have stopped waiting.
        self.spawn_thread(name, move || drop(sender.send(work())))?;
        result
            .await
            .map_err(|_| io::Error::other(format!("thread {name} panicked")))
    }
}

impl Deref for Host {
    type Target = dyn Machine;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
