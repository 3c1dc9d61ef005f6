use std::fmt;

use serde::{Deserialize, Serialize};

/// Orders commands, so that those of a former leader and those that were overtaken are rejected.
///
/// An agent rejects every command of a term below the highest it has seen. Within a term it rejects a command on the same subject
/// (the configuration, or one node) with a lower sequence; an equal sequence is a retry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// How often the leader has changed.
    pub term: u64,
    /// Counts the commands of this leader.
    pub sequence: u64,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::Fence;

    #[test]
    fn a_new_leader_is_above_every_fence_of_the_old_one() {
        let old = Fence {
            term: 3,
            sequence: u64::MAX,
        };
        let new = Fence { term: 4, sequence: 0 };
        assert!(new > old);
    }
}
