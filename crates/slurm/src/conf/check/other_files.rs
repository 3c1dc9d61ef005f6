//! Checks of the files beside slurm.conf. Problems in a file that Slurm does not read are warnings.

use super::Known;
use super::keys::LineCheck;
use super::problem::{At, Problems, Severity, shortened};
use crate::conf::configuration::{ConfFile, Configuration};
use crate::conf::document::Document;
use crate::conf::file::FileKind;
use crate::conf::keys::Place;
use crate::conf::plugstack::{Plugstack, PlugstackEntry};
use crate::conf::topology_yaml::TopologyYaml;

pub(super) fn check(configuration: &Configuration, known: &Known<'_>, problems: &mut Problems) {
    for (name, file) in configuration.files() {
        match file {
            ConfFile::Lines(document) => check_document(name, document, configuration, known, problems),
            ConfFile::Plugstack(plugstack) => check_plugstack(name, plugstack, problems),
            ConfFile::Topology(topology) => check_topology(name, topology, problems),
            ConfFile::Opaque(_) => {}
        }
    }
}

fn check_document(
    name: &str,
    document: &Document,
    configuration: &Configuration,
    known: &Known<'_>,
    problems: &mut Problems,
) {
    let kind = FileKind::of_name(name);
    let severity = if is_read(kind, configuration) {
        Severity::Refuse
    } else {
        Severity::Warn
    };
    for line in document.lines() {
        if problems.is_full() {
            return;
        }
        let mut check = LineCheck {
            at: At::line(name, line.number),
            severity,
            known,
            problems,
        };
        check.check_other_line(Place::File(kind), line);
    }
}

fn is_read(kind: FileKind, configuration: &Configuration) -> bool {
    let names = |key: &str, plugins: &[&str]| {
        configuration
            .value(key)
            .is_some_and(|value| plugins.iter().any(|plugin| value.to_ascii_lowercase().contains(plugin)))
    };
    match kind {
        FileKind::GresConf => configuration.value("GresTypes").is_some(),
        FileKind::TopologyConf => {
            configuration.file("topology.yaml").is_none()
                && names("TopologyPlugin", &["tree", "block", "ring", "torus"])
        }
        FileKind::JobContainerConf => names("JobContainerType", &["tmpfs"]) || names("NamespaceType", &["tmpfs"]),
        _ => true,
    }
}

/// Nodes and login hosts read this file, not slurmctld, so its problems are warnings.
fn check_plugstack(name: &str, plugstack: &Plugstack, problems: &mut Problems) {
    for line in plugstack.lines() {
        if let PlugstackEntry::Unreadable(text) = &line.entry {
            problems.warn(
                At::line(name, line.number),
                None,
                format!("{:?} is no line that Slurm reads", shortened(text)),
                "write: required|optional plugin.so [arguments], or: include pattern",
            );
        }
    }
}

fn check_topology(name: &str, topology: &TopologyYaml, problems: &mut Problems) {
    let refuse = |line, reason: String, problems: &mut Problems| {
        let at = At { file: name, line };
        let remedy = "write a list of topologies as in topology.yaml(5)";
        problems.refuse(at, None, reason, remedy);
    };
    match topology.content() {
        Err(error) => refuse(
            error.line,
            format!("is no YAML: {}", shortened(&error.message)),
            problems,
        ),
        Ok(content) if content.as_array().is_none_or(Vec::is_empty) => {
            refuse(None, "is no list of topologies".to_owned(), problems);
        }
        Ok(_) => {}
    }
}
