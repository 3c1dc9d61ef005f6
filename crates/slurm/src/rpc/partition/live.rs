//! Partitions as slurmctld has them (REQUEST_PARTITION_INFO).
//!
//! Asked for in the oldest version we speak, whose layout no longer changes. That one does not tell the topology of a
//! partition, so nobody can read back whether it was taken.

use serde::{Deserialize, Serialize};

use super::super::version::Version;
use super::super::wire::{Malformed, Reader, UNSET_U16, UNSET_U32, Unpackable, Writer};
use super::PartitionFlag;
use crate::partition::PartitionStateName;

pub(in crate::rpc) const VERSION: Version = Version::V42;

/// Hidden ones too.
const SHOW_ALL: u16 = 1;

/// A partition as slurmctld runs it. Numbers are as in [`PartitionUpdate`](super::PartitionUpdate), and the one below the
/// greatest of its kind stands for "not set". No text and an empty one are the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LivePartition {
    pub name: String,
    pub state: LiveState,
    /// The nodes it has now, as a hostlist.
    pub nodes: String,
    /// The node sets it was made of, or `ALL`.
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
    /// `None` from whoever does not tell them.
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

/// As on the wire. slurmctld takes numbers that are no state and calls them UNKNOWN.
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

/// One of the settings that jobs get where they do not say it themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// Whether a flag is as said: set, or not set.
    pub fn has(&self, flag: PartitionFlag) -> bool {
        let (is_set, bit) = flag.parts();
        (self.flags & bit != 0) == is_set
    }

    /// For whoever plays slurmctld.
    pub fn set(&mut self, flag: PartitionFlag) {
        let (is_set, bit) = flag.parts();
        if is_set {
            self.flags |= bit;
        } else {
            self.flags &= !bit;
        }
    }
}

pub(in crate::rpc) fn pack_question() -> Vec<u8> {
    let mut body = Writer::default();
    // Only if something has changed since then: whenever that was.
    body.u64(0);
    body.u16(SHOW_ALL);
    body.into_bytes()
}

pub(in crate::rpc) fn unpack_partitions(body: &[u8]) -> Result<Vec<LivePartition>, Malformed> {
    let mut reader = Reader::new(body);
    let count = reader.u32()?;
    let _now = reader.u64()?;
    let mut partitions = Vec::new();
    for _ in 0..count {
        partitions.push(unpack_partition(&mut reader)?);
    }
    Ok(partitions)
}

fn unpack_partition(reader: &mut Reader<'_>) -> Result<LivePartition, Malformed> {
    let mut partition = LivePartition {
        name: text(reader)?,
        cpu_bind: reader.u32()?,
        grace_time: reader.u32()?,
        max_time: reader.u32()?,
        default_time: reader.u32()?,
        max_nodes: reader.u32()?,
        min_nodes: reader.u32()?,
        total_nodes: reader.u32()?,
        total_cpus: reader.u32()?,
        default_memory: reader.u64()?,
        max_cpus_per_node: reader.u32()?,
        max_cpus_per_socket: reader.u32()?,
        max_memory: reader.u64()?,
        flags: reader.u32()?,
        max_share: reader.u16()?,
        over_time_limit: reader.u16()?,
        preempt_mode: reader.u16()?,
        priority_job_factor: reader.u16()?,
        priority_tier: reader.u16()?,
        state: LiveState(reader.u16()?),
        ..LivePartition::default()
    };
    // SelectTypeParameters, ResumeTimeout, SuspendTimeout, SuspendTime.
    for _ in 0..3 {
        reader.u16()?;
    }
    reader.u32()?;
    partition.allow_accounts = text(reader)?;
    partition.allow_groups = text(reader)?;
    partition.allow_alloc_nodes = text(reader)?;
    partition.allow_qos = text(reader)?;
    partition.qos = text(reader)?;
    partition.alternate = text(reader)?;
    partition.deny_accounts = text(reader)?;
    partition.deny_qos = text(reader)?;
    partition.nodes = text(reader)?;
    partition.node_sets = text(reader)?;
    // Its nodes once more, as bits.
    if reader.u32()? != UNSET_U32 {
        reader.text()?;
    }
    partition.billing_weights = text(reader)?;
    // What all its nodes have together.
    reader.text()?;
    partition.job_defaults = Some(job_defaults(reader)?);
    Ok(partition)
}

