//! What must be shown before a worker may be deleted.
//!
//! One observation is proof enough, because of the order in which it is made: the node is read first and jobs afterwards,
//! by one process of slurmctld. A node that shows DRAIN in the first read takes no new job; if no job is there in the
//! second, none is left. Everything that is unclear counts as a job.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use slurm::{Hostlist, Job, hostlist::HostlistError};

use crate::cluster::Seen;

/// How a worker's node stands with Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Slurm has no such node, and no job is there.
    Absent,
    /// It may be given a job at any moment.
    Undrained {
        /// Who drained or downed it before said this.
        reason: String,
    },
    /// A job is there, or may be.
    Busy {
        /// What is known about it, for people.
        why: String,
    },
    /// It takes no job and has none: the worker may go.
    Proven {
        /// Why Slurm's record of the node has to outlive the worker, if it has to.
        keep_record: Option<String>,
    },
    /// What was read proves nothing.
    Unclear {
        /// Why.
        why: String,
    },
}

/// Why Slurm's record of a node without a worker is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// A job is there, or may be.
    Job { why: String },
    /// A job asks for the node by name, and Slurm would fail it.
    ByName { why: String },
    /// What was read does not tell.
    Unclear { why: String },
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Job { why } | Self::ByName { why } | Self::Unclear { why }) = self;
        f.write_str(why)
    }
}

/// What Slurm was seen to have, made ready for many questions.
#[derive(Debug)]
pub struct Evidence<'a> {
    seen: &'a Seen,
    on_nodes: Result<JobsByNode<'a>, String>,
    by_name: Result<JobsByNode<'a>, String>,
}

/// Made once, so that thousands of nodes can be asked about while there are thousands of jobs.
type JobsByNode<'a> = HashMap<String, Vec<&'a Job>>;

impl<'a> Evidence<'a> {
    pub fn new(seen: &'a Seen) -> Self {
        let Some(jobs) = &seen.jobs else {
            let unread = || Err("jobs have not been read yet".to_owned());
            return Self {
                seen,
                on_nodes: unread(),
                by_name: unread(),
            };
        };
        let on_nodes = jobs.iter().filter(|job| job.state.may_be_on_nodes());
        let by_name = jobs
            .iter()
            .filter(|job| !job.state.is_finished() && !job.required_nodes.is_empty());
        Self {
            seen,
            on_nodes: parse(on_nodes, Job::node_list),
            by_name: parse(by_name, |job| Hostlist::parse(&job.required_nodes)),
        }
    }

    /// What it was made from.
    pub fn seen(&self) -> &'a Seen {
        self.seen
    }

    /// How this node stands.
    pub fn standing(&self, name: &str) -> Standing {
        // That it is not drained needs no proof.
        if let Some(node) = self.seen.nodes.get(name)
            && !node.state.is_drain()
        {
            return Standing::Undrained {
                reason: node.reason.clone(),
            };
        }
        let (on_nodes, by_name) = match self.jobs() {
            Ok(jobs) => jobs,
            Err(why) => return Standing::Unclear { why },
        };
        let Some(node) = self.seen.nodes.get(name) else {
            return match jobs_on(on_nodes, name) {
                Some(why) => Standing::Busy { why },
                None => Standing::Absent,
            };
        };
        if let Some(why) = jobs_on(on_nodes, name) {
            return Standing::Busy { why };
        }
        if !node.state.is_drained() {
            return Standing::Busy {
                why: format!("its state is {}", node.state),
            };
        }
        let keep_record = if node.state.is_dynamic() {
            named_by(by_name, name)
        } else {
            Some("it is defined in slurm.conf".to_owned())
        };
        Standing::Proven { keep_record }
    }

    /// Jobs that may be on this node, as far as they could be read.
    pub fn jobs_on(&self, name: &str) -> impl Iterator<Item = &'a Job> {
        let here = self.on_nodes.as_ref().ok().and_then(|jobs| jobs.get(name));
        here.into_iter().flatten().copied()
    }

    /// The jobs that are on nodes, and those that ask for nodes by name; or why they prove nothing.
    fn jobs(&self) -> Result<(&JobsByNode<'a>, &JobsByNode<'a>), String> {
        let (on_nodes, by_name) = match (&self.on_nodes, &self.by_name) {
            (Ok(on_nodes), Ok(by_name)) => (on_nodes, by_name),
            (Err(why), _) | (_, Err(why)) => return Err(why.clone()),
        };
        if self.seen.process.is_none() {
            return Err(
                "it cannot be told which process of slurmctld answered: it was restarted or reconfigured in between, or \
                 slurmrestd is older than v0.0.45"
                    .to_owned(),
            );
        }
        Ok((on_nodes, by_name))
    }

    /// Why the record of this node is needed, if it is.
    pub fn need(&self, name: &str) -> Option<Need> {
        let (on_nodes, by_name) = match self.jobs() {
            Ok(jobs) => jobs,
            Err(why) => return Some(Need::Unclear { why }),
        };
        let job = jobs_on(on_nodes, name).map(|why| Need::Job { why });
        job.or_else(|| named_by(by_name, name).map(|why| Need::ByName { why }))
    }

    /// How each of these nodes stands.
    pub fn standings<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> BTreeMap<&'n str, Standing> {
        names.into_iter().map(|name| (name, self.standing(name))).collect()
    }
}

