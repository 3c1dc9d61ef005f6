//! CREATE_PARTITION and UPDATE_PARTITION, which have the same body, DELETE_PARTITION, and what slurmctld has; and the same by
//! other ways ([`PartitionCommands`]).

mod commands;
mod difference;
mod json;
mod line;
mod live;
mod release;
mod restore;
mod scontrol;
mod settings;
mod tell;

use super::version::Version;
use super::wire::{Malformed, Reader, UNSET_U16, UNSET_U32, UNSET_U64, Unpackable, Writer};
use crate::partition::PartitionStateName;

pub use commands::{Failure, PartitionCommands};
pub use difference::Difference;
pub use json::Incomparable;
pub(crate) use json::{CPU_BINDS, PREEMPT_MODES};
pub(crate) use line::over_subscribe;
pub use live::{JobDefault, LivePartition, LiveState, pack_partitions};
pub(super) use live::{VERSION as LIVE_VERSION, pack_question, unpack_partitions};
pub use release::{NotReleased, StillNeeded, release_partitions};
pub use restore::restore_partition;
pub use settings::{NotLive, plan_partition, plan_partition_update};
pub use tell::{Told, read_back_partitions, settle_partitions};

/// A partition to be made or changed. What is not set stays as it is, or as Slurm makes it by default.
///
/// Numbers are as Slurm has them: minutes, megabytes, and the greatest of their kind for "no limit".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionUpdate {
    pub name: String,
    /// A hostlist or the names of node sets.
    pub nodes: Option<String>,
    pub state: Option<PartitionStateName>,
    /// Those to be set and those to be taken away.
    pub flags: Vec<PartitionFlag>,
    pub allow_accounts: Option<String>,
    pub allow_groups: Option<String>,
    pub allow_qos: Option<String>,
    pub deny_accounts: Option<String>,
    pub deny_qos: Option<String>,
    pub alternate: Option<String>,
    pub billing_weights: Option<String>,
    pub cpu_bind: Option<u32>,
    /// Per node, or per CPU with [`Self::MEMORY_PER_CPU`] in it.
    pub default_memory: Option<u64>,
    pub max_memory: Option<u64>,
    pub default_time: Option<u32>,
    pub max_time: Option<u32>,
    /// DefCPUPerGPU and DefMemPerGPU.
    pub job_defaults: Option<String>,
    pub grace_time: Option<u32>,
    pub max_cpus_per_node: Option<u32>,
    pub max_cpus_per_socket: Option<u32>,
    pub max_nodes: Option<u32>,
    pub min_nodes: Option<u32>,
    /// OverSubscribe: how many jobs share, with [`Self::SHARE_FORCED`] in it for FORCE; 0 is EXCLUSIVE.
    pub max_share: Option<u16>,
    pub over_time_limit: Option<u16>,
    pub preempt_mode: Option<u16>,
    pub priority_job_factor: Option<u16>,
    pub priority_tier: Option<u16>,
    pub qos: Option<String>,
    /// Slurm 25.05 and later.
    pub topology: Option<String>,
}

/// What a partition is or is not. As Slurm keeps them: a bit to set each, and another one to take it away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartitionFlag {
    Default(bool),
    Hidden(bool),
    DisableRootJobs(bool),
    RootOnly(bool),
    ReqResv(bool),
    Lln(bool),
    ExclusiveUser(bool),
    PowerDownOnIdle(bool),
}

impl PartitionFlag {
    const ALL: [Self; 8] = [
        Self::Default(true),
        Self::Hidden(true),
        Self::DisableRootJobs(true),
        Self::RootOnly(true),
        Self::ReqResv(true),
        Self::Lln(true),
        Self::ExclusiveUser(true),
        Self::PowerDownOnIdle(true),
    ];

