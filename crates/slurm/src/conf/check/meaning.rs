//! Checks of meaning: required settings, forbidden ones, and combinations.

use std::collections::BTreeSet;

use super::keys::{WHOLE, global_settings, last_setting};
use super::problem::{Problems, Severity, shortened};
use super::{At, Known};
use crate::conf::configuration::{ConfFile, Configuration};
use crate::conf::file::name_in_directory;
use crate::conf::line::Content;
use crate::conf::record::{Record, RecordKind};

const GRES_CONF: &str = "gres.conf";

pub(super) fn check_required(configuration: &Configuration, problems: &mut Problems) {
    if configuration.includes_elsewhere() {
        return;
    }
    // ControlMachine is the name of SlurmctldHost before 18.08, which Slurm still accepts.
    for (key, former) in [("ClusterName", None), ("SlurmctldHost", Some("ControlMachine"))] {
        let given = configuration.value(key).is_some() || former.is_some_and(|key| configuration.value(key).is_some());
        if !given {
            problems.refuse(
                WHOLE,
                Some(key),
                format!("{key} is not set, and slurmctld does not start without it"),
                format!("add a line {key}=…"),
            );
        }
    }
}

pub(super) fn check_values(configuration: &Configuration, known: &Known<'_>, problems: &mut Problems) {
    check_reconfig_flags(configuration, problems);
    check_node_limit(configuration, known, problems);
    check_qos(configuration, known, problems);
    check_tres(configuration, known, problems);
    check_gres_types(configuration, problems);
    check_topology(configuration, problems);
    check_scripts(configuration, known, problems);
}

/// Measured: with KeepPartInfo a running slurmctld ignores the partitions of slurm.conf.
fn check_reconfig_flags(configuration: &Configuration, problems: &mut Problems) {
    let Some((at, setting)) = last_setting(configuration, "ReconfigFlags") else {
        return;
    };
    if words(&setting.value).any(|flag| flag.eq_ignore_ascii_case("KeepPartInfo")) {
        problems.refuse(
            at,
            Some("ReconfigFlags"),
            "with KeepPartInfo slurmctld ignores every later change of a partition in slurm.conf",
            "take KeepPartInfo out",
        );
    }
}

/// Measured: slurmctld accepts a lower limit and forgets the nodes above it.
fn check_node_limit(configuration: &Configuration, known: &Known<'_>, problems: &mut Problems) {
    let (Some(nodes), Some((at, setting))) = (known.nodes, last_setting(configuration, "MaxNodeCount")) else {
        return;
    };
    if setting.value.parse::<usize>().is_ok_and(|limit| limit < nodes.len()) {
        problems.refuse(
            at,
            Some("MaxNodeCount"),
            format!(
                "MaxNodeCount={} is less than the {} nodes there are, and the rest would vanish with their jobs",
                setting.value,
                nodes.len()
            ),
            format!("write at least {}", nodes.len().next_power_of_two().max(1024)),
        );
    }
}

/// Returns the QOS that partitions name and that the database has to have, in lower case, since Slurm ignores case.
pub fn qos_in_database(configuration: &Configuration) -> BTreeSet<String> {
    if !has_database(configuration) {
        return BTreeSet::new();
    }
    let named = partitions(configuration).flat_map(|(_, record)| {
        let named = QOS_KEYS.iter().flat_map(|key| qos_of(&record, key));
        named.map(str::to_ascii_lowercase).collect::<Vec<_>>()
    });
    named.collect()
}

const QOS_KEYS: [&str; 3] = ["QOS", "AllowQos", "DenyQos"];

fn qos_of<'a>(partition: &Record<'a>, key: &str) -> Vec<&'a str> {
    match partition.get(key) {
        None => Vec::new(),
        Some(value) if key == "QOS" => vec![value],
        Some(value) => words(value).filter(|name| !name.eq_ignore_ascii_case("ALL")).collect(),
    }
}

/// A dry run has no database and cannot check these.
fn check_qos(configuration: &Configuration, known: &Known<'_>, problems: &mut Problems) {
    let database = has_database(configuration);
    for (at, record) in partitions(configuration) {
        for key in QOS_KEYS {
            for name in qos_of(&record, key) {
                let partition = shortened(record.name);
                let qos = shortened(name);
                let exists = |known: &BTreeSet<String>| known.iter().any(|known| known.eq_ignore_ascii_case(name));
                if !database {
                    problems.refuse(
                        at,
                        Some(key),
                        format!("partition {partition:?} names QOS {qos:?}, and without accounting there are none"),
                        format!("take {key} out, or set accountingRef"),
                    );
                } else if known.qos.is_some_and(|known| !exists(known)) {
                    problems.refuse(
                        at,
                        Some(key),
                        format!(
                            "partition {partition:?} names QOS {qos:?}, which the accounting database does not have"
                        ),
                        format!("add it first with: sacctmgr add qos {qos}"),
                    );
                }
            }
        }
    }
}

fn has_database(configuration: &Configuration) -> bool {
    if configuration.includes_elsewhere() {
        return true;
    }
    configuration.value("AccountingStorageType").is_some_and(|storage| {
        !storage.is_empty() && !storage.eq_ignore_ascii_case("none") && !storage.ends_with("/none")
    })
}

const SIMPLE_TRES: [&str; 8] = ["billing", "cpu", "energy", "fs/disk", "mem", "node", "pages", "vmem"];
const NAMED_TRES: [&str; 5] = ["bb/", "fs/", "gres/", "ic/", "license/"];

