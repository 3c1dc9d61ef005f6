//! Nodes and jobs read together.
//!
//! slurmctld acknowledges a drain up to five seconds before it is on disk; one that is killed in between comes back
//! without it. Reads that are to prove something about a node must therefore all come from one process of slurmctld.

use crate::answer::{Answer, ServedConf};
use crate::job::Job;
use crate::node::Node;

/// Two processes could have started within the second that Slurm's boot time is counted in. Once that second is over,
/// no other process can have the same one.
const SECONDS_UNTIL_TELLING: u64 = 2;

/// One life of slurmctld. A restart, a takeover and a reconfigure each begin another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    /// Seconds since 1970.
    pub boot_time: u64,
}

impl Process {
    /// `None` while the process is so young that another could look like it.
    pub(crate) fn of_conf(conf: ServedConf) -> Option<Self> {
        let telling = conf.boot_time.checked_add(SECONDS_UNTIL_TELLING)?;
        (conf.now >= telling).then_some(Self {
            boot_time: conf.boot_time,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    pub nodes: Vec<Node>,
    pub jobs: Vec<Job>,
    /// The process that gave both. `None` if that cannot be told: slurmctld changed in between, is younger than two
    /// seconds, or slurmrestd is older than v0.0.45. Such an observation is good for status and proves nothing.
    pub process: Option<Process>,
}

impl Observation {
    /// `process` is read before and after the other two.
    pub(crate) async fn read<E, P: Future<Output = Result<Option<Process>, E>>>(
        process: impl Fn() -> P,
        nodes: impl Future<Output = Result<Answer<Vec<Node>>, E>>,
        jobs: impl Future<Output = Result<Answer<Vec<Job>>, E>>,
    ) -> Result<Self, E> {
        let before = process().await?;
        let nodes = nodes.await?.value;
        let jobs = jobs.await?.value;
        let process = match before {
            Some(before) => process().await?.filter(|after| *after == before),
            None => None,
        };
        Ok(Self { nodes, jobs, process })
    }
}

#[cfg(test)]
mod tests {
    use super::{Process, ServedConf};

    #[test]
    fn a_process_is_told_from_another_after_its_first_second() {
        let process = |now| {
            Process::of_conf(ServedConf {
                boot_time: 1000,
                now,
                hash: 1,
            })
        };
        assert_eq!(process(1000), None);
        assert_eq!(process(1001), None);
        assert_eq!(process(1002), Some(Process { boot_time: 1000 }));
        assert_eq!(process(0), None);
    }
}
