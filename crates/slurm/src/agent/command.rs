//! What the agent may be told to do with a node.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Slurm keeps a reason of any length; a person reads the first line of it.
const LONGEST_REASON: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCommand {
    pub node: NodeName,
    #[serde(flatten)]
    pub action: NodeAction,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "camelCase")]
pub enum NodeAction {
    Drain {
        reason: Reason,
    },
    /// Takes back a drain and leaves the rest of the state alone.
    Undrain,
    /// Also brings back a node that is down, and makes it register.
    Resume,
    /// Ends its jobs.
    Down {
        reason: Reason,
    },
    /// Removes the record of a dynamic node. Slurm refuses while a job runs there, but not while one is suspended.
    Delete,
}

/// Exactly one node: neither a hostlist, nor a word that Slurm takes for all of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not the name of one node: letters, digits and - _ . are, unless it is \"all\" or \"default\"")]
pub struct InvalidNodeName(pub String);

impl NodeName {
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidNodeName> {
        let name = name.into();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let many = ["all", "default"].iter().any(|word| name.eq_ignore_ascii_case(word));
        // A leading hyphen would be an option to scontrol.
        if name.is_empty() || many || name.starts_with('-') || !name.bytes().all(plain) {
            return Err(InvalidNodeName(name));
        }
        Ok(Self(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One line that tells people why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Reason(String);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no reason: one line of up to {LONGEST_REASON} bytes is")]
pub struct InvalidReason(pub String);

impl Reason {
    pub fn new(reason: impl Into<String>) -> Result<Self, InvalidReason> {
        let reason = reason.into();
        if !(1..=LONGEST_REASON).contains(&reason.len()) || reason.chars().any(char::is_control) {
            return Err(InvalidReason(reason));
        }
        Ok(Self(reason))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

checked_text!(NodeName, InvalidNodeName);
checked_text!(Reason, InvalidReason);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_exactly_one_node() {
        for name in ["n1", "slinky-0", "host.example.org", "a_b"] {
            assert_eq!(NodeName::new(name).unwrap().as_str(), name);
        }
        for name in ["", "n[1-3]", "n1,n2", "ALL", "Default", "-n", "n 1", "n=1", "ä", "n\n"] {
            assert_eq!(NodeName::new(name), Err(InvalidNodeName(name.to_owned())));
        }
    }

    #[test]
    fn a_reason_is_one_line() {
        Reason::new("slurm-operator: scale in ⇒ n=1").unwrap();
        for reason in ["", "a\nb", "a\0", &"x".repeat(LONGEST_REASON + 1)] {
            assert_eq!(Reason::new(reason), Err(InvalidReason(reason.to_owned())));
        }
    }

    #[test]
    fn commands_look_like_this_on_the_wire() {
        let node = || NodeName::new("n1").unwrap();
        let reason = || Reason::new("why").unwrap();
        for (action, json) in [
            (
                NodeAction::Drain { reason: reason() },
                r#"{"node":"n1","action":"drain","reason":"why"}"#,
            ),
            (NodeAction::Undrain, r#"{"node":"n1","action":"undrain"}"#),
            (NodeAction::Resume, r#"{"node":"n1","action":"resume"}"#),
            (
                NodeAction::Down { reason: reason() },
                r#"{"node":"n1","action":"down","reason":"why"}"#,
            ),
            (NodeAction::Delete, r#"{"node":"n1","action":"delete"}"#),
        ] {
            let command = NodeCommand { node: node(), action };
            assert_eq!(serde_json::to_string(&command).unwrap(), json);
            assert_eq!(serde_json::from_str::<NodeCommand>(json).unwrap(), command);
        }
    }

    #[test]
    fn a_command_that_is_not_understood_is_none() {
        for json in [
            r#"{"node":"n1","action":"reboot"}"#,
            r#"{"node":"n1","action":"drain"}"#,
            r#"{"node":"n[1-9]","action":"delete"}"#,
            r#"{"action":"delete"}"#,
        ] {
            assert!(serde_json::from_str::<NodeCommand>(json).is_err(), "{json}");
        }
    }
}
