//! Partitions of a slurmctld outside Kubernetes. Its files are not ours, so there the operator itself says to the running slurmctld
//! what is wanted, by Slurm's own protocol, and says it again when that slurmctld has forgotten. What others made stays when the
//! object goes.

mod decide;
#[cfg(test)]
mod tests;
mod wish;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::{
    Partition,
    keys::{PARTITION_FINALIZER, annotations},
    partition::PartitionWay,
};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::json;
use slurm::{
    agent::Restored,
    conf::Settings,
    partition::{PartitionState, PartitionStateName},
    rpc::{
        LivePartition, NotReleased, PartitionUpdate, Told, read_back_partitions, release_partitions, restore_partition,
        settle_partitions,
    },
};
use tokio::time::timeout;
use tracing::{info, warn};

use self::{
    decide::{Decision, Farewell, decide, decide_farewell, find_rival, plan_way_back, told_after},
    wish::{Wish, plan_wish},
};
use super::{
    board::{Change, Standing},
    line::{Line, settings_in},
    observe::Observed,
    restore::is_reverted,
};
use crate::{
    access::Seen,
    controller::reason,
    fault::Fault,
    outside::{Cluster, Outside, View},
    runtime::{Context, Error, Key, Writer},
};

/// For all that is said to a slurmctld at one time.
const PATIENCE: Duration = Duration::from_secs(15);
/// How soon what slurmctld refused is tried again: its nodes may have come meanwhile.
const TRY_AGAIN: Duration = Duration::from_mins(1);

/// What slurmrestd says meanwhile may be older than what slurmctld was told: when it is newer, it is compared.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// How a Partition stands, and when to look again though nothing is heard.
pub(super) struct Stand {
    pub(super) standing: Option<Standing>,
    pub(super) again: Option<Duration>,
}

impl From<Standing> for Stand {
    fn from(standing: Standing) -> Self {
        Self {
            standing: Some(standing),
            again: None,
        }
    }
}

/// What was refused last of each, and when.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<Key, Refusal>>);

#[derive(Clone, Debug)]
struct Refusal {
    line: Line,
    at: Timestamp,
    fault: Fault,
}

impl Refusals {
    pub(super) fn forget(&self, key: &Key) {
        self.all().remove(key);
    }

    fn find(&self, key: &Key, line: &Line, now: Timestamp) -> Option<Fault> {
        let all = self.all();
        let refusal = all.get(key).filter(|refusal| refusal.line == *line)?;
        let age = Duration::try_from(now.duration_since(refusal.at)).unwrap_or_default();
        (age < TRY_AGAIN).then(|| refusal.fault.clone())
    }

    fn note(&self, key: &Key, refusal: Refusal) {
        self.all().insert(key.clone(), refusal);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Key, Refusal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One Partition of one slurmctld outside.
pub(super) struct Errand<'a> {
    pub(super) context: &'a Context,
    pub(super) writer: &'a Writer,
    pub(super) refusals: &'a Refusals,
    pub(super) partition: &'a Partition,
    pub(super) key: &'a Key,
    pub(super) controller: &'a Key,
}

impl Errand<'_> {
    /// Does what there is to do, and says how it stands. An error is of Kubernetes only.
    pub(super) async fn run(&self) -> Result<Stand, Error> {
        let outside = self.context.outsides.find(self.controller);
        let view = outside.as_ref().and_then(Outside::view);
        let is_leaving = self.partition.metadata.deletion_timestamp.is_some();
        let was_made = self
            .partition
            .annotations()
            .contains_key(annotations::PARTITION_MADE_AT);
        if is_leaving && !was_made {
            return Ok(self.leave().into());
        }
        let (Some(outside), Some(view)) = (outside, view) else {
            return Ok(Stand {
                standing: None,
                again: None,
            });
        };
        let cluster = match view.as_ref() {
            View { unfit: Some(unfit), .. } => Err(unfit.message.clone()),
            View { cluster, .. } => cluster.as_ref().map_err(Clone::clone),
        };
        let cluster = match cluster {
            Ok(cluster) => cluster,
            Err(why) => return Ok(self.waits(why).into()),
        };
        if is_leaving {
            self.see_off(&outside, cluster).await
        } else {
            self.keep(&outside, cluster).await
        }
    }

    /// Does so once more, after another look, if slurmrestd, which is asked more often, has said something else since the last one.
    pub(super) async fn run_again(&self, observed: &Observed) -> Result<Option<Stand>, Error> {
        let outside = self.context.outsides.find(self.controller);
        let Some((outside, view)) = outside.and_then(|outside| Some((outside.clone(), outside.view()?))) else {
            return Ok(None);
        };
        let is_behind = observed
            .knowledge
            .known()
            .is_some_and(|seen| is_behind(&view, seen, observed));
        if !is_behind {
            return Ok(None);
        }
        outside.look().await;
        self.run().await.map(Some)
    }

