//! The commands of the agent on nodes, partitions, jobs and reservations.

use serde::{Deserialize, Serialize};

use crate::checked_text::is_plain;
use crate::describe::{NodeDescription, SingleLine};
use crate::job::JobHandle;
use crate::node::AdminState;
use crate::reservation::{ReservationName, ReservationRequest};

/// Slurm keeps a reason of any length; people read the beginning of it.
const MAX_REASON: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCommand {
    pub node: NodeName,
    /// The state the order was planned on. The agent refuses the order in any other state
    /// ([`Refusal::Changed`](super::Refusal::Changed)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<AdminState>,
    #[serde(flatten)]
    pub action: NodeAction,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "camelCase")]
pub enum NodeAction {
    Drain {
        /// `None` keeps the present reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Reason>,
    },
    /// Lifts a drain and leaves the rest of the state unchanged.
    Undrain,
    /// Also returns a node that is down to service, and makes it register.
    Resume,
    /// Terminates its jobs.
    Down {
        /// `None` keeps the present reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Reason>,
    },
    /// Removes the record of a dynamic node. Slurm refuses while a job runs there, but not while one is suspended.
    Delete,
    /// Does not change its state.
    Describe(NodeDescription),
    /// Creates the record of a node that does not exist yet.
    Create {
        /// Its settings as in slurm.conf, such as `State=CLOUD CPUs=2`.
        settings: SingleLine,
    },
    /// Has Slurm start a node that is powered down, as `scontrol power up` does.
    PowerUp,
    /// Has Slurm stop a node at once and requeue its jobs, as `scontrol power down force` does.
    PowerDown,
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
    /// Slurm refuses for a job with `--no-requeue`.
    Requeue,
    Cancel,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "camelCase")]
pub enum ReservationCommand {
    /// Creates a reservation, or changes the existing one.
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

/// Reverts settings of a partition in the running slurmctld to those of the live files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionCommand {
    pub partition: String,
    /// Keys of slurm.conf.
    pub restore: Vec<String>,
}

checked_text! {
    /// The name of one node: neither a hostlist, nor a word that means all nodes in Slurm.
    NodeName: is_node_name,
    InvalidNodeName: "{0:?} is not the name of one node; use letters, digits, - _ and ., and neither \"all\" nor \"default\""
}

fn is_node_name(name: &str) -> bool {
    let means_all = ["all", "default"].iter().any(|word| name.eq_ignore_ascii_case(word));
    // scontrol would take a leading hyphen for an option.
    !name.is_empty() && !means_all && !name.starts_with('-') && is_plain(name, "-_.")
}

checked_text! {
    /// The reason of a node's state: one line for people.
    Reason: |reason| (1..=MAX_REASON).contains(&reason.len()) && !reason.chars().any(char::is_control),
    InvalidReason: "{0:?} is not a reason of one line with 1 to {MAX_REASON} bytes"
}

impl Reason {
    /// The text on one line, cut at the longest length.
    pub fn of(text: &str) -> Self {
        let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let mut line = plain.trim().to_owned();
        line.truncate(line.floor_char_boundary(MAX_REASON));
        Self(if line.is_empty() { "unknown".to_owned() } else { line })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::NodeFeatures;

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
        for reason in ["", "a\nb", "a\0", &"x".repeat(MAX_REASON + 1)] {
            assert_eq!(Reason::new(reason), Err(InvalidReason(reason.to_owned())));
            assert_eq!(Reason::new(Reason::of(reason)), Ok(Reason::of(reason)));
        }
        assert_eq!(Reason::of(" a\nb ").as_str(), "a b");
    }

    #[test]
    fn commands_on_nodes_have_this_wire_format() {
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
                NodeAction::Create {
                    settings: line("State=CLOUD CPUs=2"),
                },
                r#"{"node":"n1","action":"create","settings":"State=CLOUD CPUs=2"}"#,
            ),
            (NodeAction::PowerUp, r#"{"node":"n1","action":"powerUp"}"#),
            (NodeAction::PowerDown, r#"{"node":"n1","action":"powerDown"}"#),
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
    fn commands_on_partitions_have_this_wire_format() {
        let command = PartitionCommand {
            partition: "long".to_owned(),
            restore: vec!["MaxTime".to_owned()],
        };
        let json = r#"{"partition":"long","restore":["MaxTime"]}"#;
        assert_eq!(serde_json::to_string(&command).unwrap(), json);
        assert_eq!(serde_json::from_str::<PartitionCommand>(json).unwrap(), command);
    }

    fn line(text: &str) -> SingleLine {
        SingleLine::new(text).unwrap()
    }

    #[test]
    fn commands_on_jobs_and_reservations_have_this_wire_format() {
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
    fn an_unknown_command_is_rejected() {
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
