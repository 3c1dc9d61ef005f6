//! Partitions of an external slurmctld. The operator does not manage its files, so it sends the wanted values to the
//! running slurmctld ([`channel`]), and sends them again after a restart. A partition that the object did not create is
//! kept when the object is deleted.
//!
//! Planning is pure: [`plan`] decides, [`apply`] carries out.

pub(super) mod apply;
pub(super) mod channel;
mod create;
mod decide;
mod desired;
#[cfg(test)]
mod tests;

use std::time::Duration;

use api::{
    Partition,
    keys::{PARTITION_FINALIZER, annotations},
    partition::PartitionWay,
};
use jiff::Timestamp;
use kube::ResourceExt as _;
use slurm::{
    partition::PartitionStateName,
    rpc::{LivePartition, PartitionUpdate},
};

use self::{
    channel::{Channel, Reach, Reached},
    decide::{Decision, Removal, decide, decide_removal, plan_roll_back, sent_before},
    desired::{Desired, plan_desired},
};
use super::{memory::Memory, memory::RETRY, observe::Observed, rules::line::PartitionLine};
use crate::{
    cluster::partition_reports::{Change, PartitionReport},
    fault::Fault,
    partition::rules::{default::LAST_DEFAULT, names::find_rival},
    reason,
};

/// The poll interval of a slurmctld that is reached through slurmrestd: its cluster's task polls by RPC only.
const REST_INTERVAL: Duration = Duration::from_secs(15);

/// slurmrestd may return older values than were sent; drift is checked once it returns newer ones.
const COMPARE_AFTER: Duration = Duration::from_secs(10);

/// The plan for a Partition of an external slurmctld.
#[derive(Clone, Debug, Default)]
pub(super) struct ExternalPlan {
    /// The state of the Partition before the effect. `None` while it is not known.
    pub(super) report: Option<PartitionReport>,
    pub(super) effect: Option<ExternalEffect>,
    /// When to reconcile again without a change in Kubernetes.
    pub(super) again: Option<Duration>,
    /// Why the partition is kept in Slurm although the object is deleted.
    pub(super) stays: Option<String>,
}

/// An order for slurmctld.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExternalEffect {
    /// With the updates that undo it if slurmctld rejects a part.
    Update {
        updates: Vec<PartitionUpdate>,
        roll_back: Vec<PartitionUpdate>,
        /// The state of the Partition if it succeeds.
        live: Box<PartitionReport>,
    },
    Create {
        update: Box<PartitionUpdate>,
        live: Box<PartitionReport>,
    },
    /// Accept no new jobs.
    Close(PartitionStateName),
    /// Delete it once its jobs are known to have ended.
    Delete(Box<LivePartition>),
}

/// Plans a Partition of an external slurmctld.
pub(super) fn plan(observed: &Observed, reach: &Reach, memory: &Memory) -> ExternalPlan {
    let partition = observed.partition.as_ref();
    let is_leaving = partition.metadata.deletion_timestamp.is_some();
    if is_leaving && !partition.annotations().contains_key(annotations::PARTITION_MADE_AT) {
        return leave(partition);
    }
    let reached = match reach {
        Reach::Unpolled => return ExternalPlan::default(),
        Reach::Unreachable(why) => return report(waits(partition, why.clone())),
        Reach::Reached(reached) => reached,
    };
    let plan = if is_leaving {
        plan_removal(partition, reached)
    } else {
        plan_line(observed, reached, memory).unwrap_or_else(|fault| refuse(partition, fault))
    };
    let interval = matches!(reached.channel, Channel::Rest(_)).then_some(REST_INTERVAL);
    ExternalPlan {
        again: plan.again.into_iter().chain(interval).min(),
        ..plan
    }
}