fn parse<'a>(
    jobs: impl Iterator<Item = &'a Job>,
    list: impl Fn(&Job) -> Result<Hostlist, HostlistError>,
) -> Result<JobsByNode<'a>, String> {
    let mut by_node = JobsByNode::new();
    for job in jobs {
        let nodes = list(job).map_err(|error| format!("the nodes of job {} cannot be read: {error}", job.id))?;
        for name in nodes.names() {
            by_node.entry(name).or_default().push(job);
        }
    }
    Ok(by_node)
}

fn named_by(jobs: &JobsByNode<'_>, name: &str) -> Option<String> {
    let job = jobs.get(name)?.first()?;
    Some(format!("job {} asks for it by name", job.id))
}

fn jobs_on(jobs: &JobsByNode<'_>, name: &str) -> Option<String> {
    let (first, others) = jobs.get(name)?.split_first()?;
    let more = match others.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("job {} ({}) is there{more}", first.id, first.state))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;
    use slurm::rest::{Observation, Process};

    use super::*;

    fn seen(nodes: &[(&str, &[&str])], jobs: &[(u64, &[&str], &str, &str)]) -> Seen {
        let nodes = nodes
            .iter()
            .map(|(name, state)| json!({ "name": name, "state": state }));
        let jobs = jobs.iter().map(|(id, state, nodes, required)| {
            json!({ "job_id": id, "job_state": state, "nodes": nodes, "required_nodes": required })
        });
        let observation = Observation {
            nodes: nodes.map(|node| serde_json::from_value(node).unwrap()).collect(),
            jobs: jobs.map(|job| serde_json::from_value(job).unwrap()).collect(),
            process: Some(Process { boot_time: 1000 }),
        };
        Seen::new(observation, Timestamp::UNIX_EPOCH)
    }

    fn standing(seen: &Seen) -> Standing {
        Evidence::new(seen).standing("n-1")
    }

    const DRAINED: &[(&str, &[&str])] = &[("n-1", &["IDLE", "DRAIN", "DYNAMIC_NORM"])];
    const PROVEN: Standing = Standing::Proven { keep_record: None };

    #[test]
    fn a_drained_node_without_jobs_is_proven() {
        assert_eq!(standing(&seen(DRAINED, &[])), PROVEN);
        let elsewhere: &[(u64, &[&str], &str, &str)] =
            &[(7, &["RUNNING"], "n-[2-9]", ""), (8, &["COMPLETED"], "n-1", "")];
        assert_eq!(standing(&seen(DRAINED, elsewhere)), PROVEN);
        assert_eq!(
            standing(&seen(&[("n-1", &["DOWN", "DRAIN", "DYNAMIC_NORM"])], &[])),
            PROVEN
        );
    }

    #[test]
    fn an_idle_node_may_get_a_job_at_any_moment() {
        for state in [
            &["IDLE", "DYNAMIC_NORM"][..],
            &["DOWN", "DYNAMIC_NORM"],
            &["IDLE", "DRAIN", "UNDRAIN"],
        ] {
            assert!(
                matches!(standing(&seen(&[("n-1", state)], &[])), Standing::Undrained { .. }),
                "{state:?}"
            );
        }
    }

    #[test]
    fn every_job_that_may_be_there_counts() {
        for state in [
            &["RUNNING"][..],
            &["SUSPENDED"],
            &["RUNNING", "CONFIGURING"],
            &["COMPLETED", "COMPLETING"],
            &["RUNNING", "STOPPED"],
            &["RUNNING", "SIGNALING"],
            &["COMPLETED", "STAGE_OUT"],
            &["SOMETHING_NEW"],
        ] {
            let seen = seen(DRAINED, &[(7, state, "n-[0-3]", "")]);
            assert!(matches!(standing(&seen), Standing::Busy { .. }), "{state:?}");
        }
    }

    #[test]
    fn a_busy_state_counts_even_if_no_job_is_listed() {
        for state in [
            &["ALLOCATED", "DRAIN"][..],
            &["MIXED", "DRAIN"],
            &["IDLE", "DRAIN", "COMPLETING"],
            &["DRAIN"],
        ] {
            assert!(
                matches!(standing(&seen(&[("n-1", state)], &[])), Standing::Busy { .. }),
                "{state:?}"
            );
        }
    }

    #[test]
    fn a_node_that_slurm_does_not_have_is_absent_unless_a_job_is_there() {
        assert_eq!(standing(&seen(&[], &[])), Standing::Absent);
        let job: &[(u64, &[&str], &str, &str)] = &[(7, &["RUNNING"], "n-1", "")];
        assert!(matches!(standing(&seen(&[], job)), Standing::Busy { .. }));
    }

    #[test]
    fn what_cannot_be_read_proves_nothing() {
        let odd: &[(u64, &[&str], &str, &str)] = &[(7, &["RUNNING"], "n-[1-", "")];
        assert!(matches!(standing(&seen(DRAINED, odd)), Standing::Unclear { .. }));
        let mut other_process = seen(DRAINED, &[]);
        other_process.process = None;
        assert!(matches!(standing(&other_process), Standing::Unclear { .. }));
        let mut no_jobs_read = seen(DRAINED, &[]);
        no_jobs_read.jobs = None;
        assert!(matches!(standing(&no_jobs_read), Standing::Unclear { .. }));
    }

    #[test]
    fn a_record_that_a_job_asks_for_by_name_stays() {
        let waiting: &[(u64, &[&str], &str, &str)] = &[(7, &["PENDING"], "", "n-[1-2]")];
        let Standing::Proven { keep_record: Some(why) } = standing(&seen(DRAINED, waiting)) else {
            panic!("the worker may go, the record may not")
        };
        assert_eq!(why, "job 7 asks for it by name");
        let done: &[(u64, &[&str], &str, &str)] = &[(7, &["COMPLETED"], "", "n-[1-2]")];
        assert_eq!(standing(&seen(DRAINED, done)), PROVEN);
    }

    #[test]
    fn a_record_without_a_worker_is_needed_by_jobs_alone() {
        let down: &[(&str, &[&str])] = &[("n-1", &["DOWN", "DYNAMIC_NORM"])];
        let need = |jobs: &[(u64, &[&str], &str, &str)]| {
            let seen = seen(down, jobs);
            Evidence::new(&seen).need("n-1")
        };
        assert_eq!(need(&[(7, &["COMPLETED"], "n-1", "n-1")]), None);
        assert!(matches!(need(&[(7, &["RUNNING"], "n-1", "")]), Some(Need::Job { .. })));
        assert!(matches!(
            need(&[(7, &["PENDING"], "", "n-1")]),
            Some(Need::ByName { .. })
        ));
        assert!(matches!(
            need(&[(7, &["PENDING"], "", "n-[1-")]),
            Some(Need::Unclear { .. })
        ));
    }

    #[test]
    fn a_record_from_slurm_conf_stays() {
        let seen = seen(&[("n-1", &["IDLE", "DRAIN"])], &[]);
        assert!(matches!(standing(&seen), Standing::Proven { keep_record: Some(_) }));
    }
}
