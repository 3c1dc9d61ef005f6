//! The texts that are written to a node.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Below the 128 KiB that Linux allows one argument of a program: `scontrol` is given these.
const MAX_LENGTH: usize = 100_000;

checked_text! {
    /// A text without control characters; it may be empty.
    SingleLine: |text| text.len() <= MAX_LENGTH && !text.chars().any(char::is_control),
    InvalidLine: "{0:?} is not one line of up to {MAX_LENGTH} bytes"
}

/// The texts to set on a node. `None` leaves a text unchanged.
///
/// Slurm applies one field after the other, and a field that it refuses leaves those before it changed. A field that may be
/// refused is therefore sent alone.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDescription {
    pub comment: Option<SingleLine>,
    pub extra: Option<SingleLine>,
    pub features: Option<NodeFeatures>,
    /// Such as `default:s1`; an empty one removes the node from every topology. Slurm refuses an unknown place.
    pub topology: Option<SingleLine>,
    /// The address of its slurmd. The agent makes that slurmd register if slurmctld does not have the node.
    pub address: Option<SingleLine>,
}

/// Both are set together: Slurm refuses available features without an active one (2031).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFeatures {
    pub available: Vec<SingleLine>,
    pub active: Vec<SingleLine>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_no_control_characters() {
        for line in ["", "default:s1", "{\"podName\":\"a b\"}", "k8s/a=b"] {
            assert_eq!(SingleLine::new(line).unwrap().as_str(), line);
        }
        for line in ["a\nb", "a\0", &"x".repeat(MAX_LENGTH + 1)] {
            assert_eq!(SingleLine::new(line), Err(InvalidLine(line.to_owned())));
        }
    }
}
