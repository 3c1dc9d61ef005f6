//! Renders the operator's slurm.conf. Equal values give equal text.
//!
//! Order, section headings and the space at the end of a partition line without settings are those of
//! SlinkyProject/slurm-operator 1.3, so that a takeover of a cluster changes no byte.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::document::Document;
use super::line::{is_space, quoted};

pub const SLURMCTLD_PORT: u16 = 6817;
pub const SLURMD_PORT: u16 = 6818;
pub const SLURMDBD_PORT: u16 = 6819;

pub(super) const SLURM_USER: &str = "slurm";
pub(super) const AUTH_TYPE: &str = "auth/slurm";
const CRED_TYPE: &str = "cred/slurm";
pub(super) const AUTH_ALT_TYPES: &str = "auth/jwt";
pub(super) const AUTH_INFO: &str = "use_client_ids";
pub(super) const JWT_KEY: &str = "jwt_key=/etc/slurm/jwt.key";
pub(super) const JWKS: &str = "jwks=/etc/slurm/jwks.json";
/// For clusters with a standby: with Slurm's default of 120 s, a takeover takes two minutes. Measured: with 10 s it takes 12 s.
const FAILOVER_TIMEOUT: (&str, u16) = ("SlurmctldTimeout", 10);
const SLURMCTLD_PARAMETERS: [&str; 2] = ["enable_configless", "reconfig_on_restart"];
/// Power saving needs a program. Nothing is left to do for it: the operator follows the states of the nodes.
const POWER_PROGRAM: &str = "/usr/bin/true";
/// Without a finite time power saving is off. Nodes without a time of their own stay for 31 years.
const SUSPEND_TIME: u32 = 1_000_000_000;
/// How long a node that is stopped cannot be started again. Usually its pod is gone by then.
const SUSPEND_TIMEOUT: u16 = 30;
/// A node that people keep from jobs stays as it is.
const SUSPEND_EXCLUDED_STATES: &str = "DOWN,DRAIN,FAIL,MAINTENANCE,RESERVED";
/// Jobs whose nodes do not start are requeued.
const REQUEUE_ON_FAILURE: &str = "requeue_on_resume_failure";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmConf {
    pub cluster_name: String,
    /// The first one is the primary.
    pub slurmctld_hosts: Vec<SlurmctldHost>,
    /// The address of the active one, for clients.
    pub slurmctld_address: String,
    pub max_node_count: u32,
    /// Whether tokens are also checked against `/etc/slurm/jwks.json`.
    pub jwks: bool,
    pub metrics: bool,
    /// Power saving, if nodes are started and stopped on demand.
    pub power_saving: Option<PowerSaving>,
    pub accounting: Option<AccountingStorage>,
    /// File names in `/etc/slurm`, in any order, as with the three other lists of scripts.
    pub prolog_slurmctld: Vec<String>,
    pub epilog_slurmctld: Vec<String>,
    pub prolog: Vec<String>,
    pub epilog: Vec<String>,
    /// In the order of their lines.
    pub node_sets: Vec<NodeSetLines>,
    /// The partitions beside those of NodeSets, each the text behind `PartitionName=`.
    pub partitions: Vec<String>,
    /// The user's lines, unchanged.
    pub extra: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmctldHost {
    pub name: String,
    pub address: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountingStorage {
    pub host: String,
    pub port: u16,
}

/// Slurm's power saving. Each record that is started and stopped on demand has a `SuspendTime` of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PowerSaving {
    /// How long a node may take to register.
    pub resume_timeout: u16,
}

/// The operator records it, as JSON, with the revision that has these lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSetLines {
    /// Name in Slurm: of the node set, of the feature its nodes carry, and of its partition.
    pub name: String,
    /// The settings of the partition's line, possibly empty; `None` for no partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
}

/// A cluster with an external slurmctld: what slurmrestd needs to find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalConf {
    pub cluster_name: String,
    pub slurmctld_host: String,
    pub slurmctld_port: u16,
    pub accounting: Option<AccountingStorage>,
}

/// A slurm.conf, and the origin of its lines, which are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedSlurmConf {
    pub text: String,
    /// In the order of [`SlurmConf::node_sets`]: the node set's line, and that of its partition.
    pub node_sets: Vec<(usize, Option<usize>)>,
    /// In the order of [`SlurmConf::partitions`].
    pub partitions: Vec<usize>,
    /// The lines of [`SlurmConf::extra`].
    pub extra: Option<RangeInclusive<usize>>,
    /// The lines that merge options of the user with those the cluster needs.
    pub merged: Option<RangeInclusive<usize>>,
}

