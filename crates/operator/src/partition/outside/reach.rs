//! How a slurmctld outside can be told at the moment: by Slurm's own protocol, and by slurmrestd where that does not lead there
//! (TLS, a port that only pods of the cluster reach, a release with a newer protocol).

use std::{borrow::Cow, sync::Arc};

use api::partition::PartitionWay;
use slurm::{
    rest, rpc,
    rpc::{Failure, LivePartition, PartitionCommands, PartitionUpdate},
    transport,
};

use crate::{
    access::Access,
    outside::{Cluster, Outside, View},
    runtime::{Clock, Key},
};

/// What it has, and how it is told.
pub(super) struct Reached<'a> {
    pub(super) cluster: Cow<'a, Cluster>,
    pub(super) commands: Commands,
}

/// One way to it.
#[derive(Clone, Debug)]
pub(super) enum Commands {
    Rpc(Arc<rpc::Client>),
    Rest(Arc<rest::Client>),
}

/// By the first way that leads there; or why none does, and what to do.
pub(super) async fn reach<'a>(
    outside: &Outside,
    view: &'a View,
    access: &Access,
    controller: &Key,
    clock: &Clock,
) -> Result<Reached<'a>, String> {
    let by_rpc = match view {
        View {
            cluster: Ok(_),
            unfit: Some(unfit),
            ..
        } => return Err(unfit.message.clone()),
        View {
            cluster: Ok(cluster), ..
        } => {
            return Ok(Reached {
                cluster: Cow::Borrowed(cluster),
                commands: Commands::Rpc(Arc::clone(&outside.client)),
            });
        }
        View { unfit: Some(unfit), .. } => &unfit.message,
        View { cluster: Err(why), .. } => why,
    };
    let by_rest = async {
        let client = access.slurmrestd(controller)?;
        let cluster = look(&client, clock).await.map_err(|error| error.to_string())?;
        Ok::<_, String>(Reached {
            cluster: Cow::Owned(cluster),
            commands: Commands::Rest(client),
        })
    };
    by_rest.await.map_err(|why| {
        format!(
            "{by_rpc}; nor can it be told through slurmrestd: {why}; that takes a RestApi of this Controller with Slurm 26.05 or later"
        )
    })
}

async fn look(client: &rest::Client, clock: &Clock) -> Result<Cluster, rest::Error> {
    // It says at once what other questions wait ten seconds for.
    if !client.ping().await?.value.iter().any(|ping| ping.responding) {
        return Err(rest::Error::Transport(transport::Error::Unreachable {
            reason: "slurmctld does not answer it, either".to_owned(),
            source: None,
        }));
    }
    let flags = client.running_conf().await?.reconfig_flags;
    let conf = client.served_conf().await?.ok_or(rest::Error::Lacking {
        what: "tell the configuration",
    })?;
    let now = clock.now();
    let partitions = client.live_partitions().await?;
    Ok(Cluster::without_file(&flags, partitions, &conf, now))
}

impl Commands {
    pub(super) const fn way(&self) -> PartitionWay {
        match self {
            Self::Rpc(_) => PartitionWay::Rpc,
            Self::Rest(_) => PartitionWay::Rest,
        }
    }
}

impl PartitionCommands for Commands {
    async fn partitions(&self) -> Result<Vec<LivePartition>, Failure> {
        match self {
            Self::Rpc(client) => PartitionCommands::partitions(client.as_ref()).await,
            Self::Rest(client) => PartitionCommands::partitions(client.as_ref()).await,
        }
    }

    async fn create_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        match self {
            Self::Rpc(client) => PartitionCommands::create_partition(client.as_ref(), partition).await,
            Self::Rest(client) => PartitionCommands::create_partition(client.as_ref(), partition).await,
        }
    }

    async fn update_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        match self {
            Self::Rpc(client) => PartitionCommands::update_partition(client.as_ref(), partition).await,
            Self::Rest(client) => PartitionCommands::update_partition(client.as_ref(), partition).await,
        }
    }

    async fn delete_partition(&self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Rpc(client) => PartitionCommands::delete_partition(client.as_ref(), name).await,
            Self::Rest(client) => PartitionCommands::delete_partition(client.as_ref(), name).await,
        }
    }
}
