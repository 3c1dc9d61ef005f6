//! Partitions of an external slurmctld. The operator does not manage its files, so it sends the wanted values to the
//! running slurmctld ([`channel`]), and sends them again after a restart. A partition that the object did not create is
//! kept when the object is deleted.
//!
//! Planning is pure: [`plan`] decides, [`apply`] carries out.

pub(super) mod apply;
pub(super) mod channel;
mod desired;
#[cfg(test)]
mod tests;

use std::time::Duration;

use api::{
    Partition,
    keys::annotations,
    partition::{DriftPolicy, PartitionWay},
};
use jiff::Timestamp;
use kube::ResourceExt as _;
use slurm::{
    conf::{Key, Settings},
    partition::PartitionStateName,
    rpc::{LivePartition, PartitionFlag, PartitionUpdate},
};

use self::{
    channel::{Channel, Reach, Reached},
    desired::{Desired, plan_desired},
};
use super::{
    drift::kept_since,
    observe::Observed,
    plan::{Effect, Plan, has_finalizer},
    rules::{
        closing::{closing_state, is_closed},
        default::{LAST_DEFAULT, is_yes},
        line::{PartitionLine, settings_in, strictness},
        manual_state::ManualState,
        names::find_rival,
    },
};
use crate::{
    cluster::{
        external::ExternalCluster,
        partition_reports::{Change, PartitionReport},
    },
    finding::Finding,
    reason,
};

/// When a rejected line is sent again: its nodes may have been added in the meantime.
const RETRY: Duration = Duration::from_mins(1);

/// The poll interval of a slurmctld that is reached through slurmrestd: its cluster's task polls by RPC only.
const REST_INTERVAL: Duration = Duration::from_secs(15);

/// slurmrestd may return older values than were sent; drift is checked once it returns newer ones.
const COMPARE_AFTER: Duration = Duration::from_secs(10);

/// Slurm reports its boot time and the current time in whole seconds.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);

/// A line that slurmctld rejected.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    line: PartitionLine,
    at: Timestamp,
    fault: Finding,
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
pub(super) fn plan(observed: &Observed, reach: &Reach, refusal: Option<&Refusal>) -> Plan {
    let partition = observed.partition.as_ref();
    let is_leaving = partition.metadata.deletion_timestamp.is_some();
    if is_leaving && !partition.annotations().contains_key(annotations::PARTITION_MADE_AT) {
        return leave(partition);
    }
    let reached = match reach {
        Reach::Unpolled => return Plan::default(),
        Reach::Unreachable(why) => {
            return report(PartitionReport {
                waits: Some(why.clone()),
                ..known(partition)
            });
        }
        Reach::Reached(reached) => reached,
    };
    let plan = if is_leaving {
        decide_removal(partition, &reached.cluster, &reached.external.address)
    } else {
        // The Partition keeps its former line.
        plan_line(observed, reached, refusal).unwrap_or_else(|fault| Plan {
            again: Some(RETRY),
            ..report(PartitionReport {
                trouble: Some(fault),
                ..known(partition)
            })
        })
    };
    let interval = matches!(reached.channel, Channel::Rest(_)).then_some(REST_INTERVAL);
    Plan {
        again: plan.again.into_iter().chain(interval).min(),
        ..plan
    }
}

fn plan_line(observed: &Observed, reached: &Reached, refusal: Option<&Refusal>) -> Result<Plan, Finding> {
    let partition = observed.partition.as_ref();
    let Reached { cluster, channel, .. } = reached;
    let (address, now) = (&reached.external.address, observed.now);
    if let Some(rival) = find_rival(partition, &observed.siblings) {
        return Err(rival);
    }
    let desired = plan_desired(partition, &observed.node_sets, cluster, address)?;
    let plan = decide(partition, &desired, cluster, address, channel.way(), now)?;
    let is_in_force = |refusal: &&Refusal| {
        let age = Duration::try_from(now.duration_since(refusal.at)).unwrap_or_default();
        !plan.effects.is_empty() && refusal.line == desired.line && age < RETRY
    };
    match refusal.filter(is_in_force) {
        Some(refusal) => Err(refusal.fault.clone()),
        None => Ok(plan),
    }
}

