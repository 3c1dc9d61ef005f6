//! The partitions of slurmctld (REQUEST_PARTITION_INFO).
//!
//! Requested in the oldest supported version, whose layout is final. It lacks the topology of a partition, which can therefore
//! not be read back.

use serde::{Deserialize, Serialize};

use super::super::version::Version;
use super::super::wire::{Field, Fields, Malformed, Reader, UNSET_U16, UNSET_U32, Unpackable, Writer};
use super::PartitionFlag;
use crate::partition::PartitionStateName;

pub(in crate::rpc) const VERSION: Version = Version::V42;

/// Includes hidden partitions.
const SHOW_ALL: u16 = 1;

/// A partition of slurmctld. Numbers are as in [`PartitionUpdate`](super::PartitionUpdate), and the greatest but one of a type
/// means "not set". No text and an empty one are the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LivePartition {
    pub name: String,
    pub state: LiveState,
    /// The current nodes, as a hostlist.
    pub nodes: String,
    /// The node sets of its definition, or `ALL`.
    pub node_sets: String,
    pub total_nodes: u32,
    pub total_cpus: u32,
    /// Bits: see [`LivePartition::has`].
    pub flags: u32,
    pub allow_accounts: String,
    pub allow_alloc_nodes: String,
    pub allow_groups: String,
    pub allow_qos: String,
    pub deny_accounts: String,
    pub deny_qos: String,
    pub qos: String,
    pub alternate: String,
    pub billing_weights: String,
    /// `None` from a channel that does not report them.
    pub job_defaults: Option<Vec<JobDefault>>,
    pub cpu_bind: u32,
    pub default_memory: u64,
    pub max_memory: u64,
    pub default_time: u32,
    pub max_time: u32,
    pub grace_time: u32,
    pub max_cpus_per_node: u32,
    pub max_cpus_per_socket: u32,
    pub max_nodes: u32,
    pub min_nodes: u32,
    pub max_share: u16,
    pub over_time_limit: u16,
    pub preempt_mode: u16,
    pub priority_job_factor: u16,
    pub priority_tier: u16,
}

/// As on the wire. slurmctld accepts numbers that are no state and shows them as UNKNOWN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LiveState(pub u16);

impl LiveState {
    pub fn name(self) -> Option<PartitionStateName> {
        match self.0 {
            0 => Some(PartitionStateName::Inactive),
            1 => Some(PartitionStateName::Down),
            2 => Some(PartitionStateName::Drain),
            3 => Some(PartitionStateName::Up),
            _ => None,
        }
    }
}

impl From<PartitionStateName> for LiveState {
    fn from(state: PartitionStateName) -> Self {
        Self(super::state_number(state))
    }
}

/// A setting for jobs that do not set it themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobDefault {
    /// 1 is DefCPUPerGPU, 2 is DefMemPerGPU.
    pub kind: u16,
    pub value: u64,
}

impl JobDefault {
    pub(super) fn key(self) -> Option<&'static str> {
        match self.kind {
            1 => Some("DefCPUPerGPU"),
            2 => Some("DefMemPerGPU"),
            _ => None,
        }
    }
}

impl LivePartition {
    /// Whether a flag is set or cleared as given.
    pub fn has(&self, flag: PartitionFlag) -> bool {
        (self.flags & flag.bit() != 0) == flag.is_set()
    }

    /// Sets or clears a flag.
    pub fn set(&mut self, flag: PartitionFlag) {
        if flag.is_set() {
            self.flags |= flag.bit();
        } else {
            self.flags &= !flag.bit();
        }
    }

    fn fields<F: Fields>(&mut self, fields: &mut F) -> Result<(), F::Error> {
        fields.string(&mut self.name)?;
        fields.u32(&mut self.cpu_bind)?;
        fields.u32(&mut self.grace_time)?;
        fields.u32(&mut self.max_time)?;
        fields.u32(&mut self.default_time)?;
        fields.u32(&mut self.max_nodes)?;
        fields.u32(&mut self.min_nodes)?;
        fields.u32(&mut self.total_nodes)?;
        fields.u32(&mut self.total_cpus)?;
        fields.u64(&mut self.default_memory)?;
        fields.u32(&mut self.max_cpus_per_node)?;
        fields.u32(&mut self.max_cpus_per_socket)?;
        fields.u64(&mut self.max_memory)?;
        fields.u32(&mut self.flags)?;
        fields.u16(&mut self.max_share)?;
        fields.u16(&mut self.over_time_limit)?;
        fields.u16(&mut self.preempt_mode)?;
        fields.u16(&mut self.priority_job_factor)?;
        fields.u16(&mut self.priority_tier)?;
        fields.u16(&mut self.state.0)?;
        // SelectTypeParameters, ResumeTimeout, SuspendTimeout, SuspendTime.
        fields.u16(&mut 0)?;
        fields.u16(&mut { UNSET_U16 })?;
        fields.u16(&mut { UNSET_U16 })?;
        fields.u32(&mut { UNSET_U32 })?;
        fields.string(&mut self.allow_accounts)?;
        fields.string(&mut self.allow_groups)?;
        fields.string(&mut self.allow_alloc_nodes)?;
        fields.string(&mut self.allow_qos)?;
        fields.string(&mut self.qos)?;
        fields.string(&mut self.alternate)?;
        fields.string(&mut self.deny_accounts)?;
        fields.string(&mut self.deny_qos)?;
        fields.string(&mut self.nodes)?;
        fields.string(&mut self.node_sets)?;
        // The nodes again, as bits.
        fields.skip(&[Field::Bitmap])?;
        fields.string(&mut self.billing_weights)?;
        // The sum of what its nodes have.
        fields.skip(&[Field::Text])?;
        let mut given = self.job_defaults.take().unwrap_or_default().into_iter();
        let mut count = u32::try_from(given.len()).unwrap_or(UNSET_U32);
        fields.u32(&mut count)?;
        let mut defaults = Vec::new();
        // `UNSET_U32` means that there is no list.
        for _ in 0..if count == UNSET_U32 { 0 } else { count } {
            let mut default = given.next().unwrap_or_default();
            fields.u16(&mut default.kind)?;
            fields.u64(&mut default.value)?;
            defaults.push(default);
        }
        self.job_defaults = Some(defaults);
        Ok(())
    }
}

