//! From the settings of a PartitionName line to UPDATE_PARTITION: how each key is set in a running slurmctld, and how it is
//! removed, so that the partition is as if slurmctld had started with the line.
//!
//! Each row was tried on slurmctld 26.05.5: `scontrol --json` shows the same partition after the RPC as after a reconfigure with the
//! line, and after removing the key as with a line that never had it. Numbers in other forms (`0x10`, `4k`) are left to the file.

use std::collections::BTreeSet;
use std::fmt;

use super::words::{CPU_BINDS, NOT_SHARED, Names, PREEMPT_MODES};
use super::{PartitionFlag, PartitionUpdate};
use crate::conf::{Key, Settings};
use crate::partition::PartitionStateName;

/// Keys that only a reconfigure can set or remove in the running slurmctld.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotLive {
    pub keys: BTreeSet<Key>,
}

impl fmt::Display for NotLive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.keys.iter().map(Key::as_str).collect();
        write!(f, "only a reconfigure changes {}", keys.join(", "))
    }
}

/// Returns the update that changes a partition from the settings `old` to the settings `new`. Both include the settings of
/// `PartitionName=DEFAULT`.
pub fn plan_partition_update(name: &str, old: &Settings, new: &Settings) -> Result<PartitionUpdate, NotLive> {
    let keys: BTreeSet<&Key> = old.keys().chain(new.keys()).collect();
    let changed: BTreeSet<&Key> = keys
        .iter()
        .copied()
        .filter(|key| old.get(key) != new.get(key))
        .flat_map(|key| [Some(key), keys.iter().copied().find(|other| share_a_field(key, other))])
        .flatten()
        .collect();
    let (given, taken_out): (Vec<&Key>, Vec<&Key>) = changed.into_iter().partition(|key| new.contains_key(key));
    let mut update = PartitionUpdate::new(name);
    let mut not_live = BTreeSet::new();
    // Removed keys first: another key may set the same field.
    for key in taken_out {
        match find(key).and_then(|row| row.reset) {
            Some(reset) => reset(&mut update),
            None => drop(not_live.insert(key.clone())),
        }
    }
    for key in given {
        let value = new.get(key).map_or("", String::as_str);
        if find(key).and_then(|row| (row.set)(&mut update, value)).is_none() {
            not_live.insert(key.clone());
        }
    }
    if not_live.is_empty() {
        Ok(update)
    } else {
        Err(NotLive { keys: not_live })
    }
}

/// Returns the update that gives any partition these settings. Keys that the line lacks get Slurm's default, as far as an RPC can
/// set it.
pub fn plan_partition(name: &str, settings: &Settings) -> Result<PartitionUpdate, NotLive> {
    let resettable = ROWS.iter().filter(|row| row.reset.is_some());
    let anything = resettable
        .map(|row| (Key::new(row.key), NOT_A_VALUE.to_owned()))
        .collect();
    plan_partition_update(name, &anything, settings)
}

/// A value that no line can have.
const NOT_A_VALUE: &str = "\0";

/// Whether two keys are sent in one field, so that one alone would remove the other.
fn share_a_field(one: &Key, other: &Key) -> bool {
    let pair = ["DefCPUPerGPU", "DefMemPerGPU"];
    one != other && pair.iter().any(|key| *one == **key) && pair.iter().any(|key| *other == **key)
}

struct Row {
    key: &'static str,
    /// Returns `None` if an RPC cannot set the value.
    set: fn(&mut PartitionUpdate, &str) -> Option<()>,
    /// Sets the field to the value without the key. `None` if an RPC cannot.
    reset: Option<fn(&mut PartitionUpdate)>,
}

fn find(key: &Key) -> Option<&'static Row> {
    ROWS.iter().find(|row| *key == *row.key)
}

/// A text field; an empty text removes the key.
macro_rules! text {
    ($key:literal, $field:ident) => {
        Row {
            reset: Some(|update| update.$field = Some(String::new())),
            ..permanent_text!($key, $field)
        }
    };
}

