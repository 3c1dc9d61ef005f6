//! The runtime of an operator: it watches objects, reconciles those that a change affects, and writes the results.
//!
//! ```text
//!  watch ▶ cache ▶ change ▶ interested ▶ queue(key) ▶ gate ▶ reconcile ▶ writer
//! ```
//! This crate knows neither the operator's kinds nor Slurm. The operator registers a cache with [`Rules`] for every kind
//! ([`Registry`]) and adds a [`Reconciler`] for every kind of its own ([`Operator`]).

#![warn(clippy::disallowed_methods)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod admission;
mod cache;
mod change;
mod clients;
mod clock;
mod definitions;
mod error;
mod events;
mod extras;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod fence;
mod field_sets;
mod finish;
mod gate;
mod health;
mod key;
mod lease;
mod memories;
mod metrics;
mod object;
mod operator;
mod ownership;
mod quantity;
mod queue;
mod reconciler;
mod registry;
mod serve;
mod trigger;
mod watch;
mod work;
mod write;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use host::Host;
use k8s_openapi::api::events::v1::Event;
use tokio::sync::mpsc::Receiver;

use self::health::Health;

pub use cache::Cache;
pub use change::{Change, Delta, in_group};
pub use clients::Clients;
pub use clock::Clock;
pub use definitions::Definitions;
pub use error::Error;
pub use events::Events;
pub use fence::Fence;
pub use finish::{Applied, CHILD_REFUSED, Failure, NAME_TAKEN, RETRYING, Warning};
pub use key::Key;
pub use lease::{Contender, Lost};
pub use memories::Memories;
pub use metrics::Metrics;
pub use object::{Definition, Object, Reach, Rules};
pub use operator::{Operator, Options};
pub use quantity::Quantity;
pub use reconciler::{Outcome, Reconciler, State};
pub use registry::Registry;
pub use trigger::{Signal, Trigger, Triggers};
pub use watch::UNDECODABLE;
pub use write::{TAKEN_RETRY, Writer, Written};

/// The time between two heartbeats, and for a response. A connection is dead after four times that.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// What every kind works with. A clone shares it.
#[derive(Clone)]
pub struct Context {
    /// For single requests. It has a read timeout, so do not watch with it.
    pub client: kube::Client,
    pub registry: Registry,
    pub events: Events,
    pub fence: Fence,
    pub clock: Clock,
    pub definitions: Definitions,
    pub metrics: Metrics,
    pub triggers: Triggers,
    pub memories: Memories,
    /// For watches.
    watches: kube::Client,
    health: Health,
}

impl Context {
    /// The context, and the events to write. `instance` is the name of this process in events.
    fn new(clients: Clients, registry: Registry, host: Host, instance: String) -> (Self, Receiver<Event>) {
        let (clock, metrics) = (Clock::of(host.clone()), Metrics::default());
        let (events, waiting_events) = Events::new(clock.clone(), instance, metrics.clone());
        let context = Self {
            client: clients.calls,
            watches: clients.watches,
            events,
            fence: Fence::new(host.clone()),
            clock,
            definitions: Definitions::of(&registry),
            registry,
            metrics,
            triggers: Triggers::default(),
            memories: Memories::default(),
            health: Health::new(host),
        };
        (context, waiting_events)
    }

    /// The watches without a response for so long that their caches may be old. Nothing may be deleted because of these.
    pub fn silent_watches(&self) -> Vec<String> {
        self.health.silent()
    }

    /// Requests the API server's version again and again until the process ends, so that a dead connection is noticed.
    async fn heartbeat(self) {
        loop {
            let response = tokio::time::timeout(HEARTBEAT, self.client.apiserver_version()).await;
            // An error of the API server is a response too.
            if matches!(
                response,
                Ok(Ok(_) | Err(kube::Error::Api(_) | kube::Error::SerdeError(_)))
            ) {
                self.health.heard("API server", HEARTBEAT * 4);
            }
            tokio::time::sleep(HEARTBEAT).await;
        }
    }

    /// The context of a process that leads, for tests of one kind: events and triggers go nowhere.
    pub fn for_tests(client: kube::Client, registry: Registry) -> Self {
        let (context, _) = Self::new(Clients::same(client), registry, Host::real(), "test".to_owned());
        context.fence.begin(1, jiff::Timestamp::UNIX_EPOCH, None);
        context
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

/// The data of a mutex. A panic does not leave any of ours inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hash<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
