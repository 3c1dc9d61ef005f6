//! Sends planned orders to an external slurmctld.

use std::{sync::Arc, time::Duration};

use api::{Partition, keys::annotations};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::json;
use slurm::{
    agent::Restored,
    conf::Settings,
    partition::PartitionStateName,
    rpc::{
        Delivery, Failure, LivePartition, NotReleased, PartitionUpdate, deliver_partitions, release_partitions,
        restore_partition,
    },
};
use tokio::time::timeout;
use tracing::info;

use super::{
    COMPARE_AFTER, ExternalEffect, change,
    channel::{Channel, Reached},
    closed,
    create::{create, roll_back},
    known_line, refused, waits,
};
use crate::{
    cluster::partition_reports::PartitionReport,
    fault::Fault,
    partition::{
        memory::{RETRY, Refusal},
        rules::line::settings_in,
    },
    reason,
    runtime::{Context, Error, Key, Writer},
};

/// For all orders of one effect.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The state of the Partition after an effect.
#[derive(Debug, Default)]
pub(in crate::partition) struct Done {
    pub(in crate::partition) report: PartitionReport,
    /// When to reconcile again without a change in Kubernetes.
    pub(in crate::partition) again: Option<Duration>,
    pub(in crate::partition) refusal: Option<Refusal>,
}

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
    /// Carries out an effect. Returns errors of Kubernetes only.
    pub(in crate::partition) async fn apply(&self, effect: &ExternalEffect) -> Result<Done, Error> {
        let partition = Key::of(self.partition);
        let Reached {
            external,
            cluster,
            channel,
            ..
        } = self.reached;
        let slurmctld = &external.address;
        let begin = self.context.clock.now();
        match effect {
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
                let sent = self.send(async {
                    let sent = deliver_partitions(channel, updates, &cluster.partitions).await;
                    if let Delivery::Refused(_) = &sent {
                        roll_back(channel, back).await;
                    }
                    sent
                });
                let sent = sent.await;
                Ok(self.conclude(sent, live, begin).await)
            }
            ExternalEffect::Create { update, live } => {
                // Recorded before it is created, so that a new leader knows that this object created it.
                self.note_made(Some(slurmctld)).await?;
                info!(%partition, %slurmctld, way = ?channel.way(), "creating a partition in an external slurmctld");
                let sent = self.send(create(channel, update)).await;
                if matches!(sent, Delivery::Refused(_)) {
                    self.note_made(None).await?;
                }
                Ok(self.conclude(sent, live, begin).await)
            }
            ExternalEffect::Close(state) => {
                info!(%partition, %slurmctld, %state, "closing a partition of an external slurmctld");
                Ok(self.close(*state).await)
            }
            ExternalEffect::Delete(live) => Ok(self.delete(live).await),
        }
    }

    async fn conclude(&self, sent: Delivery, live: &PartitionReport, begin: Timestamp) -> Done {
        let Reached { external, channel, .. } = self.reached;
        let now = self.context.clock.now();
        self.poll().await;
        let refuse = |message: String| Fault::new(reason::CONFIG_REJECTED, message);
        let sent_line = live.line.clone();
        match sent {
            Delivery::Done => Done {
                report: PartitionReport {
                    change: Some(change(begin, now, channel.way())),
                    ..live.clone()
                },
                again: Some(COMPARE_AFTER),
                refusal: None,
            },
            Delivery::Refused(why) => {
                let fault = refuse(format!(
                    "slurmctld at {} rejects it: {why}; the previous values are in force; correct the spec",
                    external.address
                ));
                Done {
                    refusal: sent_line.map(|line| Refusal {
                        line,
                        at: now,
                        fault: fault.clone(),
                    }),
                    report: refused(self.partition, fault),
                    again: Some(RETRY),
                }
            }
            Delivery::NotUnderstood(why) => {
                let text = sent_line.map(|line| line.whole()).unwrap_or_default();
                let fault = refuse(format!(
                    "this cannot be sent to slurmctld at {}: {why}; write {text} into the slurm.conf there and reconfigure, or remove it from the spec",
                    external.address
                ));
                Done {
                    report: refused(self.partition, fault),
                    again: Some(RETRY),
                    refusal: None,
                }
            }
            Delivery::Unknown(why) => self.unclear(&why),
        }
    }

    async fn close(&self, state: PartitionStateName) -> Done {
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
            Delivery::Done => Done {
                report: closed(self.partition, state),
                // Then delete it.
                again: Some(Duration::ZERO),
                refusal: None,
            },
            Delivery::Refused(why) | Delivery::Unknown(why) | Delivery::NotUnderstood(why) => self.unclear(&why),
        }
    }

    /// Deletes a closed partition once its jobs are known to have ended.
    async fn delete(&self, live: &LivePartition) -> Done {
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
                return Done {
                    // Then remove the finalizer.
                    again: Some(Duration::ZERO),
                    ..Done::default()
                };
            }
            Ok(Err(NotReleased { needed, .. })) => needed.into_iter().map(|needed| needed.why).collect::<Vec<_>>(),
            Err(why) => vec![why.to_owned()],
        };
        let state = live.state.name().unwrap_or(PartitionStateName::Drain);
        Done {
            report: PartitionReport {
                trouble: Some(Fault::new(reason::WAITS_FOR_JOBS, why.join("; "))),
                ..closed(self.partition, state)
            },
            ..Done::default()
        }
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

    fn unclear(&self, why: &str) -> Done {
        let why = format!("slurmctld at {}: {why}", self.reached.external.address);
        Done {
            report: waits(self.partition, why),
            again: Some(TIMEOUT),
            refusal: None,
        }
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
        self.writer.patch::<Partition>(&namespace, &name, patch).await.map(drop)
    }

    /// Polls slurmctld. Through slurmrestd, the next reconcile does that.
    async fn poll(&self) {
        if let Channel::Rpc(_) = &self.reached.channel {
            self.reached.external.poll().await;
        }
    }
}
