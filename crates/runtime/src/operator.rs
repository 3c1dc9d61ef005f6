//! The whole process: caches, leader election, kinds and servers, from start to end.

use std::{net::SocketAddr, pin::pin, time::Duration};

use anyhow::anyhow;
use futures::future::{BoxFuture, FutureExt as _, pending};
use host::Host;
use k8s_openapi::api::events::v1::Event;
use tokio::{
    sync::mpsc::Receiver,
    task::{JoinError, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Clients, Context, Reconciler, Registry, events,
    lease::{Contender, Election, next_term},
    serve,
    work::work,
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
    /// The audiences that a caller's token must have one of; the API server's own if there is none.
    pub metrics_audiences: Vec<String>,
    pub health_address: Option<SocketAddr>,
    /// The name of this process in events.
    pub instance: String,
}

type Start = Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send>;

/// The operator before it runs.
pub struct Operator {
    options: Options,
    context: Context,
    waiting_events: Receiver<Event>,
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
        let (context, waiting_events) = Context::new(clients, registry, host, options.instance.clone());
        Self {
            options,
            context,
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
        let context = self.context();
        let start: Start = Box::new(move |stop| Box::pin(work(reconciler, context, stop)));
        self.kinds.push((R::NAME, start));
    }

    /// Runs until `stop` returns, or until the operator cannot continue.
    pub async fn run(self, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let mut stop = pin!(stop);
        let Self {
            options,
            context,
            waiting_events,
            kinds,
        } = self;
        let mut background = JoinSet::new();
        start_servers(&mut background, &options, &context);
        start_watches(&mut background, &options.namespaces, &context);
        // Not a background task: events that kinds report while they stop are still written.
        let write_events = events::write_to(context.client.clone(), waiting_events, context.metrics.clone());
        let events = context.clock.host().spawn("events", write_events);

        let mut election = options.lease.map(|candidate| Election::new(candidate, context.clone()));
        // A standby fills its caches first, so that it can act the moment it leads.
        let begin = async {
            context.health.all_synced().await;
            match &mut election {
                Some(election) => election.win().await,
                None => lead_without_lease(&context),
            }
        };
        tokio::select! {
            biased;
            () = begin => {}
            () = &mut stop => return Ok(()),
            ended = background.join_next() => return Err(why(ended)),
        }

        let stop_kinds = CancellationToken::new();
        let mut working: Background = JoinSet::new();
        for (name, start) in kinds {
            spawn(
                &mut working,
                context.clock.host(),
                name,
                start(stop_kinds.clone()).map(Ok),
            );
        }
        let result = {
            let keep = async {
                match &mut election {
                    Some(election) => election.keep().await,
                    None => pending().await,
                }
            };
            let mut keep = pin!(keep);
            tokio::select! {
                biased;
                lost = &mut keep => return Err(lost.into()),
                ended = background.join_next() => Err(why(ended)),
                ended = working.join_next(), if !working.is_empty() => Err(why(ended)),
                () = stop => {
                    tracing::info!("stopping");
                    stop_kinds.cancel();
                    // The lease is held until the last write is done.
                    tokio::select! {
                        biased;
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

/// Tasks that run until the process ends. Each returns why it ended.
type Background = JoinSet<anyhow::Error>;

fn spawn(
    tasks: &mut Background,
    host: &Host,
    name: &'static str,
    task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
) {
    tasks.spawn(host.paced(async move {
        let ended = task.await;
        ended.map_or_else(
            |error| error,
            |()| anyhow!("background task {name} exited unexpectedly"),
        )
    }));
}

fn why(ended: Option<Result<anyhow::Error, JoinError>>) -> anyhow::Error {
    match ended {
        Some(Ok(error)) => error,
        Some(Err(error)) => anyhow!("a background task failed: {error}"),
        None => anyhow!("no background task is left"),
    }
}

fn lead_without_lease(context: &Context) {
    let now = context.clock.now();
    let term = u64::try_from(next_term(None, now)).unwrap_or_default();
    context.fence.begin(term, now, None);
    context.metrics.leader.set(1);
}

fn access(options: &Options) -> Option<serve::Audiences> {
    options
        .metrics_secure
        .then(|| serve::Audiences(options.metrics_audiences.clone()))
}

fn start_servers(tasks: &mut Background, options: &Options, context: &Context) {
    if let Some(address) = options.metrics_address {
        let server = serve::serve_metrics(address, access(options), context.clone());
        spawn(tasks, context.clock.host(), "metrics server", server);
    }
    if let Some(address) = options.health_address {
        let server = serve::serve_health(address, context.clone());
        spawn(tasks, context.clock.host(), "health server", server);
    }
}

fn start_watches(tasks: &mut Background, namespaces: &[String], context: &Context) {
    let follow = context.definitions.clone().follow(context.clone());
    let host = context.clock.host();
    spawn(tasks, host, "watch of the definitions", follow.map(Ok));
    spawn(tasks, host, "heartbeat", context.clone().heartbeat().map(Ok));
    for watch in context.registry.watches(namespaces, context) {
        spawn(tasks, host, "watch", watch.map(Ok));
    }
}

#[cfg(test)]
mod tests;