fn job_defaults(reader: &mut Reader<'_>) -> Result<Vec<JobDefault>, Malformed> {
    let mut defaults = Vec::new();
    match reader.u32()? {
        // There is no list.
        UNSET_U32 => {}
        count => {
            for _ in 0..count {
                let kind = reader.u16()?;
                let value = reader.u64()?;
                defaults.push(JobDefault { kind, value });
            }
        }
    }
    Ok(defaults)
}

fn text(reader: &mut Reader<'_>) -> Result<String, Malformed> {
    let text = reader.text()?.unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// The answer, for whoever plays slurmctld.
pub fn pack_partitions(partitions: &[LivePartition]) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.length(partitions.len())?;
    body.u64(0);
    for partition in partitions {
        pack_partition(&mut body, partition)?;
    }
    Ok(body.into_bytes())
}

fn pack_partition(body: &mut Writer, partition: &LivePartition) -> Result<(), Unpackable> {
    let optional = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    body.str(optional(&partition.name).as_deref())?;
    body.u32(partition.cpu_bind);
    body.u32(partition.grace_time);
    body.u32(partition.max_time);
    body.u32(partition.default_time);
    body.u32(partition.max_nodes);
    body.u32(partition.min_nodes);
    body.u32(partition.total_nodes);
    body.u32(partition.total_cpus);
    body.u64(partition.default_memory);
    body.u32(partition.max_cpus_per_node);
    body.u32(partition.max_cpus_per_socket);
    body.u64(partition.max_memory);
    body.u32(partition.flags);
    body.u16(partition.max_share);
    body.u16(partition.over_time_limit);
    body.u16(partition.preempt_mode);
    body.u16(partition.priority_job_factor);
    body.u16(partition.priority_tier);
    body.u16(partition.state.0);
    body.u16(0);
    body.u16(UNSET_U16);
    body.u16(UNSET_U16);
    body.u32(UNSET_U32);
    for text in [
        &partition.allow_accounts,
        &partition.allow_groups,
        &partition.allow_alloc_nodes,
        &partition.allow_qos,
        &partition.qos,
        &partition.alternate,
        &partition.deny_accounts,
        &partition.deny_qos,
        &partition.nodes,
        &partition.node_sets,
    ] {
        body.str(optional(text).as_deref())?;
    }
    body.u32(UNSET_U32);
    body.str(optional(&partition.billing_weights).as_deref())?;
    body.str(None)?;
    let defaults = partition.job_defaults.as_deref().unwrap_or_default();
    body.length(defaults.len())?;
    for JobDefault { kind, value } in defaults {
        body.u16(*kind);
        body.u64(*value);
    }
    Ok(())
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
    fn the_question_looks_like_this_on_the_wire() {
        assert_eq!(pack_question(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn a_count_is_not_believed() {
        assert_eq!(unpack_partitions(&[0xff; 12]), Err(Malformed::Truncated));
    }

    #[test]
    fn a_flag_is_there_or_not() {
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
        fn partitions_come_back_and_never_from_less(partitions in prop::collection::vec(partition(), 0..3)) {
            let body = pack_partitions(&partitions).unwrap();
            prop_assert_eq!(unpack_partitions(&body).unwrap(), partitions);
            for end in 0..body.len() {
                prop_assert_eq!(unpack_partitions(&body[..end]), Err(Malformed::Truncated));
            }
        }

        #[test]
        fn garbage_takes_no_more_room_than_it_has(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(partitions) = unpack_partitions(&bytes) {
                prop_assert!(partitions.len() * 100 <= bytes.len());
            }
        }
    }
}
