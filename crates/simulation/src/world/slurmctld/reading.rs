//! How slurmctld reads its files: which ones it dies of, with which words, and after what time (Slurm 26.05, measured).

use std::{collections::BTreeSet, path::Path, time::Duration};

use host::Files as _;
use slurm::{
    Hostlist,
    conf::{Configuration, RecordKind},
};

use crate::{slurm::Conf, world::files::FileSystem};

/// slurmctld exits with 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Death {
    pub(super) after: Duration,
    /// The lines that it writes first.
    pub(super) words: String,
}

/// What slurmctld gets out of its files.
#[derive(Debug)]
pub(super) struct Reading {
    /// How long it hangs before it goes on.
    pub(super) hangs: Duration,
    pub(super) result: Result<Conf, Death>,
}

/// Where the files are read.
#[derive(Debug)]
pub(super) enum Place {
    /// By slurmctld itself, with the nodes that joined.
    Live(BTreeSet<String>),
    DryRun,
}

/// A file that cannot be read is retried for this time.
const INCLUDE: Duration = Duration::from_mins(1);
/// The lookup of a name that nobody has blocks for more than ten seconds.
const LOOKUP: Duration = Duration::from_secs(12);
const READ: Duration = Duration::from_millis(20);

/// Plugins that slurmctld loads, with those that exist and what it writes about others.
const PLUGINS: [(&str, &[&str], &str); 5] = [
    (
        "SelectType",
        &["select/cons_tres", "select/linear"],
        "error: MaxNodeCount only compatible with cons_tres\nfatal: Unable to process configuration file",
    ),
    (
        "PriorityType",
        &["priority/basic", "priority/multifactor"],
        "fatal: failed to initialize priority plugin",
    ),
    (
        "TopologyPlugin",
        &["topology/default", "topology/flat", "topology/tree", "topology/block"],
        "fatal: Failed to initialize topology plugin",
    ),
    (
        "JobSubmitPlugins",
        &["all_partitions", "defaults", "logging", "require_timelimit"],
        "fatal: failed to initialize job_submit plugin",
    ),
    (
        "SchedulerType",
        &["sched/backfill", "sched/builtin"],
        "fatal: Failed to initialize the various schedulers",
    ),
];

const SELECT_PARAMETERS: [&str; 9] = [
    "CR_CPU",
    "CR_CPU_MEMORY",
    "CR_CORE",
    "CR_CORE_MEMORY",
    "CR_SOCKET",
    "CR_SOCKET_MEMORY",
    "CR_MEMORY",
    "CR_ONE_TASK_PER_CORE",
    "CR_PACK_NODES",
];

/// Reads slurm.conf and the files beside it.
pub(super) fn read(files: &FileSystem, slurm_conf: &Path, place: &Place) -> Reading {
    let directory = slurm_conf.parent().unwrap();
    let entries = files.entries(directory).unwrap_or_default();
    let names = entries.iter().map(|entry| entry.name.to_string_lossy().into_owned());
    let contents: Vec<(String, Vec<u8>)> = names
        .filter_map(|name| Some((name.clone(), files.read(&directory.join(&name)).ok()?)))
        .collect();
    let configuration = Configuration::parse(contents.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())));
    let text = files.read(slurm_conf).unwrap_or_default();
    let mut conf = Conf::parse(&String::from_utf8_lossy(&text));
    conf.hash = configuration.hash().unwrap_or_default();
    let document = configuration.slurm_conf_document();
    let is_unknown = |node: &slurm::conf::Record<'_>| node.name.contains('.') && node.get("NodeAddr").is_none();
    let hangs = document.records(RecordKind::Node).any(|node| is_unknown(&node));
    let result = match judge(&configuration, place) {
        None => Ok(conf),
        Some(death) => Err(death),
    };
    Reading {
        hangs: if hangs { LOOKUP } else { Duration::ZERO },
        result,
    }
}

fn judge(configuration: &Configuration, place: &Place) -> Option<Death> {
    if let Some(include) = configuration.bad_includes().first() {
        let words = format!(
            "error: s_p_parse_file: cannot stat file {}: No such file or directory, retrying in 1sec up to 60sec",
            include.path
        );
        return Some(Death { after: INCLUDE, words });
    }
    let words = words_of(configuration, place)?;
    Some(Death { after: READ, words })
}

