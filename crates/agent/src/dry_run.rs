//! Dry run: a second slurmctld that starts with a set of files, isolated from the live one.
//!
//! [`slurm::conf::render_scratch`] makes the files safe to start with. slurmctld writes "Running as primary controller" after
//! 14 to 22 ms and is then killed; files it cannot run with end it sooner.

mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use host::{FileError, Host, TemporaryDirectory};
use slurm::conf::{Configuration, DIRECTORY, Scratch, render_scratch, undefined_nodes};
use slurm::revision::{File, FileName};
use thiserror::Error;
use tracing::warn;

use crate::supervise::stderr_tail::StderrTail;
use process::Ended;

/// A slurmctld that waits for a file or for a name says so once a second, for ten seconds or sixty.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Another process may take the port between our choice and slurmctld's start.
const ATTEMPTS: usize = 3;
const PORT_IN_USE: &str = "Unable to listen to file descriptors";

/// Older directories belong to a dry run whose agent was killed.
const ABANDONED: Duration = Duration::from_mins(1);
const PREFIX: &str = "slurm-dry-run.";

/// The live cluster's keys. A dry run gets a `slurm.key` of its own instead.
const KEY: &str = "slurm.key";
const KEYS: [&str; 2] = [KEY, "slurm.jwks"];

/// Failures of the environment, which other files would not prevent. EROFS is not one of them: the container's root is read-only,
/// so that a file which names a path there is the mistake, and our own writes come first wherever else slurmctld writes.
const ENVIRONMENT: [&str; 9] = [
    "Resource temporarily unavailable",
    "No space left on device",
    "Disk quota exceeded",
    "Input/output error",
    "Stale file handle",
    "Stale NFS file handle",
    "Cannot allocate memory",
    "Too many open files",
    PORT_IN_USE,
];

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Accepted,
    /// With the last lines of slurmctld's log, oldest first.
    Refused {
        last_words: Vec<String>,
    },
}

