//! A configuration for a dry run: a slurmctld that only checks whether it would run with the files.
//!
//! The dry run runs beside the live slurmctld, so port, state, pid file, log and authentication are replaced. It must have no side
//! effects, so programs, databases and other active parts are removed. Everything else keeps its spelling, including mistakes, and
//! its line number, so that Slurm's errors point to the line of the user. [`check`](super::check::check) covers what a dry run cannot
//! find.

use std::collections::{BTreeMap, BTreeSet};

use super::configuration::Configuration;
use super::file::DIRECTORY;
use super::key::Key;
use super::line::{Content, Line, Setting, is_space, quoted};
use super::record::{Record, RecordKind};
use crate::hostlist::Hostlist;

/// The environment of a dry run.
#[derive(Debug, Clone, Copy)]
pub struct Scratch<'a> {
    /// Replaces /etc/slurm. It has an empty directory `state` and any key as `slurm.key`.
    pub directory: &'a str,
    /// The name of this host: slurmctld refuses to run on another.
    pub host: &'a str,
    pub port: u16,
    /// Nodes that exist although no file defines them.
    pub nodes: &'a BTreeSet<String>,
}

/// Replaced by lines at the end of the file.
const REPLACED: [&str; 12] = [
    // A separate key, so that it can talk to no other daemon. The checker covers the real type.
    "AuthType",
    "CredType",
    "CryptoType",
    "AuthInfo",
    "SlurmctldPort",
    "SlurmctldPidFile",
    "StateSaveLocation",
    // The log line "Running as primary controller" has the level `info`.
    "SlurmctldDebug",
    "CommunicationParameters",
    "SlurmctldHost",
    "ControlMachine",
    "BackupController",
];

/// Removed: hosts and files that a dry run does not use.
const DROPPED: [&str; 8] = [
    // Needs keys that the dry run does not have.
    "AuthAltTypes",
    "AuthAltParameters",
    "SlurmctldAddr",
    "ControlAddr",
    "BackupAddr",
    // Without a log file slurmctld writes to standard error, which the agent reads. The real one may be a pipe.
    "SlurmctldLogFile",
    "SlurmSchedLogFile",
    "SlurmctldSyslogDebug",
];

/// Removed: programs that slurmctld would run. It reports a missing one, but starts nevertheless.
const PROGRAMS: [&str; 12] = [
    "SlurmctldPrimaryOnProg",
    "SlurmctldPrimaryOffProg",
    "PrologSlurmctld",
    "EpilogSlurmctld",
    "ResumeProgram",
    "ResumeFailProgram",
    "SuspendProgram",
    "RebootProgram",
    "HealthCheckProgram",
    "MailProg",
    "ResvProlog",
    "ResvEpilog",
];

/// slurmctld waits for such a database before it starts, and registers its port there.
const DATABASES: [&str; 2] = ["accounting_storage/slurmdbd", "accounting_storage/ctld_relay"];

/// Plugins with side effects when they are loaded: they connect to a database, or run scripts. Only these names are removed, so that
/// the dry run finds an unknown one.
const ACTING: [(&str, &[&str]); 3] = [
    ("AccountingStorageType", &DATABASES),
    ("JobCompType", &["jobcomp/mysql"]),
    ("BurstBufferType", &["burst_buffer/lua", "burst_buffer/datawarp"]),
];

/// Makes slurmctld push files to every node when it starts.
const PUSHES: &str = "reconfig_on_restart";

/// Without a database there are no QOS and only Slurm's own TRES, and slurmctld does not start with a file that names others. They are
/// removed if the real configuration has a database.
const OF_DATABASE: [&str; 2] = ["AccountingStorageTRES", "PriorityWeightTRES"];
const OF_DATABASE_IN_PARTITIONS: [&str; 4] = ["QOS", "AllowQos", "DenyQos", "TRESBillingWeights"];

