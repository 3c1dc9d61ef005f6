//! What can be said of nodes: UPDATE_NODE, and CREATE_NODE and DELETE_NODE, which have the same body.

use super::version::Version;
use super::wire::{Malformed, Reader, UNSET_U32, Unpackable, Writer};
use crate::rest::NodeCommand;

/// A change of some nodes. What is not set stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeUpdate {
    /// A hostlist.
    pub names: String,
    pub state: Option<NodeCommand>,
    pub reason: Option<String>,
    pub comment: Option<String>,
    pub extra: Option<String>,
    /// With commas in between. Slurm refuses available features that leave an active one out.
    pub features: Option<String>,
    pub active_features: Option<String>,
    /// Slurm 25.05 and later.
    pub topology: Option<String>,
    pub address: Option<String>,
    pub weight: Option<u32>,
}

impl NodeUpdate {
    pub fn new(names: impl Into<String>) -> Self {
        Self {
            names: names.into(),
            state: None,
            reason: None,
            comment: None,
            extra: None,
            features: None,
            active_features: None,
            topology: None,
            address: None,
            weight: None,
        }
    }

    pub(super) fn pack(&self, version: Version) -> Result<Vec<u8>, Unpackable> {
        let Self {
            names,
            state,
            reason,
            comment,
            extra,
            features,
            active_features,
            topology,
            address,
            weight,
        } = self;
        let mut body = Writer::default();
        // A certificate's token.
        body.str(None)?;
        body.str(comment.as_deref())?;
        // CpuBind.
        body.u32(0);
        body.str(extra.as_deref())?;
        body.str(features.as_deref())?;
        body.str(active_features.as_deref())?;
        // Gres, the cloud's id and type of instance.
        for _ in 0..3 {
            body.str(None)?;
        }
        body.str(address.as_deref())?;
        // Host name.
        body.str(None)?;
        body.str(Some(names))?;
        body.u32(state.map_or(UNSET_U32, state_number));
        if version >= Version::V45 {
            // Which of the node's power actions.
            body.str(None)?;
        }
        body.str(reason.as_deref())?;
        // When a node that is down is resumed by itself.
        body.u32(UNSET_U32);
        if version >= Version::V43 {
            body.str(topology.as_deref())?;
        } else if topology.is_some() {
            return Err(Unpackable::Lacking("topology of a node"));
        }
        body.u32(weight.unwrap_or(UNSET_U32));
        Ok(body.into_bytes())
    }

    /// What was said, for whoever plays slurmctld.
    pub fn unpack(version: u16, body: &[u8]) -> Result<Self, Malformed> {
        let reader = &mut Reader::new(body);
        let _certificate = text(reader)?;
        let comment = text(reader)?;
        let _cpu_bind = reader.u32()?;
        let extra = text(reader)?;
        let features = text(reader)?;
        let active_features = text(reader)?;
        for _ in 0..3 {
            text(reader)?;
        }
        let address = text(reader)?;
        let _host_name = text(reader)?;
        let names = text(reader)?.unwrap_or_default();
        let state = reader.u32()?;
        if version >= Version::V45.wire() {
            text(reader)?;
        }
        let reason = text(reader)?;
        let _resume_after = reader.u32()?;
        let topology = if version >= Version::V43.wire() {
            text(reader)?
        } else {
            None
        };
        let weight = Some(reader.u32()?).filter(|weight| *weight != UNSET_U32);
        let commands = [
            NodeCommand::Down,
            NodeCommand::Undrain,
            NodeCommand::Resume,
            NodeCommand::Drain,
        ];
        Ok(Self {
            names,
            state: commands.into_iter().find(|command| state_number(*command) == state),
            reason,
            comment,
            extra,
            features,
            active_features,
            topology,
            address,
            weight,
        })
    }
}

fn text(reader: &mut Reader<'_>) -> Result<Option<String>, Malformed> {
    let text = reader.text()?;
    Ok(text.map(|text| String::from_utf8_lossy(text).into_owned()))
}

/// The line stands where updates have the node's own `extra`.
pub(super) fn pack_line(version: Version, line: &str) -> Result<Vec<u8>, Unpackable> {
    let mut node = NodeUpdate::new("");
    node.extra = Some(line.to_owned());
    node.pack(version)
}

const fn state_number(command: NodeCommand) -> u32 {
    match command {
        NodeCommand::Down => 1,
        NodeCommand::Undrain => 0x40,
        NodeCommand::Resume => 0x100,
        NodeCommand::Drain => 0x200,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_releases_have_more_fields() {
        let node = NodeUpdate::new("n1");
        let length = |version| node.pack(version).unwrap().len();
        // Eleven texts without the name, which has seven bytes; five numbers.
        assert_eq!(length(Version::V42), 11 * 4 + 7 + 4 * 4);
        assert_eq!(length(Version::V43), length(Version::V42) + 4);
        assert_eq!(length(Version::V44), length(Version::V43));
        assert_eq!(length(Version::V45), length(Version::V44) + 4);
    }

    #[test]
    fn what_was_said_is_understood_and_never_from_less() {
        let node = NodeUpdate {
            state: Some(NodeCommand::Drain),
            reason: Some("why".to_owned()),
            comment: Some(String::new()),
            extra: Some("x".to_owned()),
            features: Some("a,b".to_owned()),
            active_features: Some("a".to_owned()),
            address: Some("10.0.0.1".to_owned()),
            weight: Some(7),
            ..NodeUpdate::new("n[1-2]")
        };
        for version in Version::ALL {
            let body = node.pack(version).unwrap();
            assert_eq!(NodeUpdate::unpack(version.wire(), &body), Ok(node.clone()));
            for end in 0..body.len() {
                assert_eq!(
                    NodeUpdate::unpack(version.wire(), &body[..end]),
                    Err(Malformed::Truncated)
                );
            }
        }
    }

    #[test]
    fn a_field_that_the_release_has_not_is_not_dropped_in_silence() {
        let mut node = NodeUpdate::new("n1");
        node.topology = Some("default:s1".to_owned());
        assert_eq!(node.pack(Version::V42), Err(Unpackable::Lacking("topology of a node")));
        assert!(node.pack(Version::V43).is_ok());
    }
}
