//! Lets a slurmctld of its own say whether it would run with a set of files, while the live one knows nothing of it.
//!
//! What it reads is made safe by [`slurm::conf::render_scratch`]. It says "Running as primary controller" after 14 to 22 ms,
//! and is killed on the spot; a file it cannot run with ends it sooner.

mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use slurm::conf::{Configuration, DIRECTORY, Scratch, render_scratch, undefined_nodes};
use slurm::revision::{File, FileName};
use tempfile::TempDir;
use thiserror::Error;
use tracing::warn;

use process::Ended;

/// A slurmctld that waits for a file or for a name says so once a second, for ten seconds or sixty.
const PATIENCE: Duration = Duration::from_secs(5);

/// Somebody else may take the port between our look and its start.
const ATTEMPTS: usize = 3;
const PORT_IS_TAKEN: &str = "Unable to listen to file descriptors";

/// Of a dry run whose agent was killed.
const LEFT_BEHIND: Duration = Duration::from_mins(1);
const PREFIX: &str = "slurm-dry-run.";

/// Keys it must not have: it gets one of its own.
const ITS_KEY: &str = "slurm.key";
const OTHER_KEYS: &str = "slurm.jwks";

/// What it cannot help, whatever the files say.
const NOT_THE_FILES: [&str; 3] = [
    "No space left on device",
    "Cannot allocate memory",
    "Too many open files",
];

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Accepted,
    /// In slurmctld's own words, oldest first.
    Refused {
        last_words: Vec<String>,
    },
}

/// Nothing is known about the files.
#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot write {path} for a dry run: {source}", path = .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot run {program} for a dry run: {source}")]
    Run { program: &'static str, source: io::Error },
    #[error("the dry run came to no end within {PATIENCE:?}: {last_words}")]
    Stuck { last_words: String },
    #[error("the dry run failed for another reason than the files: {why}")]
    Environment { why: String },
    #[error("the dry run could not be prepared: {0}")]
    Task(#[from] tokio::task::JoinError),
}

#[derive(Debug, Clone)]
pub struct DryRun {
    /// Where it may write.
    place: PathBuf,
    /// The mounted keys, beside which plugins look for certificates.
    keys: Option<PathBuf>,
}

impl DryRun {
    pub fn new(place: &Path, keys: Option<&Path>) -> Self {
        Self {
            place: place.to_owned(),
            keys: keys.map(Path::to_owned),
        }
    }

    /// `nodes` tells which nodes slurmctld has; it is asked only if the files name some that they do not define.
    pub async fn run(
        &self,
        files: &BTreeMap<FileName, File>,
        nodes: impl AsyncFnOnce() -> Option<BTreeSet<String>>,
    ) -> Result<Verdict, Error> {
        let unexplained = undefined_nodes(&configuration_of(files));
        let nodes = if unexplained.is_empty() {
            unexplained
        } else {
            match nodes().await {
                Some(known) => unexplained.intersection(&known).cloned().collect(),
                // Who cannot be asked is not to be the reason for a refusal.
                None => unexplained,
            }
        };
        let mut attempts = ATTEMPTS;
        loop {
            let directory = self.fill(files.clone(), nodes.clone()).await?;
            let scratch = directory.path().to_owned();
            let ended = process::run(directory, PATIENCE).await?;
            let last_words = as_in_place(ended.last_words(), &scratch);
            match ended {
                Ended::InCharge => return Ok(Verdict::Accepted),
                Ended::Stuck { .. } => {
                    return Err(Error::Stuck {
                        last_words: last_words.last().cloned().unwrap_or_default(),
                    });
                }
                Ended::Exited { .. } if last_words.iter().any(|line| line.contains(PORT_IS_TAKEN)) && attempts > 1 => {
                    attempts -= 1;
                }
                Ended::Exited { code, .. } => return judge(code, last_words),
            }
        }
    }

    async fn fill(&self, files: BTreeMap<FileName, File>, nodes: BTreeSet<String>) -> Result<TempDir, Error> {
        let this = self.clone();
        tokio::task::spawn_blocking(move || this.write(&files, &nodes)).await?
    }

    fn write(&self, files: &BTreeMap<FileName, File>, nodes: &BTreeSet<String>) -> Result<TempDir, Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Write { path, source }
        };
        remove_left_behind(&self.place);
        let directory = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&self.place)
            .map_err(failed(&self.place))?;
        let path = directory.path();
        let state = path.join("state");
        DirBuilder::new().mode(0o700).create(&state).map_err(failed(&state))?;
        let port = free_port().map_err(failed(path))?;
        let place = path.to_string_lossy();
        let host = crate::durable::hostname();
        let scratch = render_scratch(
            &configuration_of(files),
            &Scratch {
                directory: &place,
                host: host.split('.').next().unwrap_or_default(),
                port,
                nodes,
            },
        );
        for (name, text) in &scratch {
            let path = path.join(name);
            write_file(&path, text.as_bytes(), 0o600).map_err(failed(&path))?;
        }
        let as_they_are = files.iter().filter(|(name, _)| !scratch.contains_key(name.as_str()));
        for (name, file) in as_they_are.filter(|(name, _)| !is_key(name.as_str())) {
            let path = path.join(name.as_str());
            let mode = if file.executable { 0o700 } else { 0o600 };
            write_file(&path, &file.content, mode).map_err(failed(&path))?;
        }
        self.link_keys(path);
        let key = path.join(ITS_KEY);
        random_bytes()
            .and_then(|bytes| write_file(&key, &bytes, 0o600))
            .map_err(failed(&key))?;
        Ok(directory)
    }

    /// A certificate that is missing here is one that the dry run complains of; no reason to fail before it.
    fn link_keys(&self, to: &Path) {
        let Some(keys) = &self.keys else { return };
        let names = fs::read_dir(keys).into_iter().flatten().flatten();
        for name in names.map(|entry| entry.file_name()) {
            if !is_key(&name.to_string_lossy()) {
                let _ = symlink(keys.join(&name), to.join(&name));
            }
        }
    }
}

