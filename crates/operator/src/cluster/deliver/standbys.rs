//! Pushes the revision of the active slurmctld to the standbys, in a task of its own: no push waits for a standby that
//! is unreachable, and it receives the revision when it is back. Before a push, standbys make a dry run, so that none
//! of them takes over with files it cannot run with.

use std::time::Duration;

use futures::future::join_all;
use host::Host;
use slurm::{
    Revision,
    agent::{Checked, Error, Outcome, Phase, Refused},
    revision::{Digest, next_sequence},
};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::{Cluster, LiveRevision, NotApplied, RETRY_LIVE, Standby, Wanted, decide::describe};
use crate::{cluster::pods::Target, fence::next_fence};

/// While a standby does not have the revision.
const RETRY: Duration = Duration::from_secs(2);
/// While all standbys have it: files in a pod may be changed manually.
const RECHECK: Duration = Duration::from_mins(1);
/// How long a push waits for the dry run of a standby, which takes some hundredths of a second.
const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

/// Pushes the active revision to the standbys, in a loop.
pub(super) async fn follow(cluster: &Cluster) {
    let mut inbox = cluster.delivery.active_revision.subscribe();
    let mut known: Vec<Standby> = Vec::new();
    loop {
        let active = inbox.borrow_and_update().clone();
        let Some((wanted, sequence)) = active.filter(|(wanted, _)| !wanted.standbys.is_empty()) else {
            cluster.update_report(|report| report.standbys.clear());
            drop(inbox.changed().await);
            continue;
        };
        let pushes = wanted.standbys.iter().map(|target| async {
            // A rejected revision is not pushed again for a while: each attempt would restart slurmctld.
            let now = cluster.host().instant();
            let is_recent =
                |(digest, at): (Digest, Instant)| digest == wanted.digest && now.duration_since(at) < RETRY_LIVE;
            let has_rejected = |before: &&Standby| before.pod == target.uid && before.rejected.is_some_and(is_recent);
            if let Some(before) = known.iter().find(has_rejected) {
                return before.clone();
            }
            let mut standby = Standby {
                pod: target.uid.clone(),
                ..Standby::default()
            };
            let pushed = push_to(cluster, target, &wanted, sequence, &mut standby).await;
            standby.why = pushed.err().map(|error| error.to_string());
            standby
        });
        // A newer active revision replaces this one, and an agent finishes what it has received.
        known = tokio::select! {
            biased;
            standbys = join_all(pushes) => standbys,
            _ = inbox.changed() => continue,
        };
        let all = known.iter().all(|standby| standby.why.is_none());
        cluster.update_report(|report| report.standbys.clone_from(&known));
        drop(timeout(if all { RECHECK } else { RETRY }, inbox.changed()).await);
    }
}

/// Pushes to one standby, and records its live revision. Returns why that is not the active one, if it is not.
async fn push_to(
    cluster: &Cluster,
    target: &Target,
    wanted: &Wanted,
    sequence: u64,
    standby: &mut Standby,
) -> Result<(), NotApplied> {
    let digest = wanted.digest;
    let client = target.client(cluster.host(), &wanted.jwt_key)?;
    let status = client.status().await?;
    let live = status.live.as_ref().map(LiveRevision::from);
    standby.live = live;
    if live.is_some_and(|live| live.digest == digest) {
        return match status.phase {
            Phase::Verified => Ok(()),
            phase => Err(NotApplied::NotVerified(phase)),
        };
    }
    let fence = &cluster.shared.fence;
    if fence.remaining().is_none() {
        return Err(NotApplied::NotPushed);
    }
    // The standby may have had higher sequences when it was active.
    let own = live.map_or(Ok(0), |live| next_sequence(live.sequence))?;
    let sequence = sequence.max(own);
    let pod = &target.pod;
    info!(%pod, sequence, %digest, "pushing the active revision to a standby");
    let pushed = client.push(&wanted.revision(sequence), next_fence(fence)).await?;
    standby.live = pushed.status.live.as_ref().map(LiveRevision::from);
    match pushed.outcome {
        Outcome::Applied | Outcome::Unchanged => Ok(()),
        Outcome::Pending { reason } => Err(NotApplied::Pending(reason)),
        Outcome::Rejected(refused) | Outcome::RolledBack(refused) => {
            let why = describe(&refused);
            warn!(%pod, sequence, %why, "a standby rejected the revision of the active slurmctld");
            standby.rejected = Some((digest, cluster.host().instant()));
            Err(NotApplied::Rejected(why))
        }
        Outcome::PartitionsInUse { .. } | Outcome::Unknown => Err(NotApplied::Ignored),
    }
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