/// A text field that an RPC cannot remove.
macro_rules! permanent_text {
    ($key:literal, $field:ident) => {
        Row {
            key: $key,
            set: |update, value| Some(update.$field = Some(text(value)?)),
            reset: None,
        }
    };
}

/// A field that `$read` parses.
macro_rules! field {
    ($key:literal, $field:ident, $read:expr) => {
        Row {
            key: $key,
            set: |update, value| Some(update.$field = Some($read(value)?)),
            reset: None,
        }
    };
    ($key:literal, $field:ident, $read:expr, without: $default:expr) => {
        Row {
            reset: Some(|update| update.$field = Some($default)),
            ..field!($key, $field, $read)
        }
    };
}

macro_rules! job_default {
    ($key:literal) => {
        Row {
            key: $key,
            set: |update, value| job_default(update, $key, value),
            reset: Some(|update| {
                update.job_defaults.get_or_insert_default();
            }),
        }
    };
}

macro_rules! flag {
    ($key:literal, $flag:path) => {
        Row {
            key: $key,
            set: |update, value| Some(update.flags.push($flag(yes_or_no(value)?))),
            reset: Some(|update| update.flags.push($flag(false))),
        }
    };
}

const UNLIMITED: u32 = PartitionUpdate::UNLIMITED;

const ROWS: &[Row] = &[
    field!("AllowAccounts", allow_accounts, accounts, without: String::new()),
    text!("AllowGroups", allow_groups),
    permanent_text!("AllowQos", allow_qos),
    text!("Alternate", alternate),
    field!("CpuBind", cpu_bind, cpu_bind, without: CPU_BIND_OFF),
    flag!("Default", PartitionFlag::Default),
    field!("DefaultTime", default_time, minutes),
    job_default!("DefCPUPerGPU"),
    field!("DefMemPerCPU", default_memory, memory_per_cpu, without: 0),
    job_default!("DefMemPerGPU"),
    field!("DefMemPerNode", default_memory, memory_per_node, without: 0),
    field!("DenyAccounts", deny_accounts, accounts, without: String::new()),
    permanent_text!("DenyQos", deny_qos),
    flag!("DisableRootJobs", PartitionFlag::DisableRootJobs),
    flag!("ExclusiveUser", PartitionFlag::ExclusiveUser),
    field!("GraceTime", grace_time, number, without: 0),
    flag!("Hidden", PartitionFlag::Hidden),
    flag!("LLN", PartitionFlag::Lln),
    field!("MaxCPUsPerNode", max_cpus_per_node, count, without: UNLIMITED),
    field!("MaxCPUsPerSocket", max_cpus_per_socket, count, without: UNLIMITED),
    field!("MaxMemPerCPU", max_memory, memory_per_cpu, without: 0),
    field!("MaxMemPerNode", max_memory, memory_per_node, without: 0),
    field!("MaxNodes", max_nodes, count, without: UNLIMITED),
    field!("MaxTime", max_time, minutes, without: UNLIMITED),
    field!("MinNodes", min_nodes, number, without: 0),
    field!("Nodes", nodes, nodes, without: String::new()),
    field!("OverSubscribe", max_share, max_share, without: NOT_SHARED),
    field!("OverTimeLimit", over_time_limit, over_time_limit),
    flag!("PowerDownOnIdle", PartitionFlag::PowerDownOnIdle),
    // Without the key the mode of the cluster applies, for which there is no value.
    field!("PreemptMode", preempt_mode, preempt_mode),
    Row {
        key: "Priority",
        set: |update, value| {
            update.priority_tier = Some(number(value)?);
            update.priority_job_factor = Some(number(value)?);
            Some(())
        },
        reset: Some(|update| {
            update.priority_tier = Some(1);
            update.priority_job_factor = Some(1);
        }),
    },
    field!("PriorityJobFactor", priority_job_factor, number, without: 1),
    field!("PriorityTier", priority_tier, number, without: 1),
    permanent_text!("QOS", qos),
    flag!("ReqResv", PartitionFlag::ReqResv),
    flag!("RootOnly", PartitionFlag::RootOnly),
    field!("Shared", max_share, max_share, without: NOT_SHARED),
    field!("State", state, state, without: PartitionStateName::Up),
    permanent_text!("Topology", topology),
    text!("TRESBillingWeights", billing_weights),
];

