//! Pushes the revision of the active slurmctld to the standbys, in a task of its own: no push waits for a standby that
//! is unreachable, and it receives the revision when it is back. Before a push, standbys make a dry run, so that none
//! of them takes over with files it cannot run with.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use host::Host;
use slurm::{
    Revision,
    agent::{Checked, Error, Outcome, Phase, Refused},
    revision::Digest,
};
use tokio::time::timeout;
use tracing::{info, warn};

use super::{Cluster, JwtKey, LiveRevision, Standby, Wanted, decide::describe};
use crate::{cluster::pods::Target, fence::next_fence};

/// While a standby does not have the revision.
const RETRY: Duration = Duration::from_secs(2);
/// While all standbys have it: files in a pod may be changed manually.
const RECHECK: Duration = Duration::from_mins(1);
/// How long a push waits for the dry run of a standby, which takes some hundredths of a second.
const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

/// The revision the active slurmctld runs with, and the standbys that must have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ActiveRevision {
    pub(crate) revision: Revision,
    pub(crate) standbys: Vec<Target>,
    pub(crate) jwt_key: JwtKey,
}

/// Pushes the active revision to the standbys, in a loop.
pub(super) async fn follow(cluster: &Cluster) {
    let mut inbox = cluster.delivery.active_revision.subscribe();
    let mut rejections = Rejections::new();
    loop {
        let active = inbox.borrow_and_update().clone();
        let Some(active) = active.filter(|active| !active.standbys.is_empty()) else {
            cluster.update_report(|report| report.standbys.clear());
            drop(inbox.changed().await);
            continue;
        };
        let pushes = active.standbys.iter().map(|target| async {
            let pushed = push_to(cluster, target, &active, &rejections).await;
            pushed.unwrap_or_else(|why| (None, Some(why), false))
        });
        // A newer active revision replaces this one, and an agent finishes what it has received.
        let results = tokio::select! {
            results = join_all(pushes) => results,
            _ = inbox.changed() => continue,
        };
        let digest = active.revision.digest();
        let mut standbys = Vec::new();
        rejections.clear();
        for (target, (live, why, is_rejected)) in active.standbys.iter().zip(results) {
            let pod = target.uid.clone();
            let standby = Standby { pod, live, why };
            if is_rejected {
                rejections.insert(target.uid.clone(), (digest, standby.clone()));
            }
            standbys.push(standby);
        }
        let all = standbys.iter().all(|standby| standby.why.is_none());
        cluster.update_report(|report| report.standbys = standbys);
        drop(timeout(if all { RECHECK } else { RETRY }, inbox.changed()).await);
    }
}

/// Rejections by pod, each with the rejected digest.
type Rejections = BTreeMap<String, (Digest, Standby)>;

/// Returns the live revision of the standby afterwards, why it is not the active one, and whether the standby rejected
/// that; or why nothing is known.
async fn push_to(
    cluster: &Cluster,
    target: &Target,
    active: &ActiveRevision,
    rejections: &Rejections,
) -> Result<(Option<LiveRevision>, Option<String>, bool), String> {
    let (revision, digest) = (&active.revision, active.revision.digest());
    // A rejected revision is not pushed again: each attempt would restart slurmctld.
    if let Some((_, before)) = rejections.get(&target.uid).filter(|(before, _)| *before == digest) {
        return Ok((before.live, before.why.clone(), true));
    }
    let client = target.client(cluster.host(), &active.jwt_key);
    let client = client.map_err(|error| error.to_string())?;
    let status = client.status().await.map_err(|error| error.to_string())?;
    let live = status.live.as_ref().map(LiveRevision::from);
    if live.is_some_and(|live| live.digest == digest) {
        let unverified = Some(status.phase).filter(|phase| *phase != Phase::Verified);
        let why = unverified.map(|phase| format!("slurmctld does not run with it yet: {phase}"));
        return Ok((live, why, false));
    }
    let fence = &cluster.shared.fence;
    if fence.remaining().is_none() {
        return Ok((live, Some("it is not pushed yet".to_owned()), false));
    }
    let revision = Revision {
        // The standby may have had higher sequences when it was active.
        sequence: revision.sequence.max(live.map_or(0, |live| live.sequence + 1)),
        ..revision.clone()
    };
    let (pod, sequence) = (&target.pod, revision.sequence);
    info!(%pod, sequence, %digest, "pushing the active revision to a standby");
    let pushed = client.push(&revision, next_fence(fence)).await;
    let pushed = pushed.map_err(|error| error.to_string())?;
    let live = pushed.status.live.as_ref().map(LiveRevision::from);
    let why = match pushed.outcome {
        Outcome::Applied | Outcome::Unchanged => None,
        Outcome::Pending { reason } => Some(reason),
        Outcome::Rejected(refused) | Outcome::RolledBack(refused) => {
            let why = describe(&refused);
            warn!(%pod, sequence, %why, "a standby rejected the revision of the active slurmctld");
            return Ok((live, Some(why), true));
        }
        Outcome::PartitionsInUse { .. } | Outcome::Unknown => Some("its agent did not apply it".to_owned()),
    };
    Ok((live, why, false))
}

/// Returns the first reachable standby whose dry run rejects the revision, and why.
pub(super) async fn find_veto(
    host: &Host,
    wanted: &Wanted,
    revision: &Revision,
    known: &[Standby],
) -> Option<(String, Refused)> {
    let is_reachable = |target: &&Target| {
        let mut reachable = known.iter().filter(|standby| standby.why.is_none());
        reachable.any(|standby| standby.pod == target.uid)
    };
    let checks = wanted.standbys.iter().filter(is_reachable).map(|target| async move {
        let client = target.client(host, &wanted.jwt_key).ok()?;
        let begun = host.instant();
        match timeout(CHECK_TIMEOUT, client.check(revision)).await {
            Ok(Ok(Checked { refused })) => refused.map(|refused| (target.pod.clone(), refused)),
            Ok(Err(Error::Refused(_))) => None,
            Ok(Err(_)) | Err(_) => {
                info!(pod = %target.pod, took = ?host.instant().duration_since(begun), "ignoring a standby that does not respond to a dry run");
                None
            }
        }
    });
    join_all(checks).await.into_iter().flatten().next()
}