    async fn keep(&self, outside: &Outside, cluster: &Cluster) -> Result<Stand, Error> {
        let Self {
            context,
            partition,
            key,
            ..
        } = *self;
        let now = context.clock.now();
        let siblings = context.caches.partitions.list(&key.namespace);
        let node_sets = context.caches.node_sets.list(&key.namespace).into_iter();
        let node_sets: Vec<_> = node_sets
            .filter(|node_set| node_set.spec.controller_ref.name == self.controller.name)
            .collect();
        let wish = match find_rival(partition, &siblings) {
            Some(rival) => Err(rival),
            None => plan_wish(partition, &node_sets, cluster, &outside.address),
        };
        let wish = match wish {
            Ok(wish) => wish,
            Err(fault) => return Ok(self.refused(fault)),
        };
        match decide(partition, &wish, cluster, &outside.address, now) {
            Decision::Refuse(fault) => Ok(self.refused(fault)),
            Decision::Rest { kept, is_news } => {
                let change = if is_news {
                    let at = now.max(told_after(cluster));
                    change(at, at)
                } else {
                    self.known_change(now)
                };
                let standing = live(wish, change);
                Ok(Stand {
                    standing: Some(Standing { kept, ..standing }),
                    again: is_news.then_some(LOOK_AGAIN),
                })
            }
            Decision::Update { updates, kept } => {
                if let Some(fault) = self.refusals.find(key, &wish.line, now) {
                    return Ok(self.refused(fault));
                }
                let live = cluster.partition(&wish.line.name);
                let keys: Vec<&str> = updates
                    .iter()
                    .flat_map(|update| live.map(|live| update.differences(live)).unwrap_or_default())
                    .map(|difference| difference.key)
                    .collect();
                info!(partition = %key, slurmctld = %outside.address, ?keys, "telling a slurmctld outside");
                let told = self.tell(async {
                    let told = settle_partitions(&outside.client, &updates, &cluster.partitions).await;
                    if let (Told::Refused(_), Some(live)) = (&told, live) {
                        take_back(outside, &plan_way_back(live, cluster)).await;
                    }
                    told
                });
                let stand = self.judge(told.await, outside, wish, now).await;
                Ok(Stand {
                    standing: stand.standing.map(|standing| Standing { kept, ..standing }),
                    ..stand
                })
            }
            Decision::Create(update) => {
                if let Some(fault) = self.refusals.find(key, &wish.line, now) {
                    return Ok(self.refused(fault));
                }
                // Before it is made, so that whoever comes after us knows whose it is.
                self.note_made(Some(&outside.address)).await?;
                info!(partition = %key, slurmctld = %outside.address, "making a partition outside");
                let told = self.tell(create(outside, &update)).await;
                if matches!(told, Told::Refused(_)) {
                    self.note_made(None).await?;
                }
                Ok(self.judge(told, outside, wish, now).await)
            }
        }
    }

    /// What came of it, and what is there now.
    async fn judge(&self, told: Told, outside: &Outside, wish: Wish, begin: Timestamp) -> Stand {
        let now = self.context.clock.now();
        outside.look().await;
        match told {
            Told::Done => {
                self.refusals.forget(self.key);
                Stand {
                    again: Some(LOOK_AGAIN),
                    ..live(wish, change(begin, now)).into()
                }
            }
            Told::Refused(why) => {
                let fault = Fault::new(
                    reason::CONFIG_REJECTED,
                    format!(
                        "slurmctld at {} refuses it: {why}; what it had before is in force; correct the spec",
                        outside.address
                    ),
                );
                let refusal = Refusal {
                    line: wish.line,
                    at: now,
                    fault: fault.clone(),
                };
                self.refusals.note(self.key, refusal);
                self.refused(fault)
            }
            Told::Unknown(why) | Told::Unspoken(why) => Stand {
                again: Some(PATIENCE),
                ..self.waits(format!("slurmctld at {}: {why}", outside.address)).into()
            },
        }
    }