/// An empty value has another meaning by RPC (none) than in the file (for some keys, everything).
fn text(value: &str) -> Option<String> {
    (!value.is_empty() && !has_operator(value)).then(|| value.to_owned())
}

/// Slurm converts them when it reads its file, and does not by RPC (measured).
fn accounts(value: &str) -> Option<String> {
    text(value).map(|accounts| accounts.to_ascii_lowercase())
}

/// The RPC would take a leading sign for an addition or a removal.
fn nodes(value: &str) -> Option<String> {
    text(value).filter(|nodes| !nodes.starts_with(['+', '-']))
}

/// Whether the value is that of `Nodes+=a`, which is `+=a`.
fn has_operator(value: &str) -> bool {
    value.get(1..).is_some_and(|rest| rest.starts_with('=')) && value.starts_with(['+', '-', '*', '/'])
}

/// The two greatest numbers mean "unset" and "no limit", and are rejected.
fn number<T: TryFrom<u64>>(value: &str) -> Option<T> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = digits.then(|| value.parse().ok())??;
    let bits = 8 * u32::try_from(size_of::<T>()).ok()?;
    let first_special = u64::MAX.checked_shr(64 - bits)?.checked_sub(1)?;
    (number < first_special).then(|| T::try_from(number).ok())?
}

fn is_unlimited(value: &str) -> bool {
    value.eq_ignore_ascii_case("UNLIMITED") || value.eq_ignore_ascii_case("INFINITE")
}

fn limit<T: TryFrom<u64>>(value: &str, unlimited: T) -> Option<T> {
    if is_unlimited(value) {
        Some(unlimited)
    } else {
        number(value)
    }
}

fn count(value: &str) -> Option<u32> {
    limit(value, UNLIMITED)
}

/// Minutes, `minutes:seconds`, `hours:minutes:seconds`, `days-hours[:minutes[:seconds]]`. Seconds are rounded up to a minute.
fn minutes(value: &str) -> Option<u32> {
    if is_unlimited(value) || value == "-1" {
        return Some(UNLIMITED);
    }
    let (days, clock) = match value.split_once('-') {
        Some((days, clock)) => (Some(number::<u32>(days)?), clock),
        None => (None, value),
    };
    let parts: Vec<u32> = clock.split(':').map(number).collect::<Option<_>>()?;
    let [hours, minutes, seconds] = match (days, parts.as_slice()) {
        (Some(_), [hours]) => [*hours, 0, 0],
        (Some(_), [hours, minutes]) => [*hours, *minutes, 0],
        (None, [minutes]) => [0, *minutes, 0],
        (None, [minutes, seconds]) => [0, *minutes, *seconds],
        (_, [hours, minutes, seconds]) => [*hours, *minutes, *seconds],
        _ => return None,
    };
    let hours = u64::from(days.unwrap_or_default()) * 24 + u64::from(hours);
    let minutes = hours * 60 + u64::from(minutes) + u64::from(seconds).div_ceil(60);
    u32::try_from(minutes).ok().filter(|minutes| *minutes < UNLIMITED - 1)
}

fn memory_per_node(value: &str) -> Option<u64> {
    number(value).filter(|megabytes| *megabytes < PartitionUpdate::MEMORY_PER_CPU)
}

fn memory_per_cpu(value: &str) -> Option<u64> {
    let megabytes = memory_per_node(value)?;
    // Slurm would show 0 per CPU as 0 per node.
    (megabytes > 0).then_some(megabytes | PartitionUpdate::MEMORY_PER_CPU)
}

fn job_default(update: &mut PartitionUpdate, key: &str, value: &str) -> Option<()> {
    let setting = format!("{key}={}", number::<u64>(value)?);
    let all = match update.job_defaults.take() {
        Some(others) if !others.is_empty() => format!("{others},{setting}"),
        _ => setting,
    };
    update.job_defaults = Some(all);
    Some(())
}

