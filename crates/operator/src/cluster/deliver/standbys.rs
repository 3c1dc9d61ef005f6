//! Pushes the revision of the active slurmctld to the standbys, in a task of its own: no push waits for a standby that
//! is unreachable, and it receives the revision when it is back. Before a push, standbys make a dry run, so that none
//! of them takes over with files it cannot run with.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use host::Host;
use runtime::Fence;
use slurm::{
    Revision,
    agent::{AgentKey, Checked, Client, Error, Options, Outcome, Phase, Refused},
    revision::Digest,
};
use tokio::{sync::watch, time::timeout};
use tracing::{info, warn};

use super::{JwtKey, LiveRevision, Reporter, Standby, Wanted, decide::describe};
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
pub(crate) async fn follow(mut inbox: watch::Receiver<Option<Arc<ActiveRevision>>>, reporter: Reporter, fence: Fence) {
    let mut refused = BTreeMap::new();
    loop {
        let active = inbox.borrow_and_update().clone();
        let Some(active) = active.filter(|active| !active.standbys.is_empty()) else {
            reporter.report(|report| report.standbys.clear());
            if inbox.changed().await.is_err() {
                return;
            }
            continue;
        };
        let pushes = join_all(
            active
                .standbys
                .iter()
                .map(|target| push_to(&reporter.host, target, &active, &fence, &refused)),
        );
        // A newer active revision replaces this one, and an agent finishes what it has received.
        let standbys = tokio::select! {
            standbys = pushes => standbys,
            changed = inbox.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        for (standby, rejected) in &standbys {
            match rejected {
                Some(digest) => drop(refused.insert(standby.pod.clone(), (*digest, standby.clone()))),
                None => drop(refused.remove(&standby.pod)),
            }
        }
        refused.retain(|pod, _| active.standbys.iter().any(|target| target.uid == *pod));
        let standbys: Vec<Standby> = standbys.into_iter().map(|(standby, _)| standby).collect();
        let all = standbys.iter().all(|standby| standby.why.is_none());
        reporter.report(|report| report.standbys = standbys);
        if let Ok(Err(_)) = timeout(if all { RECHECK } else { RETRY }, inbox.changed()).await {
            return;
        }
    }
}

/// Rejections by pod, each with the rejected digest.
type Refusals = BTreeMap<String, (Digest, Standby)>;

/// Returns the state of the standby afterwards, and the digest it rejected, if any.
async fn push_to(
    host: &Host,
    target: &Target,
    active: &ActiveRevision,
    fence: &Fence,
    refused: &Refusals,
) -> (Standby, Option<Digest>) {
    let ActiveRevision { revision, jwt_key, .. } = active;
    let digest = revision.digest();
    let standby = |live, why: Option<String>| Standby {
        pod: target.uid.clone(),
        live,
        why,
    };
    // A rejected revision is not pushed again: each attempt would restart slurmctld.
    if let Some((_, before)) = refused.get(&target.uid).filter(|(before, _)| *before == digest) {
        return (before.clone(), Some(digest));
    }
    let away = |error: &dyn std::fmt::Display| (standby(None, Some(error.to_string())), None);
    let client = match client(host, target, jwt_key) {
        Ok(client) => client,
        Err(why) => return away(&why),
    };
    let status = match client.status().await {
        Ok(status) => status,
        Err(error) => return away(&error),
    };
    let live = status.live.as_ref().map(LiveRevision::from);
    if live.is_some_and(|live| live.digest == digest) {
        let why =
            (status.phase != Phase::Verified).then(|| format!("slurmctld does not run with it yet: {}", status.phase));
        return (standby(live, why), None);
    }
    if fence.remaining().is_none() {
        return (standby(live, Some("it is not pushed yet".to_owned())), None);
    }
    let revision = Revision {
        // The standby may have had higher sequences when it was active.
        sequence: revision.sequence.max(live.map_or(0, |live| live.sequence + 1)),
        ..revision.clone()
    };
    let (pod, sequence) = (&target.pod, revision.sequence);
    info!(%pod, sequence, %digest, "pushing the active revision to a standby");
    let pushed = match client.push(&revision, next_fence(fence)).await {
        Ok(pushed) => pushed,
        Err(error) => return away(&error),
    };
    let live = pushed.status.live.as_ref().map(LiveRevision::from);
    match pushed.outcome {
        Outcome::Applied | Outcome::Unchanged => (standby(live, None), None),
        Outcome::Pending { reason } => (standby(live, Some(reason)), None),
        Outcome::Rejected(refused) | Outcome::RolledBack(refused) => {
            let why = describe(&refused);
            warn!(%pod, sequence, %why, "a standby rejected the revision of the active slurmctld");
            (standby(live, Some(why)), Some(digest))
        }
        Outcome::PartitionsInUse { .. } | Outcome::Unknown => {
            (standby(live, Some("its agent did not apply it".to_owned())), None)
        }
    }
}

/// Returns the first reachable standby whose dry run rejects the revision, and why.
pub(crate) async fn find_veto(
    host: &Host,
    wanted: &Wanted,
    revision: &Revision,
    known: &[Standby],
) -> Option<(String, Refused)> {
    let is_reachable = |target: &&Target| {
        known
            .iter()
            .any(|standby| standby.pod == target.uid && standby.why.is_none())
    };
    let checks = wanted.standbys.iter().filter(is_reachable).map(|target| async move {
        let client = client(host, target, &wanted.jwt_key).ok()?;
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

fn client(host: &Host, target: &Target, jwt_key: &JwtKey) -> Result<Client, String> {
    let key = AgentKey::derive(&jwt_key.0).map_err(|error| error.to_string())?;
    Ok(Client::new(
        host.clone(),
        target.address,
        target.uid.clone(),
        key,
        Options::default(),
    ))
}
