//! The reconcile of kinds whose children are the pods of one daemon: observe, plan, apply, status.

use std::{sync::Arc, time::Duration};

use api::{Condition, Validate};
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    conditions::{remarks, settle},
    fault::{self, Fault, Progress},
    references::References,
    runtime::{Applied, Change, Context, Error, Failure, Key, Outcome, Reconciler, State, Writer, Written},
};

/// What is special about one kind.
pub(crate) trait Kind: Written + Validate {
    /// Names the kind in logs and metrics.
    const NAME: &'static str;

    /// Everything that a plan is made from.
    type Observed: Send + Sync;
    /// The children to apply.
    type Plan: Default + Send + Sync;
    type Status: Serialize + Send;

    /// What the objects of this kind depend on.
    fn references() -> References<Self>;

    /// Reads what concerns an object. Writes nothing.
    fn observe(object: Arc<Self>, context: &Context) -> impl Future<Output = Self::Observed> + Send;

    fn object(observed: &Self::Observed) -> &Arc<Self>;

    /// Decides what to do about an object that is valid and is not being deleted, and reports what is wrong. Pure.
    fn plan(observed: &Self::Observed, faults: &mut Vec<Fault>) -> Self::Plan;

    fn apply(
        context: &Context,
        writer: &Writer,
        observed: &Self::Observed,
        plan: &Self::Plan,
    ) -> impl Future<Output = Applied> + Send;

    fn progress(observed: &Self::Observed, plan: &Self::Plan) -> Progress;

    /// The conditions of the object's current status.
    fn conditions(&self) -> &[Condition];

    /// The status to write.
    fn status(observed: &Self::Observed, plan: &Self::Plan, report: Report) -> Self::Status;

    /// When to reconcile again although nothing changed in Kubernetes.
    fn requeue(_observed: &Self::Observed, _plan: &Self::Plan) -> Option<Duration> {
        None
    }
}

/// What to do about an object, and what is wrong with it.
#[derive(Debug, Default)]
pub(crate) struct Planned<P> {
    pub(crate) faults: Vec<Fault>,
    pub(crate) plan: P,
}

/// The part of a status that all kinds share.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) observed_generation: Option<i64>,
    /// Whether a step of the plan failed.
    pub(crate) has_failed: bool,
}

/// Plans what to do about an object. Nothing if it is being deleted: the garbage collector deletes its children. An
/// invalid object keeps the children it has.
pub(crate) fn plan<K: Kind>(observed: &K::Observed) -> Planned<K::Plan> {
    let object = K::object(observed);
    let mut planned = Planned::default();
    if object.meta().deletion_timestamp.is_none() {
        planned.faults = Fault::of(&object.check());
        if planned.faults.is_empty() {
            planned.plan = K::plan(observed, &mut planned.faults);
        }
    }
    planned
}

/// The status of an object after its plan was applied. `outdated` are definitions that are older than this operator.
pub(crate) fn status<K: Kind>(
    observed: &K::Observed,
    planned: &Planned<K::Plan>,
    failure: Option<&Failure>,
    outdated: &[String],
    now: Timestamp,
) -> K::Status {
    let object = K::object(observed);
    let generation = object.meta().generation.unwrap_or_default();
    let progress = K::progress(observed, &planned.plan);
    let mut wanted = fault::conditions(&planned.faults, failure, &progress);
    wanted.extend(remarks(outdated, object.check().warnings()));
    let report = Report {
        conditions: settle(object.conditions(), &wanted, generation, now),
        // Upstream's definitions do not have the field: the API server drops it, and it would be written again and again.
        observed_generation: outdated.is_empty().then_some(generation),
        has_failed: failure.is_some(),
    };
    K::status(observed, &planned.plan, report)
}

/// The state of an object for the queue.
pub(crate) fn state<K: Kind>(observed: &K::Observed, planned: &Planned<K::Plan>) -> State {
    fault::state(&planned.faults, &K::progress(observed, &planned.plan))
}

/// Reconciles the objects of one kind.
#[derive(Debug)]
pub(crate) struct KindReconciler<K> {
    context: Context,
    writer: Writer,
    references: References<K>,
}

impl<K: Kind> KindReconciler<K> {
    pub(crate) fn new(context: Context) -> Self {
        Self {
            writer: Writer::new::<K>(&context),
            context,
            references: K::references(),
        }
    }
}

impl<K: Kind> Reconciler for KindReconciler<K> {
    const NAME: &'static str = K::NAME;
    type Object = K;

    fn interested(&self, change: &Change) -> Vec<Key> {
        self.references.affected(change, &self.context.caches)
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(object) = context.registry.cache::<K>().get(&key.namespace, &key.name) else {
            return Ok(Outcome::settled());
        };
        let outdated = context.definitions.outdated();
        let observed = K::observe(Arc::clone(&object), context).await;
        let planned = plan::<K>(&observed);
        let warn_again = context.warn(object.as_ref(), planned.faults.iter().map(Fault::warning));
        let applied = K::apply(context, &self.writer, &observed, &planned.plan).await;
        let (failure, now) = (applied.failure(), context.clock.now());
        let status = status::<K>(&observed, &planned, failure.as_ref(), &outdated, now);
        let state = state::<K>(&observed, &planned);
        let outcome = self.writer.finish(object.as_ref(), status, applied, state).await?;
        let requeue = [warn_again, K::requeue(&observed, &planned.plan)];
        Ok(requeue.into_iter().flatten().fold(outcome, Outcome::requeue))
    }
}
