//! The whole process: caches, leader election, kinds and servers, from start to end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use host::Host;
use tokio::{task::JoinSet, time::timeout};

use crate::{
    Clients, Clock, Context, Definitions, Events, Fence, Metrics, Reconciler, Registry, Stop, Stopper, Triggers,
    events,
    health::Health,
    hub::Hub,
    lease::{Contender, Election, Lost, next_term},
    serve,
    watch::Sinks,
    work::{Desk, work},
};

/// The options of the process.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The namespaces to watch; all if there is none.
    pub namespaces: Vec<String>,
    /// The lease to acquire before anything is written. Without one this process leads from the start.
    pub lease: Option<Contender>,
    pub metrics_address: Option<SocketAddr>,
    /// Serve metrics over HTTPS, to callers whom the API server authorizes.
    pub metrics_secure: bool,
    pub health_address: Option<SocketAddr>,
    /// The name of this process in events.
    pub instance: String,
}

/// Why the operator ended without a request.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error("{0}")]
    Server(anyhow::Error),
    /// A background task ended.
    #[error("{0}")]
    Task(String),
}

type Start = Box<dyn FnOnce(Stop) -> BoxFuture<'static, ()> + Send>;

/// The operator before it runs.
pub struct Operator {
    clients: Clients,
    options: Options,
    context: Context,
    hub: Hub,
    health: Health,
    waiting_events: tokio::sync::mpsc::Receiver<k8s_openapi::api::events::v1::Event>,
    kinds: Vec<(&'static str, Start)>,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Operator {
    pub fn new(clients: Clients, options: Options, registry: Registry, host: Host) -> Self {
        let clock = Clock::of(host.clone());
        let metrics = Metrics::new();
        let (events, waiting_events) = Events::new(clock.clone(), options.instance.clone(), metrics.clone());
        let context = Context {
            client: clients.calls.clone(),
            events,
            fence: Fence::new(host.clone()),
            clock,
            definitions: Definitions::of(&registry),
            registry,
            metrics,
            triggers: Triggers::default(),
        };
        Self {
            clients,
            options,
            context,
            hub: Hub::default(),
            health: Health::new(host),
            waiting_events,
            kinds: Vec::new(),
        }
    }

    /// The context for the kinds.
    pub fn context(&self) -> Context {
        self.context.clone()
    }

    /// Adds a kind.
    pub fn add<R: Reconciler>(&mut self, reconciler: R) {
        let desk = Desk {
            registry: self.context.registry.clone(),
            clock: self.context.clock.clone(),
            hub: self.hub.clone(),
            inbox: self.context.triggers.inbox::<R::Object>(),
            metrics: self.context.metrics.clone(),
            health: self.health.clone(),
        };
        let start: Start = Box::new(move |stop| Box::pin(work(Arc::new(reconciler), desk, stop)));
        self.kinds.push((R::NAME, start));
    }

    /// Runs until the stop is requested, or until the operator cannot continue.
    pub async fn run(self, mut stop: Stop) -> Result<(), Ended> {
        let Self {
            clients,
            options,
            context,
            hub,
            health,
            waiting_events,
            kinds,
        } = self;
        let mut background = JoinSet::new();
        start_servers(
            &mut background,
            &clients,
            &options,
            context.clock.host(),
            &context.metrics,
            &health,
        );
        start_watches(&mut background, &clients, &options.namespaces, &context, &hub, &health);
        // Not a background task: events that kinds report while they stop are still written.
        let write_events = events::write_to(clients.calls.clone(), waiting_events, context.metrics.clone());
        let events = context.clock.host().spawn("events", write_events);

        let mut election = options.lease.map(|candidate| {
            Election::new(
                clients.calls.clone(),
                candidate,
                context.fence.clone(),
                context.clock.clone(),
                context.metrics.clone(),
            )
        });
        // A standby fills its caches first, so that it can act the moment it leads.
        let begin = async {
            health.all_synced().await;
            lead(election.as_mut(), &context).await;
        };
        tokio::select! {
            () = begin => {}
            () = stop.requested() => return Ok(()),
            ended = background.join_next() => return Err(why(ended)),
        }

        let (stopper, stop_kinds) = Stopper::new();
        let mut working: Background = JoinSet::new();
        for (name, start) in kinds {
            spawn(&mut working, name, start(stop_kinds.clone()));
        }
        let result = {
            let keep = async {
                match &mut election {
                    Some(election) => election.keep().await,
                    None => std::future::pending().await,
                }
            };
            tokio::pin!(keep);
            tokio::select! {
                lost = &mut keep => return Err(lost.into()),
                ended = background.join_next() => Err(why(ended)),
                ended = working.join_next(), if !working.is_empty() => Err(why(ended)),
                () = stop.requested() => {
                    tracing::info!("stopping");
                    stopper.stop();
                    // The lease is held until the last write is done.
                    tokio::select! {
                        lost = &mut keep => return Err(lost.into()),
                        () = async { while working.join_next().await.is_some() {} } => Ok(()),
                    }
                }
            }
        };
        // Nothing may write after the lease is released.
        working.shutdown().await;
        if let Some(election) = election {
            election.release().await;
        }
        background.shutdown().await;
        drop(context);
        drop(timeout(LAST_EVENTS, events.join()).await);
        result
    }
}

/// The time to write the last events: a few requests.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// Tasks that run until the process ends. Each returns its name, or the error that ended it.
type Background = JoinSet<Result<&'static str, anyhow::Error>>;

fn spawn(tasks: &mut Background, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(async move {
        task.await;
        Ok(name)
    });
}

async fn lead(election: Option<&mut Election>, context: &Context) {
    if let Some(election) = election {
        return election.win().await;
    }
    let now = context.clock.now();
    let term = u64::try_from(next_term(None, now)).unwrap_or_default();
    context.fence.begin(term, now, None);
    context.metrics.leads(true);
}

fn start_servers(
    background: &mut Background,
    clients: &Clients,
    options: &Options,
    host: &Host,
    metrics: &Metrics,
    health: &Health,
) {
    if let Some(address) = options.metrics_address {
        let guard = options.metrics_secure.then(|| clients.calls.clone());
        let server = serve::serve_metrics(host.clone(), address, metrics.clone(), guard);
        background.spawn(async { server.await.map(|()| "metrics server") });
    }
    if let Some(address) = options.health_address {
        let server = serve::serve_health(host.clone(), address, health.clone());
        background.spawn(async { server.await.map(|()| "health server") });
    }
}

fn start_watches(
    background: &mut Background,
    clients: &Clients,
    namespaces: &[String],
    context: &Context,
    hub: &Hub,
    health: &Health,
) {
    let definitions = context.definitions.clone();
    let follow = definitions.follow(clients.watches.clone(), hub.clone(), context.metrics.clone());
    spawn(background, "watch of the definitions", follow);
    let sinks = Sinks {
        client: clients.watches.clone(),
        definitions: context.definitions.clone(),
        hub: hub.clone(),
        health: health.clone(),
        events: context.events.clone(),
        metrics: context.metrics.clone(),
    };
    for watch in context.registry.watches(namespaces, &sinks) {
        spawn(background, "watch", watch);
    }
}

fn why(ended: Option<Result<Result<&'static str, anyhow::Error>, tokio::task::JoinError>>) -> Ended {
    match ended {
        Some(Ok(Err(error))) => Ended::Server(error),
        Some(Ok(Ok(name))) => Ended::Task(format!("background task {name} exited unexpectedly")),
        Some(Err(error)) => Ended::Task(format!("a background task failed: {error}")),
        None => Ended::Task("no background task is left".to_owned()),
    }
}

#[cfg(test)]
mod tests;
