//! What the runtime needs of a kind.

use std::{future::Future, time::Duration};

use crate::{Change, Error, Key, Object};

/// Reconciles the objects of one kind.
pub trait Reconciler: Send + Sync + 'static {
    /// Names the kind in logs and metrics.
    const NAME: &'static str;

    type Object: Object;

    /// The objects of this kind to reconcile after a change. Called after the caches hold the change, and once with
    /// `before: None` for every cached object when the kind starts. Must be quick and must not block.
    fn interested(&self, change: &Change) -> Vec<Key>;

    /// Reconciles one object. Never called concurrently for one key; called again after an error, with back-off.
    /// An object that is not in the cache was deleted.
    fn reconcile(&self, key: &Key) -> impl Future<Output = Result<Outcome, Error>> + Send;
}

/// The state of an object after a reconcile. Waiting is not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The object matches its spec.
    Settled,
    /// The object is changing and needs no intervention.
    Progressing { why: String },
    /// The object waits for something outside of it.
    Blocked { on: String },
    /// The spec is invalid and has to be corrected.
    Invalid { message: String },
}

impl State {
    /// The state's label in metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Progressing { .. } => "progressing",
            Self::Blocked { .. } => "blocked",
            Self::Invalid { .. } => "invalid",
        }
    }
}

/// The result of a reconcile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub state: State,
    /// When to reconcile again although nothing changed in Kubernetes.
    pub requeue: Option<Duration>,
}

impl Outcome {
    pub fn settled() -> Self {
        State::Settled.into()
    }

    /// Reconciles again after this time at the latest.
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
