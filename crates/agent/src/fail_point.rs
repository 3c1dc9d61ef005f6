//! Points at which tests kill or stop the agent. Release builds contain none.

use std::fmt::Display;
#[cfg(debug_assertions)]
use std::path::Path;

use host::Host;

/// The step after which to die, as the journal names it.
#[cfg(debug_assertions)]
const DIE_AT: &str = "SLURM_AGENT_DIE_AT";

/// The step after which to stop until a SIGCONT.
#[cfg(debug_assertions)]
const STOP_AT: &str = "SLURM_AGENT_STOP_AT";

/// A file: while it exists, the state volume hangs.
#[cfg(debug_assertions)]
const HOLD_VOLUME: &str = "SLURM_AGENT_HOLD_VOLUME";

#[cfg(debug_assertions)]
pub(crate) fn reach(step: impl Display) {
    let is_meant = |variable: &str| std::env::var(variable).is_ok_and(|at| at == step.to_string());
    if is_meant(DIE_AT) {
        // Nothing is cleaned up, as after a SIGKILL.
        std::process::abort();
    }
    if is_meant(STOP_AT) {
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
    }
}

/// Called before each piece of work on the state volume.
#[cfg(debug_assertions)]
pub(crate) fn hold_volume(host: &Host) {
    let exists = |path: &Path| host.files().metadata(path).is_ok();
    while std::env::var_os(HOLD_VOLUME).is_some_and(|held| exists(Path::new(&held))) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[cfg(not(debug_assertions))]
pub(crate) fn reach(_: impl Display) {}

#[cfg(not(debug_assertions))]
pub(crate) fn hold_volume(_: &Host) {}
