use std::fmt;

use serde::{Deserialize, Serialize};

/// Orders commands, so that one from a leader that lost its lease, or one that was overtaken, is refused.
///
/// An agent refuses every command of a term below the highest it has seen. Within a term it refuses a command on the
/// same subject (the configuration, or one node) with a lower sequence; an equal one is the same command sent again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// How often the lease has changed hands.
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
    fn a_new_leader_is_above_everything_the_old_one_said() {
        let old = Fence {
            term: 3,
            sequence: u64::MAX,
        };
        let new = Fence { term: 4, sequence: 0 };
        assert!(new > old);
    }
}
