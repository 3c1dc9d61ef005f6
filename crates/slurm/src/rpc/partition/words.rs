//! A partition in the words of slurm.conf and scontrol.
//!
//! Each key was tried with scontrol 26.05.5, set and removed again: slurmctld then has the same as after the RPC. scontrol takes
//! `CpuBind=off` and empty values as the RPC does, and cannot remove a DefaultTime or an OverTimeLimit either.

use super::super::wire::{UNSET_U16, UNSET_U32, UNSET_U64};
use super::settings::CPU_BIND_OFF;
use super::{Failure, LivePartition, PartitionFlag, PartitionUpdate};

/// One setting.
struct Word {
    key: String,
    /// `None` for a number that has no word.
    value: Option<String>,
    /// Whether a line of slurm.conf without the key means the same.
    is_default: bool,
}

#[derive(Default)]
struct Words(Vec<Word>);

impl Words {
    fn add(&mut self, key: impl Into<String>, value: Option<String>, is_default: bool) {
        let key = key.into();
        self.0.push(Word { key, value, is_default });
    }

    fn text(&mut self, key: &str, value: Option<&String>) {
        if let Some(value) = value {
            self.add(key, Some(value.clone()), value.is_empty());
        }
    }

    fn number(&mut self, key: &str, value: Option<impl Into<u32>>, unlimited: u32, default: Option<u32>) {
        let Some(value) = value.map(Into::into) else { return };
        let word = if value == unlimited {
            "UNLIMITED".to_owned()
        } else {
            value.to_string()
        };
        self.add(key, Some(word), Some(value) == default);
    }

    fn memory(&mut self, key: &str, value: Option<u64>) {
        let Some(value) = value else { return };
        let megabytes = value & !PartitionUpdate::MEMORY_PER_CPU;
        let per = if megabytes == value { "Node" } else { "CPU" };
        self.add(format!("{key}Per{per}"), Some(megabytes.to_string()), value == 0);
    }
}

impl PartitionUpdate {
    /// Returns the arguments of `scontrol create` and `scontrol update`, with the name first. None for an update that changes
    /// nothing, which scontrol would reject.
    pub fn to_scontrol(&self) -> Result<Vec<String>, Failure> {
        self.check_readable()?;
        let words = self.words(None).into_iter().map(|word| match word.value {
            Some(value) => Ok(format!("{}={value}", word.key)),
            None => Err(needs_rpc(&format!("this {}", word.key))),
        });
        let mut words = words.collect::<Result<Vec<String>, Failure>>()?;
        if !words.is_empty() {
            words.insert(0, format!("PartitionName={}", self.name));
        }
        Ok(words)
    }

    /// Rejects settings that scontrol and slurmrestd do not show, and that can therefore not be read back: the defaults of jobs on
    /// GPUs, the topology, and ExclusiveUser beside EXCLUSIVE, of which both show the latter only.
    pub(crate) fn check_readable(&self) -> Result<(), Failure> {
        let is_hidden = self.max_share == Some(0) && self.flags.contains(&PartitionFlag::ExclusiveUser(true));
        let unreadable = [
            (self.job_defaults.is_some(), "DefCPUPerGPU and DefMemPerGPU"),
            (self.topology.is_some(), "Topology"),
            (is_hidden, "ExclusiveUser beside OverSubscribe=EXCLUSIVE"),
        ];
        match unreadable.iter().find(|(is_given, _)| *is_given) {
            Some((_, key)) => Err(needs_rpc(key)),
            None => Ok(()),
        }
    }

