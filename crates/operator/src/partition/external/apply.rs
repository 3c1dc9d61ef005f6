//! Sends planned orders to an external slurmctld.

use std::{sync::Arc, time::Duration};

use api::{Partition, keys::annotations};
use kube::ResourceExt as _;
use serde_json::json;
use slurm::{
    agent::Restored,
    conf::Settings,
    partition::PartitionStateName,
    rpc::{
        Delivery, Failure, LivePartition, NotReleased, PartitionCommands as _, PartitionUpdate, deliver_partitions,
        read_back_partitions, release_partitions, restore_partition,
    },
};
use tokio::time::timeout;
use tracing::{info, warn};

use super::{
    COMPARE_AFTER, ExternalEffect, RETRY, Refusal,
    channel::{Channel, Reached},
    known_line,
};
use crate::{
    cluster::partition_reports::{Change, PartitionReport},
    finding::Finding,
    partition::rules::line::{PartitionLine, settings_in},
    reason,
    runtime::{Context, Error, Key, Writer},
};

/// For all orders of one effect.
const TIMEOUT: Duration = Duration::from_secs(15);

/// One Partition of one external slurmctld.
#[derive(Clone, Copy)]
pub(in crate::partition) struct Session<'a> {
    pub(in crate::partition) context: &'a Context,
    pub(in crate::partition) writer: &'a Writer,
    pub(in crate::partition) partition: &'a Partition,
    /// The key of its Controller.
    pub(in crate::partition) controller: &'a Key,
    pub(in crate::partition) reached: &'a Reached,
}