pub fn render_slurm_conf(conf: &SlurmConf) -> RenderedSlurmConf {
    let SlurmConf {
        cluster_name,
        slurmctld_hosts,
        slurmctld_address,
        max_node_count,
        jwks,
        metrics,
        power_saving,
        accounting,
        prolog_slurmctld,
        epilog_slurmctld,
        prolog,
        epilog,
        node_sets,
        partitions,
        extra,
    } = conf;
    let auth_alt_parameters: &[&str] = if *jwks { &[JWT_KEY, JWKS] } else { &[JWT_KEY] };

    let mut slurmctld_parameters = SLURMCTLD_PARAMETERS.to_vec();
    slurmctld_parameters.extend(power_saving.map(|_| REQUEUE_ON_FAILURE));

    let mut text = Text::default();
    text.section("GENERAL");
    text.set("ClusterName", cluster_name);
    text.set("SlurmUser", SLURM_USER);
    render_hosts(&mut text, slurmctld_hosts, slurmctld_address, extra);
    text.set("StateSaveLocation", format!("/var/spool/slurmctld/{cluster_name}"));
    text.set("SlurmdUser", "root");
    text.set("SlurmdPort", SLURMD_PORT);
    text.set("SlurmdSpoolDir", "/var/spool/slurmd");
    text.set("MaxNodeCount", max_node_count);

    text.section("LOGGING");
    text.set("SlurmctldLogFile", "/var/log/slurm/slurmctld.log");
    text.set("SlurmSchedLogFile", "/var/log/slurm/slurmctld.log");
    text.set("SlurmdLogFile", "/var/log/slurm/slurmd.log");

    text.section("PLUGINS & PARAMETERS");
    text.set("AuthType", AUTH_TYPE);
    text.set("CredType", CRED_TYPE);
    text.set("AuthAltTypes", AUTH_ALT_TYPES);
    text.set("AuthAltParameters", auth_alt_parameters.join(","));
    text.set("AuthInfo", AUTH_INFO);
    text.set("SlurmctldParameters", slurmctld_parameters.join(","));
    if *metrics {
        text.set("MetricsType", "metrics/openmetrics");
    }

    render_power_saving(&mut text, *power_saving);
    render_accounting(&mut text, accounting.as_ref());

    if !(prolog_slurmctld.is_empty() && epilog_slurmctld.is_empty()) {
        text.section("SLURMCTLD PROLOG & EPILOG");
        text.set_scripts("PrologSlurmctld", "/etc/slurm/", prolog_slurmctld);
        text.set_scripts("EpilogSlurmctld", "/etc/slurm/", epilog_slurmctld);
    }
    if !(prolog.is_empty() && epilog.is_empty()) {
        // slurmctld sends a script without a directory to the nodes along with slurm.conf.
        text.section("PROLOG & EPILOG");
        text.set_scripts("Prolog", "", prolog);
        text.set_scripts("Epilog", "", epilog);
    }

    if !node_sets.is_empty() {
        text.section("NODESET & PARTITION");
    }
    let mut places = Vec::new();
    for NodeSetLines { name, partition } in node_sets {
        text.line(&format!("NodeSet={name} Feature={name}"));
        let node_set = text.lines;
        let partition = partition.as_ref().map(|settings| {
            text.line(&format!("PartitionName={name} Nodes={name} {settings}"));
            text.lines
        });
        places.push((node_set, partition));
    }
    if !partitions.is_empty() {
        text.section("PARTITION");
    }
    let mut partition_lines = Vec::new();
    for partition in partitions {
        text.line(&format!("PartitionName={partition}"));
        partition_lines.push(text.lines);
    }

    let mut extra_lines = None;
    if !extra.is_empty() {
        // The next section begins with a comment, so a backslash at the end of the user's last line continues nothing.
        text.section("EXTRA CONFIG");
        let before = text.lines;
        text.line(extra);
        extra_lines = Some(before + 1..=text.lines);
    }
    let before = text.lines;
    let required: [(&str, &[&str]); 3] = [
        ("AuthAltParameters", auth_alt_parameters),
        ("AuthInfo", &[AUTH_INFO]),
        ("SlurmctldParameters", &slurmctld_parameters),
    ];
    render_merged(&mut text, extra, &required);
    let merged = (text.lines > before).then(|| before + 1..=text.lines);
    RenderedSlurmConf {
        text: text.text,
        node_sets: places,
        partitions: partition_lines,
        extra: extra_lines,
        merged,
    }
}

pub fn render_external_slurm_conf(conf: &ExternalConf) -> String {
    let ExternalConf {
        cluster_name,
        slurmctld_host,
        slurmctld_port,
        accounting,
    } = conf;
    let mut text = Text::default();
    text.section("GENERAL");
    text.set("ClusterName", cluster_name);
    text.set("SlurmUser", SLURM_USER);
    text.set("SlurmctldHost", slurmctld_host);
    text.set("SlurmctldPort", slurmctld_port);

    text.section("PLUGINS & PARAMETERS");
    text.set("AuthType", AUTH_TYPE);
    text.set("CredType", CRED_TYPE);
    text.set("AuthAltTypes", AUTH_ALT_TYPES);

    render_accounting(&mut text, accounting.as_ref());
    text.text
}

