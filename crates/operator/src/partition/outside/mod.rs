//! Partitions of a slurmctld outside Kubernetes. Its files are not ours, so there the operator itself says to the running slurmctld
//! what is wanted, by Slurm's own protocol or else by slurmrestd ([`reach`]), and says it again when that slurmctld has forgotten.
//! What others made stays when the object goes.

mod decide;
mod reach;
mod refusals;
mod saying;
#[cfg(test)]
mod tests;
mod wish;

use std::{sync::Arc, time::Duration};

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
        Delivery, Failure, LivePartition, NotReleased, PartitionUpdate, deliver_partitions, release_partitions,
        restore_partition,
    },
};
use tokio::time::timeout;
use tracing::info;

pub(super) use self::refusals::Refusals;
use self::{
    decide::{Decision, Farewell, decide, decide_farewell, find_rival, plan_way_back, told_after},
    reach::{Commands, Reached, reach},
    refusals::{Refusal, TRY_AGAIN},
    saying::{create, take_back},
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
    outside::{Outside, View},
    runtime::{Context, Error, Key, Writer},
};

/// For all that is said to a slurmctld at one time.
const PATIENCE: Duration = Duration::from_secs(15);

/// How soon one is looked at again that is asked through slurmrestd: nobody else does.
const OFTEN: Duration = Duration::from_secs(15);

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
        let reached = match self.reach(&outside, &view).await {
            Ok(reached) => reached,
            Err(why) => return Ok(self.waits(why).into()),
        };
        let mut stand = if is_leaving {
            self.see_off(&outside, &reached).await?
        } else {
            self.keep(&outside, &reached).await?
        };
        if matches!(reached.commands, Commands::Rest(_)) {
            stand.again = Some(stand.again.map_or(OFTEN, |again| again.min(OFTEN)));
        }
        Ok(stand)
    }

    async fn reach<'v>(&self, outside: &Outside, view: &'v View) -> Result<Reached<'v>, String> {
        let Context { access, clock, .. } = self.context;
        reach(outside, view, access, self.controller, clock).await
    }

    /// Does so once more, after another look, if slurmrestd, which is asked more often, has said something else since the last one.
    pub(super) async fn run_again(&self, observed: &Observed) -> Result<Option<Stand>, Error> {
        let outside = self.context.outsides.find(self.controller);
        let Some((outside, view)) = outside.and_then(|outside| Some((outside.clone(), outside.view()?))) else {
            return Ok(None);
        };
        // Through slurmrestd it was looked at just now.
        let is_behind = view.cluster.is_ok()
            && observed
                .knowledge
                .known()
                .is_some_and(|seen| is_behind(&view, seen, observed));
        if !is_behind {
            return Ok(None);
        }
        outside.look().await;
        self.run().await.map(Some)
    }

    async fn keep(&self, outside: &Outside, reached: &Reached<'_>) -> Result<Stand, Error> {
        let Self {
            context,
            partition,
            key,
            ..
        } = *self;
        let Reached { cluster, commands } = reached;
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
                    change(at, at, commands.way())
                } else {
                    self.known_change(now, commands.way())
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
                info!(partition = %key, slurmctld = %outside.address, ?keys, way = ?commands.way(), "telling a slurmctld outside");
                let told = self.tell(async {
                    let told = deliver_partitions(commands, &updates, &cluster.partitions).await;
                    if let (Delivery::Refused(_), Some(live)) = (&told, live) {
                        take_back(commands, &plan_way_back(live, cluster)).await;
                    }
                    told
                });
                let stand = self.judge(told.await, outside, commands, wish, now).await;
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
                info!(partition = %key, slurmctld = %outside.address, way = ?commands.way(), "making a partition outside");
                let told = self.tell(create(commands, &update)).await;
                if matches!(told, Delivery::Refused(_)) {
                    self.note_made(None).await?;
                }
                Ok(self.judge(told, outside, commands, wish, now).await)
            }
        }
    }

    /// What came of it, and what is there now.
    async fn judge(
        &self,
        told: Delivery,
        outside: &Outside,
        commands: &Commands,
        wish: Wish,
        begin: Timestamp,
    ) -> Stand {
        let now = self.context.clock.now();
        look_again(outside, commands).await;
        match told {
            Delivery::Done => {
                self.refusals.forget(self.key);
                Stand {
                    again: Some(LOOK_AGAIN),
                    ..live(wish, change(begin, now, commands.way())).into()
                }
            }
            Delivery::Refused(why) => {
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
            Delivery::NotUnderstood(why) => {
                let line = wish.line.whole();
                let fault = Fault::new(
                    reason::CONFIG_REJECTED,
                    format!(
                        "slurmctld at {} cannot be told: {why}; write {line} into the slurm.conf there and reconfigure, or take it out of the spec",
                        outside.address
                    ),
                );
                self.refused(fault)
            }
            Delivery::Unknown(why) => Stand {
                again: Some(PATIENCE),
                ..self.waits(format!("slurmctld at {}: {why}", outside.address)).into()
            },
        }
    }

    async fn see_off(&self, outside: &Outside, reached: &Reached<'_>) -> Result<Stand, Error> {
        let Reached { cluster, commands } = reached;
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
                let told = deliver_partitions(commands, &update, &cluster.partitions);
                let told = self.tell(told).await;
                look_again(outside, commands).await;
                Ok(match told {
                    Delivery::Done => self.closed(state).into(),
                    Delivery::Refused(why) | Delivery::Unknown(why) | Delivery::NotUnderstood(why) => Stand {
                        again: Some(PATIENCE),
                        ..self.waits(format!("slurmctld at {}: {why}", outside.address)).into()
                    },
                })
            }
            (Farewell::Release, Some(live)) => Ok(self.release(outside, commands, live).await.into()),
        }
    }

    /// Has a closed one deleted, once its jobs are known to be gone.
    async fn release(&self, outside: &Outside, commands: &Commands, live: &LivePartition) -> Standing {
        let jobs = || {
            let (access, controller) = (Arc::clone(&self.context.access), self.controller.clone());
            async move {
                let knowledge = access.observe(&controller).await;
                let seen = knowledge.known().ok_or("Slurm cannot be asked through slurmrestd")?;
                seen.jobs.clone().ok_or_else(|| "they were not told".to_owned())
            }
        };
        let released = self
            .in_time(PATIENCE * 2, release_partitions(commands, &[live], jobs))
            .await;
        look_again(outside, commands).await;
        let why = match released {
            Ok(Ok(())) => {
                info!(partition = %self.key, "slurmctld has let it go");
                return Standing::default();
            }
            Ok(Err(NotReleased { needed, .. })) => needed.into_iter().map(|needed| needed.why).collect::<Vec<_>>(),
            Err(why) => vec![why.to_owned()],
        };
        let standing = self.closed(live.state.name().unwrap_or(PartitionStateName::Drain));
        Standing {
            trouble: Some(Fault::new(reason::WAITS_FOR_JOBS, why.join("; "))),
            ..standing
        }
    }

    /// Tells slurmctld again what is wanted for these keys.
    pub(super) async fn restore(&self, keys: &[String]) -> Result<Restored, Error> {
        let not_now = |why: &str| Ok(Restored::none_of(keys, why));
        let outside = self.context.outsides.find(self.controller);
        let Some((outside, view)) = outside.and_then(|outside| Some((outside.clone(), outside.view()?))) else {
            return not_now("there is no way to slurmctld");
        };
        let Reached { cluster, commands } = match self.reach(&outside, &view).await {
            Ok(reached) => reached,
            Err(why) => return not_now(&why),
        };
        let Some(line) = self.known_line() else {
            return not_now("it is not known what slurmctld was told");
        };
        let others = cluster.lines.iter().filter(|(name, _)| *name != line.name);
        let others = others.map(|(name, settings)| (name.as_str(), settings.clone()));
        let own = (line.name.as_str(), settings_in(&line.whole()));
        let lines: Vec<(&str, Settings)> = others.chain([own]).collect();
        let restored = restore_partition(&commands, &lines, &line.name, keys);
        let restored = self.in_time(PATIENCE, restored).await;
        look_again(&outside, &commands).await;
        match restored {
            Ok(Ok(Some(restored))) => Ok(restored),
            Ok(Ok(None)) => not_now("slurmctld does not have it"),
            Ok(Err(Failure::NotUnderstood(why))) => not_now(&why),
            Ok(Err(failure)) => Err(Error::other(failure)),
            Err(why) => not_now(why),
        }
    }

    async fn tell(&self, words: impl Future<Output = Delivery>) -> Delivery {
        let told = self.in_time(PATIENCE, words).await;
        told.unwrap_or_else(|why| Delivery::Unknown(why.to_owned()))
    }

    /// What is said must have been answered before another process can lead.
    async fn in_time<T>(&self, patience: Duration, words: impl Future<Output = T>) -> Result<T, &'static str> {
        let left = self.context.fence.remaining();
        let left = left.ok_or("this operator does not lead any more")?;
        let answer = timeout(left.min(patience), words).await;
        answer.map_err(|_| "slurmctld did not answer in time")
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

    fn known_change(&self, now: Timestamp, way: PartitionWay) -> Change {
        let status = self.partition.status.as_ref();
        let applied = status.and_then(|status| status.applied.as_ref());
        Change {
            sequence: None,
            at: applied.and_then(|applied| applied.time.instant()).unwrap_or(now),
            way: Some(applied.map_or(way, |applied| applied.way.clone())),
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

/// Through slurmrestd it is looked at when there is something to do.
async fn look_again(outside: &Outside, commands: &Commands) {
    if let Commands::Rpc(_) = commands {
        outside.look().await;
    }
}

fn change(begin: Timestamp, end: Timestamp, way: PartitionWay) -> Change {
    let took = Duration::try_from(end.duration_since(begin)).unwrap_or_default();
    Change {
        sequence: None,
        at: end,
        way: Some(way),
        milliseconds: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    }
}