    /// As in slurm.conf.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Default(_) => "Default",
            Self::Hidden(_) => "Hidden",
            Self::DisableRootJobs(_) => "DisableRootJobs",
            Self::RootOnly(_) => "RootOnly",
            Self::ReqResv(_) => "ReqResv",
            Self::Lln(_) => "LLN",
            Self::ExclusiveUser(_) => "ExclusiveUser",
            Self::PowerDownOnIdle(_) => "PowerDownOnIdle",
        }
    }

    /// Whether it is set, and the bit for that.
    const fn parts(self) -> (bool, u32) {
        match self {
            Self::Default(is_set) => (is_set, 0x1),
            Self::Hidden(is_set) => (is_set, 0x2),
            Self::DisableRootJobs(is_set) => (is_set, 0x4),
            Self::RootOnly(is_set) => (is_set, 0x8),
            Self::ReqResv(is_set) => (is_set, 0x10),
            Self::Lln(is_set) => (is_set, 0x20),
            Self::ExclusiveUser(is_set) => (is_set, 0x40),
            Self::PowerDownOnIdle(is_set) => (is_set, 0x80),
        }
    }

    pub(crate) const fn is_set(self) -> bool {
        self.parts().0
    }

    /// The one that takes a flag away is eight further up.
    const fn bit(self) -> u32 {
        let (is_set, bit) = self.parts();
        if is_set { bit } else { bit << 8 }
    }

    const fn not(self) -> Self {
        match self {
            Self::Default(is_set) => Self::Default(!is_set),
            Self::Hidden(is_set) => Self::Hidden(!is_set),
            Self::DisableRootJobs(is_set) => Self::DisableRootJobs(!is_set),
            Self::RootOnly(is_set) => Self::RootOnly(!is_set),
            Self::ReqResv(is_set) => Self::ReqResv(!is_set),
            Self::Lln(is_set) => Self::Lln(!is_set),
            Self::ExclusiveUser(is_set) => Self::ExclusiveUser(!is_set),
            Self::PowerDownOnIdle(is_set) => Self::PowerDownOnIdle(!is_set),
        }
    }
}

impl PartitionUpdate {
    pub const MEMORY_PER_CPU: u64 = 1 << 63;
    pub const SHARE_FORCED: u16 = 0x8000;
    /// For times, counts of nodes and of CPUs.
    pub const UNLIMITED: u32 = u32::MAX;

    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    pub(super) fn pack(&self, version: Version) -> Result<Vec<u8>, Unpackable> {
        let Self {
            name,
            nodes,
            state,
            flags,
            allow_accounts,
            allow_groups,
            allow_qos,
            deny_accounts,
            deny_qos,
            alternate,
            billing_weights,
            cpu_bind,
            default_memory,
            max_memory,
            default_time,
            max_time,
            job_defaults,
            grace_time,
            max_cpus_per_node,
            max_cpus_per_socket,
            max_nodes,
            min_nodes,
            max_share,
            over_time_limit,
            preempt_mode,
            priority_job_factor,
            priority_tier,
            qos,
            topology,
        } = self;
        let mut body = Writer::default();
        body.str(allow_accounts.as_deref())?;
        // AllocNodes: slurmctld passes over it (measured).
        body.str(None)?;
        body.str(allow_groups.as_deref())?;
        body.str(allow_qos.as_deref())?;
        body.str(alternate.as_deref())?;
        body.str(billing_weights.as_deref())?;
        body.u32(cpu_bind.unwrap_or(0));
        body.u64(default_memory.unwrap_or(UNSET_U64));
        body.u32(default_time.unwrap_or(UNSET_U32));
        body.str(deny_accounts.as_deref())?;
        body.str(deny_qos.as_deref())?;
        body.u32(flags.iter().fold(0, |bits, flag| bits | flag.bit()));
        body.str(job_defaults.as_deref())?;
        body.u32(grace_time.unwrap_or(UNSET_U32));
        body.u32(max_cpus_per_node.unwrap_or(UNSET_U32));
        body.u32(max_cpus_per_socket.unwrap_or(UNSET_U32));
        body.u64(max_memory.unwrap_or(UNSET_U64));
        body.u32(max_nodes.unwrap_or(UNSET_U32));
        body.u16(max_share.unwrap_or(UNSET_U16));
        body.u32(max_time.unwrap_or(UNSET_U32));
        body.u32(min_nodes.unwrap_or(UNSET_U32));
        body.str(Some(name))?;
        body.str(nodes.as_deref())?;
        body.u16(over_time_limit.unwrap_or(UNSET_U16));
        body.u16(preempt_mode.unwrap_or(UNSET_U16));
        body.u16(priority_job_factor.unwrap_or(UNSET_U16));
        body.u16(priority_tier.unwrap_or(UNSET_U16));
        body.str(qos.as_deref())?;
        body.u16(state.map_or(UNSET_U16, state_number));
        if version >= Version::V43 {
            body.str(topology.as_deref())?;
        } else if topology.is_some() {
            return Err(Unpackable::Lacking("topology of a partition"));
        }
        Ok(body.into_bytes())
    }

