//! Every key of Slurm: the syntax of its value, the action that makes a change live and the source of that, whether a change can
//! terminate running jobs, and whether it identifies the cluster.
//!
//! The lists are data, one file per subject. They are those of Slurm 26.05; a newer Slurm may have other keys.

mod global;
mod node;
mod other;
mod partition;
mod value;

use super::file::FileKind;
use super::key::Key;
use super::record::RecordKind;
pub use value::ValueKind;

/// The release of the lists: year and month.
pub const KNOWN_RELEASE: (u16, u16) = (26, 5);

/// The action that makes a change live. Each includes those before it, so that the greatest need of several changes covers all of
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Needs {
    Nothing,
    /// An RPC that changes one partition, without a reconfigure.
    PartitionRpc,
    /// `scontrol reconfigure`: slurmctld re-executes itself and sends its files to the nodes, which do the same.
    Reconfigure,
    ControllerRestart,
    /// A restart of slurmctld and of every slurmd.
    NodeRestart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyStatus {
    Current,
    /// Accepted, although another key replaces it.
    Legacy {
        now: &'static str,
    },
    /// Ignored, with an error in Slurm's log.
    Defunct,
    /// Rejected.
    Removed {
        remedy: &'static str,
    },
}

/// When a change can terminate running jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortsJobs {
    Never,
    Always,
    WhenLowered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySpec {
    pub name: &'static str,
    pub kind: ValueKind,
    pub status: KeyStatus,
    /// For a new or changed value.
    pub needs: Needs,
    /// For a removed key.
    pub needs_when_removed: Needs,
    /// The source of the need: a manual page, or a measurement.
    pub documented: &'static str,
    pub aborts_jobs: AbortsJobs,
    /// Whether it cannot change during the life of a cluster: a running slurmctld refuses another value, after the dry run.
    pub identity: bool,
}

/// The place of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// At the beginning of a line of slurm.conf.
    Global,
    /// Behind the name on the line of a record.
    Record(RecordKind),
    PowerAction,
    /// In another file.
    File(FileKind),
}

impl Place {
    /// Returns `None` if the keys are not known.
    pub fn keys(self) -> Option<&'static [KeySpec]> {
        Some(match self {
            Self::Global | Self::File(FileKind::SlurmConf) => global::GLOBAL,
            Self::Record(RecordKind::Node) => node::NODE,
            Self::Record(RecordKind::NodeSet) => node::NODE_SET,
            Self::Record(RecordKind::Partition) => partition::PARTITION,
            Self::Record(RecordKind::DownNodes) => node::DOWN_NODES,
            Self::PowerAction => node::POWER_ACTION,
            Self::File(FileKind::CgroupConf) => other::CGROUP,
            Self::File(FileKind::GresConf) => other::GRES,
            Self::File(FileKind::TopologyConf) => other::TOPOLOGY,
            Self::File(FileKind::AcctGatherConf) => other::ACCT_GATHER,
            Self::File(FileKind::JobContainerConf) => other::JOB_CONTAINER,
            Self::File(FileKind::TopologyYaml | FileKind::PlugstackConf | FileKind::Other) => return None,
        })
    }

    pub fn find(self, key: &Key) -> Option<&'static KeySpec> {
        let keys = self.keys()?;
        let at = keys.binary_search_by(|spec| compare(spec.name, key.as_str())).ok()?;
        keys.get(at)
    }
}

impl KeySpec {
    /// Returns the need of a change to this value; `None` is a removed key.
    pub fn needs_for(&self, new: Option<&str>) -> Needs {
        if new.is_some() {
            self.needs
        } else {
            self.needs_when_removed
        }
    }

    pub fn can_abort_jobs(&self, old: Option<&str>, new: Option<&str>) -> bool {
        match self.aborts_jobs {
            AbortsJobs::Never => false,
            AbortsJobs::Always => true,
            AbortsJobs::WhenLowered => {
                let number = |value: Option<&str>| value.and_then(|value| value.parse::<u64>().ok());
                // A removed key gets Slurm's default, which is lower than usual values.
                number(old).is_some_and(|old| number(new).is_none_or(|new| new < old))
            }
        }
    }

