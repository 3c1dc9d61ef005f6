//! One process as its production code sees it: a [`host::Machine`] with a clock, a network, disks and a life of its own.

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Output,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime},
};

use futures::future::BoxFuture;
use host::{Connection, Files, Host, Listener, Machine, Program, Work};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    task::{AbortHandle, JoinHandle},
};

use super::{
    crash::{self, Sending},
    files::FileSystem,
    network::Network,
    random::Random,
    time::{elapsed, now},
};

/// Words of commands that change nothing.
const ASKS: [&str; 6] = ["show", "ping", "sacct", "squeue", "sinfo", "--version"];

/// The wall clock of a machine.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<Mutex<Offset>>);

#[derive(Debug, Default)]
struct Offset {
    /// Seconds that it is ahead.
    ahead: f64,
    /// Seconds that it gains per second, since a time.
    drift: (f64, Duration),
}

impl Clock {
    pub fn step(&self, seconds: f64) {
        self.0.lock().unwrap().ahead += seconds;
    }

    pub fn drift(&self, per_second: f64) {
        let ahead = self.ahead();
        *self.0.lock().unwrap() = Offset {
            ahead,
            drift: (per_second, elapsed()),
        };
    }

    pub fn correct(&self) {
        *self.0.lock().unwrap() = Offset::default();
    }

    fn ahead(&self) -> f64 {
        let offset = self.0.lock().unwrap();
        let (per_second, since) = offset.drift;
        offset.ahead + per_second * elapsed().saturating_sub(since).as_secs_f64()
    }

    /// What this clock thinks how long the world exists.
    pub fn since_start(&self) -> Duration {
        Duration::try_from_secs_f64(elapsed().as_secs_f64() + self.ahead()).unwrap_or_default()
    }

    fn now(&self) -> SystemTime {
        let ahead = self.ahead();
        let by = Duration::from_secs_f64(ahead.abs());
        if ahead < 0.0 { now() - by } else { now() + by }
    }
}

/// Whether a process runs, and what belongs to it.
#[derive(Debug, Clone, Default)]
pub struct Life(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    frozen: bool,
    waiting: Vec<Waker>,
    tasks: Vec<AbortHandle>,
    dead: bool,
    /// Nobody starts it again.
    lasting: bool,
}

impl Life {
    /// SIGSTOP.
    pub fn freeze(&self) {
        self.0.lock().unwrap().frozen = true;
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        let mut state = self.0.lock().unwrap();
        state.frozen = false;
        state.waiting.drain(..).for_each(Waker::wake);
    }

    /// SIGKILL.
    pub fn kill(&self) {
        let mut state = self.0.lock().unwrap();
        state.dead = true;
        for task in state.tasks.drain(..) {
            task.abort();
        }
    }

    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The life of a whole pod, which no container's end touches.
    pub fn lasting() -> Self {
        let life = Self::default();
        life.0.lock().unwrap().lasting = true;
        life
    }

    pub fn is_lasting(&self) -> bool {
        self.0.lock().unwrap().lasting
    }

    pub fn is_dead(&self) -> bool {
        self.0.lock().unwrap().dead
    }

    pub fn poll_runnable(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap();
        if state.dead {
            return Poll::Pending;
        }
        if state.frozen {
            state.waiting.push(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    fn own(&self, task: AbortHandle) {
        let mut state = self.0.lock().unwrap();
        if state.tasks.len() > 64 {
            state.tasks.retain(|task| !task.is_finished());
        }
        state.tasks.push(task);
    }
}

/// What runs programs for a process.
pub trait Programs: Send + Sync {
    fn run(&self, program: Program) -> BoxFuture<'static, io::Result<Output>>;
    fn start(&self, program: Program) -> io::Result<Box<dyn host::Process>>;
}

/// A process.
#[derive(Clone)]
pub struct Simulated {
    pub name: String,
    pub address: String,
    pub clock: Clock,
    pub random: Random,
    pub files: FileSystem,
    pub network: Network,
    pub life: Life,
    pub programs: Option<Arc<dyn Programs>>,
    /// The kind of effect that a change of a file by it is.
    pub change: &'static str,
}

impl fmt::Debug for Simulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

impl Simulated {
    pub fn host(&self) -> Host {
        Host::of(self.clone())
    }
}

impl Machine for Simulated {
    fn now(&self) -> SystemTime {
        self.clock.now()
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.random.fill(bytes);
    }

    /// The story has what matters.
    fn print(&self, _line: &str) {}

    fn hostname(&self) -> String {
        self.name.clone()
    }

    fn files(&self) -> &dyn Files {
        self
    }

    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<Connection>> {
        let (network, from, life) = (self.network.clone(), self.address.clone(), self.life.clone());
        Box::pin(async move {
            let connection = network.connect(&from, &address).await?;
            Ok(Box::new(Sending { connection, life }) as Connection)
        })
    }

    fn connect_unix(&self, path: PathBuf) -> BoxFuture<'static, io::Result<Connection>> {
        let opened = self.network.connect_unix(&self.address, &path.to_string_lossy());
        let life = self.life.clone();
        Box::pin(async move {
            let connection = opened?;
            Ok(Box::new(Sending { connection, life }) as Connection)
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Listener>> {
        let listener = self.network.listen(&self.address, address.port());
        Box::pin(async move { Ok(listener) })
    }

    fn listen_unix(&self, path: &Path) -> io::Result<Listener> {
        let path = path.to_string_lossy();
        self.files.put(&path, b"");
        Ok(self.network.listen_unix(&self.address, &path))
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) -> JoinHandle<()> {
        let task = tokio::spawn(self.host().paced(task));
        self.life.own(task.abort_handle());
        task
    }

    fn spawn_thread(&self, _name: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        work();
        Ok(())
    }

    fn start_worker(&self, name: &'static str, mut work: UnboundedReceiver<Work>) -> io::Result<()> {
        let run = async move {
            while let Some(work) = work.recv().await {
                work();
            }
        };
        drop(self.spawn(name, Box::pin(run)));
        Ok(())
    }

    fn poll_runnable(&self, context: &mut Context<'_>) -> Poll<()> {
        self.life.poll_runnable(context)
    }

    fn run(&self, program: Program) -> BoxFuture<'static, io::Result<Output>> {
        match &self.programs {
            Some(programs) => {
                let words: Vec<String> = program
                    .words
                    .iter()
                    .map(|word| word.to_string_lossy().into_owned())
                    .collect();
                let (running, life) = (programs.run(program), self.life.clone());
                Box::pin(async move {
                    let ran = running.await;
                    if !words.iter().any(|word| ASKS.contains(&word.as_str())) {
                        crash::effect("command", &words.join(" "), &life);
                        std::future::poll_fn(|context| life.poll_runnable(context)).await;
                    }
                    ran
                })
            }
            None => Box::pin(async { Err(io::ErrorKind::NotFound.into()) }),
        }
    }

    fn start(&self, program: Program) -> io::Result<Box<dyn host::Process>> {
        match &self.programs {
            Some(programs) => programs.start(program),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}
