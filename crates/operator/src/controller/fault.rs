//! What keeps a Controller from being what its spec asks for, in words for its owner.

use super::reason;
use crate::runtime::Warning;

/// What must not happen while a fault lasts. What runs goes on running with what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Blocks {
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
pub(super) struct Fault {
    pub(super) blocks: Blocks,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Fault {
    pub(super) fn new(blocks: Blocks, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            blocks,
            reason,
            message: message.into(),
        }
    }

    pub(super) fn warning(&self) -> Warning<'_> {
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

/// The fault that blocks most: the one its owner should hear of first.
pub(super) fn worst(faults: &[Fault]) -> Option<&Fault> {
    // The first of equals: faults are in the order of the spec's fields.
    faults.iter().rev().max_by_key(|fault| fault.blocks)
}

/// Whether one of these blocks as much as this or more.
pub(super) fn is_blocked(faults: &[Fault], what: Blocks) -> bool {
    let blocks = |fault: &Fault| match what {
        // Pods need keys and not the configuration, and the other way round.
        Blocks::Configuration => matches!(fault.blocks, Blocks::Configuration | Blocks::Everything),
        other => fault.blocks >= other,
    };
    faults.iter().any(blocks)
}