    /// All settings but the topology, with AllocNodes, which an update cannot change.
    fn words(&self, alloc_nodes: Option<&String>) -> Vec<Word> {
        let mut words = Words::default();
        let unlimited = Self::UNLIMITED;
        words.text("Nodes", self.nodes.as_ref());
        if let Some(state) = self.state {
            words.add("State", Some(state.name().to_owned()), false);
        }
        for flag in &self.flags {
            let value = if flag.is_set() { "YES" } else { "NO" };
            words.add(flag.key(), Some(value.to_owned()), !flag.is_set());
        }
        words.text("AllowAccounts", self.allow_accounts.as_ref());
        words.text("AllocNodes", alloc_nodes);
        words.text("AllowGroups", self.allow_groups.as_ref());
        words.text("AllowQos", self.allow_qos.as_ref());
        words.text("DenyAccounts", self.deny_accounts.as_ref());
        words.text("DenyQos", self.deny_qos.as_ref());
        words.text("QOS", self.qos.as_ref());
        words.text("Alternate", self.alternate.as_ref());
        words.text("TRESBillingWeights", self.billing_weights.as_ref());
        let job_defaults = self.job_defaults.iter().flat_map(|defaults| defaults.split(','));
        for (key, value) in job_defaults.filter_map(|default| default.split_once('=')) {
            words.add(key, Some(value.to_owned()), false);
        }
        if let Some(bind) = self.cpu_bind {
            words.add("CpuBind", word_of(&bind, &CPU_BINDS), bind == CPU_BIND_OFF);
        }
        words.memory("DefMem", self.default_memory);
        words.memory("MaxMem", self.max_memory);
        words.number("DefaultTime", self.default_time, unlimited, None);
        words.number("MaxTime", self.max_time, unlimited, Some(unlimited));
        words.number("GraceTime", self.grace_time, unlimited, Some(0));
        words.number("MaxCPUsPerNode", self.max_cpus_per_node, unlimited, Some(unlimited));
        words.number("MaxCPUsPerSocket", self.max_cpus_per_socket, unlimited, Some(unlimited));
        words.number("MaxNodes", self.max_nodes, unlimited, Some(unlimited));
        // slurmctld has 0 where nothing was set, which means the same as 1.
        let min_nodes_default = self.min_nodes.filter(|nodes| *nodes <= 1);
        words.number("MinNodes", self.min_nodes, unlimited, min_nodes_default);
        if let Some(share) = self.max_share {
            words.add("OverSubscribe", Some(over_subscribe(share)), share == NOT_SHARED);
        }
        words.number("OverTimeLimit", self.over_time_limit, u16::MAX.into(), None);
        if let Some(mode) = self.preempt_mode {
            words.add("PreemptMode", word_of(&mode, &PREEMPT_MODES), false);
        }
        words.number("PriorityJobFactor", self.priority_job_factor, unlimited, Some(1));
        words.number("PriorityTier", self.priority_tier, unlimited, Some(1));
        words.0
    }
}

impl LivePartition {
    /// Returns the line of slurm.conf that creates this partition. It lacks what slurmctld does not report: power saving and the
    /// topology.
    pub fn to_line(&self) -> String {
        let mut line = vec![format!("PartitionName={}", self.name)];
        let words = self.to_update().words(Some(&self.allow_alloc_nodes));
        let given = words.into_iter().filter(|word| !word.is_default);
        line.extend(given.filter_map(|word| Some(format!("{}={}", word.key, word.value?))));
        line.join(" ")
    }

