//! What was ordered of one node, as slurmctld has it (REQUEST_NODE_INFO_SINGLE).
//!
//! Asked for in the oldest version that all supported releases speak, whose layout no longer changes, and read as far as the
//! reason. It takes well under a millisecond, so that little can happen between this question and an order that follows it.

use super::layout::Value::{self, Text, U16, U32, U64};
use super::layout::{pack_nothing, pass_over};
use super::version::Version;
use super::wire::{Malformed, Reader, UNSET_U32, Unpackable, Writer};
use crate::node::AdminState;

pub(super) const VERSION: Version = Version::V43;

/// Nodes of hidden partitions too.
const SHOW_ALL: u16 = 1;

const BASE_STATE: u32 = 0xf;
const DOWN: u32 = 1;
const UNDRAIN: u32 = 1 << 6;
const DRAIN: u32 = 1 << 9;
const FAIL: u32 = 1 << 13;

/// Between the name and the state.
const BEFORE_STATE: &[Value] = &[
    // Host name, address, broadcast address, certificate, port, next state
    Text, Text, Text, U16, U16, U32,
];

/// Between the state and the time of the reason.
const BEFORE_REASON_TIME: &[Value] = &[
    // Version, hardware
    Text, U16, U16, U16, U16, U16, U64, U32, //
    // Gpu spec, mcs label, owner, core spec, cpu bind, memory spec, cpu spec, effective cpus
    Text, Text, U32, U16, U32, U64, Text, U16, //
    // Load, free memory, weight, cores per gpu, who wrote the reason
    U32, U64, U32, U16, U32, //
    // Boot time, last busy
    U64, U64,
];

/// Between that and the reason itself.
const BEFORE_REASON: &[Value] = &[
    // Resume after, slurmd's start, renewal of the certificate
    U64, U64, U64, //
    // Allocated cpus, memory and tres
    U16, U64, Text, //
    // Architecture, features, active features, gres, drained and used gres
    Text, Text, Text, Text, Text, Text, //
    // Operating system, comment, extra, instance
    Text, Text, Text, Text, Text,
];

pub(super) fn pack_question(name: &str) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.str(Some(name))?;
    body.u16(SHOW_ALL);
    Ok(body.into_bytes())
}

/// `None` if slurmctld has no such node.
pub(super) fn unpack_admin_state(body: &[u8], name: &str) -> Result<Option<AdminState>, Malformed> {
    let mut reader = Reader::new(body);
    let count = reader.u32()?;
    let _now = reader.u64()?;
    // A bitmap of hidden nodes, of which there is none in an answer about one node.
    if reader.u32()? != UNSET_U32 {
        reader.text()?;
    }
    if count == 0 {
        return Ok(None);
    }
    let named = reader.text()?.unwrap_or_default();
    pass_over(&mut reader, BEFORE_STATE)?;
    let state = reader.u32()?;
    pass_over(&mut reader, BEFORE_REASON_TIME)?;
    let since = reader.u64()?;
    pass_over(&mut reader, BEFORE_REASON)?;
    let reason = String::from_utf8_lossy(reader.text()?.unwrap_or_default()).into_owned();
    Ok((named == name.as_bytes()).then_some(AdminState {
        drain: (state & DRAIN != 0 && state & UNDRAIN == 0) || state & FAIL != 0,
        down: state & BASE_STATE == DOWN,
        reason_since: if reason.is_empty() { 0 } else { since },
        reason,
    }))
}

/// The answer as far as it is read, for whoever plays slurmctld.
pub fn pack_admin_state(node: Option<(&str, &AdminState)>) -> Result<Vec<u8>, Unpackable> {
    let mut body = Writer::default();
    body.u32(u32::from(node.is_some()));
    body.u64(0);
    body.u32(UNSET_U32);
    if let Some((name, state)) = node {
        body.str(Some(name))?;
        pack_nothing(&mut body, BEFORE_STATE)?;
        let idle = 2;
        let base = if state.down { DOWN } else { idle };
        body.u32(base | if state.drain { DRAIN } else { 0 });
        pack_nothing(&mut body, BEFORE_REASON_TIME)?;
        body.u64(state.reason_since);
        pack_nothing(&mut body, BEFORE_REASON)?;
        let reason = Some(state.reason.as_str()).filter(|reason| !reason.is_empty());
        body.str(reason)?;
    }
    Ok(body.into_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_answer_comes_back_and_never_from_less(drain: bool, down: bool, since in 1..u64::MAX, reason in "[a-z :]{1,20}") {
            let state = AdminState { drain, down, reason, reason_since: since };
            let body = pack_admin_state(Some(("n1", &state))).unwrap();
            prop_assert_eq!(unpack_admin_state(&body, "n1"), Ok(Some(state)));
            for end in 0..body.len() {
                prop_assert_eq!(unpack_admin_state(&body[..end], "n1"), Err(Malformed::Truncated));
            }
        }

        #[test]
        fn garbage_is_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..1000)) {
            let _ = unpack_admin_state(&bytes, "n1");
        }
    }

    #[test]
    fn a_node_that_is_not_there_is_none() {
        let body = pack_admin_state(None).unwrap();
        assert_eq!(unpack_admin_state(&body, "n1"), Ok(None));
        let other = pack_admin_state(Some(("n2", &AdminState::default()))).unwrap();
        assert_eq!(unpack_admin_state(&other, "n1"), Ok(None));
    }
}
