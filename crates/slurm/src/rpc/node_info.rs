//! The administrative state of one node (REQUEST_NODE_INFO_SINGLE), and which slurmd all nodes have (REQUEST_NODE_INFO).
//!
//! Requested in the oldest version that all supported releases have, whose layout is final; one node is read up to the reason.
//! The request for one takes well under a millisecond, so little can change between it and an order that follows.

use super::version::Version;
use super::wire::Field::{self, Bitmap, Text, U16, U32, U64};
use super::wire::{Fields, Malformed, Reader, Unpackable, Writer};
use crate::node::AdminState;

pub(super) const VERSION: Version = Version::V43;

/// Includes nodes of hidden partitions.
const SHOW_ALL: u16 = 1;

const BASE_STATE: u32 = 0xf;
const DOWN: u32 = 1;
const IDLE: u32 = 2;
const ALLOCATED: u32 = 3;
const MIXED: u32 = 5;
const UNDRAIN: u32 = 1 << 6;
const DRAIN: u32 = 1 << 9;
const NOT_RESPONDING: u32 = 1 << 11;
const FAIL: u32 = 1 << 13;

/// The fields between the state and the time of the reason.
const BEFORE_REASON_TIME: &[Field] = &[
    // Version, hardware
    Text, U16, U16, U16, U16, U16, U64, U32, //
    // Gpu spec, mcs label, owner, core spec, cpu bind, memory spec, cpu spec, effective cpus
    Text, Text, U32, U16, U32, U64, Text, U16, //
    // Load, free memory, weight, cores per gpu, who wrote the reason
    U32, U64, U32, U16, U32, //
    // Boot time, last busy
    U64, U64,
];

/// The fields between slurmd's start and the reason.
const BEFORE_REASON: &[Field] = &[
    // Renewal of the certificate
    U64, //
    // Allocated cpus, memory and tres
    U16, U64, Text, //
    // Architecture, features, active features, gres, drained and used gres
    Text, Text, Text, Text, Text, Text, //
    // Operating system, comment, extra, instance
    Text, Text, Text, Text, Text,
];

/// The fields behind the reason: energy, tres, reservation, topology.
const BEHIND_REASON: &[Field] = &[U64, U32, U64, U32, U64, U64, U64, Text, Text, Text];

/// A node and its slurmd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveNode {
    pub name: String,
    /// Where slurmctld reaches it.
    pub address: String,
    pub port: u16,
    /// By its own clock, in seconds since 1970.
    pub slurmd_start: u64,
    /// Whether jobs have some of its resources.
    pub has_jobs: bool,
    pub is_responding: bool,
}

pub(super) fn pack_list_request(last: u64) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.u64(&mut { last })?;
    body.u16(&mut { SHOW_ALL })?;
    Ok(body.into_bytes())
}

pub(super) fn pack_request(name: &str) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.text(&mut Some(name.to_owned()))?;
    body.u16(&mut { SHOW_ALL })?;
    Ok(body.into_bytes())
}

/// Reads the name of the node from the request, for a test that acts as slurmctld.
pub fn unpack_node_name(body: &[u8]) -> Result<String, Malformed> {
    let mut name = String::new();
    Reader::new(body).string(&mut name)?;
    Ok(name)
}

/// A node in the response.
#[derive(Debug, Default)]
struct Record {
    name: String,
    address: String,
    port: u16,
    state: u32,
    reason_since: u64,
    slurmd_start: u64,
    reason: String,
}

impl Record {
    fn fields<F: Fields>(&mut self, fields: &mut F) -> Result<(), F::Error> {
        fields.string(&mut self.name)?;
        // The host name.
        fields.skip(&[Text])?;
        fields.string(&mut self.address)?;
        // The broadcast address, and whether there is a certificate.
        fields.skip(&[Text, U16])?;
        fields.u16(&mut self.port)?;
        // The next state.
        fields.skip(&[U32])?;
        fields.u32(&mut self.state)?;
        fields.skip(BEFORE_REASON_TIME)?;
        fields.u64(&mut self.reason_since)?;
        // When it is resumed automatically.
        fields.skip(&[U64])?;
        fields.u64(&mut self.slurmd_start)?;
        fields.skip(BEFORE_REASON)?;
        fields.string(&mut self.reason)
    }
}

/// Returns `None` if slurmctld has no such node.
pub(super) fn unpack_admin_state(body: &[u8], name: &str) -> Result<Option<AdminState>, Malformed> {
    let mut reader = Reader::new(body);
    let count = reader.length()?;
    // The time, and the hidden nodes.
    reader.skip(&[U64, Bitmap])?;
    if count == 0 {
        return Ok(None);
    }
    let mut node = Record::default();
    node.fields(&mut reader)?;
    let state = node.state;
    Ok((node.name == name).then_some(AdminState {
        drain: (state & DRAIN != 0 && state & UNDRAIN == 0) || state & FAIL != 0,
        down: state & BASE_STATE == DOWN,
        reason_since: if node.reason.is_empty() { 0 } else { node.reason_since },
        reason: node.reason,
    }))
}

