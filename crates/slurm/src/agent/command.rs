//! What the agent may be told to do with a node, a partition, a job or a reservation.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::describe::NodeDescription;
use crate::job::JobHandle;
use crate::node::AdminState;
use crate::reservation::{ReservationName, ReservationRequest};

/// Slurm keeps a reason of any length; a person reads the first line of it.
const LONGEST_REASON: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCommand {
    pub node: NodeName,
    /// What the order was planned on. Any other state of the node refuses it ([`Refusal::Changed`](super::Refusal::Changed)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<AdminState>,
    #[serde(flatten)]
    pub action: NodeAction,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "camelCase")]
pub enum NodeAction {
    Drain {
        /// `None` leaves the reason that stands there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Reason>,
    },
    /// Takes back a drain and leaves the rest of the state alone.
    Undrain,
    /// Also brings back a node that is down, and makes it register.
    Resume,
    /// Ends its jobs.
    Down {
        /// `None` leaves the reason that stands there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Reason>,
    },
    /// Removes the record of a dynamic node. Slurm refuses while a job runs there, but not while one is suspended.
    Delete,
    /// Changes nothing of its state.
    Describe(NodeDescription),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCommand {
    pub job: JobHandle,
    #[serde(flatten)]
    pub action: JobAction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "camelCase")]
pub enum JobAction {
    /// It is ended and waits again. Slurm refuses if its owner said `--no-requeue`.
    Requeue,
    /// It is ended.
    Cancel,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "camelCase")]
pub enum ReservationCommand {
    /// Changes the one of that name, or makes it.
    Reserve(ReservationRequest),
    Unreserve {
        name: ReservationName,
    },
}

impl ReservationCommand {
    pub fn name(&self) -> &ReservationName {
        match self {
            Self::Reserve(request) => &request.name,
            Self::Unreserve { name } => name,
        }
    }
}

/// Settings of a partition that are to be again, in the running slurmctld, what the live files say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionCommand {
    pub partition: String,
    /// As in slurm.conf.
    pub restore: Vec<String>,
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
    use crate::describe::{Line, NodeFeatures};

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
        let reason = || Some(Reason::new("why").unwrap());
        for (action, json) in [
            (
                NodeAction::Drain { reason: reason() },
                r#"{"node":"n1","action":"drain","reason":"why"}"#,
            ),
            (NodeAction::Drain { reason: None }, r#"{"node":"n1","action":"drain"}"#),
            (NodeAction::Undrain, r#"{"node":"n1","action":"undrain"}"#),
            (NodeAction::Resume, r#"{"node":"n1","action":"resume"}"#),
            (
                NodeAction::Down { reason: reason() },
                r#"{"node":"n1","action":"down","reason":"why"}"#,
            ),
            (NodeAction::Delete, r#"{"node":"n1","action":"delete"}"#),
            (
                NodeAction::Describe(NodeDescription {
                    comment: Some(line("c")),
                    features: Some(NodeFeatures {
                        available: vec![line("a"), line("b")],
                        active: vec![],
                    }),
                    ..NodeDescription::default()
                }),
                r#"{"node":"n1","action":"describe","comment":"c","features":{"available":["a","b"],"active":[]}}"#,
            ),
        ] {
            let command = NodeCommand {
                node: node(),
                expect: None,
                action,
            };
            assert_eq!(serde_json::to_string(&command).unwrap(), json);
            assert_eq!(serde_json::from_str::<NodeCommand>(json).unwrap(), command);
        }
        let undrain = NodeCommand {
            node: node(),
            expect: Some(AdminState {
                drain: true,
                down: false,
                reason: "why".to_owned(),
                reason_since: 7,
            }),
            action: NodeAction::Undrain,
        };
        let json =
            r#"{"node":"n1","expect":{"drain":true,"down":false,"reason":"why","reasonSince":7},"action":"undrain"}"#;
        assert_eq!(serde_json::to_string(&undrain).unwrap(), json);
        assert_eq!(serde_json::from_str::<NodeCommand>(json).unwrap(), undrain);
    }

    #[test]
    fn a_command_on_a_partition_looks_like_this_on_the_wire() {
        let command = PartitionCommand {
            partition: "long".to_owned(),
            restore: vec!["MaxTime".to_owned()],
        };
        let json = r#"{"partition":"long","restore":["MaxTime"]}"#;
        assert_eq!(serde_json::to_string(&command).unwrap(), json);
        assert_eq!(serde_json::from_str::<PartitionCommand>(json).unwrap(), command);
    }

    fn line(text: &str) -> Line {
        Line::new(text).unwrap()
    }

    #[test]
    fn commands_on_jobs_and_reservations_look_like_this_on_the_wire() {
        let job = JobCommand {
            job: JobHandle::new("7_3").unwrap(),
            action: JobAction::Requeue,
        };
        let json = r#"{"job":"7_3","action":"requeue"}"#;
        assert_eq!(serde_json::to_string(&job).unwrap(), json);
        assert_eq!(serde_json::from_str::<JobCommand>(json).unwrap(), job);
        let name = || ReservationName::new("r").unwrap();
        for (command, json) in [
            (
                ReservationCommand::Reserve(ReservationRequest {
                    start: Some(1000),
                    minutes: Some(30),
                    nodes: vec![line("n[1-2]")],
                    users: vec![line("slurm")],
                    flags: vec![line("MAINT")],
                    ..ReservationRequest::new(name())
                }),
                r#"{"action":"reserve","name":"r","start":1000,"minutes":30,"nodes":["n[1-2]"],"users":["slurm"],"flags":["MAINT"]}"#,
            ),
            (
                ReservationCommand::Unreserve { name: name() },
                r#"{"action":"unreserve","name":"r"}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&command).unwrap(), json);
            assert_eq!(serde_json::from_str::<ReservationCommand>(json).unwrap(), command);
        }
    }

    #[test]
    fn a_command_that_is_not_understood_is_none() {
        for json in [
            r#"{"node":"n1","action":"reboot"}"#,
            r#"{"node":"n1","action":"drain","reason":"a\nb"}"#,
            r#"{"node":"n[1-9]","action":"delete"}"#,
            r#"{"action":"delete"}"#,
        ] {
            assert!(serde_json::from_str::<NodeCommand>(json).is_err(), "{json}");
        }
    }
}
