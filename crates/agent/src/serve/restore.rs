//! Settings of a partition that somebody changed by hand: brought back, in the running slurmctld, to what the live files say.
//!
//! The operator names the keys and no values, so that an order that comes late cannot bring back what the files no longer have.

use slurm::agent::{PartitionCommand, Refusal, Restored};
use slurm::conf::RecordKind;
use slurm::rpc::restore_partition;
use tracing::info;

use super::served::Slurmctld;
use crate::config_dir::ConfigDir;
use crate::dry_run::configuration_of;

/// Only what is no clear answer is an error: what slurmctld refuses is named in the result.
pub(super) async fn restore(
    config: &ConfigDir,
    slurmctld: &Slurmctld,
    command: &PartitionCommand,
) -> Result<Restored, Refusal> {
    // No push is between its words to slurmctld and its files.
    let _lock = slurmctld.lock_members().await;
    let live = config.live().and_then(|live| config.read(&live));
    let live = live.ok_or_else(|| Refusal::Failed {
        detail: "there is no revision in the configuration directory".to_owned(),
    })?;
    let configuration = configuration_of(&live.files);
    let PartitionCommand { partition, restore } = command;
    let client = match slurmctld.commander(&configuration) {
        Ok(client) => client,
        Err(why) => {
            return Ok(Restored {
                left: restore.iter().map(|key| (key.clone(), why.clone())).collect(),
                same: Vec::new(),
            });
        }
    };
    info!(%partition, keys = ?restore, "bringing a partition back to its line");
    let conf = configuration.slurm_conf_document();
    let lines = conf.effective(RecordKind::Partition);
    let restored = restore_partition(&client, &lines, partition, restore).await;
    slurmctld.remember_version(&client);
    match restored {
        Ok(restored) => restored.ok_or(Refusal::NoSuchThing),
        Err(error) => Err(Refusal::Slurm {
            detail: error.to_string(),
        }),
    }
}