fn yes_or_no(value: &str) -> Option<bool> {
    match value.to_ascii_uppercase().as_str() {
        "YES" | "UP" | "TRUE" | "1" => Some(true),
        "NO" | "DOWN" | "FALSE" | "0" => Some(false),
        _ => None,
    }
}

pub(super) const CPU_BIND_OFF: u32 = 0x8_0000;

/// `off` is left to the file: by RPC it means that the key is not set.
fn cpu_bind(value: &str) -> Option<u32> {
    find_word(value, &CPU_BINDS).filter(|bind| *bind != CPU_BIND_OFF)
}

fn find_word<T: Copy>(value: &str, names: &[Names<T>]) -> Option<T> {
    let known = names.iter().find(|(word, ..)| value.eq_ignore_ascii_case(word));
    known.map(|(.., number)| *number)
}

fn max_share(value: &str) -> Option<u16> {
    let value = value.to_ascii_uppercase();
    let (word, jobs) = match value.split_once(':') {
        Some((word, jobs)) => (word, Some(number::<u16>(jobs)?)),
        None => (value.as_str(), None),
    };
    // The default of YES and FORCE.
    let shared_by = jobs.unwrap_or(4);
    match word {
        "NO" if jobs.is_none() => Some(NOT_SHARED),
        "EXCLUSIVE" if jobs.is_none() => Some(0),
        _ if !(1..PartitionUpdate::SHARE_FORCED).contains(&shared_by) => None,
        "YES" => Some(shared_by),
        "FORCE" => Some(shared_by | PartitionUpdate::SHARE_FORCED),
        _ => None,
    }
}

fn over_time_limit(value: &str) -> Option<u16> {
    limit(value, u16::MAX)
}

/// slurmctld ignores other values.
fn preempt_mode(value: &str) -> Option<u16> {
    find_word(value, &PREEMPT_MODES)
}

