//! Checks a configuration before slurmctld gets it, and reports problems with remedies.
//!
//! A correct configuration must pass, so the checks avoid false positives: plugins and their options may be custom, and names may be
//! known to Slurm alone. The dry run finds the rest, except for what it cannot see ([`identity`], QOS names, names of dynamic nodes).

mod identity;
mod keys;
mod meaning;
mod names;
mod other_files;
mod problem;
mod suggestion;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::configuration::{BadIncludeReason, Configuration};
use super::keys::KNOWN_RELEASE;
use crate::revision::MAX_BUNDLE;
pub use meaning::qos_in_database;
use problem::{At, Problems};
pub use problem::{Problem, Severity};

/// What is known of the cluster beside the files. Checks that need more than that are skipped.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'a> {
    /// The configuration slurmctld runs with; `None` before its first start.
    pub live: Option<&'a Configuration>,
    /// The names of slurmctld's nodes, including dynamic ones.
    pub nodes: Option<&'a BTreeSet<String>>,
    /// The names of the QOS in the accounting database.
    pub qos: Option<&'a BTreeSet<String>>,
    /// The lines of slurm.conf that are the user's (`extraConf`) and not the operator's; `None` means all of them. Users may use
    /// Slurm's words `all` and `DEFAULT` for names.
    pub user_lines: Option<&'a RangeInclusive<usize>>,
    /// Year and month of the Slurm release that will read the files; `None` means one whose keys are known.
    pub release: Option<(u16, u16)>,
}

/// Returns the problems, in the order in which the files are read.
pub fn check(configuration: &Configuration, known: &Known<'_>) -> Vec<Problem> {
    let mut problems = Problems::default();
    check_size(configuration, &mut problems);
    check_includes(configuration, &mut problems);
    keys::check_lines(configuration, known, &mut problems);
    meaning::check_required(configuration, &mut problems);
    meaning::check_values(configuration, known, &mut problems);
    identity::check(configuration, known, &mut problems);
    names::check(configuration, known, &mut problems);
    other_files::check(configuration, known, &mut problems);
    problems.into_vec()
}

impl Known<'_> {
    /// A newer Slurm may have unknown keys and values.
    fn knows_all_keys(&self) -> bool {
        self.release.is_none_or(|release| release <= KNOWN_RELEASE)
    }

    /// Whether slurmctld runs with another value.
    fn is_new(&self, key: &str, value: &str) -> bool {
        self.live.is_some_and(|live| live.value(key) != Some(value))
    }

    fn is_users(&self, at: At<'_>) -> bool {
        match (self.user_lines, at.line) {
            (Some(lines), Some(line)) if at.file == SLURM_CONF => lines.contains(&line),
            _ => true,
        }
    }
}

const SLURM_CONF: &str = "slurm.conf";

fn check_size(configuration: &Configuration, problems: &mut Problems) {
    let bytes = configuration.bytes();
    if bytes > MAX_BUNDLE {
        problems.refuse(
            keys::WHOLE,
            None,
            format!("all files together have {bytes} bytes, and {MAX_BUNDLE} fit"),
            "move large scripts into an image or a volume",
        );
    }
}

fn check_includes(configuration: &Configuration, problems: &mut Problems) {
    for bad in configuration.bad_includes() {
        let path = problem::shortened(&bad.path);
        let (reason, remedy) = match bad.reason {
            BadIncludeReason::Missing => (
                format!(
                    "includes {path:?}, which is not among the files; slurmctld would stand still for a minute and then refuse"
                ),
                "add the file to configFileRefs, or take the line out",
            ),
            BadIncludeReason::Circular => (
                format!("includes {path:?}, which is being read already"),
                "take the line out",
            ),
        };
        problems.refuse(At::line(&bad.file, bad.line), Some("Include"), reason, remedy);
    }
}