    /// What was said, for whoever plays slurmctld.
    pub fn unpack(version: u16, body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let reader = &mut reader;
        let mut update = Self {
            allow_accounts: text(reader)?,
            ..Self::default()
        };
        let _alloc_nodes = text(reader)?;
        update.allow_groups = text(reader)?;
        update.allow_qos = text(reader)?;
        update.alternate = text(reader)?;
        update.billing_weights = text(reader)?;
        update.cpu_bind = Some(reader.u32()?).filter(|value| *value != 0);
        update.default_memory = set(reader.u64()?, UNSET_U64);
        update.default_time = set(reader.u32()?, UNSET_U32);
        update.deny_accounts = text(reader)?;
        update.deny_qos = text(reader)?;
        let flags = reader.u32()?;
        update.flags = PartitionFlag::ALL
            .into_iter()
            .flat_map(|flag| [flag, flag.not()])
            .filter(|flag| flags & flag.bit() != 0)
            .collect();
        update.job_defaults = text(reader)?;
        update.grace_time = set(reader.u32()?, UNSET_U32);
        update.max_cpus_per_node = set(reader.u32()?, UNSET_U32);
        update.max_cpus_per_socket = set(reader.u32()?, UNSET_U32);
        update.max_memory = set(reader.u64()?, UNSET_U64);
        update.max_nodes = set(reader.u32()?, UNSET_U32);
        update.max_share = set(reader.u16()?, UNSET_U16);
        update.max_time = set(reader.u32()?, UNSET_U32);
        update.min_nodes = set(reader.u32()?, UNSET_U32);
        update.name = text(reader)?.unwrap_or_default();
        update.nodes = text(reader)?;
        update.over_time_limit = set(reader.u16()?, UNSET_U16);
        update.preempt_mode = set(reader.u16()?, UNSET_U16);
        update.priority_job_factor = set(reader.u16()?, UNSET_U16);
        update.priority_tier = set(reader.u16()?, UNSET_U16);
        update.qos = text(reader)?;
        update.state = LiveState(reader.u16()?).name();
        if version >= Version::V43.wire() {
            update.topology = text(reader)?;
        }
        Ok(update)
    }
}

fn set<T: Copy + PartialEq>(value: T, unset: T) -> Option<T> {
    (value != unset).then_some(value)
}

fn text(reader: &mut Reader<'_>) -> Result<Option<String>, Malformed> {
    let text = reader.text()?;
    Ok(text.map(|text| String::from_utf8_lossy(text).into_owned()))
}

/// The name that DELETE_PARTITION gives, for whoever plays slurmctld.
pub fn unpack_partition_name(body: &[u8]) -> Result<String, Malformed> {
    Ok(text(&mut Reader::new(body))?.unwrap_or_default())
}

pub(super) fn pack_name(name: &str) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.str(Some(name))?;
    Ok(body.into_bytes())
}

