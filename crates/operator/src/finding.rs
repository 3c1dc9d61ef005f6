//! Findings: what is wrong with an object, with a message for its owner.

use api::Problems;
use runtime::{State, Warning};

use crate::reason;

/// What a finding blocks while it lasts. Running pods keep what they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocks {
    /// Nothing: it is only reported.
    Nothing,
    /// Some of the configuration is kept as it was, and the rest is updated.
    Input,
    /// The configuration is not changed.
    Configuration,
    /// The pods are not changed.
    Pods,
    /// No child is changed.
    Everything,
}

/// One problem and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub blocks: Blocks,
    pub reason: &'static str,
    pub message: String,
}

impl Finding {
    pub(crate) fn new(blocks: Blocks, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            blocks,
            reason,
            message: message.into(),
        }
    }

    /// A finding that blocks every change of its object.
    pub(crate) fn blocking(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(Blocks::Everything, reason, message)
    }

    /// A finding that only the object's owner can resolve.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::blocking(reason::INVALID_SPEC, message)
    }

    /// The findings of a spec's errors.
    pub(crate) fn of(problems: &Problems) -> Vec<Self> {
        let errors = problems.errors();
        errors.map(|problem| Self::invalid(problem.to_string())).collect()
    }

    /// The event. What is missing may be created soon: Helm creates objects in an order of its own.
    pub(crate) fn warning(&self) -> Warning<'_> {
        let missing = [
            reason::SECRET_MISSING,
            reason::CONFIG_MAP_MISSING,
            reason::ACCOUNTING_MISSING,
            reason::CONTROLLER_MISSING,
            reason::CONFIG_MISSING,
        ];
        Warning {
            reason: self.reason,
            message: &self.message,
            may_pass: missing.contains(&self.reason),
        }
    }

    /// The state of an object that this finding blocks, for the queue.
    pub(crate) fn state(&self) -> State {
        let message = self.message.clone();
        if self.reason == reason::INVALID_SPEC {
            State::Invalid { message }
        } else {
            State::Blocked { on: message }
        }
    }
}

/// The messages of these findings, a line each.
pub(crate) fn messages<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> String {
    let messages = findings.into_iter().map(|finding| finding.message.as_str());
    messages.collect::<Vec<_>>().join("\n")
}

/// The finding that blocks most: the one to report first.
pub(crate) fn worst(findings: &[Finding]) -> Option<&Finding> {
    // The first of equals: findings are in the order of the spec's fields.
    findings.iter().rev().max_by_key(|finding| finding.blocks)
}

/// Whether one of these blocks at least this much.
pub(crate) fn is_blocked(findings: &[Finding], what: Blocks) -> bool {
    let blocks = |finding: &Finding| match what {
        // Pods need keys but not the configuration, and vice versa.
        Blocks::Configuration => matches!(finding.blocks, Blocks::Configuration | Blocks::Everything),
        other => finding.blocks >= other,
    };
    findings.iter().any(blocks)
}
