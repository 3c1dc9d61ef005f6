//! All parsed files of one configuration: slurm.conf with its includes expanded, and the files beside it.

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
    /// In the format of slurm.conf.
    Lines(Document),
    Plugstack(Plugstack),
    Topology(TopologyYaml),
    /// Not parsed.
    Opaque(Vec<u8>),
}

/// A line of slurm.conf or of an included file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    pub file: Arc<str>,
    pub line: Line,
}

/// An include that Slurm rejects; for a missing file it waits for a minute before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadInclude {
    pub file: Arc<str>,
    pub line: usize,
    pub path: String,
    pub reason: BadIncludeReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadIncludeReason {
    /// The configuration has no such file.
    Missing,
    /// The file includes itself, possibly through others.
    Circular,
}

impl Configuration {
    /// Bytes that are not UTF-8 are allowed, as in Slurm, and become replacement characters.
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

    /// Returns slurm.conf with its includes expanded. A file that is included twice is not repeated.
    pub fn slurm_conf(&self) -> &[Located] {
        &self.slurm_conf
    }

    /// Returns slurm.conf with its includes expanded, without the positions.
    pub fn slurm_conf_document(&self) -> Document {
        self.slurm_conf.iter().map(|located| located.line.clone()).collect()
    }

    /// Returns the last value of a global key, which is the effective one.
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

    /// Returns the files beside slurm.conf, without the included ones.
    pub fn files(&self) -> impl Iterator<Item = (&str, &ConfFile)> {
        self.files.iter().map(|(name, file)| (name.as_str(), file))
    }

    pub fn file(&self, name: &str) -> Option<&ConfFile> {
        self.files.get(name)
    }

    /// Whether there is a file of this name.
    pub fn has(&self, name: &str) -> bool {
        self.files.contains_key(name) || self.included.contains(name)
    }

    pub fn bad_includes(&self) -> &[BadInclude] {
        &self.bad_includes
    }

    /// Whether slurm.conf includes a file that only its host has. A setting that is missing here may be there.
    pub fn includes_elsewhere(&self) -> bool {
        self.includes_elsewhere
    }

    /// Returns the number of files read for slurm.conf, each counted once.
    pub(super) fn files_read(&self) -> usize {
        self.included.len()
    }

    /// Returns the size of all files together.
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
                // Slurm replaces %c by the name of the cluster.
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
                    // A file of an image or a volume, which only its host has.
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
