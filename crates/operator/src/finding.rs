//! Findings: reasons why a Controller does not match its spec, with a message for its owner.

use runtime::Warning;

use crate::reason;

/// What a finding blocks while it lasts. Running pods keep what they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Blocks {
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
pub(crate) struct Finding {
    pub(crate) blocks: Blocks,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Finding {
    pub(crate) fn new(blocks: Blocks, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            blocks,
            reason,
            message: message.into(),
        }
    }

    pub(crate) fn warning(&self) -> Warning<'_> {
        let missing = [
            reason::SECRET_MISSING,
            reason::CONFIG_MAP_MISSING,
            reason::ACCOUNTING_MISSING,
        ];
        Warning {
            reason: self.reason,
            message: &self.message,
            may_pass: missing.contains(&self.reason),
        }
    }
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