/// Measured: slurmctld does not start with an unknown TRES, and a dry run without a database knows none.
fn check_tres(configuration: &Configuration, known: &Known<'_>, problems: &mut Problems) {
    let key = "AccountingStorageTRES";
    let Some((at, setting)) = last_setting(configuration, key) else {
        return;
    };
    for tres in words(&setting.value) {
        let folded = tres.to_ascii_lowercase();
        let tres = shortened(tres);
        if SIMPLE_TRES.contains(&folded.as_str()) {
            continue;
        }
        if NAMED_TRES.iter().any(|kind| folded.starts_with(kind)) {
            if !has_database(configuration) {
                let reason = format!("{key} has {tres}, which takes accounting");
                let remedy = format!("take {tres} out, or set accountingRef");
                problems.refuse(at, Some(key), reason, remedy);
            }
        } else if known.knows_all_keys() {
            let reason = format!("{key} cannot have {tres:?}");
            let remedy = format!(
                "write some of {}, or a name after one of {}",
                SIMPLE_TRES.join(","),
                NAMED_TRES.join(",")
            );
            problems.refuse(at, Some(key), reason, remedy);
        }
    }
}

/// Slurm accepts such a node, or such a line, without the devices.
fn check_gres_types(configuration: &Configuration, problems: &mut Problems) {
    if configuration.includes_elsewhere() {
        return;
    }
    let types: BTreeSet<&str> = configuration
        .value("GresTypes")
        .map(words)
        .into_iter()
        .flatten()
        .collect();
    let mut check = |at: At<'_>, key: &str, whose: &str, kind: &str| {
        if types.contains(kind) {
            return;
        }
        let kind = shortened(kind);
        problems.warn(
            at,
            Some(key),
            format!("{whose} has {kind}, which GresTypes does not name, so no job gets any"),
            format!("add {kind} to GresTypes"),
        );
    };
    for (at, record) in records(configuration).filter(|(_, record)| record.kind == RecordKind::Node) {
        let gres = record.get("Gres").map(words).into_iter().flatten();
        for kind in gres.map(|gres| gres.split(':').next().unwrap_or(gres)) {
            check(at, "Gres", &format!("node {:?}", shortened(record.name)), kind);
        }
    }
    if let Some(ConfFile::Lines(document)) = configuration.file(GRES_CONF) {
        let mut seen = BTreeSet::new();
        for line in document.lines() {
            let Content::Settings(settings) = line.content() else {
                continue;
            };
            let names = settings.iter().filter(|setting| setting.key == *"Name");
            for kind in names
                .flat_map(|setting| words(&setting.value))
                .filter(|kind| seen.insert(*kind))
            {
                check(At::line(GRES_CONF, line.number), "Name", GRES_CONF, kind);
            }
        }
    }
}

fn check_topology(configuration: &Configuration, problems: &mut Problems) {
    let names: BTreeSet<&str> = match configuration.file("topology.yaml") {
        Some(ConfFile::Topology(yaml)) if yaml.content().is_ok() => yaml.names().collect(),
        Some(_) => return,
        // Without the file Slurm has one topology with this name.
        None => BTreeSet::from(["default"]),
    };
    for (at, record) in partitions(configuration) {
        if problems.is_full() {
            return;
        }
        let Some(name) = record.get("Topology").filter(|name| !names.contains(name)) else {
            continue;
        };
        let existing = names.iter().copied().collect::<Vec<_>>().join(", ");
        problems.refuse(
            at,
            Some("Topology"),
            format!(
                "partition {:?} names topology {:?}, which does not exist",
                shortened(record.name),
                shortened(name)
            ),
            format!("name one of: {}", shortened(&existing)),
        );
    }
}

/// slurmctld sends the scripts of these keys to nodes if their path has no directory, or that of slurm.conf.
fn check_scripts(configuration: &Configuration, known: &Known<'_>, problems: &mut Problems) {
    for key in ["Prolog", "Epilog", "PrologSlurmctld", "EpilogSlurmctld"] {
        for (at, setting) in global_settings(configuration, key) {
            let is_pattern = setting.value.contains(['*', '?', '[']);
            let missing = name_in_directory(&setting.value)
                .filter(|name| !is_pattern && !name.is_empty() && !configuration.has(name));
            if let Some(name) = missing {
                let name = shortened(name);
                // A missing script makes jobs fail. If the live configuration has it already, other changes need not wait.
                let severity = if known.live.is_none() || known.is_new(key, &setting.value) {
                    Severity::Refuse
                } else {
                    Severity::Warn
                };
                problems.add(
                    severity,
                    at,
                    Some(key),
                    format!("{key} names the script {name:?}, which is not among the files"),
                    "add the script, or give the path it has on the nodes",
                );
            }
        }
    }
}

fn partitions(configuration: &Configuration) -> impl Iterator<Item = (At<'_>, Record<'_>)> {
    records(configuration).filter(|(_, record)| record.kind == RecordKind::Partition)
}

pub(super) fn records(configuration: &Configuration) -> impl Iterator<Item = (At<'_>, Record<'_>)> {
    configuration.slurm_conf().iter().filter_map(|located| {
        let at = At::of(located);
        Some((at, Record::of_line(&located.line)?))
    })
}

/// Splits a list with commas.
pub(super) fn words(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|word| !word.is_empty())
}
