//! Settings of a partition that somebody changed by hand: brought back, in the running slurmctld, to what the live files say.
//!
//! The operator names the keys and no values, so that an order that comes late cannot bring back what the files no longer have.

use slurm::agent::{PartitionCommand, Refusal, Restored};
use slurm::conf::RecordKind;
use slurm::rpc::{Failure, restore_partition};
use tracing::info;

use super::ways::Ways;
use crate::config_dir::ConfigDir;
use crate::dry_run::configuration_of;

/// Only what is no clear answer is an error: what slurmctld refuses is named in the result.
pub(super) async fn restore(config: &ConfigDir, ways: &Ways, command: &PartitionCommand) -> Result<Restored, Refusal> {
    // No push is between its words to slurmctld and its files.
    let _lock = ways.slurmctld.lock_members().await;
    let live = config.live().and_then(|live| config.read(&live));
    let live = live.ok_or_else(|| Refusal::Failed {
        detail: "there is no revision in the configuration directory".to_owned(),
    })?;
    let configuration = configuration_of(&live.files);
    let PartitionCommand { partition, restore } = command;
    info!(%partition, keys = ?restore, "bringing a partition back to its line");
    let conf = configuration.slurm_conf_document();
    let lines = conf.effective(RecordKind::Partition);
    let mut failed = Failure::NotUnderstood("there is no way to tell slurmctld".to_owned());
    for commander in ways.to(&configuration) {
        let restored = restore_partition(&commander, &lines, partition, restore).await;
        ways.remember(&commander);
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
        unclear => Err(Refusal::Slurm {
            detail: unclear.to_string(),
        }),
    }
}
