//! Slurm's configuration: differences, history and checks.

mod check;
mod difference;
mod history;

use crate::access::Access;
use crate::cli::{Common, ConfigCommand};
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_list};

pub(crate) use self::check::run as check;
use self::difference::{ConfigReport, render_report, report_on};
use self::history::{Entry, find_revision, history_table, read_history};

pub(crate) async fn run(access: &Access, common: &Common, command: ConfigCommand) -> Outcome {
    match command {
        ConfigCommand::Diff => {
            let clusters = access.clusters().await?;
            let reports: Vec<ConfigReport> = clusters.iter().map(report_on).collect();
            match common.output {
                crate::cli::Format::Table | crate::cli::Format::Wide => {
                    for report in &reports {
                        print(&render_report(report, crate::output::colours()))?;
                    }
                }
                format => print_list(format, &reports, |_| crate::output::Table::default())?,
            }
            if reports.iter().any(|report| !report.differences.is_empty()) {
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
