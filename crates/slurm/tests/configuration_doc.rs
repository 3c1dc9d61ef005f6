//! The tables of docs/configuration.md are those of the key lists.

use slurm::conf::keys::{AbortsJobs, KeySpec, KeyStatus, Needs, Place};
use slurm::conf::{FileKind, RecordKind};

const DOCUMENT: &str = include_str!("../../../docs/configuration.md");

const PLACES: [(&str, Place); 10] = [
    ("slurm.conf", Place::Global),
    ("PartitionName", Place::Record(RecordKind::Partition)),
    ("NodeSet", Place::Record(RecordKind::NodeSet)),
    ("NodeName", Place::Record(RecordKind::Node)),
    ("DownNodes", Place::Record(RecordKind::DownNodes)),
    ("cgroup.conf", Place::File(FileKind::CgroupConf)),
    ("gres.conf", Place::File(FileKind::GresConf)),
    ("topology.conf", Place::File(FileKind::TopologyConf)),
    ("acct_gather.conf", Place::File(FileKind::AcctGatherConf)),
    ("job_container.conf", Place::File(FileKind::JobContainerConf)),
];

fn specs(place: Place) -> impl Iterator<Item = &'static KeySpec> {
    let specs = place.keys().into_iter().flatten();
    specs.filter(|spec| !matches!(spec.status, KeyStatus::Removed { .. }))
}

fn need(needs: Needs) -> &'static str {
    match needs {
        Needs::Nothing => "nothing",
        Needs::PartitionRpc => "an RPC for that partition",
        Needs::Reconfigure => "a reconfigure",
        Needs::ControllerRestart => "a restart of slurmctld",
        Needs::NodeRestart => "a restart of slurmctld and of every slurmd",
    }
}

/// A row for each thing that is said, with the names it is said of, in the order in which it is first said.
fn rows(place: &str, place_keys: usize, said: impl Iterator<Item = (&'static str, String)>) -> String {
    let mut rows: Vec<(String, Vec<&str>)> = Vec::new();
    for (name, what) in said {
        match rows.iter_mut().find(|(known, _)| *known == what) {
            Some((_, names)) => names.push(name),
            None => rows.push((what, vec![name])),
        }
    }
    rows.iter()
        .map(|(what, names)| row(place, place_keys, names, what))
        .collect()
}

fn row(place: &str, place_keys: usize, names: &[&str], what: &str) -> String {
    let all = names.len() == place_keys;
    let names = if all {
        "all".to_owned()
    } else {
        format!("`{}`", names.join("`, `"))
    };
    format!("| {place} | {names} | {what} |\n")
}

fn needs_table() -> String {
    let rows = PLACES.map(|(name, place)| {
        let said = specs(place)
            // What holds for nearly all of slurm.conf is said in the text above the table.
            .filter(|spec| place != Place::Global || spec.needs != Needs::Reconfigure)
            .map(|spec| {
                let mut what = need(spec.needs).to_owned();
                if spec.needs_when_removed != spec.needs {
                    what = format!("{what}; {} when it is taken out", need(spec.needs_when_removed));
                }
                (spec.name, format!("{what} | {}", spec.documented))
            });
        rows(name, specs(place).count(), said)
    });
    format!(
        "| where | keys | needs | source |\n|---|---|---|---|\n{}",
        rows.concat()
    )
}

fn aborts_table() -> String {
    let rows = PLACES.map(|(name, place)| {
        let said = specs(place).filter_map(|spec| match spec.aborts_jobs {
            AbortsJobs::Never => None,
            AbortsJobs::Always => Some((spec.name, "any change".to_owned())),
            AbortsJobs::WhenLowered => Some((spec.name, "a lower value".to_owned())),
        });
        rows(name, specs(place).count(), said)
    });
    format!("| where | keys | which change |\n|---|---|---|\n{}", rows.concat())
}

fn identity_list() -> String {
    let names: Vec<&str> = specs(Place::Global)
        .filter(|spec| spec.identity)
        .map(|spec| spec.name)
        .collect();
    format!("`{}`\n", names.join("`, `"))
}

fn standing_table() -> String {
    let rows = PLACES.map(|(name, place)| {
        let keys = place.keys().into_iter().flatten();
        let said = keys.filter_map(|spec| match spec.status {
            KeyStatus::Current => None,
            KeyStatus::Legacy { now } => Some((spec.name, format!("works; now {now}"))),
            KeyStatus::Defunct => Some((spec.name, "has no effect: a warning".to_owned())),
            KeyStatus::Removed { remedy } => Some((spec.name, format!("refused: {remedy}"))),
        });
        rows(name, usize::MAX, said)
    });
    format!("| where | keys | what happens |\n|---|---|---|\n{}", rows.concat())
}

#[test]
fn the_tables_are_current() {
    for (name, table) in [
        ("needs", needs_table()),
        ("jobs", aborts_table()),
        ("identity", identity_list()),
        ("former", standing_table()),
    ] {
        let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
        let written = DOCUMENT.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end));
        let written = written.map(|(table, _)| table);
        assert_eq!(
            written,
            Some(table.as_str()),
            "docs/configuration.md between {begin} and {end} should be\n{table}"
        );
    }
}
