use serde::Serialize;

use crate::describe::{Line, NodeDescription, NodeFeatures};
use crate::number::Number;

/// What a node can be told to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum NodeCommand {
    Drain,
    /// Takes back a drain and leaves the rest of the state alone.
    Undrain,
    /// Also brings back a node that is down.
    Resume,
    /// Ends its jobs.
    Down,
}

/// A change of one node. What is not set stays as it is.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<Number>,
}

impl NodeUpdate {
    /// `None` leaves the reason that stands there.
    pub fn drain(reason: Option<&str>) -> Self {
        Self::command(NodeCommand::Drain, reason.map(str::to_owned))
    }

    pub fn undrain() -> Self {
        Self::command(NodeCommand::Undrain, None)
    }

    pub fn resume() -> Self {
        Self::command(NodeCommand::Resume, None)
    }

    /// `None` leaves the reason that stands there.
    pub fn down(reason: Option<&str>) -> Self {
        Self::command(NodeCommand::Down, reason.map(str::to_owned))
    }

    pub fn describe(description: &NodeDescription) -> Self {
        let NodeDescription {
            comment,
            extra,
            features,
            topology,
            address,
        } = description;
        let text = |line: &Option<Line>| line.as_ref().map(ToString::to_string);
        let described = Self {
            comment: text(comment),
            extra: text(extra),
            topology: text(topology),
            address: address.as_ref().map(|address| vec![address.to_string()]),
            ..Self::default()
        };
        match features {
            Some(NodeFeatures { available, active }) => {
                let names = |lines: &[Line]| lines.iter().map(ToString::to_string).collect();
                described.with_features(names(available), names(active))
            }
            None => described,
        }
    }

    fn command(command: NodeCommand, reason: Option<String>) -> Self {
        Self {
            state: vec![command],
            reason,
            ..Self::default()
        }
    }

    #[must_use]
    pub fn with_comment(self, comment: impl Into<String>) -> Self {
        Self {
            comment: Some(comment.into()),
            ..self
        }
    }

    #[must_use]
    pub fn with_extra(self, extra: impl Into<String>) -> Self {
        Self {
            extra: Some(extra.into()),
            ..self
        }
    }

    /// Both at once: Slurm refuses available features that leave an active one out (2031).
    #[must_use]
    pub fn with_features(self, available: Vec<String>, active: Vec<String>) -> Self {
        // An empty list means "as it is" to slurmrestd, one empty name means none.
        let or_none = |names: Vec<String>| Some(if names.is_empty() { vec![String::new()] } else { names });
        Self {
            features: or_none(available),
            active_features: or_none(active),
            ..self
        }
    }

    #[must_use]
    pub fn with_topology(self, topology: impl Into<String>) -> Self {
        Self {
            topology: Some(topology.into()),
            ..self
        }
    }

    #[must_use]
    pub fn with_weight(self, weight: u32) -> Self {
        Self {
            weight: Some(Number::Finite(weight.into())),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_leaves_alone_what_it_does_not_say() {
        let line = |text: &str| Line::new(text).unwrap();
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
