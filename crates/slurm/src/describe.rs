//! What is written onto a node beside its state.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Below the 128 KiB that Linux allows one argument of a program: `scontrol` is given these.
const LONGEST_LINE: usize = 100_000;

/// One line, or nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Line(String);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not one line of up to {LONGEST_LINE} bytes")]
pub struct InvalidLine(pub String);

impl Line {
    pub fn new(line: impl Into<String>) -> Result<Self, InvalidLine> {
        let line = line.into();
        if line.len() > LONGEST_LINE || line.chars().any(char::is_control) {
            return Err(InvalidLine(line));
        }
        Ok(Self(line))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

checked_text!(Line, InvalidLine);

/// What is to stand on a node. What is `None` stays as it is.
///
/// Slurm takes one field after the other, and a field it refuses leaves those before it changed: what may be refused goes
/// alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDescription {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<Line>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra: Option<Line>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<NodeFeatures>,
    /// Such as `default:s1`; empty takes the node out of every topology. Slurm refuses what no topology knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Line>,
    /// Where its slurmd is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Line>,
}

/// Both at once: Slurm refuses available features that leave an active one out (2031).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFeatures {
    pub available: Vec<Line>,
    pub active: Vec<Line>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_no_second_one() {
        for line in ["", "default:s1", "{\"podName\":\"a b\"}", "k8s/a=b"] {
            assert_eq!(Line::new(line).unwrap().as_str(), line);
        }
        for line in ["a\nb", "a\0", &"x".repeat(LONGEST_LINE + 1)] {
            assert_eq!(Line::new(line), Err(InvalidLine(line.to_owned())));
        }
    }
}
