//! All files of one configuration, read: slurm.conf with what it includes in place, and the files beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::document::Document;
use super::file::{FileKind, name_in_directory};
use super::line::{Content, Line};
use super::plugstack::Plugstack;
use super::record::Record;
use super::topology_yaml::TopologyYaml;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    files: BTreeMap<String, ConfFile>,
    slurm_conf: Vec<Located>,
    bad_includes: Vec<BadInclude>,
    included: BTreeSet<Arc<str>>,
    includes_elsewhere: bool,
    bytes: usize,
}

/// One of the files beside slurm.conf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfFile {
    /// In slurm.conf's own manner.
    Lines(Document),
    Plugstack(Plugstack),
    Topology(TopologyYaml),
    /// We do not look inside.
    Opaque(Vec<u8>),
}

/// A line of slurm.conf or of a file it includes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    pub file: Arc<str>,
    pub line: Line,
}

/// Slurm stops at such a line: for a missing file after it has waited for it for a minute, doing nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadInclude {
    pub file: Arc<str>,
    pub line: usize,
    pub path: String,
    pub reason: BadIncludeReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadIncludeReason {
    /// The directory of the configuration has no such file.
    Missing,
    /// The file is already open: it includes itself, if only through others.
    Circular,
}

impl Configuration {
    /// Bytes that are no UTF-8 are allowed, as Slurm allows them; they count as unknown characters.
    pub fn parse<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let files: BTreeMap<&str, &[u8]> = files.into_iter().collect();
        let mut configuration = Self {
            bytes: files.values().map(|content| content.len()).sum(),
            ..Self::default()
        };
        configuration.read_slurm_conf(&files);
        configuration.files = files
            .into_iter()
            .filter(|(name, _)| FileKind::of_name(name) != FileKind::SlurmConf)
            .filter(|(name, _)| !configuration.included.contains(*name))
            .map(|(name, content)| (name.to_owned(), ConfFile::parse(name, content)))
            .collect();
        configuration
    }

    /// slurm.conf with the lines of the files it includes in their place. A file that is included again is not
    /// repeated: it says the same a second time.
    pub fn slurm_conf(&self) -> &[Located] {
        &self.slurm_conf
    }

    /// The same without the places.
    pub fn slurm_conf_document(&self) -> Document {
        self.slurm_conf.iter().map(|located| located.line.clone()).collect()
    }

    /// The last value of a global key, which is the one that counts.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.values(key).last()
    }

    pub fn values<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        self.slurm_conf
            .iter()
            .filter(|located| Record::of_line(&located.line).is_none())
            .filter_map(|located| located.line.settings().first())
            .filter(move |setting| setting.key == *key)
            .map(|setting| setting.value.as_str())
    }

    /// The files beside slurm.conf, but for those it includes.
    pub fn files(&self) -> impl Iterator<Item = (&str, &ConfFile)> {
        self.files.iter().map(|(name, file)| (name.as_str(), file))
    }

    pub fn file(&self, name: &str) -> Option<&ConfFile> {
        self.files.get(name)
    }

    /// Whether there is a file of this name, whatever it is.
    pub fn has(&self, name: &str) -> bool {
        self.files.contains_key(name) || self.included.contains(name)
    }

    pub fn bad_includes(&self) -> &[BadInclude] {
        &self.bad_includes
    }

    /// Whether slurm.conf goes on in a file that only its host has. What we do not find may then stand there.
    pub fn includes_elsewhere(&self) -> bool {
        self.includes_elsewhere
    }

    /// slurm.conf and the files it includes, each counted once.
    pub(super) fn files_read(&self) -> usize {
        self.included.len()
    }

    /// Of all files together.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn read_slurm_conf(&mut self, files: &BTreeMap<&str, &[u8]>) {
        let mut open: Vec<(Arc<str>, std::vec::IntoIter<Line>)> = Vec::new();
        let mut closed: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut cluster_name = None;
        if let Some(content) = files.get("slurm.conf") {
            open.push(self.opened("slurm.conf", content));
        }
        while let Some((file, lines)) = open.last_mut() {
            let file = Arc::clone(file);
            let Some(line) = lines.next() else {
                closed.insert(file);
                open.pop();
                continue;
            };
            if let Some(setting) = line.settings().first()
                && setting.key == *"ClusterName"
            {
                cluster_name = Some(setting.value.clone());
            }
            if let Content::Include(path) = line.content() {
                // Slurm puts the name of the cluster in place of %c.
                let resolved = path.replace("%c", cluster_name.as_deref().unwrap_or_default());
                let bad = |reason| BadInclude {
                    file: Arc::clone(&file),
                    line: line.number,
                    path: path.clone(),
                    reason,
                };
                let name = name_in_directory(&resolved);
                match name.and_then(|name| files.get_key_value(name)) {
                    Some((name, _)) if closed.contains(*name) => {}
                    Some((name, _)) if self.included.contains(*name) => {
                        self.bad_includes.push(bad(BadIncludeReason::Circular));
                    }
                    Some((name, content)) => open.push(self.opened(name, content)),
                    // What lies elsewhere is part of an image or of somebody's volume: only its host can tell.
                    None if resolved.starts_with('/') && name.is_none() => self.includes_elsewhere = true,
                    None => self.bad_includes.push(bad(BadIncludeReason::Missing)),
                }
            }
            self.slurm_conf.push(Located { file, line });
        }
    }

    fn opened(&mut self, name: &str, content: &[u8]) -> (Arc<str>, std::vec::IntoIter<Line>) {
        let name: Arc<str> = Arc::from(name);
        self.included.insert(Arc::clone(&name));
        let document = Document::parse(&String::from_utf8_lossy(content));
        (name, document.into_lines().into_iter())
    }
}

impl ConfFile {
    fn parse(name: &str, content: &[u8]) -> Self {
        let text = String::from_utf8_lossy(content);
        match FileKind::of_name(name) {
            FileKind::CgroupConf
            | FileKind::GresConf
            | FileKind::TopologyConf
            | FileKind::AcctGatherConf
            | FileKind::JobContainerConf
            | FileKind::SlurmConf => Self::Lines(Document::parse(&text)),
            FileKind::PlugstackConf => Self::Plugstack(Plugstack::parse(&text)),
            FileKind::TopologyYaml => Self::Topology(TopologyYaml::parse(&text)),
            FileKind::Other => Self::Opaque(content.to_owned()),
        }
    }
}