fn words_of(configuration: &Configuration, place: &Place) -> Option<String> {
    let document = configuration.slurm_conf_document();
    if let Some(line) = document.unreadable().next() {
        return Some(format!(
            "error: Parse error in file /etc/slurm/slurm.conf line {}: {:?}\nfatal: Unable to process configuration file",
            line.number,
            line.raw().trim_end()
        ));
    }
    if configuration.value("ClusterName").is_none_or(str::is_empty) {
        return Some(
            "error: ClusterName needs to be specified\nfatal: Unable to process configuration file".to_owned(),
        );
    }
    for (key, known, words) in PLUGINS {
        let value = configuration.value(key).unwrap_or_default();
        let mut plugins = value.split(',').filter(|plugin| !plugin.is_empty());
        if plugins.any(|plugin| !known.contains(&plugin)) {
            return Some(words.to_owned());
        }
    }
    let parameters = configuration.value("SelectTypeParameters").unwrap_or_default();
    let mut parameters = parameters.split(',').filter(|parameter| !parameter.is_empty());
    if let Some(bad) = parameters.find(|name| !SELECT_PARAMETERS.contains(&name.to_ascii_uppercase().as_str())) {
        return Some(format!("fatal: Bad SelectTypeParameter: {bad}"));
    }
    // A dry run has an authentication of its own.
    let auth = configuration.value("AuthType").unwrap_or("auth/slurm");
    if matches!(place, Place::Live(_)) && auth != "auth/slurm" {
        return Some("fatal: failed to initialize auth plugin".to_owned());
    }
    bad_partition(configuration, place)
}

fn bad_partition(configuration: &Configuration, place: &Place) -> Option<String> {
    let document = configuration.slurm_conf_document();
    let sets: BTreeSet<&str> = document.records(RecordKind::NodeSet).map(|set| set.name).collect();
    let mut nodes: BTreeSet<String> = document
        .records(RecordKind::Node)
        .filter_map(|node| Hostlist::parse(node.name).ok())
        .flat_map(|list| list.names().collect::<Vec<_>>())
        .collect();
    if let Place::Live(joined) = place {
        nodes.extend(joined.iter().cloned());
    }
    let mut seen = BTreeSet::new();
    for partition in document
        .records(RecordKind::Partition)
        .filter(|line| !line.is_default())
    {
        let name = partition.name;
        if !seen.insert(name) {
            return Some(format!(
                "fatal: _build_single_partitionline_info: duplicate entry for partition {name}"
            ));
        }
        let members = partition.get("Nodes").unwrap_or_default();
        let Ok(members) = Hostlist::parse(members) else {
            return Some(format!("fatal: Invalid node names in partition {name}"));
        };
        let is_known = |member: &String| member == "ALL" || sets.contains(member.as_str()) || nodes.contains(member);
        if !members.names().all(|member| is_known(&member)) {
            return Some(format!("fatal: Invalid node names in partition {name}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::BAD_LINES;

    const GOOD: &str = "ClusterName=a\nNodeSet=s Feature=s\nPartitionName=p Nodes=s\n";

    fn reading(more: &str, place: &Place) -> Reading {
        let files = FileSystem::default();
        files.put("/etc/slurm/slurm.conf", format!("{GOOD}{more}\n").as_bytes());
        read(&files, Path::new("/etc/slurm/slurm.conf"), place)
    }

    fn words(more: &str, place: &Place) -> String {
        reading(more, place)
            .result
            .map_or_else(|death| death.words, |_| String::new())
    }

    #[test]
    fn good_files_are_read_at_once() {
        for place in [Place::DryRun, Place::Live(BTreeSet::new())] {
            let reading = reading("SelectTypeParameters=CR_Core_Memory", &place);
            assert!(reading.result.is_ok() && reading.hangs.is_zero(), "{reading:?}");
        }
    }

    #[test]
    fn every_bad_line_is_fatal_or_hangs_in_the_dry_run() {
        for line in BAD_LINES {
            let reading = reading(line, &Place::DryRun);
            assert!(reading.result.is_err() || !reading.hangs.is_zero(), "{line}");
        }
    }

    #[test]
    fn a_partition_of_unknown_nodes_is_fatal() {
        let line = "PartitionName=x Nodes=n1";
        assert!(words(line, &Place::DryRun).contains("Invalid node names in partition x"));
        assert_eq!(words(line, &Place::Live(["n1".to_owned()].into())), "");
        assert!(words("PartitionName=p Nodes=s", &Place::DryRun).contains("duplicate entry"));
    }

    #[test]
    fn what_only_the_live_one_knows_passes_a_dry_run() {
        assert_eq!(words("AuthType=auth/munge", &Place::DryRun), "");
        let live = Place::Live(BTreeSet::new());
        assert!(words("AuthType=auth/munge", &live).contains("auth plugin"));
    }

    #[test]
    fn a_missing_include_is_waited_for() {
        let death = reading("Include missing.conf", &Place::DryRun).result.unwrap_err();
        assert_eq!(death.after, INCLUDE);
    }
}
