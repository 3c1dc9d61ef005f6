//! The number of a command to an agent.

use runtime::Fence;
use slurm::agent::Error;

/// The number of the next command to an agent: agents reject a lower one than the last.
pub(crate) fn next_fence(fence: &Fence) -> slurm::agent::Fence {
    let (term, sequence) = fence.next();
    slurm::agent::Fence { term, sequence }
}

/// Notes the fence for which an agent rejected a command.
pub(crate) fn note_rejection(fence: &Fence, error: &Error) {
    if let Error::StaleFence { highest } = error {
        fence.note_highest(highest.term, highest.sequence);
    }
}
