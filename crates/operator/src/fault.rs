//! Why an object does not match its spec, and the conditions that follow, for kinds whose children are the pods of one daemon.
//! Pure.

use api::{
    ConditionStatus, Problems, Severity,
    conditions::{DEGRADED, PROGRESSING, READY},
};
use k8s_openapi::api::apps::v1::Deployment;
use runtime::{Failure, State, Warning};

use crate::{conditions::DesiredCondition, reason};

/// One problem, with a message for the object's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message }
    }

    /// Only its owner can mend it.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(reason::INVALID_SPEC, message)
    }

    /// Whether only its owner can mend it.
    pub(crate) fn is_invalid(&self) -> bool {
        self.reason == reason::INVALID_SPEC
    }

    /// What stops the object among these problems.
    pub(crate) fn of(problems: &Problems) -> Vec<Self> {
        let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
        errors.map(|problem| Self::invalid(problem.to_string())).collect()
    }

    pub(crate) fn warning(&self) -> Warning<'_> {
        Warning {
            reason: self.reason,
            message: &self.message,
            may_pass: !self.is_invalid(),
        }
    }
}

/// How far the pods are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) ready: bool,
    pub(crate) message: String,
    /// What is wrong with pods that are on their way and do not arrive.
    pub(crate) trouble: Option<Fault>,
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

    /// So many of these pods are there and as they should be.
    pub(crate) fn of_pods(daemon: &str, available: u32, updated: u32, wanted: u32, exists: bool) -> Self {
        Self {
            ready: exists && available >= wanted && updated >= wanted,
            message: format!("{available} of {wanted} {daemon} pods are available"),
            trouble: None,
        }
    }
}

/// `Ready`, `Progressing` and `Degraded`.
pub(crate) fn conditions(faults: &[Fault], failure: Option<&Failure>, progress: &Progress) -> Vec<DesiredCondition> {
    let taken = failure.filter(|failure| failure.is_name_taken());
    let taken = taken.map(|failure| Fault::new(failure.reason, &failure.message));
    let faults: Vec<Fault> = taken.into_iter().chain(faults.iter().cloned()).collect();
    let faults = faults.as_slice();
    let ready = ready(faults, failure, progress);
    let progressing = if ready.reason == reason::STARTING {
        DesiredCondition::true_(PROGRESSING, reason::STARTING, ready.message.clone())
    } else {
        DesiredCondition::false_(PROGRESSING, reason::SETTLED, "")
    };
    let degraded = match (faults.first().or(progress.trouble.as_ref()), failure) {
        (Some(fault), _) if faults.is_empty() => DesiredCondition::true_(DEGRADED, fault.reason, fault.message.clone()),
        (Some(fault), _) => DesiredCondition::true_(DEGRADED, fault.reason, messages(faults)),
        (None, Some(failure)) => DesiredCondition::true_(DEGRADED, failure.reason, failure.message.clone()),
        (None, None) => DesiredCondition::false_(DEGRADED, reason::HEALTHY, ""),
    };
    vec![ready, progressing, degraded]
}

/// How things stand, for the queue.
pub(crate) fn state(faults: &[Fault], progress: &Progress) -> State {
    let ready = ready(faults, None, progress);
    match faults.first() {
        Some(fault) if fault.is_invalid() => State::Invalid {
            message: fault.message.clone(),
        },
        Some(fault) => State::Blocked {
            on: fault.message.clone(),
        },
        None if ready.status != ConditionStatus::True => State::Progressing { why: ready.message },
        None => State::Settled,
    }
}

fn ready(faults: &[Fault], failure: Option<&Failure>, progress: &Progress) -> DesiredCondition {
    if let Some(fault) = faults.first() {
        return DesiredCondition::false_(READY, fault.reason, messages(faults));
    }
    if let Some(failure) = failure.filter(|failure| failure.needs_a_person()) {
        return DesiredCondition::false_(READY, failure.reason, failure.message.clone());
    }
    match &progress.trouble {
        _ if progress.ready => DesiredCondition::true_(READY, reason::READY, progress.message.clone()),
        Some(trouble) => DesiredCondition::false_(READY, trouble.reason, trouble.message.clone()),
        None => DesiredCondition::false_(READY, reason::STARTING, progress.message.clone()),
    }
}

fn messages(faults: &[Fault]) -> String {
    let messages: Vec<&str> = faults.iter().map(|fault| fault.message.as_str()).collect();
    messages.join("\n")
}