    async fn see_off(&self, outside: &Outside, cluster: &Cluster) -> Result<Stand, Error> {
        let name = self.partition.slurm_name();
        let trouble = |reason, message: String| Standing {
            line: self.known_line(),
            runs: true,
            trouble: Some(Fault::new(reason, message)),
            ..Standing::default()
        };
        let farewell = decide_farewell(self.partition, cluster, &outside.address);
        let live = cluster.partition(&name);
        match (farewell, live) {
            (Farewell::Leave, _) => Ok(self.leave().into()),
            (Farewell::Gone, _) | (_, None) => Ok(Standing::default().into()),
            (Farewell::LastDefault, _) => {
                let why = "it is the default partition, and jobs that name none would have no place; make another partition the default";
                Ok(trouble(reason::LAST_DEFAULT, why.to_owned()).into())
            }
            (Farewell::Close(state), _) => {
                info!(partition = %self.key, %state, "closing a partition outside");
                let update = [PartitionUpdate {
                    state: Some(state),
                    ..PartitionUpdate::new(&name)
                }];
                let told = settle_partitions(&outside.client, &update, &cluster.partitions);
                let told = self.tell(told).await;
                outside.look().await;
                Ok(match told {
                    Told::Done => self.closed(state).into(),
                    Told::Refused(why) | Told::Unknown(why) | Told::Unspoken(why) => Stand {
                        again: Some(PATIENCE),
                        ..self.waits(format!("slurmctld at {}: {why}", outside.address)).into()
                    },
                })
            }
            (Farewell::Release, Some(live)) => self.release(outside, live).await,
        }
    }

    /// Has a closed one deleted, once its jobs are known to be gone.
    async fn release(&self, outside: &Outside, live: &LivePartition) -> Result<Stand, Error> {
        let jobs = || {
            let (access, controller) = (Arc::clone(&self.context.access), self.controller.clone());
            async move {
                let knowledge = access.observe(&controller).await;
                let seen = knowledge.known().ok_or("Slurm cannot be asked through slurmrestd")?;
                seen.jobs.clone().ok_or_else(|| "they were not told".to_owned())
            }
        };
        let Some(left) = self.context.fence.remaining() else {
            return Ok(self.waits("this operator does not lead any more".to_owned()).into());
        };
        let released = timeout(
            left.min(PATIENCE * 2),
            release_partitions(&outside.client, &[live], jobs),
        )
        .await;
        outside.look().await;
        let why = match released {
            Ok(Ok(())) => {
                info!(partition = %self.key, "slurmctld has let it go");
                return Ok(Standing::default().into());
            }
            Ok(Err(NotReleased { needed, .. })) => needed.into_iter().map(|needed| needed.why).collect::<Vec<_>>(),
            Err(_) => vec!["slurmctld did not answer in time".to_owned()],
        };
        let standing = self.closed(live.state.name().unwrap_or(PartitionStateName::Drain));
        Ok(Standing {
            trouble: Some(Fault::new(reason::WAITS_FOR_JOBS, why.join("; "))),
            ..standing
        }
        .into())
    }

    /// Tells slurmctld again what is wanted for these keys.
    pub(super) async fn restore(&self, keys: &[String]) -> Result<Restored, Error> {
        let not_now = |why: &str| Restored {
            left: keys.iter().map(|key| (key.clone(), why.to_owned())).collect(),
            same: Vec::new(),
        };
        let Some(outside) = self.context.outsides.find(self.controller) else {
            return Ok(not_now("there is no way to slurmctld"));
        };
        let view = outside.view();
        let cluster = view.as_ref().and_then(|view| view.cluster.as_ref().ok());
        let (Some(cluster), Some(line)) = (cluster, self.known_line()) else {
            return Ok(not_now("it is not known what slurmctld has"));
        };
        let Some(left) = self.context.fence.remaining() else {
            return Ok(not_now("this operator does not lead any more"));
        };
        let others = cluster.lines.iter().filter(|(name, _)| *name != line.name);
        let others = others.map(|(name, settings)| (name.as_str(), settings.clone()));
        let own = (line.name.as_str(), settings_in(&line.whole()));
        let lines: Vec<(&str, Settings)> = others.chain([own]).collect();
        let restored = restore_partition(&outside.client, &lines, &line.name, keys);
        let restored = timeout(left.min(PATIENCE), restored).await;
        outside.look().await;
        match restored {
            Ok(Ok(Some(restored))) => Ok(restored),
            Ok(Ok(None)) => Ok(not_now("slurmctld does not have it")),
            Ok(Err(error)) => Err(Error::other(error)),
            Err(late) => Err(Error::other(late)),
        }
    }

    /// What is said must have been answered before another process can lead.
    async fn tell(&self, words: impl Future<Output = Told>) -> Told {
        let Some(left) = self.context.fence.remaining() else {
            return Told::Unknown("this operator does not lead any more".to_owned());
        };
        let told = timeout(left.min(PATIENCE), words).await;
        told.unwrap_or_else(|_| Told::Unknown("no answer in time".to_owned()))
    }

