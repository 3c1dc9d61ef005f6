//! The number of a command to an agent.

use runtime::Fence;

/// The number of the next command to an agent: agents reject a lower one than the last.
pub(crate) fn next_fence(fence: &Fence) -> slurm::agent::Fence {
    let (term, sequence) = fence.next();
    slurm::agent::Fence { term, sequence }
}
