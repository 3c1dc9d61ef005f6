use serde::Serialize;

use crate::describe::{NodeDescription, SingleLine};

/// The states that a node can be set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum NodeCommand {
    Drain,
    /// Lifts a drain and leaves the rest of the state unchanged.
    Undrain,
    /// Also returns a node that is down to service.
    Resume,
    /// Terminates its jobs.
    Down,
}

/// A change of one node. Fields that are not set stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodeUpdate {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    state: Vec<NodeCommand>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    features: Option<Vec<String>>,
    #[serde(rename = "features_act", skip_serializing_if = "Option::is_none")]
    active_features: Option<Vec<String>>,
    #[serde(rename = "topology_str", skip_serializing_if = "Option::is_none")]
    topology: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<Vec<String>>,
}

impl NodeUpdate {
    /// `None` keeps the present reason.
    pub fn drain(reason: Option<&str>) -> Self {
        Self::command(NodeCommand::Drain, reason)
    }

    pub fn undrain() -> Self {
        Self::command(NodeCommand::Undrain, None)
    }

    pub fn resume() -> Self {
        Self::command(NodeCommand::Resume, None)
    }

    /// `None` keeps the present reason.
    pub fn down(reason: Option<&str>) -> Self {
        Self::command(NodeCommand::Down, reason)
    }

    pub fn describe(description: &NodeDescription) -> Self {
        let NodeDescription {
            comment,
            extra,
            features,
            topology,
            address,
        } = description;
        let text = |line: &Option<SingleLine>| line.as_ref().map(ToString::to_string);
        // slurmrestd takes an empty list for "unchanged", and one empty name for "none".
        let names = |lines: &[SingleLine]| match lines {
            [] => vec![String::new()],
            lines => lines.iter().map(ToString::to_string).collect(),
        };
        Self {
            comment: text(comment),
            extra: text(extra),
            features: features.as_ref().map(|features| names(&features.available)),
            active_features: features.as_ref().map(|features| names(&features.active)),
            topology: text(topology),
            address: address.as_ref().map(|address| vec![address.to_string()]),
            ..Self::default()
        }
    }

    fn command(command: NodeCommand, reason: Option<&str>) -> Self {
        Self {
            state: vec![command],
            reason: reason.map(str::to_owned),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::NodeFeatures;

    #[test]
    fn a_description_changes_only_what_it_has() {
        let line = |text: &str| SingleLine::new(text).unwrap();
        for (description, json) in [
            (NodeDescription::default(), "{}"),
            (
                NodeDescription {
                    topology: Some(line("")),
                    ..NodeDescription::default()
                },
                r#"{"topology_str":""}"#,
            ),
            (
                NodeDescription {
                    comment: Some(line("c")),
                    extra: Some(line("e")),
                    features: Some(NodeFeatures {
                        available: vec![line("a"), line("k8s/b")],
                        active: vec![],
                    }),
                    topology: None,
                    address: Some(line("10.0.0.1")),
                },
                r#"{"comment":"c","extra":"e","features":["a","k8s/b"],"features_act":[""],"address":["10.0.0.1"]}"#,
            ),
        ] {
            assert_eq!(
                serde_json::to_string(&NodeUpdate::describe(&description)).unwrap(),
                json
            );
        }
    }
}
