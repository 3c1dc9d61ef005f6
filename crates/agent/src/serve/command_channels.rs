//! The ways by which slurmctld is told about partitions, in the order they are tried: Slurm's own protocol, and scontrol where
//! that cannot be spoken (TLS, another key, a release with a newer protocol).

use std::sync::Arc;

use slurm::agent::Way;
use slurm::conf::Configuration;
use slurm::rpc::{Client, Failure, LivePartition, PartitionCommands, PartitionUpdate};
use tracing::debug;

use super::served::Slurmctld;
use super::slurm_tools::SlurmTools;

#[derive(Debug)]
pub(super) struct Ways {
    pub(super) slurmctld: Arc<Slurmctld>,
    pub(super) tools: Arc<SlurmTools>,
}

/// One of them.
#[derive(Debug)]
pub(super) enum Commander {
    Rpc(Box<Client>),
    Scontrol(Arc<SlurmTools>),
}

impl Ways {
    /// Those that there are, the best first.
    pub(super) fn to(&self, configuration: &Configuration) -> Vec<Commander> {
        let by_rpc = self.slurmctld.commander(configuration);
        if let Err(why) = &by_rpc {
            debug!(why, "slurmctld cannot be told by Slurm's own protocol");
        }
        // Of several it finds the one that is active, which may be another pod's.
        let is_alone = configuration.values("SlurmctldHost").count() < 2;
        let by_scontrol = is_alone.then(|| Commander::Scontrol(Arc::clone(&self.tools)));
        by_rpc
            .ok()
            .map(|client| Commander::Rpc(Box::new(client)))
            .into_iter()
            .chain(by_scontrol)
            .collect()
    }

    /// The first by which slurmctld tells its partitions, and these. Otherwise why the best one does not lead there.
    pub(super) async fn reach(
        &self,
        configuration: &Configuration,
    ) -> Result<(Commander, Vec<LivePartition>), Failure> {
        let mut failed = None;
        for commander in self.to(configuration) {
            match commander.partitions().await {
                Ok(partitions) => return Ok((commander, partitions)),
                Err(failure) if failure.asks_for_another_way() => drop(failed.get_or_insert(failure)),
                Err(failure) => return Err(failure),
            }
        }
        Err(failed.unwrap_or_else(|| Failure::Unspoken("there is no way to tell it".to_owned())))
    }

    /// So that the next one does not have to find out which version slurmctld speaks.
    pub(super) fn remember(&self, commander: &Commander) {
        if let Commander::Rpc(client) = commander {
            self.slurmctld.remember_version(client);
        }
    }
}

impl Commander {
    pub(super) const fn way(&self) -> Way {
        match self {
            Self::Rpc(_) => Way::Rpc,
            Self::Scontrol(_) => Way::Scontrol,
        }
    }
}

impl PartitionCommands for Commander {
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
