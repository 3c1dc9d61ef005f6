//! What is said to a slurmctld outside, where that is more than one word.

use slurm::{
    partition::PartitionStateName,
    rpc::{Delivery, PartitionCommands as _, PartitionUpdate, read_back_partitions},
};
use tracing::warn;

use super::reach::Commands;

/// Makes it closed, looks whether all of it was taken, and opens it: until then nobody can use it, and it can go again.
pub(super) async fn create(commands: &Commands, wanted: &PartitionUpdate) -> Delivery {
    let closed = PartitionUpdate {
        state: Some(PartitionStateName::Inactive),
        ..wanted.clone()
    };
    match commands.create_partition(&closed).await.into() {
        Delivery::Done => {}
        other => return other,
    }
    match read_back_partitions(commands, &[closed]).await {
        Delivery::Done => {}
        Delivery::Refused(why) => {
            // It is not there, or it stays closed; the next look tells.
            drop(commands.delete_partition(&wanted.name).await);
            return Delivery::Refused(why);
        }
        other => return other,
    }
    let open = PartitionUpdate {
        state: wanted.state,
        ..PartitionUpdate::new(&wanted.name)
    };
    match commands.update_partition(&open).await.into() {
        Delivery::Done => read_back_partitions(commands, std::slice::from_ref(wanted)).await,
        other => other,
    }
}

/// As it was before slurmctld refused a part of it.
pub(super) async fn take_back(commands: &Commands, updates: &[PartitionUpdate]) {
    for update in updates {
        if let Err(error) = commands.update_partition(update).await {
            warn!(partition = %update.name, %error, "cannot be taken back");
        }
    }
}
