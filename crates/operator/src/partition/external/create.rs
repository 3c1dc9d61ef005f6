//! Creates a partition in an external slurmctld, and rolls back an update of one.

use slurm::{
    partition::PartitionStateName,
    rpc::{Delivery, PartitionCommands as _, PartitionUpdate, read_back_partitions},
};
use tracing::warn;

use super::channel::Channel;

/// Creates it closed, reads it back, and opens it: until then it accepts no jobs, and can be deleted.
pub(super) async fn create(channel: &Channel, wanted: &PartitionUpdate) -> Delivery {
    let closed = PartitionUpdate {
        state: Some(PartitionStateName::Inactive),
        ..wanted.clone()
    };
    match channel.create_partition(&closed).await.into() {
        Delivery::Done => {}
        other => return other,
    }
    match read_back_partitions(channel, &[closed]).await {
        Delivery::Done => {}
        Delivery::Refused(why) => {
            // If this fails, the partition stays closed, and the next poll finds it.
            drop(channel.delete_partition(&wanted.name).await);
            return Delivery::Refused(why);
        }
        other => return other,
    }
    let open = PartitionUpdate {
        state: wanted.state,
        ..PartitionUpdate::new(&wanted.name)
    };
    match channel.update_partition(&open).await.into() {
        Delivery::Done => read_back_partitions(channel, std::slice::from_ref(wanted)).await,
        other => other,
    }
}

/// Restores the former values after slurmctld rejected a part of an update.
pub(super) async fn roll_back(channel: &Channel, updates: &[PartitionUpdate]) {
    for update in updates {
        if let Err(error) = channel.update_partition(update).await {
            warn!(partition = %update.name, %error, "cannot roll back an update");
        }
    }
}
