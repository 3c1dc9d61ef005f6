//! The reconcile of kinds whose children are the pods of one daemon: observe, plan, apply, status.

use std::{sync::Arc, time::Duration};

use api::{
    Condition, Validate,
    conditions::{DEGRADED, PROGRESSING, READY},
};
use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use serde::Serialize;

use crate::{
    cluster::pods::is_ready,
    conditions::{DesiredCondition, remarks, settle},
    finding::{Blocks, Finding, messages},
    reason,
    references::References,
    runtime::{Applied, Change, Context, Error, Failure, Key, Outcome, Reconciler, State, Writer, Written},
    startup::describe_startup,
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
    fn plan(observed: &Self::Observed, findings: &mut Vec<Finding>) -> Self::Plan;

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

/// How far the pods are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) ready: bool,
    pub(crate) message: String,
    /// What is wrong although no finding blocks the object, for example with pods that are on their way and do not arrive.
    pub(crate) trouble: Option<Finding>,
}

impl Progress {
    /// Of a Deployment's pods.
    pub(crate) fn of_deployment(daemon: &str, deployment: Option<&Deployment>, wanted: u32) -> Self {
        let status = deployment.and_then(|deployment| deployment.status.as_ref());
        let count = |number: Option<i32>| u32::try_from(number.unwrap_or_default()).unwrap_or_default();
        let available = count(status.and_then(|status| status.available_replicas));
        let updated = count(status.and_then(|status| status.updated_replicas));
        Self::of_pods(daemon, available, updated, wanted, deployment.is_some())
    }

    /// Reports pods that do not start, which may be those of a newer template while older ones serve.
    pub(crate) fn with_pods<'a>(mut self, pods: impl IntoIterator<Item = &'a Arc<Pod>>) -> Self {
        let starting = pods.into_iter().filter(|pod| !is_ready(pod)).map(AsRef::as_ref);
        let trouble = describe_startup(starting);
        self.trouble = trouble.map(|message| Finding::new(Blocks::Nothing, reason::PODS_DO_NOT_START, message));
        self
    }

    /// So many of these pods are there and as they should be.
    pub(crate) fn of_pods(daemon: &str, available: u32, updated: u32, wanted: u32, exists: bool) -> Self {
        Self {
            ready: exists && available >= wanted && updated >= wanted,
            message: format!("{available} of {wanted} {daemon} pods are available"),
            trouble: None,
        }
    }
}

/// The part of a status that all kinds share.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) observed_generation: Option<i64>,
    /// Whether a step of the plan failed.
    pub(crate) has_failed: bool,
}

/// Plans what to do about an object, and finds what is wrong with it. Nothing if it is being deleted: the garbage collector
/// deletes its children. An invalid object keeps the children it has.
pub(crate) fn plan<K: Kind>(observed: &K::Observed) -> (Vec<Finding>, K::Plan) {
    let object = K::object(observed);
    if object.meta().deletion_timestamp.is_some() {
        return Default::default();
    }
    let mut findings = Finding::of(&object.check());
    let plan = if findings.is_empty() {
        K::plan(observed, &mut findings)
    } else {
        K::Plan::default()
    };
    (findings, plan)
}

/// The status of an object after its plan was applied. `outdated` are definitions that are older than this operator.
pub(crate) fn status<K: Kind>(
    observed: &K::Observed,
    (findings, plan): &(Vec<Finding>, K::Plan),
    failure: Option<&Failure>,
    outdated: &[String],
    now: Timestamp,
) -> K::Status {
    let object = K::object(observed);
    let generation = object.meta().generation.unwrap_or_default();
    let mut wanted = conditions(findings, failure, &K::progress(observed, plan));
    wanted.extend(remarks(outdated, object.check().warnings()));
    let report = Report {
        conditions: settle(object.conditions(), &wanted, generation, now),
        // Upstream's definitions do not have the field: the API server drops it, and it would be written again and again.
        observed_generation: outdated.is_empty().then_some(generation),
        has_failed: failure.is_some(),
    };
    K::status(observed, plan, report)
}

/// The state of an object for the queue.
pub(crate) fn state<K: Kind>(observed: &K::Observed, (findings, plan): &(Vec<Finding>, K::Plan)) -> State {
    let progress = K::progress(observed, plan);
    match (findings.first(), progress.trouble) {
        (Some(finding), _) => finding.state(),
        (None, _) if progress.ready => State::Settled,
        (None, trouble) => State::Progressing {
            why: trouble.map_or(progress.message, |trouble| trouble.message),
        },
    }
}

/// `Ready`, `Progressing` and `Degraded`.
fn conditions(findings: &[Finding], failure: Option<&Failure>, progress: &Progress) -> Vec<DesiredCondition> {
    // Until a taken name is resolved, nothing else can be.
    let taken = failure.filter(|failure| failure.is_name_taken());
    let taken = taken.map(|failure| Finding::blocking(failure.reason, &failure.message));
    let findings: Vec<&Finding> = taken.iter().chain(findings).collect();
    let found = findings
        .first()
        .map(|first| (first.reason, messages(findings.iter().copied())));
    let trouble = progress.trouble.as_ref();
    let trouble = trouble.map(|trouble| (trouble.reason, trouble.message.clone()));
    let report = |failure: &Failure| (failure.reason, failure.message.clone());
    let stopped = failure.filter(|failure| failure.needs_a_person()).map(report);
    let ready = match found.clone().or(stopped) {
        Some((reason, message)) => DesiredCondition::false_(READY, reason, message),
        None if progress.ready => DesiredCondition::true_(READY, reason::READY, &progress.message),
        None => {
            let starting = || (reason::STARTING, progress.message.clone());
            let (reason, message) = trouble.clone().unwrap_or_else(starting);
            DesiredCondition::false_(READY, reason, message)
        }
    };
    let progressing = if ready.reason == reason::STARTING {
        DesiredCondition::true_(PROGRESSING, reason::STARTING, &ready.message)
    } else {
        DesiredCondition::false_(PROGRESSING, reason::SETTLED, "")
    };
    let degraded = match found.or(trouble).or_else(|| failure.map(report)) {
        Some((reason, message)) => DesiredCondition::true_(DEGRADED, reason, message),
        None => DesiredCondition::false_(DEGRADED, reason::HEALTHY, ""),
    };
    vec![ready, progressing, degraded]
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
        self.references.load(&object, &context.caches, &context.client).await?;
        let outdated = context.definitions.outdated();
        let observed = K::observe(Arc::clone(&object), context).await;
        let planned = plan::<K>(&observed);
        let (findings, plan) = &planned;
        let warn_again = context.warn(object.as_ref(), findings.iter().map(Finding::warning));
        let applied = K::apply(context, &self.writer, &observed, plan).await;
        let (failure, now) = (applied.failure(), context.clock.now());
        let status = status::<K>(&observed, &planned, failure.as_ref(), &outdated, now);
        let state = state::<K>(&observed, &planned);
        let outcome = self.writer.finish(object.as_ref(), status, applied, state).await?;
        let requeue = [warn_again, K::requeue(&observed, plan)];
        Ok(requeue.into_iter().flatten().fold(outcome, Outcome::requeue))
    }
}