impl Session<'_> {
    /// Carries out an effect, and brings `report` to the state after it. Returns when to reconcile again without a change
    /// in Kubernetes, and errors of Kubernetes only.
    pub(in crate::partition) async fn apply(
        &self,
        effect: &ExternalEffect,
        report: &mut PartitionReport,
        refusal: &mut Option<Refusal>,
    ) -> Result<Option<Duration>, Error> {
        let partition = Key::of(self.partition);
        let Reached {
            external,
            cluster,
            channel,
            ..
        } = self.reached;
        let slurmctld = &external.address;
        let begin = self.context.clock.now();
        *refusal = None;
        let (sent, live) = match effect {
            ExternalEffect::Update {
                updates,
                roll_back: back,
                live,
            } => {
                let keys: Vec<&str> = updates
                    .iter()
                    .filter_map(|update| Some(update.differences(cluster.partition(&update.name)?)))
                    .flatten()
                    .map(|difference| difference.key)
                    .collect();
                info!(%partition, %slurmctld, ?keys, way = ?channel.way(), "updating a partition of an external slurmctld");
                let sent = async {
                    let sent = deliver_partitions(channel, updates, &cluster.partitions).await;
                    if let Delivery::Refused(_) = &sent {
                        roll_back(channel, back).await;
                    }
                    sent
                };
                (self.send(sent).await, live)
            }
            ExternalEffect::Create { update, live } => {
                // Recorded before it is created, so that a new leader knows that this object created it.
                self.note_made(Some(slurmctld)).await?;
                info!(%partition, %slurmctld, way = ?channel.way(), "creating a partition in an external slurmctld");
                let sent = self.send(create(channel, update)).await;
                if matches!(sent, Delivery::Refused(_)) {
                    self.note_made(None).await?;
                }
                (sent, live)
            }
            ExternalEffect::Close(state) => {
                info!(%partition, %slurmctld, %state, "closing a partition of an external slurmctld");
                return Ok(self.close(*state, report).await);
            }
            ExternalEffect::Delete(live) => return Ok(self.delete(live, report).await),
        };
        let now = self.context.clock.now();
        self.poll().await;
        let reject = |message| Finding::blocking(reason::CONFIG_REJECTED, message);
        match sent {
            Delivery::Done => {
                let took = Duration::try_from(now.duration_since(begin)).unwrap_or_default();
                report.clone_from(live);
                report.change = Some(Change {
                    sequence: None,
                    at: now,
                    way: Some(channel.way()),
                    milliseconds: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                });
                return Ok(Some(COMPARE_AFTER));
            }
            Delivery::Refused(why) => {
                let fault = reject(format!(
                    "slurmctld at {slurmctld} rejects it: {why}; the previous values are in force; correct the spec"
                ));
                report.trouble = Some(fault.clone());
                *refusal = live.line.clone().map(|line| Refusal { line, at: now, fault });
            }
            Delivery::NotUnderstood(why) => {
                let text = live.line.as_ref().map(PartitionLine::whole).unwrap_or_default();
                report.trouble = Some(reject(format!(
                    "this cannot be sent to slurmctld at {slurmctld}: {why}; write {text} into the slurm.conf there and reconfigure, or remove it from the spec"
                )));
            }
            Delivery::Unknown(why) => {
                self.note_unclear(&why, report);
                return Ok(Some(TIMEOUT));
            }
        }
        Ok(Some(RETRY))
    }

    async fn close(&self, state: PartitionStateName, report: &mut PartitionReport) -> Option<Duration> {
        let Reached { cluster, channel, .. } = self.reached;
        let update = [PartitionUpdate {
            state: Some(state),
            ..PartitionUpdate::new(self.partition.slurm_name())
        }];
        let sent = self
            .send(deliver_partitions(channel, &update, &cluster.partitions))
            .await;
        self.poll().await;
        match sent {
            Delivery::Done => {
                report.line = report.line.take().map(|line| line.with_state(state.name()));
                // Then delete it.
                Some(Duration::ZERO)
            }
            Delivery::Refused(why) | Delivery::Unknown(why) | Delivery::NotUnderstood(why) => {
                self.note_unclear(&why, report);
                Some(TIMEOUT)
            }
        }
    }

    /// Deletes a closed partition once its jobs are known to have ended.
    async fn delete(&self, live: &LivePartition, report: &mut PartitionReport) -> Option<Duration> {
        let jobs = || {
            let (clusters, controller) = (Arc::clone(&self.context.clusters), self.controller.clone());
            async move {
                let knowledge = clusters.observe(&controller).await;
                let seen = knowledge.known().ok_or("Slurm cannot be reached through slurmrestd")?;
                seen.jobs.clone().ok_or_else(|| "they were not returned".to_owned())
            }
        };
        let closed_ones = [live];
        let released = release_partitions(&self.reached.channel, &closed_ones, jobs);
        let released = self.in_time(TIMEOUT * 2, Box::pin(released)).await;
        self.poll().await;
        let why = match released {
            Ok(Ok(())) => {
                info!(partition = %Key::of(self.partition), "deleted the partition of an external slurmctld");
                *report = PartitionReport::default();
                // Then remove the finalizer.
                return Some(Duration::ZERO);
            }
            Ok(Err(NotReleased { needed, .. })) => needed.into_iter().map(|needed| needed.why).collect::<Vec<_>>(),
            Err(why) => vec![why.to_owned()],
        };
        report.trouble = Some(Finding::blocking(reason::WAITS_FOR_JOBS, why.join("; ")));
        None
    }

    /// Sends the wanted values of these keys again.
    pub(in crate::partition) async fn restore(&self, keys: &[String]) -> Result<Restored, Error> {
        let not_now = |why: &str| Ok(Restored::none_of(keys, why));
        let Reached { cluster, channel, .. } = self.reached;
        let Some(line) = known_line(self.partition) else {
            return not_now("the last line sent to slurmctld is not known");
        };
        let others = cluster.lines.iter().filter(|(name, _)| *name != line.name);
        let others = others.map(|(name, settings)| (name.as_str(), settings.clone()));
        let own = (line.name.as_str(), settings_in(&line.whole()));
        let lines: Vec<(&str, Settings)> = others.chain([own]).collect();
        let restored = restore_partition(channel, &lines, &line.name, keys);
        let restored = self.in_time(TIMEOUT, restored).await;
        self.poll().await;
        match restored {
            Ok(Ok(Some(restored))) => Ok(restored),
            Ok(Ok(None)) => not_now("slurmctld does not have it"),
            Ok(Err(Failure::NotUnderstood(why))) => not_now(&why),
            Ok(Err(failure)) => Err(Error::other(failure)),
            Err(why) => not_now(why),
        }
    }

    /// Notes that the result of an order is not known.
    fn note_unclear(&self, why: &str, report: &mut PartitionReport) {
        report.waits = Some(format!("slurmctld at {}: {why}", self.reached.external.address));
        report.runs = false;
    }

    async fn send(&self, messages: impl Future<Output = Delivery>) -> Delivery {
        let sent = self.in_time(TIMEOUT, messages).await;
        sent.unwrap_or_else(|why| Delivery::Unknown(why.to_owned()))
    }

    /// A response must arrive before another process can become the leader.
    async fn in_time<T>(&self, limit: Duration, messages: impl Future<Output = T>) -> Result<T, &'static str> {
        let left = self.context.fence.remaining();
        let left = left.ok_or("this operator is no longer the leader")?;
        let answer = timeout(left.min(limit), messages).await;
        answer.map_err(|_| "slurmctld did not respond in time")
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
        let Key { namespace, name } = Key::of(self.partition);
        self.writer.patch::<Partition>(&namespace, &name, patch).await
    }

    /// Polls slurmctld. Through slurmrestd, the next reconcile does that.
    async fn poll(&self) {
        if let Channel::Rpc(_) = &self.reached.channel {
            self.reached.external.poll().await;
        }
    }
}

/// Creates it closed, reads it back, and opens it: until then it accepts no jobs, and can be deleted.
async fn create(channel: &Channel, wanted: &PartitionUpdate) -> Delivery {
    let closed = PartitionUpdate {
        state: Some(PartitionStateName::Inactive),
        ..wanted.clone()
    };
    match channel.create_partition(&closed).await.into() {
        Delivery::Done => {}
        other => return other,
    }
    match read_back_partitions(channel, &[closed]).await {
        Delivery::Done => {}
        Delivery::Refused(why) => {
            // If this fails, the partition stays closed, and the next poll finds it.
            drop(channel.delete_partition(&wanted.name).await);
            return Delivery::Refused(why);
        }
        other => return other,
    }
    let open = PartitionUpdate {
        state: wanted.state,
        ..PartitionUpdate::new(&wanted.name)
    };
    match channel.update_partition(&open).await.into() {
        Delivery::Done => read_back_partitions(channel, std::slice::from_ref(wanted)).await,
        other => other,
    }
}

/// Restores the former values after slurmctld rejected a part of an update.
async fn roll_back(channel: &Channel, updates: &[PartitionUpdate]) {
    for update in updates {
        if let Err(error) = channel.update_partition(update).await {
            warn!(partition = %update.name, %error, "cannot roll back an update");
        }
    }
}