    /// Returns the message that creates this partition, or resets it to its current settings.
    pub fn to_update(&self) -> PartitionUpdate {
        let number = |value: u32| Some(value).filter(|value| *value != UNSET_U32);
        let small = |value: u16| Some(value).filter(|value| *value != UNSET_U16);
        let large = |value: u64| Some(value).filter(|value| *value != UNSET_U64);
        let flag = |flag: PartitionFlag| if self.has(flag) { flag } else { flag.not() };
        PartitionUpdate {
            name: self.name.clone(),
            nodes: Some(self.members().to_owned()),
            state: self.state.name(),
            flags: PartitionFlag::all().map(flag).collect(),
            allow_accounts: Some(self.allow_accounts.clone()),
            allow_groups: Some(self.allow_groups.clone()),
            // slurmctld rejects empty ones.
            allow_qos: Some(self.allow_qos.clone()).filter(|qos| !qos.is_empty()),
            deny_accounts: Some(self.deny_accounts.clone()).filter(|accounts| !accounts.is_empty()),
            deny_qos: Some(self.deny_qos.clone()).filter(|qos| !qos.is_empty()),
            alternate: Some(self.alternate.clone()),
            billing_weights: Some(self.billing_weights.clone()),
            cpu_bind: Some(self.cpu_bind).filter(|bind| *bind != 0),
            default_memory: large(self.default_memory),
            max_memory: large(self.max_memory),
            default_time: number(self.default_time),
            max_time: number(self.max_time),
            job_defaults: self.job_defaults_text(),
            grace_time: number(self.grace_time),
            max_cpus_per_node: number(self.max_cpus_per_node),
            max_cpus_per_socket: number(self.max_cpus_per_socket),
            max_nodes: number(self.max_nodes),
            min_nodes: number(self.min_nodes),
            max_share: small(self.max_share),
            over_time_limit: small(self.over_time_limit),
            preempt_mode: small(self.preempt_mode),
            priority_job_factor: small(self.priority_job_factor),
            priority_tier: small(self.priority_tier),
            qos: Some(self.qos.clone()).filter(|qos| !qos.is_empty()),
            topology: None,
        }
    }

    /// The defaults of jobs on GPUs as in a message.
    pub(super) fn job_defaults_text(&self) -> Option<String> {
        let defaults = self.job_defaults.as_ref()?.iter();
        let words = defaults.filter_map(|default| Some(format!("{}={}", default.key()?, default.value)));
        Some(words.collect::<Vec<_>>().join(","))
    }

    /// Returns the node sets if there are any, since their nodes change.
    fn members(&self) -> &str {
        if self.node_sets.is_empty() {
            &self.nodes
        } else {
            &self.node_sets
        }
    }
}

fn needs_rpc(what: &str) -> Failure {
    Failure::NotUnderstood(format!("{what} can only be set by Slurm's own protocol"))
}

pub(super) const NOT_SHARED: u16 = 1;

pub(crate) fn over_subscribe(max_share: u16) -> String {
    match max_share {
        NOT_SHARED => "NO".to_owned(),
        0 => "EXCLUSIVE".to_owned(),
        forced if forced & PartitionUpdate::SHARE_FORCED != 0 => {
            format!("FORCE:{}", forced & !PartitionUpdate::SHARE_FORCED)
        }
        jobs => format!("YES:{jobs}"),
    }
}

/// A value: the word in slurm.conf, the name in slurmrestd's JSON, and the number in a message.
pub(crate) type Names<T> = (&'static str, &'static str, T);

/// The values of CpuBind. `off` means that the key is not set.
pub(crate) const CPU_BINDS: [Names<u32>; 6] = [
    ("none", "CPU_BIND_NONE", 0x20),
    ("thread", "CPU_BIND_TO_THREADS", 0x2),
    ("core", "CPU_BIND_TO_CORES", 0x4),
    ("socket", "CPU_BIND_TO_SOCKETS", 0x8),
    ("ldom", "CPU_BIND_TO_LDOMS", 0x10),
    ("off", "CPU_BIND_OFF", CPU_BIND_OFF),
];

/// The values of PreemptMode that a message can set.
pub(crate) const PREEMPT_MODES: [Names<u16>; 4] = [
    ("OFF", "DISABLED", 0),
    ("SUSPEND", "SUSPEND", 1),
    ("REQUEUE", "REQUEUE", 2),
    ("CANCEL", "CANCEL", 8),
];

