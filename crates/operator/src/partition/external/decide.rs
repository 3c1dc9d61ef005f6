//! Decides about a Partition in an external slurmctld. Pure.

use std::time::Duration;

use api::{Partition, keys::annotations, partition::DriftPolicy};
use jiff::Timestamp;
use kube::ResourceExt as _;
use slurm::{
    conf::{Key, Settings},
    partition::PartitionStateName,
    rpc::{LivePartition, PartitionFlag, PartitionUpdate},
};

use super::desired::Desired;
use crate::{
    cluster::external::ExternalCluster,
    fault::Fault,
    partition::{
        drift::kept_since,
        rules::{
            closing::{closing_state, is_closed},
            line::{settings_in, strictness},
            manual_state::{ManualState, Policy},
        },
    },
    reason,
};

/// Slurm reports its boot time and the current time in whole seconds.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);

/// The decision about a Partition that is not deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// slurmctld has the desired line, apart from manual changes.
    Unchanged {
        manual_state: Option<ManualState>,
        /// The desired line or the slurmctld has just changed.
        is_new: bool,
    },
    Update {
        updates: Vec<PartitionUpdate>,
        manual_state: Option<ManualState>,
    },
    Create(Box<PartitionUpdate>),
    Refuse(Fault),
}

/// The decision about a deleted Partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// The object did not create it, or the slurm.conf there contains it.
    Leave,
    Gone,
    /// Jobs without a partition would be rejected.
    LastDefault,
    Close(PartitionStateName),
    /// It accepts no new jobs.
    Delete,
}

pub(super) fn decide(
    partition: &Partition,
    desired: &Desired,
    cluster: &ExternalCluster,
    address: &str,
    now: Timestamp,
) -> Decision {
    let Some(live) = cluster.partition(&desired.line.name) else {
        return decide_missing(desired, cluster, address);
    };
    let policy = partition.spec.drift_policy();
    let status = partition.status.as_ref();
    let applied = status.and_then(|status| status.applied.as_ref());
    let known_line = status
        .filter(|_| applied.is_some())
        .and_then(|status| status.line.as_deref());
    let is_new = applied.map(|applied| applied.generation) != partition.metadata.generation
        || known_line != Some(desired.line.whole().as_str());
    let applied_at = applied.and_then(|applied| applied.time.instant());
    let has_restarted = applied_at.is_some_and(|at| at < sent_before(cluster));
    let is_lost = has_restarted && policy != DriftPolicy::Report;
    let is_all = is_new || is_lost;
    let mut update = if is_all {
        desired.update.clone()
    } else {
        PartitionUpdate::new(&desired.line.name)
    };
    let wanted = &desired.line.state;
    let state = live
        .state
        .name()
        .map(|state| state.name().to_owned())
        .unwrap_or_default();
    let mut manual_state = None;
    if strictness(&state) > strictness(wanted) {
        let known_since = kept_since(partition, &state);
        let in_file = cluster
            .line(&desired.line.name)
            .and_then(|line| line.get(&Key::new("State")));
        let is_of_file = in_file.is_some_and(|in_file| in_file.eq_ignore_ascii_case(&state));
        let found = ManualState {
            // An object for an already closed partition does not open it: the API server sets its state by default.
            wanted: known_line.and_then(state_in).unwrap_or_else(|| wanted.clone()),
            since: known_since.clone().unwrap_or_else(|| format!("{now:.3}")),
            state,
        };
        let opens =
            found.is_lifted(wanted, &Policy::of(Some(partition))) || (is_lost && is_of_file && known_since.is_none());
        update.state = opens.then(|| PartitionStateName::from_name(wanted)).flatten();
        manual_state = (!opens).then_some(found);
    }
    if update.differences(live).is_empty() {
        Decision::Unchanged {
            manual_state,
            is_new: is_new || has_restarted,
        }
    } else {
        let updates = return_default(update, live, cluster);
        Decision::Update { updates, manual_state }
    }
}

/// Orders before this time may have been lost.
pub(super) fn sent_before(cluster: &ExternalCluster) -> Timestamp {
    let latest = cluster.booted_at.checked_add(MAX_CLOCK_SKEW);
    latest.unwrap_or(cluster.booted_at)
}

fn decide_missing(desired: &Desired, cluster: &ExternalCluster, address: &str) -> Decision {
    let name = &desired.line.name;
    if cluster.keeps_partitions {
        let state = PartitionStateName::from_name(&desired.line.state);
        return Decision::Create(Box::new(PartitionUpdate {
            state,
            ..desired.update.clone()
        }));
    }
    let remedy = if cluster.line(name).is_some() {
        format!("its slurm.conf has PartitionName={name}, so run `scontrol reconfigure` there")
    } else {
        format!(
            "add the line {} to the slurm.conf there and run `scontrol reconfigure`",
            desired.line.whole()
        )
    };
    Decision::Refuse(Fault::new(
        reason::CANNOT_CREATE,
        format!(
            "slurmctld at {address} has no partition {name:?}, and one that is created there would be lost, with its jobs, when it restarts or reads its files (it has no ReconfigFlags=KeepPartInfo); {remedy}"
        ),
    ))
}

fn state_in(line: &str) -> Option<String> {
    settings_in(line).get(&Key::new("State")).cloned()
}

/// Whether the object created it in this slurmctld.
pub(super) fn is_made_there(partition: &Partition, address: &str) -> bool {
    let made_at = partition.annotations().get(annotations::PARTITION_MADE_AT);
    made_at.is_some_and(|made_at| made_at == address)
}

pub(super) fn decide_removal(partition: &Partition, cluster: &ExternalCluster, address: &str) -> Removal {
    let name = partition.slurm_name();
    if !is_made_there(partition, address) || cluster.line(&name).is_some() {
        return Removal::Leave;
    }
    let Some(live) = cluster.partition(&name) else {
        return Removal::Gone;
    };
    if live.has(PartitionFlag::Default(true)) {
        return Removal::LastDefault;
    }
    match live.state.name().map(PartitionStateName::name) {
        Some(state) if is_closed(state) => Removal::Delete,
        // An unknown state may be a stopped one.
        state => {
            let closing = closing_state(state.unwrap_or("DOWN"));
            Removal::Close(PartitionStateName::from_name(closing).unwrap_or(PartitionStateName::Inactive))
        }
    }
}

/// The updates that restore the former values if slurmctld rejects a part of an update.
pub(super) fn plan_roll_back(live: &LivePartition, cluster: &ExternalCluster) -> Vec<PartitionUpdate> {
    let default = cluster
        .partitions
        .iter()
        .find(|partition| partition.has(PartitionFlag::Default(true)));
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
    let is_default = |line: &Settings| {
        let value = line.get(&Key::new("Default"));
        value.is_some_and(|value| value.eq_ignore_ascii_case("YES"))
    };
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
