//! A configuration made safe for a slurmctld that is only to say whether it would run with it.
//!
//! It stands beside the live one, so what is unique to that is replaced: port, state, pid file, log, authentication. It
//! must do nothing in the world, so programs, databases and whatever else acts by itself are taken out. Everything else
//! stays as it was written, mistakes included, and on the same line, so that Slurm's complaints point where a person
//! looks. What cannot be found out this way is for [`check`](super::check::check).

use std::collections::{BTreeMap, BTreeSet};

use super::configuration::Configuration;
use super::file::DIRECTORY;
use super::key::Key;
use super::line::{Content, Line, Setting, is_space};
use super::record::{Record, RecordKind};
use crate::hostlist::Hostlist;

/// Where a dry run takes place.
#[derive(Debug, Clone, Copy)]
pub struct Scratch<'a> {
    /// Takes the place of /etc/slurm. `state` in it is to be an empty directory, `slurm.key` any key.
    pub directory: &'a str,
    /// The name of this very host: slurmctld refuses to run on another.
    pub host: &'a str,
    pub port: u16,
    /// Nodes that exist though no file names them.
    pub nodes: &'a BTreeSet<String>,
}

/// Replaced by lines of our own at the end of the file.
const REPLACED: [&str; 12] = [
    // A key of its own, so that it can speak to nobody. Whether the real kind is right is for the checker.
    "AuthType",
    "CredType",
    "CryptoType",
    "AuthInfo",
    "SlurmctldPort",
    "SlurmctldPidFile",
    "StateSaveLocation",
    // The line that says "Running as primary controller" is `info`.
    "SlurmctldDebug",
    "CommunicationParameters",
    "SlurmctldHost",
    "ControlMachine",
    "BackupController",
];

/// Left out: names of hosts and files that a dry run has no business with.
const DROPPED: [&str; 8] = [
    // Needs keys that lie elsewhere, and serves nobody here.
    "AuthAltTypes",
    "AuthAltParameters",
    "SlurmctldAddr",
    "ControlAddr",
    "BackupAddr",
    // Without a log file slurmctld writes to standard error, where we listen. The real one may be a pipe.
    "SlurmctldLogFile",
    "SlurmSchedLogFile",
    "SlurmctldSyslogDebug",
];

/// Left out: what slurmctld would run. It complains of a missing one, but starts nevertheless.
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

/// Plugins that act as soon as they are loaded: they connect to a database, or run scripts. Only these very names go: an
/// unknown one must be found out.
const ACTING: [(&str, &[&str]); 3] = [
    ("AccountingStorageType", &DATABASES),
    ("JobCompType", &["jobcomp/mysql"]),
    ("BurstBufferType", &["burst_buffer/lua", "burst_buffer/datawarp"]),
];

/// Pushes files to every node as soon as slurmctld runs.
const PUSHES: &str = "reconfig_on_restart";

/// Without a database there are no QOS and no TRES but Slurm's own, and slurmctld does not start with a file that names
/// others. They are left out where the real one has a database.
const OF_DATABASE: [&str; 2] = ["AccountingStorageTRES", "PriorityWeightTRES"];
const OF_DATABASE_IN_PARTITIONS: [&str; 4] = ["QOS", "AllowQos", "DenyQos", "TRESBillingWeights"];

/// slurm.conf and the files it includes, as the dry run is to read them. All other files are read as they are.
pub fn render_scratch(configuration: &Configuration, scratch: &Scratch<'_>) -> BTreeMap<String, String> {
    let has_database = has_database(configuration);
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for located in configuration.slurm_conf() {
        let text = files.entry(located.file.to_string()).or_default();
        text.push_str(&render_line(&located.line, scratch.directory, has_database));
    }
    // Slurm takes the last one of a key, so these hold even if a file elsewhere, which we do not see, sets them too.
    let own = render_own(configuration, scratch);
    files.entry("slurm.conf".to_owned()).or_default().push_str(&own);
    files
}

