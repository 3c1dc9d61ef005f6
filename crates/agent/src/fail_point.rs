//! Where tests end the agent, to see that the next one goes on. Nothing of it is in a release.

use std::fmt::Display;

/// Names the step after which to die, as the journal's reader sees it.
#[cfg(debug_assertions)]
const DIE_AT: &str = "SLURM_AGENT_DIE_AT";

#[cfg(debug_assertions)]
pub(crate) fn reach(step: impl Display) {
    if std::env::var(DIE_AT).is_ok_and(|at| at == step.to_string()) {
        // Nobody cleans up, as after a SIGKILL.
        std::process::abort();
    }
}

#[cfg(not(debug_assertions))]
pub(crate) fn reach(_: impl Display) {}
