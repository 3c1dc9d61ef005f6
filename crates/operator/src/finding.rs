//! What keeps a Controller from being what its spec asks for, in words for its owner.

use crate::reason;
use crate::runtime::Warning;

/// What must not happen while a finding lasts. What runs goes on running with what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Blocks {
    /// Nothing: it is told, and the rest goes on.
    Nothing,
    /// Some of the configuration stays as it is, and the rest goes on.
    Input,
    /// The configuration stays as it is.
    Configuration,
    /// The pods stay as they are.
    Pods,
    /// No child is touched.
    Everything,
}

/// One thing that is wrong, and what to do about it.
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

/// The finding that blocks most: the one its owner should hear of first.
pub(crate) fn worst(findings: &[Finding]) -> Option<&Finding> {
    // The first of equals: findings are in the order of the spec's fields.
    findings.iter().rev().max_by_key(|finding| finding.blocks)
}

/// Whether one of these blocks as much as this or more.
pub(crate) fn is_blocked(findings: &[Finding], what: Blocks) -> bool {
    let blocks = |finding: &Finding| match what {
        // Pods need keys and not the configuration, and the other way round.
        Blocks::Configuration => matches!(finding.blocks, Blocks::Configuration | Blocks::Everything),
        other => finding.blocks >= other,
    };
    findings.iter().any(blocks)
}