fn render_hosts(text: &mut Text, hosts: &[SlurmctldHost], active: &str, extra: &str) {
    for SlurmctldHost { name, address } in hosts {
        text.set("SlurmctldHost", format!("{name}({address})"));
    }
    text.set("SlurmctldPort", SLURMCTLD_PORT);
    text.set("SlurmctldAddr", active);
    let (timeout, seconds) = FAILOVER_TIMEOUT;
    if hosts.len() > 1 && Document::parse(extra).value(timeout).is_none() {
        text.set(timeout, seconds);
    }
}

/// The user's own lines come later and are effective instead.
fn render_power_saving(text: &mut Text, power_saving: Option<PowerSaving>) {
    let Some(PowerSaving { resume_timeout }) = power_saving else {
        return;
    };
    text.section("POWER SAVING");
    text.set("SuspendProgram", POWER_PROGRAM);
    text.set("ResumeProgram", POWER_PROGRAM);
    text.set("SuspendTime", SUSPEND_TIME);
    text.set("SuspendTimeout", SUSPEND_TIMEOUT);
    text.set("ResumeTimeout", resume_timeout);
    // Pods are not limited: Kubernetes schedules them.
    text.set("SuspendRate", 0);
    text.set("ResumeRate", 0);
    text.set("SuspendExcStates", SUSPEND_EXCLUDED_STATES);
}

fn render_accounting(text: &mut Text, accounting: Option<&AccountingStorage>) {
    text.section("ACCOUNTING");
    match accounting {
        Some(AccountingStorage { host, port }) => {
            text.set("AccountingStorageType", "accounting_storage/slurmdbd");
            text.set("AccountingStorageHost", host);
            text.set("AccountingStoragePort", port);
        }
        None => text.set("AccountingStorageType", "accounting_storage/none"),
    }
}

/// Renders the section for keys that the user has set too; `required` has the order of its lines.
pub(super) fn render_merged(text: &mut Text, extra: &str, required: &[(&str, &[&str])]) {
    let user = Document::parse(extra);
    let merged: Vec<_> = required
        .iter()
        .filter_map(|(key, options)| Some((key, merge_options(options, user.value(key)?))))
        .collect();
    if !merged.is_empty() {
        text.section("MERGED CONFIG");
    }
    for (key, value) in merged {
        text.set(key, quoted(&value));
    }
}

/// Merges a user's comma-separated options with the required ones, which take precedence: the last line of a key is effective, so
/// the user's would override the operator's. The result is sorted, so that it does not depend on the user's order. The user's
/// spelling is kept, since options may have paths.
fn merge_options(required: &[&str], user: &str) -> String {
    let is_required = |option: &str| required.iter().any(|own| name(own).eq_ignore_ascii_case(name(option)));
    let mut options = required.to_vec();
    options.extend(
        user.split(',')
            .map(|option| option.trim_matches(is_space))
            .filter(|o| !o.is_empty() && !is_required(o)),
    );
    options.sort_unstable();
    options.dedup_by(|a, b| a.eq_ignore_ascii_case(b));
    options.join(",")
}

fn name(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

/// Returns the cgroup.conf of a cluster whose user provides none.
pub fn render_cgroup_conf() -> String {
    // A container has no systemd that could create scopes.
    "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n".to_owned()
}

#[derive(Default)]
pub(super) struct Text {
    pub(super) text: String,
    lines: usize,
}

impl Text {
    pub(super) fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
        self.lines += 1 + line.bytes().filter(|byte| *byte == b'\n').count();
    }

    pub(super) fn section(&mut self, title: &str) {
        self.line("#");
        self.line(&format!("### {title} ###"));
    }

    pub(super) fn set(&mut self, key: &str, value: impl std::fmt::Display) {
        self.line(&format!("{key}={value}"));
    }

    fn set_scripts(&mut self, key: &str, directory: &str, files: &[String]) {
        let mut files: Vec<&String> = files.iter().collect();
        files.sort();
        for file in files {
            self.set(key, format!("{directory}{file}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::merge_options;

    #[test]
    fn options_of_both_are_sorted() {
        assert_eq!(merge_options(&["bar", "baz"], "fizz,buzz"), "bar,baz,buzz,fizz");
        assert_eq!(merge_options(&["bar", "Thing"], "bar,Overlap"), "Overlap,Thing,bar");
    }

    #[test]
    fn the_required_value_of_an_option_takes_precedence() {
        assert_eq!(merge_options(&["overlap=0"], "overlap=1"), "overlap=0");
        assert_eq!(merge_options(&["overlap=0"], "OVERLAP"), "overlap=0");
    }

    #[test]
    fn a_path_keeps_its_case_and_empty_options_are_dropped() {
        assert_eq!(merge_options(&["a"], ",jwks=/Etc/K.json,, ,b"), "a,b,jwks=/Etc/K.json");
    }
}