/// One bit for "jobs may be submitted", one for "jobs may start".
const fn state_number(state: PartitionStateName) -> u16 {
    match state {
        PartitionStateName::Inactive => 0,
        PartitionStateName::Down => 1,
        PartitionStateName::Drain => 2,
        PartitionStateName::Up => 3,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_update_that_changes_nothing_says_so_in_every_field() {
        let body = PartitionUpdate::new("p").pack(Version::V42).unwrap();
        let none = [0; 4];
        let (unset_u16, unset_u32) = ([0xff, 0xfe], [0xff, 0xff, 0xff, 0xfe]);
        let unset_u64 = [[0xff; 4], unset_u32].concat();
        let expected = [
            &none.repeat(6)[..],
            &[0; 4],
            &unset_u64,
            &unset_u32,
            &none.repeat(2),
            &[0; 4],
            &none,
            &unset_u32.repeat(3),
            &unset_u64,
            &unset_u32,
            &unset_u16,
            &unset_u32.repeat(2),
            b"\0\0\0\x02p\0",
            &none,
            &unset_u16.repeat(4),
            &none,
            &unset_u16,
        ]
        .concat();
        assert_eq!(body, expected);
        let later = PartitionUpdate::new("p").pack(Version::V43).unwrap();
        assert_eq!(later, [&expected[..], &none].concat());
    }

    proptest! {
        #[test]
        fn what_was_said_is_understood(
            texts in prop::collection::vec(prop::option::of("[^\\x00]{0,8}"), 12),
            numbers in prop::collection::vec(prop::option::of(0..1000_u32), 8),
            small in prop::collection::vec(prop::option::of(0..1000_u16), 5),
            memory in any::<Option<u32>>(),
            flags in prop::sample::subsequence(PartitionFlag::ALL.to_vec(), 0..8),
        ) {
            let text = |at: usize| texts[at].clone();
            let update = PartitionUpdate {
                name: "p".to_owned(),
                nodes: text(0),
                state: Some(PartitionStateName::Drain),
                flags,
                allow_accounts: text(1),
                allow_groups: text(2),
                allow_qos: text(3),
                deny_accounts: text(4),
                deny_qos: text(5),
                alternate: text(6),
                billing_weights: text(7),
                cpu_bind: Some(4),
                default_memory: memory.map(u64::from),
                max_memory: memory.map(u64::from),
                default_time: numbers[0],
                max_time: numbers[1],
                job_defaults: text(8),
                grace_time: numbers[2],
                max_cpus_per_node: numbers[3],
                max_cpus_per_socket: numbers[4],
                max_nodes: numbers[5],
                min_nodes: numbers[6],
                max_share: small[0],
                over_time_limit: small[1],
                preempt_mode: small[2],
                priority_job_factor: small[3],
                priority_tier: small[4],
                qos: text(9),
                topology: text(10),
            };
            let body = update.pack(Version::V45).unwrap();
            prop_assert_eq!(PartitionUpdate::unpack(Version::V45.wire(), &body), Ok(update));
            for end in 0..body.len() {
                prop_assert_eq!(PartitionUpdate::unpack(Version::V45.wire(), &body[..end]), Err(Malformed::Truncated));
            }
        }
    }

    #[test]
    fn a_flag_is_set_or_taken_away() {
        let update = PartitionUpdate {
            flags: vec![PartitionFlag::Default(true), PartitionFlag::Hidden(false)],
            ..PartitionUpdate::new("p")
        };
        let body = update.pack(Version::V42).unwrap();
        assert_eq!(body[48..52], [0, 0, 2, 1]);
    }

    #[test]
    fn a_field_that_the_release_has_not_is_not_dropped_in_silence() {
        let update = PartitionUpdate {
            topology: Some("block".to_owned()),
            ..PartitionUpdate::new("p")
        };
        assert_eq!(
            update.pack(Version::V42),
            Err(Unpackable::Lacking("topology of a partition"))
        );
        assert!(update.pack(Version::V43).is_ok());
    }
}