fn judge(code: Option<i32>, last_words: Vec<String>) -> Result<Verdict, Error> {
    match (code, not_the_files(&last_words)) {
        (_, Some(line)) => Err(Error::Environment { why: line.to_owned() }),
        (None, None) => Err(Error::Environment {
            why: "slurmctld was killed".to_owned(),
        }),
        (Some(_), None) => Ok(Verdict::Refused { last_words }),
    }
}

/// What a slurmctld died of, if that is nothing its files could help.
pub(crate) fn not_the_files(last_words: &[String]) -> Option<&str> {
    let helpless =
        |line: &&String| line.contains(PORT_IS_TAKEN) || NOT_THE_FILES.iter().any(|words| line.contains(words));
    last_words.iter().find(helpless).map(String::as_str)
}

fn is_key(name: &str) -> bool {
    name == ITS_KEY || name == OTHER_KEYS
}

pub(crate) fn configuration_of(files: &BTreeMap<FileName, File>) -> Configuration {
    Configuration::parse(
        files
            .iter()
            .map(|(name, file)| (name.as_str(), file.content.as_slice())),
    )
}

/// People know their files by where they will lie.
fn as_in_place(last_words: &[String], scratch: &Path) -> Vec<String> {
    let scratch = scratch.to_string_lossy();
    last_words
        .iter()
        .map(|line| line.replace(&*scratch, DIRECTORY))
        .collect()
}

fn free_port() -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    Ok(listener.local_addr()?.port())
}

fn random_bytes() -> io::Result<[u8; 1024]> {
    let mut bytes = [0; 1024];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn write_file(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content)
}

fn remove_left_behind(place: &Path) {
    let is_old = |path: &Path| {
        let changed = fs::metadata(path).and_then(|about| about.modified());
        changed.is_ok_and(|at| SystemTime::now().duration_since(at).unwrap_or_default() > LEFT_BEHIND)
    };
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && is_old(&path)
            && let Err(error) = fs::remove_dir_all(&path)
        {
            warn!(path = %path.display(), %error, "what a dry run left behind stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> BTreeMap<FileName, File> {
        let file = |(name, text): &(&str, &str)| (FileName::new(*name).unwrap(), File::config(*text));
        files.iter().map(file).collect()
    }

    #[test]
    fn it_has_all_files_and_a_key_of_its_own() {
        let (place, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["slurm.key", "slurm.jwks", "ca_cert.pem"] {
            fs::write(keys.path().join(name), "real").unwrap();
        }
        let dry_run = DryRun::new(place.path(), Some(keys.path()));
        let files = files(&[
            ("slurm.conf", "MailProg=/x\n"),
            ("gres.conf", "Name=gpu\n"),
            ("slurm.key", "x"),
        ]);
        let directory = dry_run.write(&files, &BTreeSet::new()).unwrap();
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
    fn a_refusal_is_about_the_files_and_nothing_else() {
        let words = |line: &str| vec!["slurmctld: version 1".to_owned(), line.to_owned()];
        let fatal = words("slurmctld: fatal: no");
        assert_eq!(
            judge(Some(1), fatal.clone()).unwrap(),
            Verdict::Refused {
                last_words: fatal.clone()
            }
        );
        judge(None, fatal).unwrap_err();
        judge(Some(1), words("fatal: write: No space left on device")).unwrap_err();
        judge(
            Some(1),
            words("fatal: _open_ports: Unable to listen to file descriptors."),
        )
        .unwrap_err();
    }

    #[test]
    fn words_name_the_files_where_they_will_lie() {
        let said = ["Parse error in file /run/x/slurm.conf line 3".to_owned()];
        assert_eq!(
            as_in_place(&said, Path::new("/run/x")),
            ["Parse error in file /etc/slurm/slurm.conf line 3"]
        );
    }
}