    const fn needs(mut self, needs: Needs, documented: &'static str) -> Self {
        self.needs = needs;
        self.needs_when_removed = needs;
        self.documented = documented;
        self
    }

    const fn needs_when_removed(mut self, needs: Needs) -> Self {
        self.needs_when_removed = needs;
        self
    }

    const fn documented(mut self, documented: &'static str) -> Self {
        self.documented = documented;
        self
    }

    const fn legacy(mut self, now: &'static str) -> Self {
        self.status = KeyStatus::Legacy { now };
        self
    }

    const fn defunct(mut self) -> Self {
        self.status = KeyStatus::Defunct;
        self
    }

    const fn aborts_jobs(mut self) -> Self {
        self.aborts_jobs = AbortsJobs::Always;
        self
    }

    const fn aborts_jobs_when_lowered(mut self) -> Self {
        self.aborts_jobs = AbortsJobs::WhenLowered;
        self
    }

    const fn identity(mut self) -> Self {
        self.identity = true;
        self
    }
}

/// A key that is live after a reconfigure, as slurm.conf(5) documents for all keys without an exception.
const fn key(name: &'static str, kind: ValueKind) -> KeySpec {
    KeySpec {
        name,
        kind,
        status: KeyStatus::Current,
        needs: Needs::Reconfigure,
        needs_when_removed: Needs::Reconfigure,
        documented: "slurm.conf(5), DESCRIPTION",
        aborts_jobs: AbortsJobs::Never,
        identity: false,
    }
}

const fn removed(name: &'static str, remedy: &'static str) -> KeySpec {
    let mut spec = key(name, ValueKind::Text);
    spec.status = KeyStatus::Removed { remedy };
    spec
}

fn compare(a: &str, b: &str) -> std::cmp::Ordering {
    a.bytes()
        .map(|byte| byte.to_ascii_lowercase())
        .cmp(b.bytes().map(|byte| byte.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: [Place; 11] = [
        Place::Global,
        Place::Record(RecordKind::Node),
        Place::Record(RecordKind::NodeSet),
        Place::Record(RecordKind::Partition),
        Place::Record(RecordKind::DownNodes),
        Place::PowerAction,
        Place::File(FileKind::CgroupConf),
        Place::File(FileKind::GresConf),
        Place::File(FileKind::TopologyConf),
        Place::File(FileKind::AcctGatherConf),
        Place::File(FileKind::JobContainerConf),
    ];

    #[test]
    fn every_key_is_found_whatever_its_case() {
        for place in PLACES {
            for spec in place.keys().unwrap() {
                let upper_case = Key::new(spec.name.to_uppercase());
                assert_eq!(
                    place.find(&upper_case).map(|found| found.name),
                    Some(spec.name),
                    "{place:?}"
                );
            }
        }
        assert_eq!(Place::Global.find(&Key::new("FooBar")), None);
        assert_eq!(Place::Record(RecordKind::Partition).find(&Key::new("CPUs")), None);
    }

    #[test]
    fn a_removed_key_may_need_more_than_a_changed_one() {
        let partition = |name| Place::Record(RecordKind::Partition).find(&Key::new(name)).unwrap();
        assert_eq!(partition("DefaultTime").needs_for(Some("5")), Needs::PartitionRpc);
        assert_eq!(partition("DefaultTime").needs_for(None), Needs::Reconfigure);
        assert_eq!(partition("MaxTime").needs_for(None), Needs::PartitionRpc);
        assert_eq!(partition("SuspendTime").needs_for(Some("5")), Needs::Reconfigure);
        assert_eq!(
            partition("Priority").status,
            KeyStatus::Legacy {
                now: "PriorityJobFactor and PriorityTier"
            }
        );
    }

    #[test]
    fn only_a_lower_node_limit_can_terminate_jobs() {
        let limit = Place::Global.find(&Key::new("MaxNodeCount")).unwrap();
        for (old, new, aborts) in [
            (Some("1024"), Some("512"), true),
            (Some("1024"), None, true),
            (Some("1024"), Some("2048"), false),
            (None, Some("1024"), false),
        ] {
            assert_eq!(limit.can_abort_jobs(old, new), aborts, "{old:?} {new:?}");
        }
    }
}
