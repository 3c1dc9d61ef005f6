//! `slurm-agent check`: would slurmctld run with the files in a directory? Our own checker and a dry run say so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use slurm::conf::{DIRECTORY, Known, Severity, check};
use slurm::revision::{File, FileName};
use thiserror::Error;

use crate::cli;
use crate::dry_run::{self, DryRun, Verdict, configuration_of};
use crate::serve::reason::reason;
use crate::serve::slurm_tools::SlurmTools;

#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(transparent)]
    DryRun(#[from] dry_run::Error),
}

/// What was found, in the order of the files.
#[derive(Debug, PartialEq, Eq)]
pub struct Findings {
    pub lines: Vec<String>,
    pub refused: bool,
}

pub async fn run(options: &cli::Check) -> Result<Findings, Error> {
    let files = read_files(&options.directory)?;
    let live = if is_same(&options.directory, Path::new(DIRECTORY)) {
        None
    } else {
        // Without a live configuration nothing can contradict it.
        read_files(Path::new(DIRECTORY)).ok().filter(|files| !files.is_empty())
    };
    let live = live.map(|files| configuration_of(&files));
    let nodes = SlurmTools::default().node_names().await;
    let mut findings = check_files(&files, live.as_ref(), nodes.as_ref());
    if !findings.refused {
        let dry_run = DryRun::new(&options.scratch_dir, None);
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

fn is_same(one: &Path, other: &Path) -> bool {
    one == other
        || fs::canonicalize(one)
            .ok()
            .is_some_and(|one| fs::canonicalize(other).ok() == Some(one))
}

/// Files and links to files. What is hidden belongs to the kubelet's layout, and keys are not looked at.
pub(crate) fn read_files(directory: &Path) -> Result<BTreeMap<FileName, File>, Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Read { path, source }
    };
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(failed(directory))? {
        let path = entry.map_err(failed(directory))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_key = Path::new(&name)
            .extension()
            .is_some_and(|extension| extension == "key" || extension == "jwks");
        let Ok(name) = FileName::new(name) else { continue };
        if !is_key && path.is_file() {
            files.insert(name, File::config(fs::read(&path).map_err(failed(&path))?));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_told_with_file_and_line() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(
            directory.path().join("slurm.conf"),
            "ClusterName=a\nSlurmctldHost=b\nFooBar=1\n",
        )
        .unwrap();
        fs::write(directory.path().join("slurm.key"), "secret").unwrap();
        fs::create_dir(directory.path().join("..2026")).unwrap();
        let files = read_files(directory.path()).unwrap();
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
    fn a_directory_that_is_not_there_is_named() {
        let error = read_files(Path::new("/no/such/directory")).unwrap_err();
        assert!(error.to_string().contains("/no/such/directory"), "{error}");
    }
}
