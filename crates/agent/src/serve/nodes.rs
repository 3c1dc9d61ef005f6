//! Commands to nodes: by Slurm's own protocol, and by scontrol where that cannot be spoken.

use std::sync::Arc;

use slurm::agent::{NodeAction, NodeCommand, Refusal, Way};
use slurm::rest;
use slurm::rpc::{Error, LivePartition, NodeUpdate, ReturnCode};
use slurm::{Line, NodeDescription, NodeFeatures};
use tracing::{debug, info};

use super::served::Slurmctld;
use super::slurm_tools::SlurmTools;
use crate::config_dir::ConfigDir;
use crate::dry_run::configuration_of;

#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) config: ConfigDir,
    pub(super) slurmctld: Arc<Slurmctld>,
    pub(super) tools: Arc<SlurmTools>,
}

impl Nodes {
    pub(super) async fn command(&self, command: &NodeCommand) -> Result<Way, Refusal> {
        match self.by_rpc(command).await {
            Ok(()) => Ok(Way::Rpc),
            Err(Failed::Refused(refusal)) => Err(refusal),
            Err(Failed::Unspoken(why)) => {
                debug!(why, "commanding a node by scontrol");
                self.tools.command_node(command).await.map(|()| Way::Scontrol)
            }
        }
    }

    async fn by_rpc(&self, command: &NodeCommand) -> Result<(), Failed> {
        let client = self.client().map_err(Failed::Unspoken)?;
        let node = command.node.as_str();
        info!(node, action = ?command.action, "commanding a node");
        let done = match message(command) {
            Some(update) => client.update_node(&update).await,
            None => client.delete_nodes(node).await,
        };
        self.slurmctld.remember_version(&client);
        done.map_err(|error| failed(&error))
    }

    /// All partitions as slurmctld has them.
    pub(super) async fn partitions(&self) -> Result<Vec<LivePartition>, Refusal> {
        let client = self.client().map_err(|detail| Refusal::Slurm { detail })?;
        client.partitions().await.map_err(|error| Refusal::Slurm {
            detail: error.to_string(),
        })
    }

    fn client(&self) -> Result<slurm::rpc::Client, String> {
        let live = self.config.live().and_then(|live| self.config.read(&live));
        let live = live.ok_or("there is no revision in the configuration directory")?;
        self.slurmctld.commander(&configuration_of(&live.files))
    }
}

enum Failed {
    Refused(Refusal),
    /// Nothing has happened, and somebody else may be understood.
    Unspoken(String),
}

fn failed(error: &Error) -> Failed {
    match error {
        Error::Refused { code, .. } if *code == ReturnCode::INVALID_NODE_NAME => Failed::Refused(Refusal::NoSuchNode),
        // scontrol finds the one that is not.
        Error::Refused { code, .. } if *code == ReturnCode::IN_STANDBY_MODE => Failed::Unspoken(code.to_string()),
        Error::Unauthorized(_) | Error::Unsupported | Error::Unpackable(_) | Error::Token(_) => {
            Failed::Unspoken(error.to_string())
        }
        Error::Refused { .. } | Error::Unreachable { .. } | Error::Malformed { .. } => {
            Failed::Refused(Refusal::Slurm {
                detail: error.to_string(),
            })
        }
    }
}

/// `None` for a node that is to go.
fn message(NodeCommand { node, action }: &NodeCommand) -> Option<NodeUpdate> {
    let update = NodeUpdate::new(node.as_str());
    let to = |state| NodeUpdate {
        state: Some(state),
        ..update.clone()
    };
    Some(match action {
        NodeAction::Drain { reason } => NodeUpdate {
            reason: Some(reason.to_string()),
            ..to(rest::NodeCommand::Drain)
        },
        NodeAction::Down { reason } => NodeUpdate {
            reason: Some(reason.to_string()),
            ..to(rest::NodeCommand::Down)
        },
        NodeAction::Undrain => to(rest::NodeCommand::Undrain),
        NodeAction::Resume => to(rest::NodeCommand::Resume),
        NodeAction::Describe(NodeDescription {
            comment,
            extra,
            features,
            topology,
            address,
        }) => {
            let text = |line: &Option<Line>| line.as_ref().map(|line| line.as_str().to_owned());
            let joined = |lines: &[Line]| lines.iter().map(Line::as_str).collect::<Vec<_>>().join(",");
            let features = features.as_ref();
            NodeUpdate {
                comment: text(comment),
                extra: text(extra),
                features: features.map(|NodeFeatures { available, .. }| joined(available)),
                active_features: features.map(|NodeFeatures { active, .. }| joined(active)),
                topology: text(topology),
                address: text(address),
                ..update
            }
        }
        NodeAction::Delete => return None,
    })
}

#[cfg(test)]
mod tests {
    use slurm::agent::{NodeName, Reason};

    use super::*;

    #[test]
    fn commands_are_slurms_own() {
        let told = |action| {
            message(&NodeCommand {
                node: NodeName::new("n1").unwrap(),
                action,
            })
        };
        let reason = || Reason::new("scale in").unwrap();
        let n1 = || NodeUpdate::new("n1");
        assert_eq!(
            told(NodeAction::Drain { reason: reason() }),
            Some(NodeUpdate {
                state: Some(rest::NodeCommand::Drain),
                reason: Some("scale in".to_owned()),
                ..n1()
            })
        );
        assert_eq!(
            told(NodeAction::Undrain),
            Some(NodeUpdate {
                state: Some(rest::NodeCommand::Undrain),
                ..n1()
            })
        );
        assert_eq!(told(NodeAction::Delete), None);
        let line = |text: &str| Line::new(text).unwrap();
        assert_eq!(
            told(NodeAction::Describe(NodeDescription {
                comment: Some(line("")),
                extra: None,
                features: Some(NodeFeatures {
                    available: vec![line("a"), line("b")],
                    active: vec![],
                }),
                topology: None,
                address: Some(line("10.0.0.1")),
            })),
            Some(NodeUpdate {
                address: Some("10.0.0.1".to_owned()),
                comment: Some(String::new()),
                features: Some("a,b".to_owned()),
                active_features: Some(String::new()),
                ..n1()
            })
        );
    }

    #[test]
    fn only_where_nothing_has_happened_is_somebody_else_asked() {
        let unspoken = |error| matches!(failed(&error), Failed::Unspoken(_));
        let refused = |code| Error::Refused { code, said: None };
        assert!(unspoken(Error::Unsupported));
        assert!(unspoken(Error::Unauthorized(ReturnCode::AUTHENTICATION)));
        assert!(unspoken(refused(ReturnCode::IN_STANDBY_MODE)));
        assert!(!unspoken(refused(ReturnCode::PARTITION_IN_USE)));
        assert!(!unspoken(Error::Malformed { what: String::new() }));
        let nobody = failed(&refused(ReturnCode::INVALID_NODE_NAME));
        assert!(matches!(nobody, Failed::Refused(Refusal::NoSuchNode)));
    }
}