fn plan_line(observed: &Observed, reached: &Reached, memory: &Memory) -> Result<ExternalPlan, Fault> {
    let partition = observed.partition.as_ref();
    let Reached { cluster, channel, .. } = reached;
    let (address, now) = (&reached.external.address, observed.now);
    if let Some(rival) = find_rival(partition, &observed.siblings) {
        return Err(rival);
    }
    let desired = plan_desired(partition, &observed.node_sets, cluster, address)?;
    let effect = match decide(partition, &desired, cluster, address, now) {
        Decision::Refuse(fault) => return Err(fault),
        Decision::Unchanged { manual_state, is_new } => {
            let change = if is_new {
                let at = now.max(sent_before(cluster));
                change(at, at, channel.way())
            } else {
                known_change(partition, now, channel.way())
            };
            return Ok(ExternalPlan {
                again: is_new.then_some(COMPARE_AFTER),
                ..report(PartitionReport {
                    manual_state,
                    ..live(desired, Some(change))
                })
            });
        }
        Decision::Update { updates, manual_state } => ExternalEffect::Update {
            updates,
            roll_back: cluster
                .partition(&desired.line.name)
                .map(|live| plan_roll_back(live, cluster))
                .unwrap_or_default(),
            live: Box::new(PartitionReport {
                manual_state,
                ..live(desired.clone(), None)
            }),
        },
        Decision::Create(update) => ExternalEffect::Create {
            update,
            live: Box::new(live(desired.clone(), None)),
        },
    };
    match memory.refusal_of(&desired.line, now) {
        Some(fault) => Err(fault),
        None => Ok(ExternalPlan {
            effect: Some(effect),
            ..report(PartitionReport {
                line: known_line(partition),
                ..PartitionReport::default()
            })
        }),
    }
}

fn plan_removal(partition: &Partition, reached: &Reached) -> ExternalPlan {
    let Reached { external, cluster, .. } = reached;
    let known = PartitionReport {
        line: known_line(partition),
        runs: true,
        ..PartitionReport::default()
    };
    let live = cluster.partition(&partition.slurm_name());
    match (decide_removal(partition, cluster, &external.address), live) {
        (Removal::Leave, _) => leave(partition),
        (Removal::Gone, _) | (_, None) => report(PartitionReport::default()),
        (Removal::LastDefault, _) => report(PartitionReport {
            trouble: Some(Fault::new(reason::LAST_DEFAULT, LAST_DEFAULT)),
            ..known
        }),
        (Removal::Close(state), _) => ExternalPlan {
            effect: Some(ExternalEffect::Close(state)),
            ..report(known)
        },
        (Removal::Delete, Some(live)) => ExternalPlan {
            effect: Some(ExternalEffect::Delete(Box::new(live.clone()))),
            ..report(closed(
                partition,
                live.state.name().unwrap_or(PartitionStateName::Drain),
            ))
        },
    }
}

fn report(report: PartitionReport) -> ExternalPlan {
    ExternalPlan {
        report: Some(report),
        ..ExternalPlan::default()
    }
}

/// The object did not create the partition, so it is kept.
fn leave(partition: &Partition) -> ExternalPlan {
    let has_finalizer = partition
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == PARTITION_FINALIZER);
    ExternalPlan {
        stays: has_finalizer.then(|| {
            format!(
                "partition {:?} is kept in Slurm, because this object did not create it; changed values last until slurmctld restarts or reads its files",
                partition.slurm_name()
            )
        }),
        ..report(PartitionReport::default())
    }
}

/// The Partition with its former line, and why the new one is rejected.
fn refuse(partition: &Partition, fault: Fault) -> ExternalPlan {
    ExternalPlan {
        again: Some(RETRY),
        ..report(refused(partition, fault))
    }
}

fn refused(partition: &Partition, fault: Fault) -> PartitionReport {
    PartitionReport {
        line: known_line(partition),
        trouble: Some(fault),
        ..PartitionReport::default()
    }
}

fn waits(partition: &Partition, why: String) -> PartitionReport {
    PartitionReport {
        line: known_line(partition),
        waits: Some(why),
        ..PartitionReport::default()
    }
}

fn closed(partition: &Partition, state: PartitionStateName) -> PartitionReport {
    PartitionReport {
        line: known_line(partition).map(|line| line.with_state(state.name())),
        runs: true,
        ..PartitionReport::default()
    }
}

fn live(desired: Desired, change: Option<Change>) -> PartitionReport {
    PartitionReport {
        line: Some(desired.line),
        runs: true,
        change,
        not_persistent: desired.not_persistent,
        ..PartitionReport::default()
    }
}

/// The last line sent.
fn known_line(partition: &Partition) -> Option<PartitionLine> {
    let status = partition.status.as_ref()?;
    let generation = status.applied.as_ref()?.generation;
    PartitionLine::read(status.line.as_deref()?, generation)
}

fn known_change(partition: &Partition, now: Timestamp, way: PartitionWay) -> Change {
    let status = partition.status.as_ref();
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

fn change(begin: Timestamp, end: Timestamp, way: PartitionWay) -> Change {
    let took = Duration::try_from(end.duration_since(begin)).unwrap_or_default();
    Change {
        sequence: None,
        at: end,
        way: Some(way),
        milliseconds: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    }
}
