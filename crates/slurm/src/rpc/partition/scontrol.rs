//! An update in scontrol's words. Each key was tried with scontrol 26.05.5, set and taken away again: what slurmctld says
//! afterwards is what the RPC makes of it. scontrol takes `CpuBind=off` and empty values as the RPC does, and has nothing for a
//! DefaultTime or an OverTimeLimit that is to go, either.

use super::line::{cpu_bind, over_subscribe, preempt_mode};
use super::settings::CPU_BIND_OFF;
use super::{Failure, PartitionFlag, PartitionUpdate};
use crate::partition::PartitionStateName;

impl PartitionUpdate {
    /// The arguments of `scontrol create` and `scontrol update`, one each, with the name first. None at all where there is nothing
    /// to say, which scontrol would call an error.
    pub fn to_scontrol(&self) -> Result<Vec<String>, Failure> {
        self.check_readable()?;
        let Self {
            name,
            nodes,
            state,
            flags,
            allow_accounts,
            allow_groups,
            allow_qos,
            deny_accounts,
            deny_qos,
            alternate,
            billing_weights,
            cpu_bind: bind,
            default_memory,
            max_memory,
            default_time,
            max_time,
            job_defaults: _,
            grace_time,
            max_cpus_per_node,
            max_cpus_per_socket,
            max_nodes,
            min_nodes,
            max_share,
            over_time_limit,
            preempt_mode: mode,
            priority_job_factor,
            priority_tier,
            qos,
            topology: _,
        } = self;
        let mut words = Words(Vec::new());
        for (key, value) in [
            ("Nodes", nodes),
            ("AllowAccounts", allow_accounts),
            ("AllowGroups", allow_groups),
            ("AllowQos", allow_qos),
            ("DenyAccounts", deny_accounts),
            ("DenyQos", deny_qos),
            ("Alternate", alternate),
            ("TRESBillingWeights", billing_weights),
            ("QOS", qos),
        ] {
            words.say(key, value.as_deref());
        }
        words.say("State", state.map(PartitionStateName::name));
        for flag in flags {
            words.say(flag.key(), Some(if flag.is_set() { "YES" } else { "NO" }));
        }
        words.say("CpuBind", bind.map(cpu_bind_word).transpose()?);
        words.memory("DefMem", *default_memory);
        words.memory("MaxMem", *max_memory);
        for (key, value) in [
            ("DefaultTime", default_time),
            ("MaxTime", max_time),
            ("GraceTime", grace_time),
            ("MaxCPUsPerNode", max_cpus_per_node),
            ("MaxCPUsPerSocket", max_cpus_per_socket),
            ("MaxNodes", max_nodes),
            ("MinNodes", min_nodes),
        ] {
            words.number(key, *value, Self::UNLIMITED);
        }
        words.say("OverSubscribe", max_share.map(share_word).as_deref());
        words.number("OverTimeLimit", over_time_limit.map(u32::from), u16::MAX.into());
        words.say("PreemptMode", mode.map(preempt_word).transpose()?);
        words.number("PriorityJobFactor", priority_job_factor.map(u32::from), Self::UNLIMITED);
        words.number("PriorityTier", priority_tier.map(u32::from), Self::UNLIMITED);
        if !words.0.is_empty() {
            words.0.insert(0, format!("PartitionName={name}"));
        }
        Ok(words.0)
    }

    /// What scontrol and slurmrestd do not tell cannot be read back, so it is not said that way: the defaults of jobs on GPUs, which
    /// both take and neither shows, the topology, and ExclusiveUser beside EXCLUSIVE, of which both show the second only.
    pub(crate) fn check_readable(&self) -> Result<(), Failure> {
        let is_hidden = self.max_share == Some(0) && self.flags.contains(&PartitionFlag::ExclusiveUser(true));
        let unread = [
            (self.job_defaults.is_some(), "DefCPUPerGPU and DefMemPerGPU"),
            (self.topology.is_some(), "Topology"),
            (is_hidden, "ExclusiveUser beside OverSubscribe=EXCLUSIVE"),
        ];
        match unread.iter().find(|(is_said, _)| *is_said) {
            Some((_, key)) => Err(cannot_be_said(key)),
            None => Ok(()),
        }
    }
}

fn cannot_be_said(what: &str) -> Failure {
    Failure::Unspoken(format!("{what} can only be said by Slurm's own protocol"))
}

fn cpu_bind_word(bind: u32) -> Result<&'static str, Failure> {
    match cpu_bind(bind) {
        _ if bind == CPU_BIND_OFF => Ok("off"),
        "" => Err(cannot_be_said("this CpuBind")),
        word => Ok(word),
    }
}

fn preempt_word(mode: u16) -> Result<&'static str, Failure> {
    match preempt_mode(mode) {
        "" => Err(cannot_be_said("this PreemptMode")),
        word => Ok(word),
    }
}

fn share_word(share: u16) -> String {
    match over_subscribe(share) {
        word if word.is_empty() => "NO".to_owned(),
        word => word,
    }
}

struct Words(Vec<String>);

impl Words {
    fn say(&mut self, key: &str, value: Option<&str>) {
        self.0.extend(value.map(|value| format!("{key}={value}")));
    }

    fn number(&mut self, key: &str, value: Option<u32>, unlimited: u32) {
        let word = value.map(|value| {
            if value == unlimited {
                "UNLIMITED".to_owned()
            } else {
                value.to_string()
            }
        });
        self.say(key, word.as_deref());
    }

    fn memory(&mut self, key: &str, value: Option<u64>) {
        let Some(value) = value else { return };
        let megabytes = value & !PartitionUpdate::MEMORY_PER_CPU;
        let per = if megabytes == value { "Node" } else { "CPU" };
        self.say(&format!("{key}Per{per}"), Some(&megabytes.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan_partition_update;
    use super::*;
    use crate::conf::{Document, RecordKind, Settings};

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
    fn each_key_is_said_and_taken_away() {
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
    fn what_could_not_be_read_back_is_not_said() {
        for line in [
            "DefCPUPerGPU=2",
            "DefMemPerGPU=2",
            "Topology=t",
            "ExclusiveUser=YES OverSubscribe=EXCLUSIVE",
        ] {
            assert!(matches!(said("", line), Err(Failure::Unspoken(_))), "{line}");
        }
        let gang = PartitionUpdate {
            preempt_mode: Some(0x8001),
            ..PartitionUpdate::new("p")
        };
        assert!(matches!(gang.to_scontrol(), Err(Failure::Unspoken(_))));
    }

    #[test]
    fn the_name_comes_first_and_nothing_is_no_command() {
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
}