/// Returns slurm.conf and the included files for the dry run. It reads all other files unchanged.
pub fn render_scratch(configuration: &Configuration, scratch: &Scratch<'_>) -> BTreeMap<String, String> {
    let has_database = has_database(configuration);
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for located in configuration.slurm_conf() {
        let text = files.entry(located.file.to_string()).or_default();
        text.push_str(&render_line(&located.line, scratch.directory, has_database));
    }
    // The last value of a key is effective, so these hold even if a file of the host sets them too.
    let own = render_own(configuration, scratch);
    files.entry("slurm.conf".to_owned()).or_default().push_str(&own);
    files
}

/// Returns the nodes that partitions and node sets name and that no line defines: dynamic nodes, or mistakes.
pub fn undefined_nodes(configuration: &Configuration) -> BTreeSet<String> {
    let records: Vec<Record<'_>> = configuration
        .slurm_conf()
        .iter()
        .filter_map(|located| Record::of_line(&located.line))
        .collect();
    let names_of = |kinds: &[RecordKind], names: fn(&Record<'_>) -> Option<String>| -> BTreeSet<String> {
        let lists = records.iter().filter(|record| kinds.contains(&record.kind));
        lists
            .filter_map(names)
            .filter_map(|list| Hostlist::parse(&list).ok())
            .flat_map(|hosts| hosts.names().collect::<Vec<_>>())
            .collect()
    };
    let defined = names_of(&[RecordKind::Node, RecordKind::NodeSet], |record| {
        Some(record.name.to_owned())
    });
    let used = names_of(&[RecordKind::Partition, RecordKind::NodeSet], |record| {
        record.get("Nodes").map(str::to_owned)
    });
    used.into_iter()
        .filter(|name| !name.eq_ignore_ascii_case("ALL") && !defined.contains(name))
        .collect()
}

fn has_database(configuration: &Configuration) -> bool {
    configuration
        .value("AccountingStorageType")
        .is_some_and(|value| is_one_of(value, &DATABASES))
}