    async fn note_made(&self, address: Option<&str>) -> Result<(), Error> {
        let made_at = self.partition.annotations().get(annotations::PARTITION_MADE_AT);
        if made_at.map(String::as_str) == address {
            return Ok(());
        }
        let patch = json!({ "metadata": {
            "uid": self.partition.metadata.uid,
            "annotations": { annotations::PARTITION_MADE_AT: address },
        } });
        let Key { namespace, name } = self.key;
        self.writer.patch::<Partition>(namespace, name, patch).await.map(drop)
    }

    /// Others made it, so it stays.
    fn leave(&self) -> Standing {
        let message = format!(
            "partition {:?} is left as it is in Slurm, since it was not made for this object; what was changed there lasts until slurmctld starts anew or reads its files",
            self.partition.slurm_name()
        );
        let finalizers = self.partition.finalizers();
        if finalizers.iter().any(|finalizer| finalizer == PARTITION_FINALIZER) {
            self.context.events.normal(self.partition, "LeftAsItIs", message);
        }
        Standing::default()
    }

    fn closed(&self, state: PartitionStateName) -> Standing {
        Standing {
            line: self.known_line().map(|line| line.with_state(state.name())),
            runs: true,
            ..Standing::default()
        }
    }

    /// As it was, and why it is no other.
    fn refused(&self, fault: Fault) -> Stand {
        Stand {
            standing: Some(Standing {
                line: self.known_line(),
                trouble: Some(fault),
                ..Standing::default()
            }),
            again: Some(TRY_AGAIN),
        }
    }

    fn waits(&self, why: String) -> Standing {
        Standing {
            line: self.known_line(),
            waits: Some(why),
            ..Standing::default()
        }
    }

    /// What slurmctld was told last.
    fn known_line(&self) -> Option<Line> {
        let status = self.partition.status.as_ref()?;
        let generation = status.applied.as_ref()?.generation;
        Line::read(status.line.as_deref()?, generation)
    }

    fn known_change(&self, now: Timestamp) -> Change {
        let status = self.partition.status.as_ref();
        let applied = status.and_then(|status| status.applied.as_ref());
        Change {
            sequence: None,
            at: applied.and_then(|applied| applied.time.instant()).unwrap_or(now),
            way: Some(PartitionWay::Rpc),
            milliseconds: applied
                .and_then(|applied| u64::try_from(applied.milliseconds?).ok())
                .unwrap_or_default(),
        }
    }
}

fn live(wish: Wish, change: Change) -> Standing {
    Standing {
        line: Some(wish.line),
        runs: true,
        change: Some(change),
        not_persistent: wish.not_persistent,
        ..Standing::default()
    }
}

/// Whether Slurm is known to be otherwise than at the last look.
fn is_behind(view: &View, seen: &Seen, observed: &Observed) -> bool {
    let name = observed.partition.slurm_name();
    let shown = seen.partitions.as_ref().and_then(|partitions| partitions.get(&name));
    let live = view.cluster.as_ref().ok().and_then(|cluster| cluster.partition(&name));
    let state = live.and_then(|live| live.state.name()).map(PartitionState::Known);
    let is_closed_otherwise = shown.is_some_and(|shown| Some(&shown.state) != state.as_ref());
    let differs = observed.found.drift.iter().any(|drift| !is_reverted(drift));
    seen.at > view.at && (is_closed_otherwise || differs)
}

async fn take_back(outside: &Outside, updates: &[PartitionUpdate]) {
    for update in updates {
        if let Err(error) = outside.client.update_partition(update).await {
            warn!(partition = %update.name, %error, "cannot be taken back");
        }
    }
}

fn change(begin: Timestamp, end: Timestamp) -> Change {
    let took = Duration::try_from(end.duration_since(begin)).unwrap_or_default();
    Change {
        sequence: None,
        at: end,
        way: Some(PartitionWay::Rpc),
        milliseconds: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    }
}

/// Makes it closed, looks whether all of it was taken, and opens it: until then nobody can use it, and it can go again.
async fn create(outside: &Outside, wanted: &PartitionUpdate) -> Told {
    let client = &outside.client;
    let closed = PartitionUpdate {
        state: Some(PartitionStateName::Inactive),
        ..wanted.clone()
    };
    match client.create_partition(&closed).await.into() {
        Told::Done => {}
        other => return other,
    }
    match read_back_partitions(client, &[closed]).await {
        Told::Done => {}
        Told::Refused(why) => {
            // It is not there, or it stays closed; the next look tells.
            drop(client.delete_partition(&wanted.name).await);
            return Told::Refused(why);
        }
        other => return other,
    }
    let open = PartitionUpdate {
        state: wanted.state,
        ..PartitionUpdate::new(&wanted.name)
    };
    match client.update_partition(&open).await.into() {
        Told::Done => read_back_partitions(client, std::slice::from_ref(wanted)).await,
        other => other,
    }
}
