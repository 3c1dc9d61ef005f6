//! Where tests end the agent, to see that the next one goes on, or stop it until others are done. Nothing of it is in a release.

use std::fmt::Display;

/// Names the step after which to die, as the journal's reader sees it.
#[cfg(debug_assertions)]
const DIE_AT: &str = "SLURM_AGENT_DIE_AT";

/// The same for one that is to be stopped, and goes on by a SIGCONT.
#[cfg(debug_assertions)]
const STOP_AT: &str = "SLURM_AGENT_STOP_AT";

/// Names a file: as long as it exists, the state volume hangs.
#[cfg(debug_assertions)]
const HOLD_VOLUME: &str = "SLURM_AGENT_HOLD_VOLUME";

#[cfg(debug_assertions)]
pub(crate) fn reach(step: impl Display) {
    let is_meant = |variable: &str| std::env::var(variable).is_ok_and(|at| at == step.to_string());
    if is_meant(DIE_AT) {
        // Nobody cleans up, as after a SIGKILL.
        std::process::abort();
    }
    if is_meant(STOP_AT) {
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
    }
}

/// Before each piece of work on the state volume.
#[cfg(debug_assertions)]
pub(crate) fn hold_volume() {
    while std::env::var_os(HOLD_VOLUME).is_some_and(|held| std::path::Path::new(&held).exists()) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[cfg(not(debug_assertions))]
pub(crate) fn reach(_: impl Display) {}

#[cfg(not(debug_assertions))]
pub(crate) fn hold_volume() {}
