//! What is to be done about a Partition in a slurmctld outside Kubernetes. Pure.

use std::time::Duration;

use api::{Partition, keys::annotations, partition::DriftPolicy};
use jiff::Timestamp;
use kube::ResourceExt as _;
use slurm::{
    conf::{Key, Settings},
    partition::PartitionStateName,
    rpc::{LivePartition, PartitionFlag, PartitionUpdate},
};

use super::wish::Wish;
use crate::{
    cluster::external::ExternalCluster,
    fault::Fault,
    partition::{
        drift::kept_since,
        plan::reason::CANNOT_CREATE,
        rules::{
            line::{settings_in, strictness},
            manual_state::ManualState,
        },
    },
};

/// Slurm counts its boot in whole seconds, and so does it tell the time.
const CLOCKS_DIFFER: Duration = Duration::from_secs(2);

/// What is to be done about one that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// slurmctld has it, but for what people changed there.
    Rest {
        kept: Option<ManualState>,
        /// Since just now: it is another wish, or another slurmctld.
        is_news: bool,
    },
    Update {
        updates: Vec<PartitionUpdate>,
        kept: Option<ManualState>,
    },
    Create(Box<PartitionUpdate>),
    Refuse(Fault),
}

/// What is to be done about one that was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    /// Others made it, or wrote it into their file.
    Leave,
    Gone,
    /// Jobs that name no partition would have no place.
    LastDefault,
    Close(PartitionStateName),
    /// It takes no new jobs.
    Release,
}

pub(super) fn decide(
    partition: &Partition,
    wish: &Wish,
    cluster: &ExternalCluster,
    address: &str,
    now: Timestamp,
) -> Decision {
    let Some(live) = cluster.partition(&wish.line.name) else {
        return decide_missing(wish, cluster, address);
    };
    let policy = partition.spec.drift_policy();
    let status = partition.status.as_ref();
    let applied = status.and_then(|status| status.applied.as_ref());
    let known_line = status
        .filter(|_| applied.is_some())
        .and_then(|status| status.line.as_deref());
    let is_new = applied.map(|applied| applied.generation) != partition.metadata.generation
        || known_line != Some(wish.line.whole().as_str());
    let applied_at = applied.and_then(|applied| applied.time.instant());
    let has_started_anew = applied_at.is_some_and(|at| at < told_after(cluster));
    let is_lost = has_started_anew && policy != DriftPolicy::Report;
    let is_all = is_new || is_lost;
    let mut update = if is_all {
        wish.update.clone()
    } else {
        PartitionUpdate::new(&wish.line.name)
    };
    let wanted = &wish.line.state;
    let state = live.state.name();
    let word = state.map(|state| state.name().to_owned()).unwrap_or_default();
    let mut kept = None;
    if strictness(&word) > strictness(wanted) {
        let known_since = kept_since(partition, &word);
        let was_kept = known_since.is_some();
        let since = known_since.unwrap_or_else(|| format!("{now:.3}"));
        // An object that comes to a closed partition does not open it: the API server gives it a state if nobody else does.
        let is_wish_new = known_line.and_then(state_in).is_some_and(|before| before != *wanted);
        let in_file = cluster
            .line(&wish.line.name)
            .and_then(|line| line.get(&Key::new("State")));
        let is_of_file = in_file.is_some_and(|in_file| in_file.eq_ignore_ascii_case(&word));
        let opens = policy == DriftPolicy::RevertAll
            || is_wish_new
            || is_resumed(partition, &since)
            || (is_lost && is_of_file && !was_kept);
        update.state = opens.then(|| PartitionStateName::from_name(wanted)).flatten();
        kept = (!opens).then(|| ManualState {
            state: word,
            wanted: wanted.clone(),
            since,
        });
    }
    if update.differences(live).is_empty() {
        let is_news = is_new || has_started_anew;
        Decision::Rest { kept, is_news }
    } else {
        let updates = hand_back_default(update, live, cluster);
        Decision::Update { updates, kept }
    }
}

/// What was told before this time may have been forgotten.
pub(super) fn told_after(cluster: &ExternalCluster) -> Timestamp {
    let latest = cluster.booted_at.checked_add(CLOCKS_DIFFER);
    latest.unwrap_or(cluster.booted_at)
}

fn decide_missing(wish: &Wish, cluster: &ExternalCluster, address: &str) -> Decision {
    let name = &wish.line.name;
    if cluster.keeps_partitions {
        let state = PartitionStateName::from_name(&wish.line.state);
        return Decision::Create(Box::new(PartitionUpdate {
            state,
            ..wish.update.clone()
        }));
    }
    let remedy = if cluster.line(name).is_some() {
        format!("its slurm.conf has PartitionName={name}, so have it read by `scontrol reconfigure` there")
    } else {
        format!(
            "add the line {} to the slurm.conf there and run `scontrol reconfigure`",
            wish.line.whole()
        )
    };
    Decision::Refuse(Fault::new(
        CANNOT_CREATE,
        format!(
            "slurmctld at {address} has no partition {name:?}, and one that is made there would be lost, with its jobs, when it starts anew or reads its files (it has no ReconfigFlags=KeepPartInfo); {remedy}"
        ),
    ))
}

fn state_in(line: &str) -> Option<String> {
    settings_in(line).get(&Key::new("State")).cloned()
}

/// Whether somebody asked that it is open again after it was closed.
fn is_resumed(partition: &Partition, since: &str) -> bool {
    let resumed = partition.annotations().get(annotations::RESUMED_AT);
    let resumed = resumed.and_then(|time| time.parse::<Timestamp>().ok());
    resumed > since.parse().ok()
}

/// Whether the object had it made in this slurmctld.
pub(super) fn is_made_there(partition: &Partition, address: &str) -> bool {
    let made_at = partition.annotations().get(annotations::PARTITION_MADE_AT);
    made_at.is_some_and(|made_at| made_at == address)
}

pub(super) fn decide_farewell(partition: &Partition, cluster: &ExternalCluster, address: &str) -> Farewell {
    let name = partition.slurm_name();
    if !is_made_there(partition, address) || cluster.line(&name).is_some() {
        return Farewell::Leave;
    }
    let Some(live) = cluster.partition(&name) else {
        return Farewell::Gone;
    };
    if live.has(PartitionFlag::Default(true)) {
        return Farewell::LastDefault;
    }
    match live.state.name() {
        Some(PartitionStateName::Drain | PartitionStateName::Inactive) => Farewell::Release,
        // What was stopped by hand is not started to be emptied.
        Some(PartitionStateName::Down) | None => Farewell::Close(PartitionStateName::Inactive),
        Some(PartitionStateName::Up) => Farewell::Close(PartitionStateName::Drain),
    }
}

/// How it was, for when slurmctld does not take all of an update.
pub(super) fn plan_way_back(live: &LivePartition, cluster: &ExternalCluster) -> Vec<PartitionUpdate> {
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

/// Who made one the default took that from another, which gets it back.
fn hand_back_default(
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
