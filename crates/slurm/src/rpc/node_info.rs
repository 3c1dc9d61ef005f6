//! The administrative state of one node (REQUEST_NODE_INFO_SINGLE).
//!
//! Requested in the oldest version that all supported releases have, whose layout is final, and read up to the reason. The
//! request takes well under a millisecond, so little can change between it and an order that follows.

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
const UNDRAIN: u32 = 1 << 6;
const DRAIN: u32 = 1 << 9;
const FAIL: u32 = 1 << 13;

/// The fields between the name and the state.
const BEFORE_STATE: &[Field] = &[
    // Host name, address, broadcast address, certificate, port, next state
    Text, Text, Text, U16, U16, U32,
];

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

/// The fields between the time of the reason and the reason.
const BEFORE_REASON: &[Field] = &[
    // Resume after, slurmd's start, renewal of the certificate
    U64, U64, U64, //
    // Allocated cpus, memory and tres
    U16, U64, Text, //
    // Architecture, features, active features, gres, drained and used gres
    Text, Text, Text, Text, Text, Text, //
    // Operating system, comment, extra, instance
    Text, Text, Text, Text, Text,
];

pub(super) fn pack_request(name: &str) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.text(&mut Some(name.to_owned()))?;
    body.u16(&mut { SHOW_ALL })?;
    Ok(body.into_bytes())
}

/// A node in the response.
#[derive(Debug, Default)]
struct Record {
    name: String,
    state: u32,
    reason_since: u64,
    reason: String,
}

impl Record {
    fn fields<F: Fields>(&mut self, fields: &mut F) -> Result<(), F::Error> {
        fields.string(&mut self.name)?;
        fields.skip(BEFORE_STATE)?;
        fields.u32(&mut self.state)?;
        fields.skip(BEFORE_REASON_TIME)?;
        fields.u64(&mut self.reason_since)?;
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
        }
    }

    #[test]
    fn an_absent_node_is_none() {
        let body = pack_admin_state(None).unwrap();
        assert_eq!(unpack_admin_state(&body, "n1"), Ok(None));
        let other = pack_admin_state(Some(("n2", &AdminState::default()))).unwrap();
        assert_eq!(unpack_admin_state(&other, "n1"), Ok(None));
    }
}
