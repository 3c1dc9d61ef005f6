//! CREATE_PARTITION and UPDATE_PARTITION, which have the same body, DELETE_PARTITION and PARTITION_INFO; and the same commands by
//! other channels ([`PartitionCommands`]).

mod commands;
mod deliver;
mod difference;
mod json;
mod live;
mod release;
mod restore;
mod settings;
mod words;

use super::version::Version;
use super::wire::{Field, Fields, Malformed, Reader, UNSET_U16, Unpackable, Writer};
use crate::partition::PartitionStateName;

pub use commands::{Failure, PartitionCommands};
pub use deliver::{Delivery, deliver_partitions, read_back_partitions};
pub use difference::Difference;
pub use json::Incomparable;
pub use live::{JobDefault, LivePartition, LiveState, pack_partitions};
pub(super) use live::{VERSION as LIVE_VERSION, pack_request, unpack_partitions};
pub use release::{NotReleased, StillNeeded, release_partitions};
pub use restore::restore_partition;
pub use settings::{NotLive, plan_partition, plan_partition_update};
pub(crate) use words::{CPU_BINDS, Names, PREEMPT_MODES, over_subscribe};

/// A partition to create or change. Fields that are not set stay unchanged, or get Slurm's default.
///
/// Numbers have Slurm's units: minutes and megabytes. The greatest number of a type means "no limit".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionUpdate {
    pub name: String,
    /// A hostlist or the names of node sets.
    pub nodes: Option<String>,
    pub state: Option<PartitionStateName>,
    /// The flags to set and those to clear.
    pub flags: Vec<PartitionFlag>,
    pub allow_accounts: Option<String>,
    pub allow_groups: Option<String>,
    pub allow_qos: Option<String>,
    pub deny_accounts: Option<String>,
    pub deny_qos: Option<String>,
    pub alternate: Option<String>,
    pub billing_weights: Option<String>,
    pub cpu_bind: Option<u32>,
    /// Per node, or per CPU if the bit [`Self::MEMORY_PER_CPU`] is set.
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
    /// OverSubscribe: how many jobs share a resource; the bit [`Self::SHARE_FORCED`] means FORCE, and 0 means EXCLUSIVE.
    pub max_share: Option<u16>,
    pub over_time_limit: Option<u16>,
    pub preempt_mode: Option<u16>,
    pub priority_job_factor: Option<u16>,
    pub priority_tier: Option<u16>,
    pub qos: Option<String>,
    /// Slurm 25.05 and later.
    pub topology: Option<String>,
}

