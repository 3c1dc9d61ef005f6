//! Standbys get what the active slurmctld has taken, in a task of their own: nobody waits for one that is away, and it gets it
//! when it is back. Before that they are asked for a dry run, so that none of them takes over with files it cannot run with.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use slurm::{
    Revision,
    agent::{AgentKey, Checked, Client, Error, Options, Outcome, Phase, Refused},
    revision::Digest,
};
use tokio::{sync::watch, time::timeout};
use tracing::{info, warn};

use super::{JwtKey, Live, Reporter, Standby, Wanted, decide::words_of};
use crate::{cluster::pods::Target, fence::next_fence, runtime::Fence};

/// While one of them has not got it.
const AGAIN: Duration = Duration::from_secs(2);
/// While all of them have: somebody may have put a hand on one.
const RECHECK: Duration = Duration::from_mins(1);
/// A change does not wait longer for what a standby thinks of it. A dry run takes some hundredths of a second.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the active slurmctld runs with, and who else is to have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) revision: Revision,
    pub(crate) standbys: Vec<Target>,
    pub(crate) jwt_key: JwtKey,
}

/// Brings what is settled to the standbys, again and again.
pub(crate) async fn follow(mut settlements: watch::Receiver<Option<Arc<Settled>>>, reporter: Reporter, fence: Fence) {
    let mut refused = BTreeMap::new();
    loop {
        let settled = settlements.borrow_and_update().clone();
        let Some(settled) = settled.filter(|settled| !settled.standbys.is_empty()) else {
            reporter.report(|report| report.standbys.clear());
            if settlements.changed().await.is_err() {
                return;
            }
            continue;
        };
        let asked = join_all(
            settled
                .standbys
                .iter()
                .map(|target| bring(target, &settled, &fence, &refused)),
        );
        // What is settled meanwhile is more than what was, and an agent goes on with what it has been given.
        let standbys = tokio::select! {
            standbys = asked => standbys,
            changed = settlements.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        for (standby, says_no) in &standbys {
            match says_no {
                Some(digest) => drop(refused.insert(standby.pod.clone(), (*digest, standby.clone()))),
                None => drop(refused.remove(&standby.pod)),
            }
        }
        refused.retain(|pod, _| settled.standbys.iter().any(|target| target.uid == *pod));
        let standbys: Vec<Standby> = standbys.into_iter().map(|(standby, _)| standby).collect();
        let all = standbys.iter().all(|standby| standby.why.is_none());
        reporter.report(|report| report.standbys = standbys);
        if let Ok(Err(_)) = timeout(if all { RECHECK } else { AGAIN }, settlements.changed()).await {
            return;
        }
    }
}

/// Refusals by pod, each with what was refused.
type Refusals = BTreeMap<String, (Digest, Standby)>;

/// What is known of the standby afterwards, and what it has refused, if so.
async fn bring(target: &Target, settled: &Settled, fence: &Fence, refused: &Refusals) -> (Standby, Option<Digest>) {
    let Settled { revision, jwt_key, .. } = settled;
    let digest = revision.digest();
    let standby = |live, why: Option<String>| Standby {
        pod: target.uid.clone(),
        live,
        why,
    };
    // What it could not run with is not tried again and again: it would be restarted each time.
    if let Some((_, before)) = refused.get(&target.uid).filter(|(before, _)| *before == digest) {
        return (before.clone(), Some(digest));
    }
    let away = |error: &dyn std::fmt::Display| (standby(None, Some(error.to_string())), None);
    let client = match client(target, jwt_key) {
        Ok(client) => client,
        Err(why) => return away(&why),
    };
    let status = match client.status().await {
        Ok(status) => status,
        Err(error) => return away(&error),
    };
    let live = status.live.as_ref().map(Live::from);
    if live.is_some_and(|live| live.digest == digest) {
        let why =
            (status.phase != Phase::Verified).then(|| format!("slurmctld does not run with it yet: {}", status.phase));
        return (standby(live, why), None);
    }
    if fence.remaining().is_none() {
        return (standby(live, Some("it has not been given it yet".to_owned())), None);
    }
    let revision = Revision {
        // It may have had higher numbers when it was the active one.
        sequence: revision.sequence.max(live.map_or(0, |live| live.sequence + 1)),
        ..revision.clone()
    };
    let (pod, sequence) = (&target.pod, revision.sequence);
    info!(%pod, sequence, %digest, "giving a standby what the active slurmctld has taken");
    let pushed = match client.push(&revision, next_fence(fence)).await {
        Ok(pushed) => pushed,
        Err(error) => return away(&error),
    };
    let live = pushed.status.live.as_ref().map(Live::from);
    match pushed.outcome {
        Outcome::Applied | Outcome::Unchanged => (standby(live, None), None),
        Outcome::Pending { reason } => (standby(live, Some(reason)), None),
        Outcome::Rejected(refused) | Outcome::RolledBack(refused) => {
            let why = words_of(&refused);
            warn!(%pod, sequence, %why, "a standby cannot run with what the active slurmctld runs with");
            (standby(live, Some(why)), Some(digest))
        }
        Outcome::PartitionsInUse { .. } | Outcome::Unknown => {
            (standby(live, Some("its agent did not carry it out".to_owned())), None)
        }
    }
}

/// Who of the standbys that were there a moment ago could not run with it, and why. Who is away has no say.
pub(crate) async fn object(wanted: &Wanted, revision: &Revision, known: &[Standby]) -> Option<(String, Refused)> {
    let is_there = |target: &&Target| {
        known
            .iter()
            .any(|standby| standby.pod == target.uid && standby.why.is_none())
    };
    let asked = wanted.standbys.iter().filter(is_there).map(|target| async move {
        let client = client(target, &wanted.jwt_key).ok()?;
        let begun = Instant::now();
        match timeout(PATIENCE, client.check(revision)).await {
            Ok(Ok(Checked { refused })) => refused.map(|refused| (target.pod.clone(), refused)),
            Ok(Err(Error::Refused(_))) => None,
            Ok(Err(_)) | Err(_) => {
                info!(pod = %target.pod, took = ?begun.elapsed(), "a standby has no say in a change, since it does not answer");
                None
            }
        }
    });
    join_all(asked).await.into_iter().flatten().next()
}

fn client(target: &Target, jwt_key: &JwtKey) -> Result<Client, String> {
    let key = AgentKey::derive(&jwt_key.0).map_err(|error| error.to_string())?;
    Ok(Client::new(
        host::Host::real(),
        target.address,
        target.uid.clone(),
        key,
        Options::default(),
    ))
}