/// The dry run says nothing about the files.
#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot prepare a dry run: {0}")]
    File(#[from] FileError),
    #[error("cannot find a free port for a dry run: {0}")]
    Port(#[source] io::Error),
    #[error("cannot run slurmctld for a dry run: {0}")]
    Run(#[from] io::Error),
    #[error("the dry run did not finish within {TIMEOUT:?}: {last_words}")]
    Stuck { last_words: String },
    #[error("the dry run failed for another reason than the files: {reason}")]
    Environment { reason: String },
}

#[derive(Debug, Clone)]
pub struct DryRun {
    host: Host,
    scratch: PathBuf,
    /// The mounted keys, beside which plugins look for certificates.
    keys: Option<PathBuf>,
}

impl DryRun {
    /// `scratch` is a directory that dry runs may write to.
    pub fn new(host: &Host, scratch: &Path, keys: Option<&Path>) -> Self {
        Self {
            host: host.clone(),
            scratch: scratch.to_owned(),
            keys: keys.map(Path::to_owned),
        }
    }

    /// `nodes` returns the nodes that slurmctld has. It is called only if the files name nodes that they do not define.
    pub async fn run(
        &self,
        files: &BTreeMap<FileName, File>,
        nodes: impl AsyncFnOnce() -> Option<BTreeSet<String>>,
    ) -> Result<Verdict, Error> {
        let mut unexplained = undefined_nodes(&configuration_of(files));
        // Without a response all of them are taken for real: it must not be the reason for a rejection.
        if !unexplained.is_empty()
            && let Some(known) = nodes().await
        {
            unexplained.retain(|node| known.contains(node));
        }
        let mut attempts = ATTEMPTS;
        loop {
            let directory = self.prepare(files, &unexplained).await?;
            let path = directory.path().to_owned();
            let mut tail = StderrTail::default();
            let ended = process::run(&self.host, directory, &mut tail, TIMEOUT).await?;
            let last_words = with_live_paths(tail.lines(), &path);
            match ended {
                Ended::Primary => return Ok(Verdict::Accepted),
                Ended::Stuck => {
                    return Err(Error::Stuck {
                        last_words: last_words.last().cloned().unwrap_or_default(),
                    });
                }
                Ended::Exited(_) if attempts > 1 && last_words.iter().any(|line| line.contains(PORT_IN_USE)) => {
                    attempts -= 1;
                }
                Ended::Exited(code) => return judge(code, last_words),
            }
        }
    }

    async fn prepare(
        &self,
        files: &BTreeMap<FileName, File>,
        nodes: &BTreeSet<String>,
    ) -> Result<TemporaryDirectory, Error> {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let free = self.host.listen(any).await.map_err(Error::Port)?;
        let port = free.address().map_or(0, |address| address.port());
        drop(free);
        self.remove_abandoned();
        Ok(self.write(files, nodes, port)?)
    }

    fn write(
        &self,
        files: &BTreeMap<FileName, File>,
        nodes: &BTreeSet<String>,
        port: u16,
    ) -> Result<TemporaryDirectory, FileError> {
        let directory = self.host.temporary_directory(&self.scratch, PREFIX)?;
        let path = directory.path();
        self.host.files().create_directory(&path.join("state"), 0o700)?;
        let create = |name: &str, content: &[u8], mode| self.host.files().create(&path.join(name), content, mode);
        let hostname = self.host.hostname();
        let rendered = render_scratch(
            &configuration_of(files),
            &Scratch {
                directory: &path.to_string_lossy(),
                host: hostname.split('.').next().unwrap_or_default(),
                port,
                nodes,
            },
        );
        for (name, text) in &rendered {
            create(name, text.as_bytes(), 0o600)?;
        }
        for (name, file) in files {
            let name = name.as_str();
            if !rendered.contains_key(name) && !KEYS.contains(&name) {
                create(name, &file.content, if file.executable { 0o700 } else { 0o600 })?;
            }
        }
        self.link_certificates(path);
        let mut key = [0; 1024];
        self.host.fill(&mut key);
        create(KEY, &key, 0o600)?;
        Ok(directory)
    }

    /// Links everything beside the keys. slurmctld reports a certificate that is missing.
    fn link_certificates(&self, to: &Path) {
        let Some(keys) = &self.keys else { return };
        for entry in self.host.files().entries(keys).unwrap_or_default() {
            if !KEYS.iter().any(|key| *entry.name == **key) {
                let _ = self
                    .host
                    .files()
                    .symlink(&keys.join(&entry.name), &to.join(&entry.name));
            }
        }
    }

    fn remove_abandoned(&self) {
        let files = self.host.files();
        for entry in files.entries(&self.scratch).unwrap_or_default() {
            let path = self.scratch.join(&entry.name);
            let age = |path: &Path| self.host.now().duration_since(files.metadata(path).ok()?.modified).ok();
            if entry.name.to_string_lossy().starts_with(PREFIX)
                && age(&path).is_some_and(|age| age > ABANDONED)
                && let Err(error) = files.remove_tree(&path)
            {
                warn!(%error, "cannot remove the files of an old dry run");
            }
        }
    }
}

fn judge(code: Option<i32>, last_words: Vec<String>) -> Result<Verdict, Error> {
    match (code, environment_failure(&last_words)) {
        (_, Some(line)) => Err(Error::Environment {
            reason: line.to_owned(),
        }),
        (None, None) => Err(Error::Environment {
            reason: "slurmctld was killed".to_owned(),
        }),
        (Some(_), None) => Ok(Verdict::Refused { last_words }),
    }
}

/// Returns the line that shows that slurmctld died of its environment and not of its files.
pub(crate) fn environment_failure(last_words: &[String]) -> Option<&str> {
    let is_failure = |line: &&String| ENVIRONMENT.iter().any(|text| line.contains(text));
    last_words.iter().find(is_failure).map(String::as_str)
}

pub(crate) fn configuration_of(files: &BTreeMap<FileName, File>) -> Configuration {
    Configuration::parse(
        files
            .iter()
            .map(|(name, file)| (name.as_str(), file.content.as_slice())),
    )
}

/// Replaces the path of the dry run by that of the live files, which people know.
fn with_live_paths(lines: impl Iterator<Item = String>, scratch: &Path) -> Vec<String> {
    let scratch = scratch.to_string_lossy();
    lines.map(|line| line.replace(&*scratch, DIRECTORY)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn files(files: &[(&str, &str)]) -> BTreeMap<FileName, File> {
        let file = |(name, text): &(&str, &str)| (FileName::new(*name).unwrap(), File::config(*text));
        files.iter().map(file).collect()
    }

    #[test]
    fn a_dry_run_has_all_files_and_its_own_key() {
        let (place, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["slurm.key", "slurm.jwks", "ca_cert.pem"] {
            fs::write(keys.path().join(name), "real").unwrap();
        }
        let dry_run = DryRun::new(&Host::real(), place.path(), Some(keys.path()));
        let files = files(&[
            ("slurm.conf", "MailProg=/x\n"),
            ("gres.conf", "Name=gpu\n"),
            ("slurm.key", "x"),
        ]);
        let directory = dry_run.write(&files, &BTreeSet::new(), 1).unwrap();
        let read = |name: &str| fs::read(directory.path().join(name));
        assert_eq!(read("gres.conf").unwrap(), b"Name=gpu\n");
        assert!(read("slurm.conf").unwrap().starts_with(b"\n"));
        assert_eq!(read("ca_cert.pem").unwrap(), b"real");
        assert_eq!(read("slurm.key").unwrap().len(), 1024);
        assert!(read("slurm.jwks").is_err());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(directory.path()), 0o700);
        assert_eq!(mode(&directory.path().join("slurm.key")), 0o600);
        drop(directory);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_rejection_is_caused_by_the_files_alone() {
        let words = |line: &str| vec!["slurmctld: version 1".to_owned(), line.to_owned()];
        let fatal = words("slurmctld: fatal: no");
        assert_eq!(
            judge(Some(1), fatal.clone()).unwrap(),
            Verdict::Refused {
                last_words: fatal.clone()
            }
        );
        judge(None, fatal).unwrap_err();
        for errno in [
            "Resource temporarily unavailable",
            "No space left on device",
            "Disk quota exceeded",
            "Input/output error",
            "Stale file handle",
            "Stale NFS file handle",
            "Cannot allocate memory",
            "Too many open files in system",
        ] {
            judge(Some(1), words(&format!("fatal: write: {errno}"))).unwrap_err();
        }
        judge(
            Some(1),
            words("fatal: _open_ports: Unable to listen to file descriptors."),
        )
        .unwrap_err();
    }

    #[test]
    fn messages_name_the_live_paths() {
        let said = ["Parse error in file /run/x/slurm.conf line 3".to_owned()];
        assert_eq!(
            with_live_paths(said.into_iter(), Path::new("/run/x")),
            ["Parse error in file /etc/slurm/slurm.conf line 3"]
        );
    }
}