/// Returns the time of the response, and all nodes. The count at its beginning includes nodes that it does not contain.
pub(super) fn unpack_nodes(body: &[u8]) -> Result<(u64, Vec<LiveNode>), Malformed> {
    let mut reader = Reader::new(body);
    let mut time = 0;
    reader.skip(&[U32])?;
    reader.u64(&mut time)?;
    reader.skip(&[Bitmap])?;
    let mut nodes = Vec::new();
    while reader.left() > 0 {
        let mut node = Record::default();
        node.fields(&mut reader)?;
        reader.skip(BEHIND_REASON)?;
        nodes.push(LiveNode {
            has_jobs: [ALLOCATED, MIXED].contains(&(node.state & BASE_STATE)),
            is_responding: node.state & NOT_RESPONDING == 0,
            name: node.name,
            address: node.address,
            port: node.port,
            slurmd_start: node.slurmd_start,
        });
    }
    Ok((time, nodes))
}

/// Returns the response, for a test that acts as slurmctld.
pub fn pack_nodes(time: u64, nodes: &[LiveNode]) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.length(nodes.len())?;
    body.u64(&mut { time })?;
    body.skip(&[Bitmap])?;
    for node in nodes {
        let base = if node.has_jobs { ALLOCATED } else { IDLE };
        let mut record = Record {
            name: node.name.clone(),
            address: node.address.clone(),
            port: node.port,
            state: base | if node.is_responding { 0 } else { NOT_RESPONDING },
            slurmd_start: node.slurmd_start,
            ..Record::default()
        };
        record.fields(&mut body)?;
        body.skip(BEHIND_REASON)?;
    }
    Ok(body.into_bytes())
}

/// Returns the response up to the reason, for a test that acts as slurmctld.
pub fn pack_admin_state(node: Option<(&str, &AdminState)>) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.length(node.into_iter().count())?;
    body.skip(&[U64, Bitmap])?;
    if let Some((name, state)) = node {
        let base = if state.down { DOWN } else { IDLE };
        let mut node = Record {
            name: name.to_owned(),
            state: base | if state.drain { DRAIN } else { 0 },
            reason_since: state.reason_since,
            reason: state.reason.clone(),
            ..Record::default()
        };
        node.fields(&mut body)?;
    }
    Ok(body.into_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_response_is_read_back_and_never_from_a_truncated_message(drain: bool, down: bool, since in 1..u64::MAX, reason in "[a-z :]{1,20}") {
            let state = AdminState { drain, down, reason, reason_since: since };
            let body = pack_admin_state(Some(("n1", &state))).unwrap();
            prop_assert_eq!(unpack_admin_state(&body, "n1"), Ok(Some(state)));
            for end in 0..body.len() {
                prop_assert_eq!(unpack_admin_state(&body[..end], "n1"), Err(Malformed::Truncated));
            }
        }

        #[test]
        fn garbage_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..1000)) {
            let _ = unpack_admin_state(&bytes, "n1");
            let _ = unpack_nodes(&bytes);
        }
    }

    #[test]
    fn a_list_is_read_back_and_never_from_a_truncated_message() {
        let node = |name: &str, has_jobs, is_responding| LiveNode {
            name: name.to_owned(),
            address: "10.0.0.1".to_owned(),
            port: 6818,
            slurmd_start: 1000,
            has_jobs,
            is_responding,
        };
        let nodes = vec![
            node("n1", true, true),
            node("n2", false, true),
            node("n3", false, false),
        ];
        let body = pack_nodes(7, &nodes).unwrap();
        let one = pack_nodes(7, &nodes[..1]).unwrap().len();
        assert_eq!(unpack_nodes(&body), Ok((7, nodes)));
        for end in (0..one).filter(|end| *end != 16) {
            assert_eq!(unpack_nodes(&body[..end]), Err(Malformed::Truncated), "{end}");
        }
    }

    #[test]
    fn the_request_names_its_node() {
        assert_eq!(unpack_node_name(&pack_request("n1").unwrap()), Ok("n1".to_owned()));
    }

    #[test]
    fn an_absent_node_is_none() {
        let body = pack_admin_state(None).unwrap();
        assert_eq!(unpack_admin_state(&body, "n1"), Ok(None));
        let other = pack_admin_state(Some(("n2", &AdminState::default()))).unwrap();
        assert_eq!(unpack_admin_state(&other, "n1"), Ok(None));
    }
}