fn state(value: &str) -> Option<PartitionStateName> {
    PartitionStateName::from_name(&value.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::conf::keys::{Needs, Place};
    use crate::conf::{Document, RecordKind};

    fn settings(line: &str) -> Settings {
        let document = Document::parse(&format!("PartitionName=p {line}"));
        let mut partitions = document.effective(RecordKind::Partition);
        partitions.remove(0).1
    }

    fn plan(old: &str, new: &str) -> Result<PartitionUpdate, Vec<String>> {
        plan_partition_update("p", &settings(old), &settings(new))
            .map_err(|NotLive { keys }| keys.iter().map(ToString::to_string).collect())
    }

    fn update(change: impl FnOnce(&mut PartitionUpdate)) -> PartitionUpdate {
        let mut update = PartitionUpdate::new("p");
        change(&mut update);
        update
    }

    type Change = fn(&mut PartitionUpdate);

    #[test]
    fn the_rows_are_those_of_the_list_of_keys() {
        let keys = Place::Record(RecordKind::Partition).keys().unwrap();
        let live = |needs: fn(&crate::conf::keys::KeySpec) -> Needs| -> Vec<&str> {
            let live = keys.iter().filter(|spec| needs(spec) == Needs::PartitionRpc);
            live.map(|spec| spec.name).collect()
        };
        let rows: Vec<&str> = ROWS.iter().map(|row| row.key).collect();
        assert_eq!(rows, live(|spec| spec.needs));
        let resets: Vec<&str> = ROWS
            .iter()
            .filter(|row| row.reset.is_some())
            .map(|row| row.key)
            .collect();
        assert_eq!(resets, live(|spec| spec.needs_when_removed));
    }

    #[test]
    fn unchanged_keys_are_not_sent() {
        let line = "Nodes=a MaxTime=60 AllocNodes=x Hidden=YES";
        assert_eq!(plan(line, line), Ok(PartitionUpdate::new("p")));
        assert_eq!(
            plan("Nodes=a MaxTime=60", "Nodes=a MaxTime=90"),
            Ok(update(|update| update.max_time = Some(90)))
        );
    }

    #[test]
    fn values_are_converted_to_slurms_units() {
        let per_cpu = PartitionUpdate::MEMORY_PER_CPU;
        let cases: &[(&str, Change)] = &[
            ("MaxTime=1-12", |u| u.max_time = Some(36 * 60)),
            ("MaxTime=1-0:30", |u| u.max_time = Some(24 * 60 + 30)),
            ("MaxTime=7-00:00:01", |u| u.max_time = Some(7 * 24 * 60 + 1)),
            ("MaxTime=2:00:00", |u| u.max_time = Some(120)),
            ("MaxTime=90:00", |u| u.max_time = Some(90)),
            ("MaxTime=infinite", |u| u.max_time = Some(u32::MAX)),
            ("DefaultTime=-1", |u| u.default_time = Some(u32::MAX)),
            ("MaxNodes=UNLIMITED", |u| u.max_nodes = Some(u32::MAX)),
            ("MinNodes=3", |u| u.min_nodes = Some(3)),
            ("OverSubscribe=NO", |u| u.max_share = Some(1)),
            ("OverSubscribe=EXCLUSIVE", |u| u.max_share = Some(0)),
            ("OverSubscribe=yes", |u| u.max_share = Some(4)),
            ("Shared=FORCE:2", |u| u.max_share = Some(0x8002)),
            ("OverTimeLimit=UNLIMITED", |u| u.over_time_limit = Some(u16::MAX)),
            ("PreemptMode=requeue", |u| u.preempt_mode = Some(2)),
            ("State=drain", |u| u.state = Some(PartitionStateName::Drain)),
            ("Default=YES", |u| u.flags = vec![PartitionFlag::Default(true)]),
            ("RootOnly=no", |u| u.flags = vec![PartitionFlag::RootOnly(false)]),
            ("CpuBind=core", |u| u.cpu_bind = Some(4)),
            ("AllowAccounts=a,B", |u| u.allow_accounts = Some("a,b".to_owned())),
            ("QOS=q", |u| u.qos = Some("q".to_owned())),
        ];
        for (line, change) in cases {
            assert_eq!(plan("", line), Ok(update(change)), "{line}");
        }
        assert_eq!(
            plan("", "DefMemPerCPU=100 MaxMemPerNode=200"),
            Ok(update(|u| {
                u.default_memory = Some(per_cpu + 100);
                u.max_memory = Some(200);
            }))
        );
        assert_eq!(
            plan("", "Priority=7"),
            Ok(update(|u| (u.priority_tier, u.priority_job_factor) = (Some(7), Some(7))))
        );
    }

    #[test]
    fn a_removed_key_gets_slurms_default() {
        let cases: &[(&str, Change)] = &[
            ("MaxTime=60", |u| u.max_time = Some(u32::MAX)),
            ("MinNodes=2", |u| u.min_nodes = Some(0)),
            ("PriorityTier=9", |u| u.priority_tier = Some(1)),
            ("AllowAccounts=a", |u| u.allow_accounts = Some(String::new())),
            ("CpuBind=core", |u| u.cpu_bind = Some(0x8_0000)),
            ("OverSubscribe=FORCE", |u| u.max_share = Some(1)),
            ("MaxMemPerCPU=5", |u| u.max_memory = Some(0)),
            ("State=DOWN", |u| u.state = Some(PartitionStateName::Up)),
            ("Hidden=YES", |u| u.flags = vec![PartitionFlag::Hidden(false)]),
            ("DefCPUPerGPU=2", |u| u.job_defaults = Some(String::new())),
        ];
        for (line, change) in cases {
            assert_eq!(plan(line, ""), Ok(update(change)), "{line}");
        }
    }

    #[test]
    fn a_whole_line_sets_every_field() {
        let planned = plan_partition("p", &settings("Nodes=a MaxTime=60 PriorityTier=3 Hidden=YES")).unwrap();
        assert_eq!(planned.nodes.as_deref(), Some("a"));
        assert_eq!(planned.max_time, Some(60));
        assert_eq!((planned.priority_tier, planned.priority_job_factor), (Some(3), Some(1)));
        assert_eq!(planned.max_nodes, Some(u32::MAX));
        assert_eq!(planned.allow_accounts.as_deref(), Some(""));
        assert!(planned.flags.contains(&PartitionFlag::Hidden(true)));
        assert!(!planned.flags.contains(&PartitionFlag::Hidden(false)));
        assert!(planned.flags.contains(&PartitionFlag::RootOnly(false)));
        assert_eq!(
            (planned.default_time, planned.preempt_mode),
            (None, None),
            "an RPC cannot reset them"
        );
        assert_eq!(planned.state, Some(PartitionStateName::Up));
    }

    #[test]
    fn a_new_key_takes_precedence_over_the_removed_one_of_its_field() {
        assert_eq!(
            plan("DefMemPerCPU=5", "DefMemPerNode=7"),
            Ok(update(|u| u.default_memory = Some(7)))
        );
        assert_eq!(
            plan("Shared=YES", "OverSubscribe=EXCLUSIVE"),
            Ok(update(|u| u.max_share = Some(0)))
        );
    }

    #[test]
    fn keys_of_one_field_are_sent_together() {
        let said = |text: &str| Ok(update(|u| u.job_defaults = Some(text.to_owned())));
        let both = "DefCPUPerGPU=2 DefMemPerGPU=100";
        assert_eq!(
            plan(both, "DefCPUPerGPU=2 DefMemPerGPU=200"),
            said("DefCPUPerGPU=2,DefMemPerGPU=200")
        );
        assert_eq!(plan(both, "DefMemPerGPU=100"), said("DefMemPerGPU=100"));
        assert_eq!(plan(both, ""), said(""));
    }

    #[test]
    fn keys_that_need_a_reconfigure_are_named() {
        for (old, new, keys) in [
            ("", "AllocNodes=a", &["AllocNodes"][..]),
            ("DefaultTime=5", "", &["DefaultTime"]),
            ("QOS=q", "", &["QOS"]),
            ("PreemptMode=OFF", "", &["PreemptMode"]),
            ("", "PreemptMode=GANG", &["PreemptMode"]),
            (
                "",
                "Exclusive=NODE SuspendTime=5 MaxTime=5",
                &["Exclusive", "SuspendTime"],
            ),
            ("", "ExclusiveTopo=YES", &["ExclusiveTopo"]),
            ("", "Unheard=of", &["Unheard"]),
            // Values that are valid in the file, and that an RPC cannot set or would misread.
            ("", "Nodes=+a", &["Nodes"]),
            ("", "CpuBind=off", &["CpuBind"]),
            ("", "Nodes+=a", &["Nodes"]),
            ("", "AllowAccounts=\"\"", &["AllowAccounts"]),
            ("", "MaxNodes=0x10", &["MaxNodes"]),
            ("", "MaxNodes=4294967294", &["MaxNodes"]),
            ("", "PriorityTier=65534", &["PriorityTier"]),
            ("", "MaxTime=1-", &["MaxTime"]),
            ("", "MaxTime=4000000-0", &["MaxTime"]),
            ("", "OverSubscribe=YES:0", &["OverSubscribe"]),
            ("", "State=ODD", &["State"]),
            ("", "Hidden=maybe", &["Hidden"]),
        ] {
            let named: Vec<String> = keys.iter().map(ToString::to_string).collect();
            assert_eq!(plan(old, new), Err(named), "{old:?} to {new:?}");
        }
    }

    proptest! {
        #[test]
        fn no_value_panics(key in prop::sample::select(ROWS.iter().map(|row| row.key).collect::<Vec<_>>()), value in "[-+0-9a-zA-Z:=.é]{0,24}") {
            let mut new = Settings::new();
            new.insert(Key::new(key), value);
            let _ = plan_partition_update("p", &Settings::new(), &new);
            let _ = plan_partition_update("p", &new, &Settings::new());
        }
    }
}
