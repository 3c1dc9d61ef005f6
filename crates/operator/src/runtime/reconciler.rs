//! What a kind gives to the runtime.

use std::{future::Future, time::Duration};

use super::{Caches, Change, Error, Key};

/// One kind of object and how it is brought to what its spec asks for.
pub trait Reconciler: Send + Sync + 'static {
    /// `controller`, `nodeset`…: names the kind in logs and metrics; the field manager is `slurm-operator/NAME`.
    const NAME: &'static str;

    /// The objects of this kind that a change may concern. Called after the caches hold the change, and once with
    /// `before: None` for every cached object when the kind starts. Must be quick and must not block.
    fn interested(&self, change: &Change, caches: &Caches) -> Vec<Key>;

    /// Brings one object on its way. Never called twice at once for one key; called again after an error, with backoff.
    /// An object that is not in the cache is gone.
    fn reconcile(&self, key: &Key) -> impl Future<Output = Result<Outcome, Error>> + Send;
}

/// Where an object stands after a reconcile. Waiting is not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It is as its spec asks for.
    Settled,
    /// It is on the way, and nobody needs to do anything.
    Progressing { why: String },
    /// It waits for something outside of it.
    Blocked { on: String },
    /// Its spec cannot be followed; it waits for another one.
    Invalid { message: String },
}

impl State {
    /// Its word in metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Progressing { .. } => "progressing",
            Self::Blocked { .. } => "blocked",
            Self::Invalid { .. } => "invalid",
        }
    }
}

/// What a reconcile came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub state: State,
    /// When to look again although nothing changed in Kubernetes.
    pub requeue: Option<Duration>,
}

impl Outcome {
    pub fn settled() -> Self {
        State::Settled.into()
    }

    /// Looks again after this time at the latest.
    #[must_use]
    pub fn requeue(mut self, after: Duration) -> Self {
        self.requeue = Some(self.requeue.map_or(after, |already| already.min(after)));
        self
    }
}

impl From<State> for Outcome {
    fn from(state: State) -> Self {
        Self { state, requeue: None }
    }
}
