//! Deletes partitions that have no jobs. Jobs are read before a partition is closed and again afterwards.

use std::fmt;

use super::{Failure, LivePartition, PartitionCommands, PartitionUpdate};
use crate::job::Job;
use crate::partition::PartitionStateName;

/// Slurm's own message mentions jobs only.
const NOT_DELETED: &str = "slurmctld does not delete it";

/// A partition that cannot be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StillNeeded<'a> {
    pub partition: &'a LivePartition,
    pub why: String,
}

/// None of the partitions was deleted.
#[derive(Debug)]
pub struct NotReleased<'a> {
    pub needed: Vec<StillNeeded<'a>>,
    /// The names of partitions that could not be reopened, each with the reason.
    pub left_closed: Vec<(&'a str, Failure)>,
}

/// Closes these partitions, checks that they have no jobs, and deletes them. If one cannot be deleted, all are restored. `jobs`
/// reads all jobs.
pub async fn release_partitions<'a, E: fmt::Display, J: Future<Output = Result<Vec<Job>, E>>>(
    commands: &impl PartitionCommands,
    leaving: &[&'a LivePartition],
    jobs: impl Fn() -> J,
) -> Result<(), NotReleased<'a>> {
    if leaving.is_empty() {
        return Ok(());
    }
    // Checked first, so that a partition with jobs is not closed even for a moment.
    check_empty(leaving, &jobs().await).map_err(|needed| NotReleased {
        needed,
        left_closed: Vec::new(),
    })?;
    let mut closed = Vec::new();
    let mut needed = Vec::new();
    for partition in leaving {
        closed.push(*partition);
        let update = PartitionUpdate {
            state: Some(PartitionStateName::Inactive),
            ..PartitionUpdate::new(&partition.name)
        };
        if let Err(error) = commands.update_partition(&update).await
            && !error.is_no_such_partition()
        {
            needed.push(StillNeeded {
                partition,
                why: error.to_string(),
            });
            break;
        }
    }
    if needed.is_empty() {
        needed = check_empty(leaving, &jobs().await).err().unwrap_or_default();
    }
    let mut deleted = Vec::new();
    if needed.is_empty() {
        for partition in leaving {
            match commands.delete_partition(&partition.name).await {
                Ok(()) => deleted.push(*partition),
                Err(error) if error.is_no_such_partition() => {}
                Err(error) => {
                    needed.push(StillNeeded {
                        partition,
                        why: format!("{NOT_DELETED}: {error}"),
                    });
                    break;
                }
            }
        }
    }
    if needed.is_empty() {
        return Ok(());
    }
    let mut left_closed = Vec::new();
    for partition in closed {
        let update = partition.to_update();
        let answer = if deleted.contains(&partition) {
            commands.create_partition(&update).await
        } else {
            let state = PartitionUpdate {
                state: update.state,
                ..PartitionUpdate::new(&partition.name)
            };
            commands.update_partition(&state).await
        };
        if let Err(error) = answer {
            left_closed.push((partition.name.as_str(), error));
        }
    }
    Err(NotReleased { needed, left_closed })
}

/// Counts pending, running and completing jobs. Slurm itself ignores completing ones.
fn check_empty<'a>(
    partitions: &[&'a LivePartition],
    jobs: &Result<Vec<Job>, impl fmt::Display>,
) -> Result<(), Vec<StillNeeded<'a>>> {
    let why_needed = |partition: &LivePartition| match jobs {
        Err(why) => Some(format!("its jobs cannot be read: {why}")),
        Ok(jobs) => {
            let unfinished = jobs.iter().filter(|job| !job.state.is_finished());
            let count = unfinished
                .filter(|job| job.partitions().any(|name| name == partition.name))
                .count();
            (count > 0).then(|| format!("{count} of its jobs have not ended"))
        }
    };
    let needed: Vec<StillNeeded<'a>> = partitions
        .iter()
        .filter_map(|partition| why_needed(partition).map(|why| StillNeeded { partition, why }))
        .collect();
    if needed.is_empty() { Ok(()) } else { Err(needed) }
}
