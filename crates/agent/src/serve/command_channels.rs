//! The channels by which partition commands reach slurmctld, in the order they are tried: Slurm's own protocol, and scontrol
//! where that does not work (TLS, another key, a release with a newer protocol).

use std::sync::Arc;

use slurm::agent::UpdateChannel;
use slurm::conf::Configuration;
use slurm::rpc::{Client, Failure, LivePartition, PartitionCommands, PartitionUpdate};
use tracing::debug;

use super::slurm_tools::SlurmTools;
use super::slurmctld::Slurmctld;

#[derive(Debug)]
pub(super) struct CommandChannels {
    pub(super) slurmctld: Slurmctld,
    pub(super) tools: Arc<SlurmTools>,
}

/// One channel.
#[derive(Debug)]
pub(super) enum Channel {
    Rpc(Box<Client>),
    Scontrol(Arc<SlurmTools>),
}

impl CommandChannels {
    /// The channels to a slurmctld with this configuration, the preferred one first.
    pub(super) fn to(&self, configuration: &Configuration) -> Vec<Channel> {
        let rpc = self.slurmctld.command_client(configuration);
        let rpc = rpc.inspect_err(|error| debug!(%error, "cannot use Slurm's own protocol"));
        let rpc = rpc.ok().map(|client| Channel::Rpc(Box::new(client)));
        // Of several slurmctld scontrol finds the active one, which may be another pod's.
        let is_alone = configuration.values("SlurmctldHost").count() < 2;
        let scontrol = is_alone.then(|| Channel::Scontrol(Arc::clone(&self.tools)));
        rpc.into_iter().chain(scontrol).collect()
    }

    /// Returns the first channel that works, and slurmctld's partitions; otherwise the failure of the preferred channel.
    pub(super) async fn reach(&self, configuration: &Configuration) -> Result<(Channel, Vec<LivePartition>), Failure> {
        let mut failed = None;
        for channel in self.to(configuration) {
            match channel.partitions().await {
                Ok(partitions) => return Ok((channel, partitions)),
                Err(failure) if failure.needs_another_channel() => drop(failed.get_or_insert(failure)),
                Err(failure) => return Err(failure),
            }
        }
        Err(failed.unwrap_or_else(no_channel))
    }

    /// Remembers the protocol version that slurmctld understood.
    pub(super) fn remember(&self, channel: &Channel) {
        if let Channel::Rpc(client) = channel {
            self.slurmctld.remember_version(client);
        }
    }
}

/// The failure where there is no channel at all.
pub(super) fn no_channel() -> Failure {
    Failure::NotUnderstood("neither Slurm's own protocol nor scontrol can be used".to_owned())
}

impl Channel {
    pub(super) const fn way(&self) -> UpdateChannel {
        match self {
            Self::Rpc(_) => UpdateChannel::Rpc,
            Self::Scontrol(_) => UpdateChannel::Scontrol,
        }
    }
}

impl PartitionCommands for Channel {
    async fn partitions(&self) -> Result<Vec<LivePartition>, Failure> {
        match self {
            Self::Rpc(client) => PartitionCommands::partitions(client.as_ref()).await,
            Self::Scontrol(tools) => tools.partitions().await,
        }
    }

    async fn create_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        match self {
            Self::Rpc(client) => PartitionCommands::create_partition(client.as_ref(), partition).await,
            Self::Scontrol(tools) => tools.create_partition(partition).await,
        }
    }

    async fn update_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        match self {
            Self::Rpc(client) => PartitionCommands::update_partition(client.as_ref(), partition).await,
            Self::Scontrol(tools) => tools.update_partition(partition).await,
        }
    }

    async fn delete_partition(&self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Rpc(client) => PartitionCommands::delete_partition(client.as_ref(), name).await,
            Self::Scontrol(tools) => tools.delete_partition(name).await,
        }
    }
}