pub(in crate::rpc) fn pack_request() -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    // Responds only if something has changed since this time.
    body.u64(&mut 0)?;
    body.u16(&mut { SHOW_ALL })?;
    Ok(body.into_bytes())
}

pub(in crate::rpc) fn unpack_partitions(body: &[u8]) -> Result<Vec<LivePartition>, Malformed> {
    let mut reader = Reader::new(body);
    let count = reader.length()?;
    // The time.
    reader.skip(&[Field::U64])?;
    let mut partitions = Vec::new();
    for _ in 0..count {
        let mut partition = LivePartition::default();
        partition.fields(&mut reader)?;
        partitions.push(partition);
    }
    Ok(partitions)
}

/// Returns the response, for a test that acts as slurmctld.
pub fn pack_partitions(partitions: &[LivePartition]) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.length(partitions.len())?;
    body.skip(&[Field::U64])?;
    for partition in partitions {
        partition.clone().fields(&mut body)?;
    }
    Ok(body.into_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn partition() -> impl Strategy<Value = LivePartition> {
        let texts = prop::collection::vec("[^\\x00]{0,12}", 13);
        let numbers = prop::collection::vec(any::<u32>(), 13);
        let small = prop::collection::vec(any::<u16>(), 6);
        let defaults = prop::collection::vec((any::<u16>(), any::<u64>()), 0..3);
        (texts, numbers, small, any::<(u64, u64)>(), defaults).prop_map(|(texts, numbers, small, memory, defaults)| {
            let text = |at: usize| texts[at].clone();
            LivePartition {
                name: text(0),
                state: LiveState(small[5]),
                nodes: text(1),
                node_sets: text(2),
                allow_accounts: text(3),
                allow_alloc_nodes: text(4),
                allow_groups: text(5),
                allow_qos: text(6),
                deny_accounts: text(7),
                deny_qos: text(8),
                qos: text(9),
                alternate: text(10),
                billing_weights: text(11),
                job_defaults: Some(
                    defaults
                        .into_iter()
                        .map(|(kind, value)| JobDefault { kind, value })
                        .collect(),
                ),
                total_nodes: numbers[0],
                total_cpus: numbers[1],
                flags: numbers[2],
                cpu_bind: numbers[3],
                default_time: numbers[4],
                max_time: numbers[5],
                grace_time: numbers[6],
                max_cpus_per_node: numbers[7],
                max_cpus_per_socket: numbers[8],
                max_nodes: numbers[9],
                min_nodes: numbers[10],
                default_memory: memory.0,
                max_memory: memory.1,
                max_share: small[0],
                over_time_limit: small[1],
                preempt_mode: small[2],
                priority_job_factor: small[3],
                priority_tier: small[4],
            }
        })
    }

    #[test]
    fn the_request_has_this_wire_format() {
        assert_eq!(pack_request().unwrap(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn a_count_beyond_the_message_is_malformed() {
        assert_eq!(unpack_partitions(&[0xff; 12]), Err(Malformed::Truncated));
    }

    #[test]
    fn a_flag_is_set_or_cleared() {
        let partition = LivePartition {
            flags: 0x3,
            ..LivePartition::default()
        };
        assert!(partition.has(PartitionFlag::Default(true)));
        assert!(partition.has(PartitionFlag::Hidden(true)));
        assert!(partition.has(PartitionFlag::RootOnly(false)));
        assert!(!partition.has(PartitionFlag::Default(false)));
    }

    proptest! {
        #[test]
        fn partitions_are_read_back_and_never_from_a_truncated_message(partitions in prop::collection::vec(partition(), 0..3)) {
            let body = pack_partitions(&partitions).unwrap();
            prop_assert_eq!(unpack_partitions(&body).unwrap(), partitions);
            for end in 0..body.len() {
                prop_assert_eq!(unpack_partitions(&body[..end]), Err(Malformed::Truncated));
            }
        }

        #[test]
        fn garbage_allocates_no_more_than_its_own_size(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(partitions) = unpack_partitions(&bytes) {
                prop_assert!(partitions.len() * 100 <= bytes.len());
            }
        }
    }
}
