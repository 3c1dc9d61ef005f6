//! Checks of the names of nodes, node sets and partitions: duplicates, collisions and undefined names.

use std::collections::{BTreeMap, BTreeSet};

use super::Known;
use super::meaning::records;
use super::problem::{At, Problems, Severity, shortened};
use super::suggestion::nearest;
use crate::conf::configuration::Configuration;
use crate::conf::record::{Record, RecordKind};
use crate::hostlist::{Hostlist, HostlistError, MAX_HOSTS, split_list};

pub(super) fn check(configuration: &Configuration, known: &Known<'_>, problems: &mut Problems) {
    let mut given = Given {
        node_sets: BTreeMap::new(),
        partitions: BTreeSet::new(),
        nodes: BTreeSet::new(),
        sees_all: !configuration.includes_elsewhere(),
        default_nodes: None,
        budget: Budget(4 * MAX_HOSTS + configuration.bytes()),
    };
    for (at, record) in records(configuration) {
        given.add(at, record, known, problems);
    }
    for (at, record) in records(configuration) {
        if problems.is_full() {
            return;
        }
        given.check_use(at, record, known, problems);
    }
}

/// All names that the file defines, with hostlists expanded.
struct Given<'a> {
    node_sets: BTreeMap<&'a str, Record<'a>>,
    partitions: BTreeSet<&'a str>,
    nodes: BTreeSet<String>,
    /// False if slurm.conf includes files of the host, or once a NodeName line was invalid or too large to expand.
    sees_all: bool,
    /// `Nodes=` of the last `PartitionName=DEFAULT` line, until a partition uses it.
    default_nodes: Option<&'a str>,
    budget: Budget,
}

impl<'a> Given<'a> {
    fn add(&mut self, at: At<'_>, record: Record<'a>, known: &Known<'_>, problems: &mut Problems) {
        let name = record.name;
        if record.kind != RecordKind::DownNodes {
            check_reserved(at, record, known, problems);
        }
        if record.is_default() {
            return;
        }
        match record.kind {
            RecordKind::NodeSet => self.add_node_set(at, record, problems),
            RecordKind::Partition => {
                if !self.partitions.insert(name) {
                    report_duplicate(
                        Severity::Refuse,
                        at,
                        record,
                        "slurmctld refuses the second one",
                        problems,
                    );
                }
            }
            RecordKind::Node => self.add_nodes(at, record, problems),
            RecordKind::DownNodes => {}
        }
    }

    fn add_node_set(&mut self, at: At<'_>, record: Record<'a>, problems: &mut Problems) {
        if self.node_sets.insert(record.name, record).is_some() {
            report_duplicate(Severity::Warn, at, record, "Slurm takes both without a word", problems);
        }
        if record.get("Feature").is_none() && record.get("Nodes").is_none() {
            problems.warn(
                at,
                Some("NodeSet"),
                format!(
                    "NodeSet {:?} has neither Feature nor Nodes, so it is always empty",
                    shortened(record.name)
                ),
                "say Feature=… or Nodes=…",
            );
        }
    }

    fn add_nodes(&mut self, at: At<'_>, record: Record<'a>, problems: &mut Problems) {
        let Some(hosts) = self.budget.expand(at, "NodeName", record.name, problems) else {
            self.sees_all = false;
            return;
        };
        for host in hosts.names() {
            if let Some(host) = self.nodes.replace(host) {
                let reason = format!("node {host:?} is defined a second time");
                problems.refuse(at, Some("NodeName"), reason, "keep one of the lines");
                return;
            }
        }
    }

    fn check_use(&mut self, at: At<'_>, record: Record<'a>, known: &Known<'_>, problems: &mut Problems) {
        match record.kind {
            RecordKind::NodeSet => self.check_collision(at, record, known, problems),
            RecordKind::Partition if record.is_default() => {
                self.default_nodes = record.get("Nodes").or(self.default_nodes);
            }
            RecordKind::Partition => {
                self.check_collision(at, record, known, problems);
                if let Some(nodes) = record.get("Nodes").or_else(|| self.default_nodes.take()) {
                    self.check_members(at, record, nodes, known, problems);
                }
                self.check_alternate(at, record, problems);
            }
            RecordKind::DownNodes => {
                let Some(hosts) = self.budget.expand(at, "DownNodes", record.name, problems) else {
                    return;
                };
                if let Some(host) = self.unknown(&hosts, known) {
                    let reason = format!("DownNodes names node {:?}, which does not exist", shortened(&host));
                    let remedy = "take it out, or define the node";
                    problems.warn(at, Some("DownNodes"), reason, remedy);
                }
            }
            RecordKind::Node => {}
        }
    }

    /// Measured: slurmctld does not start if a node set has the name of a node, and a dry run, which knows no dynamic nodes, does not
    /// find it. A partition may have a node's name, but only a user would want that.
    fn check_collision(&self, at: At<'_>, record: Record<'_>, known: &Known<'_>, problems: &mut Problems) {
        let is_node = self.nodes.contains(record.name) || known.nodes.is_some_and(|nodes| nodes.contains(record.name));
        if !is_node {
            return;
        }
        let severity = if record.kind == RecordKind::NodeSet || !known.is_users(at) {
            Severity::Refuse
        } else {
            Severity::Warn
        };
        let key = record.kind.key();
        problems.add(
            severity,
            at,
            Some(key),
            format!("{key}={} has the name of a node", shortened(record.name)),
            "give it another name",
        );
    }

