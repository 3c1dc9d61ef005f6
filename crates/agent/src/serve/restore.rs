//! Restores settings of a partition that a person changed by hand to what the live files say, in the running slurmctld.
//!
//! The operator names the keys and no values, so that a late order cannot restore a value that the files no longer have.

use slurm::agent::{PartitionCommand, Refusal, Restored};
use slurm::conf::RecordKind;
use slurm::rpc::{Failure, restore_partition};
use tracing::info;

use super::Services;
use super::command_channels::no_channel;

/// An unclear response is an error; the result names what slurmctld rejected.
pub(super) async fn restore(
    Services { config, channels, .. }: &Services,
    command: &PartitionCommand,
) -> Result<Restored, Refusal> {
    // No push may be between its orders to slurmctld and its files.
    let _lock = channels.slurmctld.lock_members().await;
    let configuration = config
        .live_configuration()
        .ok_or_else(|| Refusal::failed("there is no revision in the configuration directory"))?;
    let PartitionCommand { partition, restore } = command;
    info!(%partition, keys = ?restore, "restoring settings of a partition");
    let conf = configuration.slurm_conf_document();
    let lines = conf.effective(RecordKind::Partition);
    let mut failed = no_channel();
    for channel in channels.to(&configuration) {
        let restored = restore_partition(&channel, &lines, partition, restore).await;
        channels.remember(&channel);
        match restored {
            Ok(restored) => return restored.ok_or(Refusal::NoSuchThing),
            Err(failure) => failed = failure,
        }
        if !failed.needs_another_channel() {
            break;
        }
    }
    match failed {
        Failure::NotUnderstood(why) => Ok(Restored::none_of(restore, &why)),
        unclear => Err(Refusal::slurm(unclear)),
    }
}
