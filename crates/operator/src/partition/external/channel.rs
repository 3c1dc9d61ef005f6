//! How an external slurmctld is reached: by Slurm's own protocol, or else through slurmrestd.

use std::sync::Arc;

use api::partition::PartitionWay;
use jiff::Timestamp;
use slurm::{
    rest,
    rpc::{self, Failure, LivePartition, PartitionCommands, PartitionUpdate},
    transport,
};

use crate::{
    cluster::external::{External, ExternalCluster},
    runtime::{Clock, Context, Key},
};

/// Whether an external slurmctld can be reached.
#[derive(Clone, Debug)]
pub(in crate::partition) enum Reach {
    /// It has not been polled yet.
    Unpolled,
    /// No channel works: the reason and the remedy.
    Unreachable(String),
    Reached(Box<Reached>),
}

/// A reachable slurmctld and its state.
#[derive(Clone, Debug)]
pub(in crate::partition) struct Reached {
    pub(in crate::partition) external: External,
    pub(in crate::partition) cluster: ExternalCluster,
    /// When the state was read.
    pub(in crate::partition) at: Timestamp,
    pub(in crate::partition) channel: Channel,
}

/// A channel to slurmctld.
#[derive(Clone, Debug)]
pub(in crate::partition) enum Channel {
    Rpc(Arc<rpc::Client>),
    Rest(Arc<rest::Client>),
}

/// Reads the state of this Controller's slurmctld through the first channel that works.
pub(in crate::partition) async fn reach(context: &Context, controller: &Key) -> Reach {
    let external = context.clusters.external(controller);
    let Some((external, view)) = external.and_then(|external| external.view().map(|view| (external, view))) else {
        return Reach::Unpolled;
    };
    let reached = |cluster: ExternalCluster, at: Timestamp, channel: Channel| {
        Reach::Reached(Box::new(Reached {
            external: external.clone(),
            cluster,
            at,
            channel,
        }))
    };
    let by_rpc = match (&view.cluster, &view.unfit) {
        (Ok(_), Some(unfit)) => return Reach::Unreachable(unfit.message.clone()),
        (Ok(cluster), None) => {
            return reached(cluster.clone(), view.at, Channel::Rpc(Arc::clone(&external.client)));
        }
        (Err(_), Some(unfit)) => &unfit.message,
        (Err(why), None) => why,
    };
    let by_rest = async {
        let client = context
            .clusters
            .slurmrestd(controller)
            .map_err(|error| error.to_string())?;
        let cluster = read_cluster(&client, &context.clock)
            .await
            .map_err(|error| error.to_string())?;
        Ok::<_, String>((cluster, Channel::Rest(client)))
    };
    match by_rest.await {
        Ok((cluster, channel)) => reached(cluster, context.clock.now(), channel),
        Err(why) => Reach::Unreachable(format!(
            "{by_rpc}; it cannot be reached through slurmrestd either: {why}; that requires a RestApi of this Controller with Slurm 26.05 or later"
        )),
    }
}

async fn read_cluster(client: &rest::Client, clock: &Clock) -> Result<ExternalCluster, rest::Error> {
    // Ping fails at once where other requests wait ten seconds.
    if !client.ping().await?.value.iter().any(|ping| ping.responding) {
        return Err(rest::Error::Transport(transport::Error::Unreachable {
            reason: "slurmctld does not respond to slurmrestd either".to_owned(),
            source: None,
        }));
    }
    let flags = client.running_conf().await?.reconfig_flags;
    let conf = client.served_conf().await?.ok_or(rest::Error::Lacking {
        what: "tell the configuration",
        since: rest::ApiVersion::V45,
    })?;
    let now = clock.now();
    let partitions = client.live_partitions().await?;
    Ok(ExternalCluster::without_file(&flags, partitions, &conf, now))
}

impl Channel {
    pub(in crate::partition) const fn way(&self) -> PartitionWay {
        match self {
            Self::Rpc(_) => PartitionWay::Rpc,
            Self::Rest(_) => PartitionWay::Rest,
        }
    }
}

/// Calls a method of the channel's client.
macro_rules! by {
    ($channel:ident, $method:ident($($argument:ident)?)) => {
        match $channel {
            Self::Rpc(client) => PartitionCommands::$method(client.as_ref() $(, $argument)?).await,
            Self::Rest(client) => PartitionCommands::$method(client.as_ref() $(, $argument)?).await,
        }
    };
}

impl PartitionCommands for Channel {
    async fn partitions(&self) -> Result<Vec<LivePartition>, Failure> {
        by!(self, partitions())
    }

    async fn create_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        by!(self, create_partition(partition))
    }

    async fn update_partition(&self, partition: &PartitionUpdate) -> Result<(), Failure> {
        by!(self, update_partition(partition))
    }

    async fn delete_partition(&self, name: &str) -> Result<(), Failure> {
        by!(self, delete_partition(name))
    }
}
