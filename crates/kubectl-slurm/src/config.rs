//! Slurm's configuration: what is asked for and not live, what was, and whether files would do.

mod check;
mod difference;
mod history;

use crate::access::Access;
use crate::cli::{Common, ConfigCommand};
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_list};

pub(crate) use self::check::run as check;
use self::difference::{Standing, find_standing, render_standing};
use self::history::{Entry, find_revision, history_table, read_history};

pub(crate) async fn run(access: &Access, common: &Common, command: ConfigCommand) -> Outcome {
    match command {
        ConfigCommand::Diff => {
            let mut standings: Vec<Standing> = Vec::new();
            for cluster in access.clusters().await? {
                standings.push(find_standing(&cluster));
            }
            match common.output {
                crate::cli::Format::Table | crate::cli::Format::Wide => {
                    for standing in &standings {
                        print(&render_standing(standing, crate::output::colours()))?;
                    }
                }
                format => print_list(format, &standings, |_| crate::output::Table::default())?,
            }
            if standings.iter().any(|standing| !standing.differences.is_empty()) {
                return Err(Failure::Different);
            }
            Ok(())
        }
        ConfigCommand::History { revision } => {
            let cluster = access.one_cluster().await?;
            let name = cluster.controller.child_names().history_config_map();
            let history = access.config_map(&cluster.namespace(), &name).await?;
            let revisions: Vec<Entry> = read_history(history.and_then(|history| history.data).unwrap_or_default());
            match revision {
                None => print_list(common.output, &revisions, history_table),
                Some(number) => {
                    let found = find_revision(&revisions, number);
                    if found.is_empty() {
                        return Err(Failure::not_found(format!(
                            "the history has no revision {number}; it keeps the last ten of each kind, see `kubectl slurm config history`"
                        )));
                    }
                    for revision in found {
                        print(&revision.text)?;
                    }
                    Ok(())
                }
            }
        }
        ConfigCommand::Check { path } => check(&path),
    }
}
