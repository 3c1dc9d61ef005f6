//! Points at which tests kill, stop or block the agent. They do nothing in release builds.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use host::Host;

/// The step after which to die, as the journal names it.
const DIE_AT: &str = "SLURM_AGENT_DIE_AT";

/// The step after which to stop until a SIGCONT.
const STOP_AT: &str = "SLURM_AGENT_STOP_AT";

/// A file: while it exists, the state volume hangs.
const HOLD_VOLUME: &str = "SLURM_AGENT_HOLD_VOLUME";

pub(crate) fn reach(step: impl Display) {
    let is_at = |variable: &str| std::env::var(variable).is_ok_and(|at| at == step.to_string());
    if cfg!(debug_assertions) && is_at(DIE_AT) {
        // Nothing is cleaned up, as after a SIGKILL.
        std::process::abort();
    }
    if cfg!(debug_assertions) && is_at(STOP_AT) {
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
    }
}

/// Called before each piece of work on the state volume.
pub(crate) fn hold_volume(host: &Host) {
    let exists = |path: &Path| host.files().metadata(path).is_ok();
    while cfg!(debug_assertions) && std::env::var_os(HOLD_VOLUME).is_some_and(|held| exists(Path::new(&held))) {
        std::thread::sleep(Duration::from_millis(5));
    }
}
