//! Commands to nodes: by Slurm's own protocol, and by scontrol where that does not work.
//!
//! Slurm has no compare-and-swap. An order that changes a node's administrative state therefore names the state it was planned
//! on, and reading, comparing and ordering are one step here, next to slurmctld. A manual change in the meantime is kept.
//! The remaining window is the time between two RPCs, less than a millisecond.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use slurm::agent::{NodeAction, NodeCommand, Reason, Refusal, UpdateChannel};
use slurm::conf::{Configuration, RecordKind};

use slurm::rpc::{
    self, Error, Failure, LivePartition, NodeUpdate, PartitionCommands as _, PartitionUpdate, ReturnCode,
};
use slurm::{AdminState, Hostlist, NodeDescription, NodeFeatures, SingleLine};
use tokio::sync::{Mutex, MutexGuard};
use tracing::{debug, info};

use super::Services;

#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) services: Arc<Services>,
    /// Held from reading a node to the end of the order.
    pub(super) step: Mutex<()>,
}

impl Nodes {
    /// Waits for earlier commands. The caller checks its fence after that.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.step.lock().await
    }

    pub(super) async fn command(&self, command: &NodeCommand) -> Result<UpdateChannel, Refusal> {
        let sent = match self.by_rpc(command).await {
            Ok(()) => Ok(UpdateChannel::Rpc),
            Err(Failed::Refused(refusal)) => Err(refusal),
            Err(Failed::Unspoken(error)) => {
                debug!(error, "sending a node command by scontrol");
                self.by_scontrol(command).await.map(|()| UpdateChannel::Scontrol)
            }
        };
        let is_gone = matches!(sent, Ok(_) | Err(Refusal::NoSuchNode));
        if command.action == NodeAction::Delete && is_gone {
            let now = self.services.host.instant();
            self.services.registrations().delete(command.node.as_str(), now);
        }
        if let (Err(Refusal::NoSuchNode), Some(address)) = (&sent, address_in(command)) {
            self.services.request_registration(&command.node, address).await;
        }
        let way = sent?;
        let updated = self.update_members(command).await;
        updated.map(|()| way).map_err(Refusal::slurm)
    }

    async fn by_rpc(&self, command: &NodeCommand) -> Result<(), Failed> {
        let client = self
            .services
            .client()
            .map_err(|error| Failed::Unspoken(error.to_string()))?;
        let node = command.node.as_str();
        if let Some(expected) = &command.expect {
            let now = client.admin_state(node).await.map_err(|error| failed(&error))?;
            compare(now, expected).map_err(Failed::Refused)?;
        }
        info!(node, action = ?command.action, "sending a node command");
        let done = match message(command) {
            Message::Update(update) => client.update_node(&update).await,
            Message::Create(line) => client.create_node(&line).await,
            Message::Delete => client.delete_nodes(node).await,
            Message::Power(_) => return Err(Failed::Unspoken("scontrol starts and stops nodes".to_owned())),
        };
        self.services.channels.slurmctld.remember_version(&client);
        done.map_err(|error| failed(&error))
    }

    async fn by_scontrol(&self, command: &NodeCommand) -> Result<(), Refusal> {
        let Some(expected) = &command.expect else {
            return self.services.channels.tools.command_node(command).await;
        };
        let now = self.services.channels.tools.admin_state(&command.node).await?;
        compare(now, expected)?;
        let mut command = command.clone();
        // scontrol requires a reason.
        if let NodeAction::Drain { reason } | NodeAction::Down { reason } = &mut command.action
            && reason.is_none()
        {
            *reason = Reason::new(expected.reason.clone()).ok();
        }
        self.services.channels.tools.command_node(&command).await
    }

    /// Makes partitions update their members, which Slurm does not do when a node gets a feature.
    async fn update_members(&self, NodeCommand { node, action, .. }: &NodeCommand) -> Result<(), Failure> {
        let NodeAction::Describe(NodeDescription {
            features: Some(features),
            ..
        }) = action
        else {
            return Ok(());
        };
        let node = node.as_str();
        let _lock = self.services.channels.slurmctld.lock_members().await;
        let Some(configuration) = self.services.config.live_configuration() else {
            return Ok(());
        };
        let wanted = partitions_by_feature(&configuration, features);
        if wanted.is_empty() {
            return Ok(());
        }
        let (channel, partitions) = self.services.channels.reach(&configuration).await?;
        for update in wanted {
            let shown = partitions.iter().find(|partition| partition.name == update.name);
            if shown.is_some_and(|shown| lacks(shown, &update, node)) {
                info!(node, partition = %update.name, "making a partition update its members");
                channel.update_partition(&update).await?;
            }
        }
        Ok(())
    }
}