/// Decides about a Partition that is not deleted.
fn decide(
    partition: &Partition,
    desired: &Desired,
    cluster: &ExternalCluster,
    address: &str,
    way: PartitionWay,
    now: Timestamp,
) -> Result<Plan, Finding> {
    let Desired { line, update, .. } = desired;
    let mut result = PartitionReport {
        line: Some(line.clone()),
        runs: true,
        not_persistent: desired.not_persistent.clone(),
        ..PartitionReport::default()
    };
    let send = |effect| Plan {
        effects: vec![Effect::External(effect)],
        ..report(known(partition))
    };
    let Some(live) = cluster.partition(&line.name) else {
        check_creation(desired, cluster, address)?;
        let update = PartitionUpdate {
            state: PartitionStateName::from_name(&line.state),
            ..update.clone()
        };
        return Ok(send(ExternalEffect::Create {
            update: Box::new(update),
            live: Box::new(result),
        }));
    };
    let policy = partition.spec.drift_policy();
    let applied = partition.status.as_ref().and_then(|status| status.applied.as_ref());
    let known_line = sent_line(partition);
    let is_new = applied.map(|applied| applied.generation) != partition.metadata.generation
        || known_line != Some(line.whole().as_str());
    // Orders before this time may have been lost.
    let sent_before = cluster
        .booted_at
        .checked_add(MAX_CLOCK_SKEW)
        .unwrap_or(cluster.booted_at);
    let applied_at = applied.and_then(|applied| applied.time.instant());
    let has_restarted = applied_at.is_some_and(|at| at < sent_before);
    let is_lost = has_restarted && policy != DriftPolicy::Report;
    let mut update = if is_new || is_lost {
        update.clone()
    } else {
        PartitionUpdate::new(&line.name)
    };
    let state = live.state.name().map_or("", PartitionStateName::name).to_owned();
    if strictness(&state) > strictness(&line.state) {
        let known_since = kept_since(partition, &state);
        let state_of = |settings: &Settings| settings.get(&Key::new("State")).cloned();
        let in_file = cluster.line(&line.name).and_then(state_of);
        let is_of_file = in_file.is_some_and(|in_file| in_file.eq_ignore_ascii_case(&state));
        let before = known_line.and_then(|line| state_of(&settings_in(line)));
        let found = ManualState {
            // An object for an already closed partition does not open it: the API server sets its state by default.
            wanted: before.unwrap_or_else(|| line.state.clone()),
            since: known_since.clone().unwrap_or_else(|| format!("{now:.3}")),
            state,
        };
        let opens = found.is_lifted(&line.state, Some(partition)) || (is_lost && is_of_file && known_since.is_none());
        update.state = opens.then(|| PartitionStateName::from_name(&line.state)).flatten();
        result.manual_state = (!opens).then_some(found);
    }
    if !update.differences(live).is_empty() {
        return Ok(send(ExternalEffect::Update {
            updates: return_default(update, live, cluster),
            roll_back: plan_roll_back(live, cluster),
            live: Box::new(result),
        }));
    }
    let has_changed = is_new || has_restarted;
    let known = applied.filter(|_| !has_changed);
    result.change = Some(Change {
        sequence: None,
        at: known.map_or(now.max(sent_before), |applied| applied.time.instant().unwrap_or(now)),
        way: Some(known.map_or(way, |applied| applied.way.clone())),
        milliseconds: known
            .and_then(|applied| u64::try_from(applied.milliseconds?).ok())
            .unwrap_or_default(),
    });
    Ok(Plan {
        again: has_changed.then_some(COMPARE_AFTER),
        ..report(result)
    })
}

/// Checks whether a partition that is created in this slurmctld is kept.
fn check_creation(desired: &Desired, cluster: &ExternalCluster, address: &str) -> Result<(), Finding> {
    if cluster.keeps_partitions {
        return Ok(());
    }
    let name = &desired.line.name;
    let remedy = if cluster.line(name).is_some() {
        format!("its slurm.conf has PartitionName={name}, so run `scontrol reconfigure` there")
    } else {
        format!(
            "add the line {} to the slurm.conf there and run `scontrol reconfigure`",
            desired.line.whole()
        )
    };
    Err(Finding::blocking(
        reason::CANNOT_CREATE,
        format!(
            "slurmctld at {address} has no partition {name:?}, and one that is created there would be lost, with its jobs, when it restarts or reads its files (it has no ReconfigFlags=KeepPartInfo); {remedy}"
        ),
    ))
}