/// A flag that is to be set or cleared. Slurm has one bit for each.
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
    const CONSTRUCTORS: [fn(bool) -> Self; 8] = [
        Self::Default,
        Self::Hidden,
        Self::DisableRootJobs,
        Self::RootOnly,
        Self::ReqResv,
        Self::Lln,
        Self::ExclusiveUser,
        Self::PowerDownOnIdle,
    ];

    /// All flags, set.
    fn all() -> impl Iterator<Item = Self> {
        Self::CONSTRUCTORS.into_iter().map(|flag| flag(true))
    }

    /// Whether it is set, its bit in a partition, its key in slurm.conf, and its name in slurmrestd's JSON.
    const fn parts(self) -> (bool, u32, &'static str, &'static str) {
        match self {
            Self::Default(is_set) => (is_set, 0x1, "Default", "DEFAULT"),
            Self::Hidden(is_set) => (is_set, 0x2, "Hidden", "HIDDEN"),
            Self::DisableRootJobs(is_set) => (is_set, 0x4, "DisableRootJobs", "NO_ROOT"),
            Self::RootOnly(is_set) => (is_set, 0x8, "RootOnly", "ROOT_ONLY"),
            Self::ReqResv(is_set) => (is_set, 0x10, "ReqResv", "REQ_RESV"),
            Self::Lln(is_set) => (is_set, 0x20, "LLN", "LLN"),
            Self::ExclusiveUser(is_set) => (is_set, 0x40, "ExclusiveUser", "EXCLUSIVE_USER"),
            Self::PowerDownOnIdle(is_set) => (is_set, 0x80, "PowerDownOnIdle", "PDOI"),
        }
    }

    pub(crate) const fn is_set(self) -> bool {
        self.parts().0
    }

    const fn bit(self) -> u32 {
        self.parts().1
    }

    /// The key in slurm.conf.
    pub const fn key(self) -> &'static str {
        self.parts().2
    }

    /// The name in slurmrestd's JSON; with `_CLEAR` behind it, a request clears the flag.
    pub(crate) const fn json_name(self) -> &'static str {
        self.parts().3
    }

    /// The bit in an update. The one that clears a flag is eight further up.
    const fn update_bit(self) -> u32 {
        if self.is_set() { self.bit() } else { self.bit() << 8 }
    }

    fn not(self) -> Self {
        let mut opposite = Self::CONSTRUCTORS.into_iter().map(|flag| flag(!self.is_set()));
        opposite.find(|flag| flag.bit() == self.bit()).unwrap_or(self)
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

    fn fields<F: Fields>(&mut self, version: u16, fields: &mut F) -> Result<(), F::Error> {
        fields.text(&mut self.allow_accounts)?;
        // AllocNodes: slurmctld ignores it (measured).
        fields.skip(&[Field::Text])?;
        fields.text(&mut self.allow_groups)?;
        fields.text(&mut self.allow_qos)?;
        fields.text(&mut self.alternate)?;
        fields.text(&mut self.billing_weights)?;
        let mut cpu_bind = self.cpu_bind.unwrap_or(0);
        fields.u32(&mut cpu_bind)?;
        self.cpu_bind = Some(cpu_bind).filter(|bind| *bind != 0);
        fields.optional_u64(&mut self.default_memory)?;
        fields.optional_u32(&mut self.default_time)?;
        fields.text(&mut self.deny_accounts)?;
        fields.text(&mut self.deny_qos)?;
        let mut bits = self.flags.iter().fold(0, |bits, flag| bits | flag.update_bit());
        fields.u32(&mut bits)?;
        self.flags = PartitionFlag::all()
            .flat_map(|flag| [flag, flag.not()])
            .filter(|flag| bits & flag.update_bit() != 0)
            .collect();
        fields.text(&mut self.job_defaults)?;
        fields.optional_u32(&mut self.grace_time)?;
        fields.optional_u32(&mut self.max_cpus_per_node)?;
        fields.optional_u32(&mut self.max_cpus_per_socket)?;
        fields.optional_u64(&mut self.max_memory)?;
        fields.optional_u32(&mut self.max_nodes)?;
        fields.optional_u16(&mut self.max_share)?;
        fields.optional_u32(&mut self.max_time)?;
        fields.optional_u32(&mut self.min_nodes)?;
        fields.string(&mut self.name)?;
        fields.text(&mut self.nodes)?;
        fields.optional_u16(&mut self.over_time_limit)?;
        fields.optional_u16(&mut self.preempt_mode)?;
        fields.optional_u16(&mut self.priority_job_factor)?;
        fields.optional_u16(&mut self.priority_tier)?;
        fields.text(&mut self.qos)?;
        let mut state = self.state.map_or(UNSET_U16, state_number);
        fields.u16(&mut state)?;
        self.state = LiveState(state).name();
        if version >= Version::V43.wire() {
            fields.text(&mut self.topology)?;
        }
        Ok(())
    }

    pub(super) fn pack(&self, version: Version) -> Result<Vec<u8>, Unpackable> {
        if version < Version::V43 && self.topology.is_some() {
            return Err(Unpackable::Lacking("topology of a partition"));
        }
        let mut body = Writer::default();
        self.clone().fields(version.wire(), &mut body)?;
        Ok(body.into_bytes())
    }

    /// Reads a request, for a test that acts as slurmctld.
    pub fn unpack(version: u16, body: &[u8]) -> Result<Self, Malformed> {
        let mut update = Self::default();
        update.fields(version, &mut Reader::new(body))?;
        Ok(update)
    }
}

/// Reads the request DELETE_PARTITION, for a test that acts as slurmctld.
pub fn unpack_partition_name(body: &[u8]) -> Result<String, Malformed> {
    let mut name = String::new();
    Reader::new(body).string(&mut name)?;
    Ok(name)
}

pub(super) fn pack_name(name: &str) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.text(&mut Some(name.to_owned()))?;
    Ok(body.into_bytes())
}

/// The low bit means that jobs may be submitted, the high one that jobs may start.
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
    fn an_update_that_changes_nothing_has_no_field_set() {
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
        fn an_update_is_read_back_and_never_from_a_truncated_message(
            texts in prop::collection::vec(prop::option::of("[^\\x00]{0,8}"), 12),
            numbers in prop::collection::vec(prop::option::of(0..1000_u32), 8),
            small in prop::collection::vec(prop::option::of(0..1000_u16), 5),
            memory in any::<Option<u32>>(),
            flags in prop::sample::subsequence(PartitionFlag::all().collect::<Vec<_>>(), 0..8),
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
    fn a_flag_is_set_or_cleared() {
        let update = PartitionUpdate {
            flags: vec![PartitionFlag::Default(true), PartitionFlag::Hidden(false)],
            ..PartitionUpdate::new("p")
        };
        let body = update.pack(Version::V42).unwrap();
        assert_eq!(body[48..52], [0, 0, 2, 1]);
    }

    #[test]
    fn a_field_that_the_release_lacks_is_an_error() {
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
