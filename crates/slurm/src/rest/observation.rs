//! Nodes and jobs read together.
//!
//! slurmctld acknowledges a drain up to five seconds before it is on disk; if it is killed in between, the next process lacks the
//! drain. Reads that prove something about a node must therefore come from one process of slurmctld.

use crate::answer::{Answer, ServedConf};
use crate::job::Job;
use crate::node::Node;

/// The boot time has a resolution of one second, in which two processes can start. After that second, no other process can have
/// the same boot time.
const SECONDS_UNTIL_UNIQUE: u64 = 2;

/// A process of slurmctld. A restart, a takeover and a reconfigure each start another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    /// Seconds since 1970.
    pub boot_time: u64,
}

impl Process {
    /// Returns `None` while another process could have the same boot time.
    pub(crate) fn of_conf(conf: ServedConf) -> Option<Self> {
        let unique_from = conf.boot_time.checked_add(SECONDS_UNTIL_UNIQUE)?;
        (conf.now >= unique_from).then_some(Self {
            boot_time: conf.boot_time,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    pub nodes: Vec<Node>,
    pub jobs: Vec<Job>,
    /// The process that reported both. `None` if it is unknown: slurmctld changed in between, is younger than two seconds, or
    /// slurmrestd is older than v0.0.45. Such an observation can be shown and proves nothing.
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
    use std::{cell::RefCell, future::ready};

    use super::{Observation, Process, ServedConf};
    use crate::answer::Answer;

    #[test]
    fn a_process_is_unique_after_its_first_second() {
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

    #[tokio::test]
    async fn what_two_processes_reported_proves_nothing() {
        let read = async |boot_times: [u64; 2]| {
            let boot_times = RefCell::new(boot_times.into_iter());
            let process = || {
                let boot_time = boot_times.borrow_mut().next();
                ready(Ok::<_, ()>(boot_time.map(|boot_time| Process { boot_time })))
            };
            let nothing = Answer {
                value: Vec::new(),
                release: None,
            };
            let no_jobs = Answer {
                value: Vec::new(),
                release: None,
            };
            let read = Observation::read(process, ready(Ok(nothing)), ready(Ok(no_jobs)));
            read.await.unwrap().process
        };
        assert_eq!(read([1000, 1000]).await, Some(Process { boot_time: 1000 }));
        assert_eq!(read([1000, 1010]).await, None);
    }
}
