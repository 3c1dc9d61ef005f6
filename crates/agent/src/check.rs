//! `slurm-agent check`: our checker and a dry run, on the files in a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use host::{FileError, FileKind, Host};
use slurm::conf::{DIRECTORY, Known, Severity, check};
use slurm::revision::{File, FileName};
use thiserror::Error;

use crate::cli;
use crate::dry_run::{self, DryRun, Verdict, configuration_of};
use crate::serve::reason::reason;
use crate::serve::slurm_tools::SlurmTools;

#[derive(Debug, Error)]
pub enum Error {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    DryRun(#[from] dry_run::Error),
}

/// The findings in the order of the files, and whether one of them rejects the files.
#[derive(Debug, PartialEq, Eq)]
pub struct Findings {
    pub lines: Vec<String>,
    pub refused: bool,
}

pub async fn run(host: &Host, options: &cli::Check) -> Result<Findings, Error> {
    let files = read_files(host, &options.directory)?;
    let live = if is_same(host, &options.directory, Path::new(DIRECTORY)) {
        None
    } else {
        // Without a live configuration nothing can contradict it.
        let live = read_files(host, Path::new(DIRECTORY)).ok();
        live.filter(|files| !files.is_empty())
    };
    let live = live.map(|files| configuration_of(&files));
    let nodes = SlurmTools::new(host).node_names().await;
    let mut findings = check_files(&files, live.as_ref(), nodes.as_ref());
    if !findings.refused {
        let dry_run = DryRun::new(host, &options.scratch_dir, None);
        if let Verdict::Refused { last_words } = dry_run.run(&files, async || nodes).await? {
            findings.refused = true;
            findings.lines.push(format!("slurmctld: {}", reason(&last_words)));
        }
    }
    Ok(findings)
}

fn check_files(
    files: &BTreeMap<FileName, File>,
    live: Option<&slurm::conf::Configuration>,
    nodes: Option<&BTreeSet<String>>,
) -> Findings {
    let known = Known {
        live,
        nodes,
        ..Known::default()
    };
    let problems = check(&configuration_of(files), &known);
    Findings {
        refused: problems.iter().any(|problem| problem.severity == Severity::Refuse),
        lines: problems
            .iter()
            .map(|problem| match problem.severity {
                Severity::Refuse => problem.to_string(),
                Severity::Warn => format!("{problem} (a warning)"),
            })
            .collect(),
    }
}

fn is_same(host: &Host, one: &Path, other: &Path) -> bool {
    let canonical = |path: &Path| host.files().canonicalize(path).ok();
    one == other || canonical(one).is_some_and(|one| canonical(other) == Some(one))
}

/// Reads the files and links to files in a directory, without keys and without the hidden files of the kubelet's layout.
pub(crate) fn read_files(host: &Host, directory: &Path) -> Result<BTreeMap<FileName, File>, FileError> {
    let mut files = BTreeMap::new();
    for entry in host.files().entries(directory)? {
        let path = directory.join(&entry.name);
        let is_key = path
            .extension()
            .is_some_and(|extension| extension == "key" || extension == "jwks");
        let Ok(name) = FileName::new(entry.name.to_string_lossy()) else {
            continue;
        };
        if !is_key && host.files().is(FileKind::File, &path) {
            files.insert(name, File::config(host.files().read(&path)?));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn problems_have_file_and_line() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(
            directory.path().join("slurm.conf"),
            "ClusterName=a\nSlurmctldHost=b\nFooBar=1\n",
        )
        .unwrap();
        fs::write(directory.path().join("slurm.key"), "secret").unwrap();
        fs::create_dir(directory.path().join("..2026")).unwrap();
        let files = read_files(&Host::real(), directory.path()).unwrap();
        assert_eq!(files.len(), 1, "{files:?}");
        let findings = check_files(&files, None, None);
        assert!(findings.refused);
        assert!(
            findings
                .lines
                .iter()
                .any(|line| line.starts_with("slurm.conf line 3: ") && line.contains("FooBar")),
            "{findings:?}"
        );
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = read_files(&Host::real(), Path::new("/no/such/directory")).unwrap_err();
        assert!(error.to_string().contains("/no/such/directory"), "{error}");
    }
}
