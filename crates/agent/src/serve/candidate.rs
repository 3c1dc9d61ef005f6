//! The other way in: a ConfigMap that the kubelet brings, for when the operator cannot reach this pod. What it holds is let
//! in by the same checks as a push, and nobody waits for the answer: the status tells it to whoever asks next.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use slurm::agent::candidate::{BUNDLE_FILE, TOKEN_FILE};
use slurm::agent::{Candidate, Refusal};
use tokio::time::sleep;
use tracing::{info, warn};

use super::http::Door;

/// A look is one `readlink`. The kubelet takes as long, from the annotation that wakes it.
const LOOK: Duration = Duration::from_millis(250);

/// After a failure that is none of the candidate's, like a state volume that does not answer.
const AGAIN: Duration = Duration::from_secs(10);

/// Takes each candidate once, when it has come.
pub(super) async fn follow(directory: Option<PathBuf>, door: Arc<Door>) -> Infallible {
    let Some(directory) = directory else {
        return std::future::pending().await;
    };
    let mut taken = None;
    loop {
        // The kubelet switches all files of a ConfigMap at once by this link.
        let now = std::fs::read_link(directory.join("..data")).ok();
        if now != taken && (now.is_none() || take(&directory, &door).await) {
            taken = now;
        }
        sleep(LOOK).await;
    }
}

/// Whether that is all there is to do with it.
async fn take(directory: &Path, door: &Door) -> bool {
    let read = |name: &str| std::fs::read(directory.join(name)).ok();
    let (Some(bundle), Some(token)) = (read(BUNDLE_FILE), read(TOKEN_FILE)) else {
        return true;
    };
    let token = String::from_utf8_lossy(&token).trim().to_owned();
    match door.take_candidate(Candidate { bundle, token }).await {
        Ok(outcome) => info!(?outcome, "a candidate came by its ConfigMap"),
        Err(Refusal::Busy { .. }) => return false,
        Err(Refusal::Failed { detail }) => {
            warn!(
                detail,
                "the candidate in its ConfigMap could not be taken, trying again"
            );
            sleep(AGAIN).await;
            return false;
        }
        Err(Refusal::StaleSequence { live }) => {
            info!(live = live.sequence, "the candidate in its ConfigMap is an old one");
        }
        Err(refusal) => warn!(%refusal, "the candidate in its ConfigMap is refused"),
    }
    true
}