/// Decides about a deleted Partition.
fn decide_removal(partition: &Partition, cluster: &ExternalCluster, address: &str) -> Plan {
    let name = partition.slurm_name();
    let made_at = partition.annotations().get(annotations::PARTITION_MADE_AT);
    // The object did not create it there, or the slurm.conf there contains it.
    if made_at.is_none_or(|made_at| made_at != address) || cluster.line(&name).is_some() {
        return leave(partition);
    }
    let Some(live) = cluster.partition(&name) else {
        return report(PartitionReport::default());
    };
    let mut result = PartitionReport {
        runs: true,
        ..known(partition)
    };
    if live.has(PartitionFlag::Default(true)) {
        result.trouble = Some(Finding::blocking(reason::LAST_DEFAULT, LAST_DEFAULT));
        return report(result);
    }
    let effect = match live.state.name().map(PartitionStateName::name) {
        Some(state) if is_closed(state) => {
            result.line = result.line.map(|line| line.with_state(state));
            ExternalEffect::Delete(Box::new(live.clone()))
        }
        // An unknown state may be a stopped one.
        state => {
            let closing = closing_state(state.unwrap_or("DOWN"));
            ExternalEffect::Close(PartitionStateName::from_name(closing).unwrap_or(PartitionStateName::Inactive))
        }
    };
    Plan {
        effects: vec![Effect::External(effect)],
        ..report(result)
    }
}

/// The updates that restore the former values if slurmctld rejects a part of an update.
fn plan_roll_back(live: &LivePartition, cluster: &ExternalCluster) -> Vec<PartitionUpdate> {
    let mut partitions = cluster.partitions.iter();
    let default = partitions.find(|partition| partition.has(PartitionFlag::Default(true)));
    let default = default.map(|partition| make_default(&partition.name));
    [live.to_update()].into_iter().chain(default).collect()
}

fn make_default(name: &str) -> PartitionUpdate {
    PartitionUpdate {
        flags: vec![PartitionFlag::Default(true)],
        ..PartitionUpdate::new(name)
    }
}

/// Returns the default to the partition that had it before this object.
fn return_default(
    mut update: PartitionUpdate,
    live: &LivePartition,
    cluster: &ExternalCluster,
) -> Vec<PartitionUpdate> {
    let is_default = |line: &Settings| line.get(&Key::new("Default")).is_some_and(|value| is_yes(value));
    let mut lines = cluster.lines.iter();
    let other = lines.find(|(name, line)| *name != live.name && is_default(line) && cluster.partition(name).is_some());
    let gives_up = update.flags.contains(&PartitionFlag::Default(false)) && live.has(PartitionFlag::Default(true));
    match other.filter(|_| gives_up) {
        None => vec![update],
        Some((other, _)) => {
            update.flags.retain(|flag| *flag != PartitionFlag::Default(false));
            vec![update, make_default(other)]
        }
    }
}

fn report(report: PartitionReport) -> Plan {
    Plan {
        report: Some(report),
        ..Plan::default()
    }
}

/// The object did not create the partition, so it is kept.
fn leave(partition: &Partition) -> Plan {
    let why = format!(
        "partition {:?} is kept in Slurm, because this object did not create it; changed values last until slurmctld restarts or reads its files",
        partition.slurm_name()
    );
    let tell = has_finalizer(partition).then_some(Effect::TellKept(why));
    Plan {
        effects: Vec::from_iter(tell),
        ..report(PartitionReport::default())
    }
}

/// The Partition with the last line sent.
fn known(partition: &Partition) -> PartitionReport {
    PartitionReport {
        line: known_line(partition),
        ..PartitionReport::default()
    }
}

fn known_line(partition: &Partition) -> Option<PartitionLine> {
    let generation = partition.status.as_ref()?.applied.as_ref()?.generation;
    PartitionLine::read(sent_line(partition)?, generation)
}

/// The text of the last line sent.
fn sent_line(partition: &Partition) -> Option<&str> {
    let status = partition.status.as_ref().filter(|status| status.applied.is_some())?;
    status.line.as_deref()
}