/// The partitions that get their nodes by one of these features, with the nodes of their lines.
fn partitions_by_feature(configuration: &Configuration, features: &NodeFeatures) -> Vec<PartitionUpdate> {
    let conf = configuration.slurm_conf_document();
    let has = |feature: &str| features.available.iter().any(|line| line.as_str() == feature);
    let sets: BTreeSet<&str> = conf
        .records(RecordKind::NodeSet)
        .filter(|set| set.get("Feature").is_some_and(has))
        .map(|set| set.name)
        .collect();
    let partitions = conf.effective(RecordKind::Partition).into_iter();
    partitions
        .filter_map(|(name, settings)| {
            let (_, nodes) = settings.iter().find(|(key, _)| **key == *"Nodes")?;
            let by_feature = nodes.split(',').any(|item| sets.contains(item));
            by_feature.then(|| PartitionUpdate {
                nodes: Some(nodes.clone()),
                ..PartitionUpdate::new(name)
            })
        })
        .collect()
}

/// Returns whether only this node is missing in the partition. A partition with a manual change is left alone.
fn lacks(shown: &LivePartition, update: &PartitionUpdate, node: &str) -> bool {
    let has_node = Hostlist::parse(&shown.nodes).is_ok_and(|nodes| nodes.contains(node));
    !has_node && !shown.node_sets.is_empty() && update.differences(shown).is_empty()
}

/// The address of slurmd, if the command gives it.
fn address_in(command: &NodeCommand) -> Option<IpAddr> {
    match &command.action {
        NodeAction::Describe(description) => description.address.as_ref()?.as_str().parse().ok(),
        _ => None,
    }
}

enum Failed {
    Refused(Refusal),
    /// slurmctld did not process the request; scontrol may succeed.
    Unspoken(String),
}

fn failed(error: &Error) -> Failed {
    match error {
        Error::Refused { code, .. } if *code == ReturnCode::INVALID_NODE_NAME => Failed::Refused(Refusal::NoSuchNode),
        // scontrol has its own protocol version and key, and finds the active slurmctld.
        _ if error.is_not_understood() => Failed::Unspoken(error.to_string()),
        _ => Failed::Refused(Refusal::slurm(error)),
    }
}

fn compare(now: Option<AdminState>, expected: &AdminState) -> Result<(), Refusal> {
    match now {
        None => Err(Refusal::NoSuchNode),
        Some(now) if now != *expected => Err(Refusal::Changed { now }),
        Some(_) => Ok(()),
    }
}

/// The message to slurmctld.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    Update(NodeUpdate),
    /// The line of the node.
    Create(String),
    Delete,
    /// The arguments of `scontrol power`.
    Power(&'static [&'static str]),
}

