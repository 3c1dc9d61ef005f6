//! The candidate: a revision in a mounted ConfigMap, for when the operator cannot reach this pod. It passes the same checks as a
//! push, and the status reports its outcome.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use host::Host;
use slurm::agent::candidate::{BUNDLE_FILE, TOKEN_FILE};
use slurm::agent::{Candidate, Refusal};
use tokio::time::sleep;
use tracing::{info, warn};

use super::http::Server;

/// A poll is one `readlink`. The kubelet takes as long after the annotation that wakes it.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// After a failure that the candidate did not cause, such as a hung state volume.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Takes each candidate once.
pub(super) async fn poll(host: &Host, directory: Option<PathBuf>, server: Arc<Server>) -> Infallible {
    let Some(directory) = directory else {
        return std::future::pending().await;
    };
    let mut taken = None;
    loop {
        // The kubelet switches all files of a ConfigMap at once by this link.
        let now = host.files().read_link(&directory.join("..data")).ok();
        if now != taken && (now.is_none() || take(host, &directory, &server).await) {
            taken = now;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns whether the candidate needs no retry.
async fn take(host: &Host, directory: &Path, server: &Server) -> bool {
    let read = |name: &str| host.files().read(&directory.join(name)).ok();
    let (Some(bundle), Some(token)) = (read(BUNDLE_FILE), read(TOKEN_FILE)) else {
        return true;
    };
    let token = String::from_utf8_lossy(&token).trim().to_owned();
    match server.take_candidate(Candidate { bundle, token }).await {
        Ok(outcome) => info!(?outcome, "took the candidate in the ConfigMap"),
        Err(Refusal::Busy { .. }) => return false,
        Err(Refusal::Failed { detail }) => {
            warn!(detail, "cannot take the candidate in the ConfigMap, retrying");
            sleep(RETRY_INTERVAL).await;
            return false;
        }
        Err(Refusal::StaleSequence { live }) => {
            info!(live = live.sequence, "the candidate in the ConfigMap is stale");
        }
        Err(refusal) => warn!(%refusal, "rejected the candidate in the ConfigMap"),
    }
    true
}
