//! What every kind stands on.
//!
//! ```text
//!  watch ▶ cache ▶ change ▶ interested ▶ queue(key) ▶ gate ▶ reconcile ▶ writer
//! ```
//! Nothing here knows a kind's rules, and nothing here talks to Slurm.

mod applied;
mod backoff;
mod cache;
mod change;
mod clients;
mod clock;
mod compare;
mod conditions;
mod definitions;
mod error;
mod events;
mod extras;
#[cfg(test)]
pub(crate) mod fake;
mod fence;
mod field_sets;
mod finish;
mod gate;
mod health;
mod hub;
mod key;
mod kinds;
mod lease;
mod metrics;
mod operator;
mod ownership;
mod queue;
mod reconciler;
mod secure;
mod serve;
mod service_monitor;
mod stop;
mod trigger;
mod trim;
mod watch;
mod work;
mod write;

use std::sync::Arc;

pub use applied::{Applied, Failure, NAME_TAKEN};
pub use cache::Cache;
pub use change::Delta;
pub use clients::Clients;
pub use clock::Clock;
pub use conditions::{Wanted, remarks, settle};
pub use definitions::Definitions;
pub use error::Error;
pub use events::Events;
pub use fence::Fence;
pub use finish::Warning;
pub use key::Key;
pub use kinds::{Cached, Caches, Change};
pub use lease::{Candidate, Lost};
pub use metrics::{ConfigurationMetrics, Metrics};
pub use operator::{Ended, Foundations, Operator, Options};
pub use reconciler::{Outcome, Reconciler, State};
pub use service_monitor::ServiceMonitor;
pub use stop::{Stop, Stopper};
pub use trigger::{Inbox, Inboxes, Trigger, Triggers};
pub use write::{Created, TAKEN_AGAIN, Writer, Written};

use crate::{cluster::Clusters, defaults::Defaults};

/// What a kind is given to work with. A clone shares it.
#[derive(Clone)]
pub struct Context {
    /// For single calls: it has a read timeout, so do not watch with it.
    pub client: kube::Client,
    pub caches: Caches,
    pub events: Events,
    pub defaults: Defaults,
    pub fence: Fence,
    pub clock: Clock,
    pub definitions: Definitions,
    pub metrics: Metrics,
    pub triggers: Triggers,
    pub clusters: Arc<Clusters>,
}

impl Context {
    /// For tests of a kind alone: this client, these caches, and everything else as at the start of a process that
    /// leads, with events and triggers going nowhere.
    pub fn for_tests(client: kube::Client, caches: Caches) -> Self {
        let fence = Fence::new();
        fence.begin(1, jiff::Timestamp::UNIX_EPOCH, None);
        Self {
            client,
            caches,
            events: Events::nowhere(),
            defaults: Defaults::default(),
            fence,
            clock: Clock::system(),
            definitions: Definitions::default(),
            metrics: Metrics::new(),
            triggers: Triggers::nowhere(),
            clusters: Arc::default(),
        }
    }

    /// Whether the cluster's definitions are older than this operator: see [`Definitions::outdated`].
    pub fn crds_outdated(&self) -> bool {
        !self.definitions.outdated().is_empty()
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}