fn word_of<T: PartialEq>(value: &T, names: &[Names<T>]) -> Option<String> {
    let known = names.iter().find(|(.., number)| number == value);
    known.map(|(word, ..)| (*word).to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::{JobDefault, LiveState, plan_partition, plan_partition_update};
    use super::*;
    use crate::conf::{Document, RecordKind, Settings};
    use crate::partition::PartitionStateName;

    fn said(old: &str, new: &str) -> Result<String, Failure> {
        let settings = |line: &str| -> Settings {
            let document = Document::parse(&format!("PartitionName=p {line}"));
            document.effective(RecordKind::Partition).remove(0).1
        };
        let update = plan_partition_update("p", &settings(old), &settings(new)).unwrap();
        let words = update.to_scontrol()?.join("|");
        Ok(words.trim_start_matches("PartitionName=p|").to_owned())
    }

    #[test]
    fn each_key_is_set_and_removed() {
        for (line, set, taken_away) in [
            ("AllowAccounts=a,B", "AllowAccounts=a,b", "AllowAccounts="),
            ("AllowGroups=x", "AllowGroups=x", "AllowGroups="),
            ("Alternate=q", "Alternate=q", "Alternate="),
            ("CpuBind=core", "CpuBind=core", "CpuBind=off"),
            ("Default=YES", "Default=YES", "Default=NO"),
            ("DefMemPerCPU=5", "DefMemPerCPU=5", "DefMemPerNode=0"),
            ("MaxMemPerNode=6", "MaxMemPerNode=6", "MaxMemPerNode=0"),
            ("DenyAccounts=a", "DenyAccounts=a", "DenyAccounts="),
            ("DisableRootJobs=YES", "DisableRootJobs=YES", "DisableRootJobs=NO"),
            ("ExclusiveUser=YES", "ExclusiveUser=YES", "ExclusiveUser=NO"),
            ("GraceTime=5", "GraceTime=5", "GraceTime=0"),
            ("Hidden=YES", "Hidden=YES", "Hidden=NO"),
            ("LLN=YES", "LLN=YES", "LLN=NO"),
            ("MaxCPUsPerNode=3", "MaxCPUsPerNode=3", "MaxCPUsPerNode=UNLIMITED"),
            ("MaxCPUsPerSocket=3", "MaxCPUsPerSocket=3", "MaxCPUsPerSocket=UNLIMITED"),
            ("MaxNodes=3", "MaxNodes=3", "MaxNodes=UNLIMITED"),
            ("MaxTime=1-0", "MaxTime=1440", "MaxTime=UNLIMITED"),
            ("MinNodes=3", "MinNodes=3", "MinNodes=0"),
            ("Nodes=s1,n[1-3]", "Nodes=s1,n[1-3]", "Nodes="),
            ("OverSubscribe=YES:3", "OverSubscribe=YES:3", "OverSubscribe=NO"),
            ("OverSubscribe=FORCE", "OverSubscribe=FORCE:4", "OverSubscribe=NO"),
            ("OverSubscribe=EXCLUSIVE", "OverSubscribe=EXCLUSIVE", "OverSubscribe=NO"),
            ("PowerDownOnIdle=YES", "PowerDownOnIdle=YES", "PowerDownOnIdle=NO"),
            ("PriorityTier=3", "PriorityTier=3", "PriorityTier=1"),
            (
                "Priority=3",
                "PriorityJobFactor=3|PriorityTier=3",
                "PriorityJobFactor=1|PriorityTier=1",
            ),
            ("ReqResv=YES", "ReqResv=YES", "ReqResv=NO"),
            ("RootOnly=YES", "RootOnly=YES", "RootOnly=NO"),
            ("State=DRAIN", "State=DRAIN", "State=UP"),
            (
                "TRESBillingWeights=CPU=1.0,Mem=0.25G",
                "TRESBillingWeights=CPU=1.0,Mem=0.25G",
                "TRESBillingWeights=",
            ),
        ] {
            assert_eq!(said("", line).as_deref(), Ok(set), "{line}");
            assert_eq!(said(line, "").as_deref(), Ok(taken_away), "{line}");
        }
        for (line, set) in [
            ("AllowQos=a,b", "AllowQos=a,b"),
            ("DenyQos=a", "DenyQos=a"),
            ("QOS=a", "QOS=a"),
            ("DefaultTime=30", "DefaultTime=30"),
            ("DefaultTime=UNLIMITED", "DefaultTime=UNLIMITED"),
            ("OverTimeLimit=7", "OverTimeLimit=7"),
            ("OverTimeLimit=UNLIMITED", "OverTimeLimit=UNLIMITED"),
            ("PreemptMode=OFF", "PreemptMode=OFF"),
            ("PreemptMode=CANCEL", "PreemptMode=CANCEL"),
        ] {
            assert_eq!(said("", line).as_deref(), Ok(set), "{line}");
        }
    }

    #[test]
    fn a_setting_that_cannot_be_read_back_is_rejected() {
        for line in [
            "DefCPUPerGPU=2",
            "DefMemPerGPU=2",
            "Topology=t",
            "ExclusiveUser=YES OverSubscribe=EXCLUSIVE",
        ] {
            assert!(matches!(said("", line), Err(Failure::NotUnderstood(_))), "{line}");
        }
        let gang = PartitionUpdate {
            preempt_mode: Some(0x8001),
            ..PartitionUpdate::new("p")
        };
        assert!(matches!(gang.to_scontrol(), Err(Failure::NotUnderstood(_))));
    }

    #[test]
    fn the_name_comes_first_and_no_change_is_no_command() {
        let update = PartitionUpdate::new("p q");
        assert_eq!(update.to_scontrol(), Ok(Vec::new()));
        let update = PartitionUpdate {
            state: Some(PartitionStateName::Up),
            ..update
        };
        assert_eq!(
            update.to_scontrol().unwrap(),
            ["PartitionName=p q", "State=UP"],
            "one word each, whatever is in them"
        );
    }

    /// A partition without settings, in slurmctld 26.05.
    fn plain() -> LivePartition {
        LivePartition {
            name: "hand".to_owned(),
            state: LiveState(3),
            nodes: "n[1-2]".to_owned(),
            default_time: UNSET_U32,
            max_time: u32::MAX,
            max_cpus_per_node: u32::MAX,
            max_cpus_per_socket: u32::MAX,
            max_nodes: u32::MAX,
            max_share: 1,
            over_time_limit: UNSET_U16,
            preempt_mode: UNSET_U16,
            priority_job_factor: 1,
            priority_tier: 1,
            ..LivePartition::default()
        }
    }

    #[test]
    fn defaults_are_not_on_the_line() {
        assert_eq!(plain().to_line(), "PartitionName=hand Nodes=n[1-2] State=UP");
    }

    #[test]
    fn a_line_and_a_message_create_the_same_partition() {
        let partition = LivePartition {
            state: LiveState(2),
            node_sets: "s1".to_owned(),
            flags: 0x2 | 0x20,
            allow_accounts: "a,b".to_owned(),
            qos: "q".to_owned(),
            job_defaults: Some(vec![JobDefault { kind: 2, value: 100 }]),
            cpu_bind: 4,
            default_memory: PartitionUpdate::MEMORY_PER_CPU + 100,
            max_memory: 4000,
            default_time: 30,
            max_time: 60,
            min_nodes: 2,
            max_share: 0x8004,
            over_time_limit: u16::MAX,
            preempt_mode: 2,
            priority_tier: 9,
            ..plain()
        };
        let line = partition.to_line();
        assert_eq!(
            line,
            "PartitionName=hand Nodes=s1 State=DRAIN Hidden=YES LLN=YES AllowAccounts=a,b QOS=q DefMemPerGPU=100 \
             CpuBind=core DefMemPerCPU=100 MaxMemPerNode=4000 DefaultTime=30 MaxTime=60 MinNodes=2 OverSubscribe=FORCE:4 \
             OverTimeLimit=UNLIMITED PreemptMode=REQUEUE PriorityTier=9"
        );
        let document = Document::parse(&line);
        let settings = document.effective(RecordKind::Partition).remove(0).1;
        let by_line = plan_partition("hand", &settings).unwrap();
        assert_eq!(by_line.differences(&partition), []);
        assert_eq!(partition.to_update().differences(&partition), []);
    }
}
