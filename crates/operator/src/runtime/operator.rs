//! The whole: caches, leader, kinds and servers, from start to end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::{task::JoinSet, time::timeout};

use super::{
    Caches, Clients, Clock, Context, Definitions, Events, Fence, Inbox, Metrics, Reconciler, Stop, Stopper, Triggers,
    events,
    health::Health,
    hub::Hub,
    kinds::{KindVisitor, each_kind},
    lease::{Candidate, Election, Lost, next_term},
    serve,
    watch::{Reach, Sinks, watch_kind},
    work::{Desk, work},
};
use crate::{cluster::Clusters, defaults::Defaults};

/// How the process runs.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which namespaces it looks after; all if there is none.
    pub namespaces: Vec<String>,
    /// The lease to hold before anything is written; without one this process leads from the start.
    pub lease: Option<Candidate>,
    pub metrics_address: Option<SocketAddr>,
    /// Serve metrics by HTTPS, to those whom the API server lets read them.
    pub metrics_secure: bool,
    pub health_address: Option<SocketAddr>,
    /// What this process is called in events.
    pub instance: String,
}

/// Why the operator ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error("{0}")]
    Server(anyhow::Error),
    /// A task that must never end did.
    #[error("a part of the operator ended: {0}")]
    Part(String),
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
    kinds: Vec<Start>,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// What [`Clusters`] is made from.
#[derive(Debug, Clone)]
pub struct Foundations {
    pub clients: Clients,
    pub caches: Caches,
    pub clock: Clock,
    pub fence: Fence,
    pub triggers: Triggers,
    pub metrics: Metrics,
}

impl Operator {
    pub fn new(
        clients: Clients,
        options: Options,
        defaults: Defaults,
        triggers: Triggers,
        clusters: impl FnOnce(Foundations) -> Clusters,
    ) -> Self {
        let clock = Clock::system();
        let metrics = Metrics::new();
        let (events, waiting_events) = Events::new(clock.clone(), options.instance.clone(), metrics.clone());
        let foundations = Foundations {
            clients: clients.clone(),
            caches: Caches::default(),
            clock: clock.clone(),
            fence: Fence::new(),
            triggers: triggers.clone(),
            metrics: metrics.clone(),
        };
        let context = Context {
            client: clients.calls.clone(),
            caches: foundations.caches.clone(),
            events,
            defaults,
            fence: foundations.fence.clone(),
            clock,
            definitions: Definitions::default(),
            metrics,
            triggers,
            clusters: Arc::new(clusters(foundations)),
        };
        Self {
            clients,
            options,
            context,
            hub: Hub::default(),
            health: Health::default(),
            waiting_events,
            kinds: Vec::new(),
        }
    }

    /// What kinds are made from.
    pub fn context(&self) -> Context {
        self.context.clone()
    }

    /// Adds a kind, with the end of its trigger.
    pub fn add<R: Reconciler>(&mut self, reconciler: R, inbox: Inbox) {
        let desk = Desk {
            caches: self.context.caches.clone(),
            hub: self.hub.clone(),
            inbox,
            metrics: self.context.metrics.clone(),
            health: self.health.clone(),
        };
        self.kinds
            .push(Box::new(move |stop| Box::pin(work(Arc::new(reconciler), desk, stop))));
    }

    /// Runs until it is told to stop, or cannot go on.
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
        let mut parts = JoinSet::new();
        start_servers(&mut parts, &clients, &options, &context.metrics, &health);
        start_watches(&mut parts, &clients, &options.namespaces, &context, &hub, &health);
        // Not among the parts: what kinds say while they come to their end is still written.
        let events = tokio::spawn(events::write_to(
            clients.calls.clone(),
            waiting_events,
            context.metrics.clone(),
        ));

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
            ended = parts.join_next() => return Err(why(ended)),
        }

        let (stopper, stop_kinds) = Stopper::new();
        let mut working = JoinSet::new();
        for start in kinds {
            working.spawn(start(stop_kinds.clone()));
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
                ended = parts.join_next() => Err(why(ended)),
                ended = working.join_next(), if !working.is_empty() => Err(why(ended.map(|ended| ended.map(Ok)))),
                () = stop.requested() => {
                    tracing::info!("Stopping");
                    stopper.stop();
                    // The lease is held until the last write is done.
                    tokio::select! {
                        lost = &mut keep => return Err(lost.into()),
                        () = async { while working.join_next().await.is_some() {} } => Ok(()),
                    }
                }
            }
        };
        // Nothing may write once the lease is given away.
        working.shutdown().await;
        if let Some(election) = election {
            election.release().await;
        }
        parts.shutdown().await;
        drop(context);
        drop(timeout(LAST_EVENTS, events).await);
        result
    }
}

/// For what was said at the very end.
const LAST_EVENTS: Duration = Duration::from_secs(1);

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
    parts: &mut JoinSet<Result<(), anyhow::Error>>,
    clients: &Clients,
    options: &Options,
    metrics: &Metrics,
    health: &Health,
) {
    if let Some(address) = options.metrics_address {
        let guard = options.metrics_secure.then(|| clients.calls.clone());
        parts.spawn(serve::serve_metrics(address, metrics.clone(), guard));
    }
    if let Some(address) = options.health_address {
        parts.spawn(serve::serve_health(address, health.clone()));
    }
}

fn start_watches(
    parts: &mut JoinSet<Result<(), anyhow::Error>>,
    clients: &Clients,
    namespaces: &[String],
    context: &Context,
    hub: &Hub,
    health: &Health,
) {
    let definitions = context.definitions.clone();
    let follow = definitions
        .clone()
        .follow(clients.watches.clone(), hub.clone(), context.metrics.clone());
    parts.spawn(async {
        follow.await;
        Ok(())
    });
    each_kind(&mut StartWatch {
        parts,
        client: clients.watches.clone(),
        namespaces,
        definitions,
        sinks: Sinks {
            caches: context.caches.clone(),
            hub: hub.clone(),
            health: health.clone(),
            events: context.events.clone(),
            metrics: context.metrics.clone(),
        },
    });
}

struct StartWatch<'a> {
    parts: &'a mut JoinSet<Result<(), anyhow::Error>>,
    client: kube::Client,
    namespaces: &'a [String],
    definitions: Definitions,
    sinks: Sinks,
}

impl KindVisitor for StartWatch<'_> {
    fn visit<K: super::Cached>(&mut self) {
        let namespaces: Vec<Option<String>> = if self.namespaces.is_empty() || !K::Scope::NAMESPACED {
            vec![None]
        } else {
            self.namespaces.iter().cloned().map(Some).collect()
        };
        for namespace in namespaces {
            let watch = watch_kind::<K>(
                self.client.clone(),
                namespace,
                self.definitions.clone(),
                self.sinks.clone(),
            );
            self.parts.spawn(async {
                watch.await;
                Ok(())
            });
        }
    }
}

fn why(ended: Option<Result<Result<(), anyhow::Error>, tokio::task::JoinError>>) -> Ended {
    match ended {
        Some(Ok(Err(error))) => Ended::Server(error),
        Some(Err(error)) => Ended::Part(error.to_string()),
        Some(Ok(Ok(()))) | None => Ended::Part("it came to its end".to_owned()),
    }
}

#[cfg(test)]
mod tests;