    /// `Nodes=` has node sets, nodes, or ALL. Functions (`switch{s1}`) depend on the topology and are not checked.
    fn check_members(
        &mut self,
        at: At<'_>,
        record: Record<'_>,
        nodes: &str,
        known: &Known<'_>,
        problems: &mut Problems,
    ) {
        if nodes.contains('{') {
            return;
        }
        let partition = shortened(record.name);
        for item in split_list(nodes) {
            if item.eq_ignore_ascii_case("ALL") {
                continue;
            }
            if let Some(set) = self.node_sets.get(item) {
                let Some(inner) = set.get("Nodes").filter(|inner| !inner.contains('{')) else {
                    continue;
                };
                if let Some(hosts) = self.budget.expand(at, "Nodes", inner, problems)
                    && let Some(host) = self.unknown(&hosts, known)
                {
                    let reason = format!(
                        "partition {partition:?} names NodeSet {:?}, whose node {:?} does not exist",
                        shortened(item),
                        shortened(&host)
                    );
                    let remedy = "a NodeSet takes names of nodes; use Feature= for dynamic ones";
                    problems.refuse(at, Some("Nodes"), reason, remedy);
                }
                continue;
            }
            let Some(hosts) = self.budget.expand(at, "Nodes", item, problems) else {
                continue;
            };
            if let Some(host) = self.unknown(&hosts, known) {
                let host = shortened(&host);
                let reason = format!("partition {partition:?} names {host:?}, which is neither a NodeSet nor a node");
                problems.refuse(at, Some("Nodes"), reason, self.remedy_for(&host));
            }
        }
    }

    fn remedy_for(&self, name: &str) -> String {
        let sets = || self.node_sets.keys().copied();
        if let Some(set) = nearest(name, sets()) {
            return format!("did you mean {set}?");
        }
        let existing = shortened(&sets().collect::<Vec<_>>().join(", "));
        if existing.is_empty() {
            "define it, or take it out".to_owned()
        } else {
            format!("existing NodeSets: {existing}")
        }
    }

    fn check_alternate(&self, at: At<'_>, record: Record<'_>, problems: &mut Problems) {
        let Some(alternate) = record.get("Alternate").filter(|_| self.sees_all) else {
            return;
        };
        if !alternate.eq_ignore_ascii_case("none") && !self.partitions.contains(alternate) {
            problems.warn(
                at,
                Some("Alternate"),
                format!(
                    "partition {:?} has the alternate {:?}, which does not exist",
                    shortened(record.name),
                    shortened(alternate)
                ),
                "name a partition, or take it out",
            );
        }
    }

    /// Returns the first name that no node has, if the nodes are known.
    fn unknown(&self, hosts: &Hostlist, known: &Known<'_>) -> Option<String> {
        let nodes = known.nodes.filter(|_| self.sees_all)?;
        hosts
            .names()
            .find(|host| !self.nodes.contains(host) && !nodes.contains(host))
    }
}

/// These words have a meaning in Slurm. A user may intend it; a name that the operator renders is a name.
fn check_reserved(at: At<'_>, record: Record<'_>, known: &Known<'_>, problems: &mut Problems) {
    let reserved = ["default", "all"]
        .iter()
        .any(|word| record.name.eq_ignore_ascii_case(word));
    if reserved && !known.is_users(at) {
        let key = record.kind.key();
        problems.refuse(
            at,
            Some(key),
            format!("{key}={} is a word of Slurm's own and no name", record.name),
            "choose another name",
        );
    }
}

fn report_duplicate(severity: Severity, at: At<'_>, record: Record<'_>, consequence: &str, problems: &mut Problems) {
    let key = record.kind.key();
    let reason = format!(
        "{key}={} is defined a second time, and {consequence}",
        shortened(record.name)
    );
    problems.add(severity, at, Some(key), reason, "keep one of the lines");
}

/// How much text and how many names may still be expanded. A short line can have 65,536 names, and many lines can name one long list;
/// the rest is left to Slurm.
struct Budget(usize);

impl Budget {
    fn expand(&mut self, at: At<'_>, key: &str, list: &str, problems: &mut Problems) -> Option<Hostlist> {
        if self.0 < MAX_HOSTS {
            return None;
        }
        let hosts = Hostlist::parse(list);
        let names = hosts.as_ref().map_or(0, Hostlist::len);
        self.0 = self.0.saturating_sub(list.len() + names);
        match hosts {
            Ok(hosts) => Some(hosts),
            Err(HostlistError::TooMany | HostlistError::TooLong | HostlistError::Name(_)) => None,
            Err(error @ (HostlistError::Brackets(_) | HostlistError::Range(_))) => {
                let remedy = "write a list of names such as n[1-3,07],login";
                problems.refuse(at, Some(key), error.to_string(), remedy);
                None
            }
        }
    }
}
