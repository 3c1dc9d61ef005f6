//! Every key Slurm knows: what its value looks like, what a change of it takes to become live and where that is
//! written, whether a change can end running jobs, and whether it makes the cluster what it is.
//!
//! The lists are data, one file per subject. They are those of Slurm 26.05; with a newer Slurm a key that is not here
//! may still be right.

mod global;
mod node;
mod other;
mod partition;
mod value;

use super::file::FileKind;
use super::key::Key;
use super::record::RecordKind;
pub(super) use node::{NODE_SETS, NODES};
pub(super) use other::{ACCT_GATHER_MEASURED, CGROUP_PAGE, GRES_PAGE, JOB_CONTAINER_PAGE, TOPOLOGY_PAGE};
pub use value::ValueKind;

/// The release the lists are from: year and month.
pub const KNOWN_RELEASE: (u16, u16) = (26, 5);

/// What has to happen for a change to become live. Each includes those before it, so that the greatest need of several
/// changes serves them all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Needs {
    Nothing,
    /// Slurm's own call for one partition, while everything goes on.
    PartitionRpc,
    /// `scontrol reconfigure`: slurmctld executes itself anew and hands its files to the nodes, which do the same.
    Reconfigure,
    ControllerRestart,
    /// slurmctld, and then every slurmd.
    NodeRestart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Current,
    /// Understood, though another key took its place.
    Legacy {
        now: &'static str,
    },
    /// Read and ignored, with an error in Slurm's log.
    Defunct,
    /// Slurm stops at it.
    Removed {
        remedy: &'static str,
    },
}

/// When a change can end jobs that run.
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
    pub standing: Standing,
    /// For a new or another value.
    pub needs: Needs,
    /// For the key being taken out.
    pub needs_when_removed: Needs,
    /// Where the need is written, or that it was measured.
    pub documented: &'static str,
    pub aborts_jobs: AbortsJobs,
    /// A cluster keeps this for life: a running slurmctld refuses another value, if only after the dry run.
    pub identity: bool,
}

/// Where a key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// At the beginning of a line of slurm.conf.
    Global,
    /// After the name on such a line.
    Record(RecordKind),
    PowerAction,
    /// Anywhere in another file.
    File(FileKind),
}

impl Place {
    /// None where we do not know the keys.
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
    /// What a change from one value to another takes; none is a key that is not given.
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
                // A key that is taken out falls back to Slurm's default, which is lower than what people write.
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
        self.standing = Standing::Legacy { now };
        self
    }

    const fn defunct(mut self) -> Self {
        self.standing = Standing::Defunct;
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

/// A key as most are: live after a reconfigure, which slurm.conf(5) promises for all it does not except.
const fn key(name: &'static str, kind: ValueKind) -> KeySpec {
    KeySpec {
        name,
        kind,
        standing: Standing::Current,
        needs: Needs::Reconfigure,
        needs_when_removed: Needs::Reconfigure,
        documented: "slurm.conf(5), DESCRIPTION",
        aborts_jobs: AbortsJobs::Never,
        identity: false,
    }
}

const fn removed(name: &'static str, remedy: &'static str) -> KeySpec {
    let mut spec = key(name, ValueKind::Text);
    spec.standing = Standing::Removed { remedy };
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
                let shouted = Key::new(spec.name.to_uppercase());
                assert_eq!(
                    place.find(&shouted).map(|found| found.name),
                    Some(spec.name),
                    "{place:?}"
                );
            }
        }
        assert_eq!(Place::Global.find(&Key::new("FooBar")), None);
        assert_eq!(Place::Record(RecordKind::Partition).find(&Key::new("CPUs")), None);
    }

    #[test]
    fn a_taken_out_key_may_need_more_than_a_changed_one() {
        let partition = |name| Place::Record(RecordKind::Partition).find(&Key::new(name)).unwrap();
        assert_eq!(partition("DefaultTime").needs_for(Some("5")), Needs::PartitionRpc);
        assert_eq!(partition("DefaultTime").needs_for(None), Needs::Reconfigure);
        assert_eq!(partition("MaxTime").needs_for(None), Needs::PartitionRpc);
        assert_eq!(partition("SuspendTime").needs_for(Some("5")), Needs::Reconfigure);
        assert_eq!(
            partition("Priority").standing,
            Standing::Legacy {
                now: "PriorityJobFactor and PriorityTier"
            }
        );
    }

    #[test]
    fn only_a_lower_node_limit_can_end_jobs() {
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