/// Names that partitions and node sets have for nodes and that no line explains: those of dynamic nodes, or mistakes.
pub fn unexplained_nodes(configuration: &Configuration) -> BTreeSet<String> {
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

/// The line, or what is left of it, in as many lines of the file.
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
    // An empty one is fatal with a database, too.
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
            // Slurm takes escapes away before it looks for quotes.
            let value = setting.value.replace('\\', "\\\\").replace('#', "\\#");
            if value.is_empty() || value.contains(is_space) {
                format!("{}{operator}=\"{value}\"", setting.key)
            } else {
                format!("{}{operator}={value}", setting.key)
            }
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
    // Ours comes first: whatever the other ones are, it is read.
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
        // Without it the socket of the live one would be taken away from everybody in the pod.
        and("AuthInfo", "disable_sack"),
        format!("SlurmctldPort={port}"),
        format!("SlurmctldPidFile={directory}/slurmctld.pid"),
        format!("StateSaveLocation={directory}/state"),
        "SlurmctldDebug=info".to_owned(),
        // It cannot be kept from listening on all addresses; so at least it answers nobody without a key.
        and("CommunicationParameters", "disable_http"),
        // Without one it complains of the default, which hardly any image has, just before it says what is wrong.
        "MailProg=/bin/true".to_owned(),
    ];
    let named_a_host = ["SlurmctldHost", "ControlMachine"]
        .iter()
        .any(|key| configuration.value(key).is_some());
    if named_a_host || configuration.includes_elsewhere() {
        lines.push(format!("SlurmctldHost={host}{}", address(configuration)));
    }
    if configuration.includes_elsewhere() {
        // What it sets cannot be taken out, but its most dangerous word can be spoken over.
        lines.push("SlurmctldPrimaryOnProg=/bin/true".to_owned());
    }
    lines.extend(nodes.iter().map(|name| format!("NodeName={name} State=FUTURE")));
    // The first ends a last line without an end, the second one that ends in a backslash.
    format!("\n\n{}\n", lines.join("\n"))
}

/// Spares a look-up of the name, but for those who asked for IPv6: their host may have nothing else.
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

    /// What becomes of the lines themselves.
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
    fn what_is_wrong_stays_where_it_was() {
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
    fn nothing_of_the_live_ones_own_is_left() {
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
    fn a_host_with_nothing_but_ipv6_is_tried_by_its_name() {
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
    fn without_its_database_nothing_of_it_is_asked_for() {
        let conf = "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageTRES=gres/gpu\n\
                    PartitionName=x Nodes=\"a b\" QOS=high AllowQos=a,b Reason=\\#1 QOS=\"\" TRESBillingWeights=GRES/gpu=1\n";
        assert_eq!(kept(conf), "\n\nPartitionName=x Nodes=\"a b\" Reason=\\#1 QOS=\"\"\n");
        assert_eq!(
            kept("JobCompType=jobcomp/mysql\nJobCompHost=db\n"),
            "\nJobCompHost=db\n"
        );
    }

    #[test]
    fn files_that_are_included_are_treated_alike_and_found_beside_it() {
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
        assert_eq!(scratch.len(), 3, "the others are as they are");
    }

    #[test]
    fn nodes_that_only_slurmctld_knows_are_named() {
        let configuration = configuration(&[(
            "slurm.conf",
            "NodeName=s[1-2]\nNodeSet=gpu Feature=gpu\nNodeSet=two Nodes=s1,d7\n\
             PartitionName=x Nodes=s2,gpu,d[1-2]\nPartitionName=y Nodes=ALL\nPartitionName=z Nodes=n[1-\n",
        )]);
        let unexplained = unexplained_nodes(&configuration);
        assert_eq!(unexplained.iter().collect::<Vec<_>>(), ["d1", "d2", "d7"]);
        let nodes = BTreeSet::from(["d1".to_owned()]);
        let scratch = Scratch { nodes: &nodes, ..PLACE };
        let files = render_scratch(&configuration, &scratch);
        assert!(files["slurm.conf"].ends_with("\nNodeName=d1 State=FUTURE\n"));
    }

    /// Lines as people write them, and as nobody would.
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
        fn whatever_is_written_nothing_is_run_and_nothing_of_the_live_ones_is_used(
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
            // Complaints name the lines a person wrote.
            prop_assert!(files["slurm.conf"].matches('\n').count() >= text.matches('\n').count());
        }
    }
}