pub(super) fn message(NodeCommand { node, action, .. }: &NodeCommand) -> Message {
    let update = NodeUpdate::new(node.as_str());
    let to = |state, reason: Option<&Reason>| NodeUpdate {
        state: Some(state),
        reason: reason.map(ToString::to_string),
        ..update.clone()
    };
    Message::Update(match action {
        NodeAction::Drain { reason } => to(rpc::NodeCommand::Drain, reason.as_ref()),
        NodeAction::Down { reason } => to(rpc::NodeCommand::Down, reason.as_ref()),
        NodeAction::Undrain => to(rpc::NodeCommand::Undrain, None),
        NodeAction::Resume => to(rpc::NodeCommand::Resume, None),
        NodeAction::Describe(NodeDescription {
            comment,
            extra,
            features,
            topology,
            address,
        }) => {
            let text = |line: &Option<SingleLine>| line.as_ref().map(|line| line.as_str().to_owned());
            let joined = |lines: &[SingleLine]| lines.iter().map(SingleLine::as_str).collect::<Vec<_>>().join(",");
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
        NodeAction::Create { settings } => return Message::Create(format!("NodeName={node} {settings}")),
        NodeAction::Delete => return Message::Delete,
        NodeAction::PowerUp => return Message::Power(&["up"]),
        NodeAction::PowerDown => return Message::Power(&["down", "force"]),
    })
}

#[cfg(test)]
mod tests {
    use slurm::agent::NodeName;

    use super::*;

    #[test]
    fn node_commands_are_slurms_own_messages() {
        let sent = |action| {
            message(&NodeCommand {
                node: NodeName::new("n1").unwrap(),
                expect: None,
                action,
            })
        };
        let reason = || Some(Reason::new("scale in").unwrap());
        let n1 = || NodeUpdate::new("n1");
        assert_eq!(
            sent(NodeAction::Drain { reason: reason() }),
            Message::Update(NodeUpdate {
                state: Some(rpc::NodeCommand::Drain),
                reason: Some("scale in".to_owned()),
                ..n1()
            })
        );
        assert_eq!(
            sent(NodeAction::Down { reason: None }),
            Message::Update(NodeUpdate {
                state: Some(rpc::NodeCommand::Down),
                ..n1()
            }),
            "the current reason stays"
        );
        assert_eq!(
            sent(NodeAction::Undrain),
            Message::Update(NodeUpdate {
                state: Some(rpc::NodeCommand::Undrain),
                ..n1()
            })
        );
        assert_eq!(sent(NodeAction::Delete), Message::Delete);
        let settings = SingleLine::new("State=CLOUD CPUs=2").unwrap();
        assert_eq!(
            sent(NodeAction::Create { settings }),
            Message::Create("NodeName=n1 State=CLOUD CPUs=2".to_owned())
        );
        let line = |text: &str| SingleLine::new(text).unwrap();
        assert_eq!(
            sent(NodeAction::Describe(NodeDescription {
                comment: Some(line("")),
                extra: None,
                features: Some(NodeFeatures {
                    available: vec![line("a"), line("b")],
                    active: vec![],
                }),
                topology: None,
                address: Some(line("10.0.0.1")),
            })),
            Message::Update(NodeUpdate {
                address: Some("10.0.0.1".to_owned()),
                comment: Some(String::new()),
                features: Some("a,b".to_owned()),
                active_features: Some(String::new()),
                ..n1()
            })
        );
    }

    #[test]
    fn a_partition_updates_its_members_when_a_node_gets_its_feature() {
        let conf =
            "NodeSet=a Feature=a\nNodeSet=p.m Feature=p.m\nPartitionName=p Nodes=p.m,x1\nPartitionName=q Nodes=x1\n";
        let conf = Configuration::parse([("slurm.conf", conf.as_bytes())]);
        let features = |names: &[&str]| NodeFeatures {
            available: names.iter().map(|name| SingleLine::new(*name).unwrap()).collect(),
            active: vec![],
        };
        assert_eq!(partitions_by_feature(&conf, &features(&["a", "k8s/z"])), []);
        let updates = partitions_by_feature(&conf, &features(&["a", "p.m"]));
        assert_eq!(updates.len(), 1);
        assert_eq!(
            (updates[0].name.as_str(), updates[0].nodes.as_deref()),
            ("p", Some("p.m,x1"))
        );
        let shown = |nodes: &str, node_sets: &str| LivePartition {
            name: "p".to_owned(),
            nodes: nodes.to_owned(),
            node_sets: node_sets.to_owned(),
            ..LivePartition::default()
        };
        assert!(lacks(&shown("x1,n1", "p.m"), &updates[0], "n2"));
        assert!(!lacks(&shown("x1,n[1-2]", "p.m"), &updates[0], "n2"), "it has it");
        assert!(
            !lacks(&shown("n1", "p.m"), &updates[0], "n2"),
            "another list is being applied"
        );
        assert!(
            !lacks(&shown("x1,n1", ""), &updates[0], "n2"),
            "a person made it a plain list"
        );
    }

    #[test]
    fn scontrol_is_used_only_where_slurmctld_did_not_process_the_request() {
        let unspoken = |error| matches!(failed(&error), Failed::Unspoken(_));
        let refused = |code| Error::Refused { code, said: None };
        assert!(unspoken(Error::Unsupported));
        assert!(unspoken(Error::Unauthorized(ReturnCode::AUTHENTICATION)));
        assert!(unspoken(refused(ReturnCode::IN_STANDBY_MODE)));
        assert!(!unspoken(refused(ReturnCode::PARTITION_IN_USE)));
        let malformed = slurm::transport::Error::Malformed {
            reason: String::new(),
            source: None,
        };
        assert!(!unspoken(malformed.into()));
        let unknown = failed(&refused(ReturnCode::INVALID_NODE_NAME));
        assert!(matches!(unknown, Failed::Refused(Refusal::NoSuchNode)));
    }
}