fn is_one_of(word: &str, words: &[&str]) -> bool {
    words.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Returns the line, or the rest of it, with the same number of line ends.
fn render_line(line: &Line, directory: &str, has_database: bool) -> String {
    let changed = match line.content() {
        Content::Blank | Content::Unreadable(_) => None,
        Content::Include(path) => path
            .strip_prefix(DIRECTORY)
            .filter(|rest| rest.starts_with('/'))
            .map(|rest| format!("Include {directory}{rest}")),
        Content::Settings(settings) => {
            let record = Record::of_line(line);
            let kept: Vec<Setting> = settings
                .iter()
                .filter_map(|setting| match record {
                    None => scratch_global(setting, has_database),
                    Some(record) => keeps_in_record(record.kind, setting, has_database).then(|| setting.clone()),
                })
                .collect();
            (kept != *settings).then(|| render_settings(&kept))
        }
    };
    match changed {
        None => line.raw().to_owned(),
        Some(text) => text + &"\n".repeat(line.raw().matches('\n').count()),
    }
}

fn keeps_in_record(kind: RecordKind, setting: &Setting, has_database: bool) -> bool {
    // An empty value is fatal with a database too.
    let of_database = kind == RecordKind::Partition
        && is_one_of(setting.key.as_str(), &OF_DATABASE_IN_PARTITIONS)
        && !setting.value.is_empty();
    !(has_database && of_database)
}

fn scratch_global(setting: &Setting, has_database: bool) -> Option<Setting> {
    let key = setting.key.as_str();
    let acts = ACTING
        .iter()
        .any(|(acting, names)| key.eq_ignore_ascii_case(acting) && is_one_of(&setting.value, names));
    let goes = acts
        || is_one_of(key, &REPLACED)
        || is_one_of(key, &DROPPED)
        || is_one_of(key, &PROGRAMS)
        || (has_database && is_one_of(key, &OF_DATABASE));
    if goes {
        return None;
    }
    if setting.key == *"SlurmctldParameters" {
        return without_option(setting, PUSHES);
    }
    Some(setting.clone())
}

fn without_option(setting: &Setting, option: &str) -> Option<Setting> {
    let mut options: Vec<&str> = setting.value.split(',').collect();
    let all = options.len();
    options.retain(|word| !word.trim_matches(is_space).eq_ignore_ascii_case(option));
    if options.len() == all {
        return Some(setting.clone());
    }
    (!options.is_empty()).then(|| Setting {
        value: options.join(","),
        ..setting.clone()
    })
}

fn render_settings(settings: &[Setting]) -> String {
    let words: Vec<String> = settings
        .iter()
        .map(|setting| {
            let operator = setting.operator.map(String::from).unwrap_or_default();
            // Slurm removes escapes before it handles quotes.
            let value = setting.value.replace('\\', "\\\\").replace('#', "\\#");
            format!("{}{operator}={}", setting.key, quoted(&value))
        })
        .collect();
    words.join(" ")
}

fn render_own(configuration: &Configuration, scratch: &Scratch<'_>) -> String {
    let Scratch {
        directory,
        host,
        port,
        nodes,
    } = scratch;
    // First, so that Slurm reads it whatever the other options are.
    let and = |key: &str, option: &str| {
        let value = match configuration.value(key) {
            Some(users) => format!("{option},{users}"),
            None => option.to_owned(),
        };
        render_settings(&[Setting {
            key: Key::new(key),
            operator: None,
            value,
        }])
    };
    let mut lines = vec![
        "AuthType=auth/slurm".to_owned(),
        "CredType=cred/slurm".to_owned(),
        // Without it the dry run would take over the socket of the live slurmctld.
        and("AuthInfo", "disable_sack"),
        format!("SlurmctldPort={port}"),
        format!("SlurmctldPidFile={directory}/slurmctld.pid"),
        format!("StateSaveLocation={directory}/state"),
        "SlurmctldDebug=info".to_owned(),
        // slurmctld always listens on all addresses; this leaves clients with a key only.
        and("CommunicationParameters", "disable_http"),
        // Without it slurmctld reports the default program, which few images have, right before the real error.
        "MailProg=/bin/true".to_owned(),
    ];
    let named_a_host = ["SlurmctldHost", "ControlMachine"]
        .iter()
        .any(|key| configuration.value(key).is_some());
    if named_a_host || configuration.includes_elsewhere() {
        lines.push(format!("SlurmctldHost={host}{}", address(configuration)));
    }
    if configuration.includes_elsewhere() {
        // Settings of that file cannot be removed, but the most dangerous one can be overridden.
        lines.push("SlurmctldPrimaryOnProg=/bin/true".to_owned());
    }
    lines.extend(nodes.iter().map(|name| format!("NodeName={name} State=FUTURE")));
    // The first line end completes the last line, the second one ends a continuation by a backslash.
    format!("\n\n{}\n", lines.join("\n"))
}

/// Saves a look-up of the name, unless IPv6 is enabled: the host may have no IPv4 address.
fn address(configuration: &Configuration) -> &'static str {
    let parameters = configuration.value("CommunicationParameters").unwrap_or_default();
    let mut options = parameters.split(',').map(|option| option.trim_matches(is_space));
    if options.any(|option| is_one_of(option, &["EnableIPv6", "DisableIPv4"])) {
        ""
    } else {
        "(127.0.0.1)"
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACE: Scratch<'static> = Scratch {
        directory: "/run/d",
        host: "ctl-0",
        port: 4711,
        nodes: &BTreeSet::new(),
    };

    fn configuration(files: &[(&str, &str)]) -> Configuration {
        Configuration::parse(files.iter().map(|(name, text)| (*name, text.as_bytes())))
    }

    /// The lines of the file after removal.
    fn kept(conf: &str) -> String {
        let files = render_scratch(&configuration(&[("slurm.conf", conf)]), &PLACE);
        let (lines, _) = files["slurm.conf"].split_once("\n\nAuthType=auth/slurm\n").unwrap();
        lines.to_owned()
    }

    fn own(conf: &str) -> String {
        let files = render_scratch(&configuration(&[("slurm.conf", conf)]), &PLACE);
        let (_, own) = files["slurm.conf"].split_once("\n\nAuthType=auth/slurm\n").unwrap();
        own.to_owned()
    }

    #[test]
    fn mistakes_are_kept() {
        for conf in [
            "Foo=1\nthis is not a config line\nDebugFlags=\n",
            "PartitionName=x Nodes=n[1- State=FOO # why\n",
            "AccountingStorageType=accounting_storage/nope\n",
            "JobCompType=jobcomp/nope\n",
            "JobCompType=jobcomp/filetxt\nJobCompLoc=/nope/x\n",
            "# SlurmctldPrimaryOnProg=/bin/x\n",
            "PartitionName=x QOS=a AllowQos=b\n",
        ] {
            assert_eq!(kept(conf), conf);
        }
    }

    #[test]
    fn lines_keep_their_numbers() {
        let conf = "AuthType=auth/munge\nMailProg=/x \\\n # more\n\nFoo=1 \\";
        assert_eq!(kept(conf), "\n\n\n\nFoo=1 \\");
    }

    #[test]
    fn nothing_of_the_live_slurmctld_is_left() {
        let conf = "SlurmctldHost=a(b)\nslurmctldhost=c\nSlurmctldPort=6817\nStateSaveLocation=/s AuthAltTypes=auth/jwt\n\
                    SlurmctldLogFile=/l\nSlurmctldDebug=quiet\nAuthInfo=cred_expire=20\n";
        assert_eq!(kept(conf).trim(), "");
        assert_eq!(
            own(conf),
            "CredType=cred/slurm\nAuthInfo=disable_sack,cred_expire=20\nSlurmctldPort=4711\n\
             SlurmctldPidFile=/run/d/slurmctld.pid\nStateSaveLocation=/run/d/state\nSlurmctldDebug=info\n\
             CommunicationParameters=disable_http\nMailProg=/bin/true\nSlurmctldHost=ctl-0(127.0.0.1)\n"
        );
    }

    #[test]
    fn a_host_with_ipv6_only_is_used_by_name() {
        let own = own("SlurmctldHost=a\nCommunicationParameters=EnableIPv6,DisableIPv4\n");
        assert!(
            own.contains("\nCommunicationParameters=disable_http,EnableIPv6,DisableIPv4\n"),
            "{own}"
        );
        assert!(own.ends_with("\nSlurmctldHost=ctl-0\n"), "{own}");
    }

    #[test]
    fn a_missing_host_stays_missing() {
        assert!(!own("ClusterName=a\n").contains("SlurmctldHost"));
    }

    #[test]
    fn no_program_is_run() {
        for key in PROGRAMS {
            assert_eq!(kept(&format!("{}=/bin/x\n", key.to_uppercase())), "\n");
        }
        let elsewhere = "Include /opt/site.conf\n";
        assert_eq!(kept(elsewhere), elsewhere);
        assert!(own(elsewhere).contains("\nSlurmctldPrimaryOnProg=/bin/true\n"));
    }

    #[test]
    fn files_are_pushed_to_no_node() {
        let conf = "SlurmctldParameters=enable_configless,reconfig_on_restart,x\n";
        assert_eq!(kept(conf), "SlurmctldParameters=enable_configless,x\n");
        assert_eq!(kept("SlurmctldParameters=Reconfig_On_Restart\n"), "\n");
    }

    #[test]
    fn without_a_database_its_settings_are_removed() {
        let conf = "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageTRES=gres/gpu\n\
                    PartitionName=x Nodes=\"a b\" QOS=high AllowQos=a,b Reason=\\#1 QOS=\"\" TRESBillingWeights=GRES/gpu=1\n";
        assert_eq!(kept(conf), "\n\nPartitionName=x Nodes=\"a b\" Reason=\\#1 QOS=\"\"\n");
        assert_eq!(
            kept("JobCompType=jobcomp/mysql\nJobCompHost=db\n"),
            "\nJobCompHost=db\n"
        );
    }

    #[test]
    fn included_files_are_treated_alike() {
        let files = [
            (
                "slurm.conf",
                "Include /etc/slurm/a.conf\nInclude b.conf\nInclude /etc/slurmx\n",
            ),
            ("a.conf", "MailProg=/x\nFoo=1\n"),
            ("b.conf", "Bar=1\n"),
            ("gres.conf", "Name=gpu\n"),
        ];
        let scratch = render_scratch(&configuration(&files), &PLACE);
        assert!(scratch["slurm.conf"].starts_with("Include /run/d/a.conf\nInclude b.conf\nInclude /etc/slurmx\n"));
        assert_eq!(scratch["a.conf"], "\nFoo=1\n");
        assert_eq!(scratch["b.conf"], "Bar=1\n");
        assert_eq!(scratch.len(), 3, "the others are unchanged");
    }

    #[test]
    fn dynamic_nodes_are_defined() {
        let configuration = configuration(&[(
            "slurm.conf",
            "NodeName=s[1-2]\nNodeSet=gpu Feature=gpu\nNodeSet=two Nodes=s1,d7\n\
             PartitionName=x Nodes=s2,gpu,d[1-2]\nPartitionName=y Nodes=ALL\nPartitionName=z Nodes=n[1-\n",
        )]);
        let undefined = undefined_nodes(&configuration);
        assert_eq!(undefined.iter().collect::<Vec<_>>(), ["d1", "d2", "d7"]);
        let nodes = BTreeSet::from(["d1".to_owned()]);
        let scratch = Scratch { nodes: &nodes, ..PLACE };
        let files = render_scratch(&configuration, &scratch);
        assert!(files["slurm.conf"].ends_with("\nNodeName=d1 State=FUTURE\n"));
    }

    /// Lines as people write them, and garbage.
    fn line() -> impl Strategy<Value = String> {
        let keys = REPLACED.iter().chain(&DROPPED).chain(&PROGRAMS).chain(&OF_DATABASE);
        let key = prop::sample::select(keys.copied().collect::<Vec<_>>());
        let value = prop::sample::select(vec!["/bin/x", "\"a b\"", "x,y", "\\#1", "\"\"", ""]);
        let other = (key.clone(), value.clone()).prop_map(|(key, value)| format!(" {key}={value}"));
        let other = prop_oneof![Just(String::new()), other];
        prop_oneof![
            (key, value, other, "[ \t]*(#.*)?\\\\?")
                .prop_map(|(key, value, other, end)| format!("{key}={value}{other}{end}")),
            "(PartitionName|NodeName|Include|AccountingStorageType) ?=?[a-z/ =\"]*",
            ".*",
        ]
    }

    proptest! {
        #[test]
        fn no_configuration_runs_programs_or_uses_the_live_slurmctlds_files(
            lines in prop::collection::vec(line(), 0..12)
        ) {
            let text = lines.join("\n");
            let files = render_scratch(&configuration(&[("slurm.conf", &text)]), &PLACE);
            let scratch = configuration(&[("slurm.conf", &files["slurm.conf"])]);
            for (key, value) in [
                ("StateSaveLocation", "/run/d/state"),
                ("SlurmctldPidFile", "/run/d/slurmctld.pid"),
                ("SlurmctldPort", "4711"),
                ("AuthType", "auth/slurm"),
            ] {
                prop_assert_eq!(scratch.value(key), Some(value));
            }
            prop_assert!(scratch.value("AuthInfo").is_some_and(|value| value.starts_with("disable_sack")));
            let on_lines = scratch.slurm_conf().iter().filter(|located| Record::of_line(&located.line).is_none());
            for setting in on_lines.flat_map(|located| located.line.settings()) {
                prop_assert!(
                    !is_one_of(setting.key.as_str(), &PROGRAMS) || setting.value == "/bin/true",
                    "{setting:?}"
                );
            }
            // Errors name the line numbers of the user's file.
            prop_assert!(files["slurm.conf"].matches('\n').count() >= text.matches('\n').count());
        }
    }
}
