//! The body of UPDATE_NODE, CREATE_NODE and DELETE_NODE.

use super::version::Version;
use super::wire::{Field, Fields, Malformed, Reader, UNSET_U32, Unpackable, Writer};

/// The states that a node can be set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeCommand {
    Drain,
    /// Lifts a drain and leaves the rest of the state unchanged.
    Undrain,
    /// Also returns a node that is down to service.
    Resume,
    /// Terminates its jobs.
    Down,
}

/// A change of some nodes. Fields that are not set stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeUpdate {
    /// A hostlist.
    pub names: String,
    pub state: Option<NodeCommand>,
    pub reason: Option<String>,
    pub comment: Option<String>,
    pub extra: Option<String>,
    /// Separated by commas. Slurm refuses available features without an active one.
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
            ..Self::default()
        }
    }

    fn fields<F: Fields>(&mut self, version: u16, fields: &mut F) -> Result<(), F::Error> {
        // A certificate's token.
        fields.skip(&[Field::Text])?;
        fields.text(&mut self.comment)?;
        // CpuBind.
        fields.skip(&[Field::U32])?;
        fields.text(&mut self.extra)?;
        fields.text(&mut self.features)?;
        fields.text(&mut self.active_features)?;
        // Gres, the cloud's id and type of instance.
        fields.skip(&[Field::Text; 3])?;
        fields.text(&mut self.address)?;
        // Host name.
        fields.skip(&[Field::Text])?;
        let mut names = Some(std::mem::take(&mut self.names));
        fields.text(&mut names)?;
        self.names = names.unwrap_or_default();
        let known = STATES.iter().find(|(state, ..)| Some(*state) == self.state);
        let mut number = known.map_or(UNSET_U32, |(_, number, _)| *number);
        fields.u32(&mut number)?;
        let known = STATES.iter().find(|(_, known, _)| *known == number);
        self.state = known.map(|(state, ..)| *state);
        if version >= Version::V45.wire() {
            // Which of the node's power actions.
            fields.skip(&[Field::Text])?;
        }
        fields.text(&mut self.reason)?;
        // When a node that is down is resumed automatically.
        fields.u32(&mut { UNSET_U32 })?;
        if version >= Version::V43.wire() {
            fields.text(&mut self.topology)?;
        }
        fields.optional_u32(&mut self.weight)
    }

    pub(super) fn pack(&self, version: Version) -> Result<Vec<u8>, Unpackable> {
        if version < Version::V43 && self.topology.is_some() {
            return Err(Unpackable::Lacking("topology of a node"));
        }
        let mut body = Writer::default();
        self.clone().fields(version.wire(), &mut body)?;
        Ok(body.into_bytes())
    }

    /// Returns the arguments of `scontrol update`.
    pub fn to_scontrol(&self) -> Vec<String> {
        let state = STATES.iter().find(|(state, ..)| Some(*state) == self.state);
        let state = state.map(|(.., word)| (*word).to_owned());
        let weight = self.weight.map(|weight| weight.to_string());
        let settings = [
            ("NodeName", Some(&self.names)),
            ("State", state.as_ref()),
            ("Reason", self.reason.as_ref()),
            ("Comment", self.comment.as_ref()),
            ("Extra", self.extra.as_ref()),
            ("AvailableFeatures", self.features.as_ref()),
            ("ActiveFeatures", self.active_features.as_ref()),
            ("Topology", self.topology.as_ref()),
            ("NodeAddr", self.address.as_ref()),
            ("Weight", weight.as_ref()),
        ];
        let given = settings.into_iter();
        given
            .filter_map(|(key, value)| Some(format!("{key}={}", value?)))
            .collect()
    }

    /// Reads a request, for a test that acts as slurmctld.
    pub fn unpack(version: u16, body: &[u8]) -> Result<Self, Malformed> {
        let mut update = Self::default();
        update.fields(version, &mut Reader::new(body))?;
        Ok(update)
    }
}

/// CREATE_NODE has the line of slurm.conf in the field `extra`.
pub(super) fn pack_line(version: Version, line: &str) -> Result<Vec<u8>, Unpackable> {
    let node = NodeUpdate {
        extra: Some(line.to_owned()),
        ..NodeUpdate::default()
    };
    node.pack(version)
}

/// The states that a node can be set to: the number in a message, and the word of scontrol.
const STATES: [(NodeCommand, u32, &str); 4] = [
    (NodeCommand::Down, 1, "DOWN"),
    (NodeCommand::Undrain, 0x40, "UNDRAIN"),
    (NodeCommand::Resume, 0x100, "RESUME"),
    (NodeCommand::Drain, 0x200, "DRAIN"),
];

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
    fn an_update_is_read_back_and_never_from_a_truncated_message() {
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
    fn a_field_that_the_release_lacks_is_an_error() {
        let mut node = NodeUpdate::new("n1");
        node.topology = Some("default:s1".to_owned());
        assert_eq!(node.pack(Version::V42), Err(Unpackable::Lacking("topology of a node")));
        assert!(node.pack(Version::V43).is_ok());
    }
}
