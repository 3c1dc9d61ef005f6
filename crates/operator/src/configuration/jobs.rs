//! Changes that could end jobs, and the jobs they wait for.

use std::collections::BTreeSet;

use slurm::{
    Hostlist, Job,
    agent::PartitionInUse,
    conf::{Event, Part, RecordKind, Subject},
};

use crate::cluster::Knowledge;

/// What a change has to wait for, if it has to. What is not known may be a job.
pub(crate) fn waits_for(part: &Part, knowledge: &Knowledge) -> Option<Wait> {
    let jobs = match knowledge {
        Knowledge::Unknown { why } => {
            return Some(Wait::for_long(format!(
                "Slurm cannot be asked whether there are any: {why}"
            )));
        }
        Knowledge::Known(seen) => match &seen.jobs {
            None => return Some(Wait::for_a_look()),
            Some(jobs) => jobs,
        },
    };
    let concerned: BTreeSet<u64> = jobs
        .iter()
        .filter(|job| concerns(&part.subject, job))
        .map(|job| job.id)
        .collect();
    let first = concerned.first()?;
    // How many more there are changes all the time, and every change of the words is a write.
    Some(Wait::for_long(if concerned.len() > 1 {
        format!("job {first} and others are there")
    } else {
        format!("job {first} is there")
    }))
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) words: String,
    /// It is only that nobody has looked yet, and somebody does now.
    pub(crate) soon: bool,
}

impl Wait {
    pub(crate) fn for_long(words: String) -> Self {
        Self { words, soon: false }
    }

    pub(crate) fn for_a_look() -> Self {
        Self {
            words: "they have not been read yet".to_owned(),
            soon: true,
        }
    }
}

/// What slurmctld said when it was asked to let go of a partition.
pub(crate) fn is_in_use(part: &Part, in_use: &[PartitionInUse]) -> Option<String> {
    let Subject::Record {
        kind: RecordKind::Partition,
        name,
        event: Event::Removed,
    } = &part.subject
    else {
        return None;
    };
    let found = in_use.iter().find(|partition| partition.name == *name)?;
    Some(format!("slurmctld does not let go of it: {}", found.why))
}

fn concerns(subject: &Subject, job: &Job) -> bool {
    if job.state.is_finished() {
        return false;
    }
    match subject {
        // Slurm fails all jobs of a partition that disappears, those that wait too.
        Subject::Record {
            kind: RecordKind::Partition,
            name,
            event: Event::Removed,
        } => job.partition.is_empty() || job.partitions().all(|partition| partition == name),
        Subject::Record {
            kind: RecordKind::Node,
            name,
            ..
        } => is_on(job, name),
        Subject::Global { .. } | Subject::Record { .. } | Subject::File { .. } => job.state.may_be_on_nodes(),
    }
}

fn is_on(job: &Job, nodes: &str) -> bool {
    if !job.state.may_be_on_nodes() {
        return false;
    }
    match (Hostlist::parse(&job.nodes), Hostlist::parse(nodes)) {
        (Ok(has), Ok(nodes)) => has.names().any(|name| nodes.contains(&name)),
        // Who cannot tell waits.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use slurm::conf::{Changes, Configuration};

    use super::*;
    use crate::cluster::Seen;

    const LIVE: &str =
        "ClusterName=c\nGresTypes=gpu\nNodeName=n[1-4] CPUs=4\nPartitionName=a Nodes=ALL\nPartitionName=b Nodes=ALL\n";

    fn part(from: &str, to: &str) -> Part {
        let conf = |text: &str| Configuration::parse([("slurm.conf", text.as_bytes())]);
        let changes = Changes::between(&conf(LIVE), &conf(&LIVE.replace(from, to)));
        let [part] = changes.job_sensitive().cloned().collect::<Vec<_>>().try_into().unwrap();
        part
    }

    fn job(state: &str, partition: &str, nodes: &str) -> Value {
        json!({ "job_id": 7, "job_state": [state], "nodes": nodes, "partition": partition })
    }

    fn with(jobs: &[Value]) -> Knowledge {
        let mut seen = Seen::of_nodes(Vec::new(), "2026-01-02T00:00:00Z".parse().unwrap());
        seen.jobs = Some(serde_json::from_value(json!(jobs)).unwrap());
        Knowledge::Known(seen.into())
    }

    #[test]
    fn each_change_waits_for_the_jobs_it_could_end_and_for_no_others() {
        let gres = part("GresTypes=gpu", "GresTypes=mps");
        let partition = part("PartitionName=b Nodes=ALL\n", "");
        let node = part("CPUs=4", "CPUs=8");
        for (part, job, waits) in [
            (&gres, job("RUNNING", "a", "n1"), true),
            (&gres, job("SUSPENDED", "a", "n1"), true),
            (&gres, job("PENDING", "a", ""), false),
            (&gres, job("COMPLETED", "a", "n1"), false),
            (&gres, job("SOMETHING_NEW", "a", "n1"), true),
            (&partition, job("RUNNING", "b", "n1"), true),
            (&partition, job("PENDING", "b", ""), true),
            (&partition, job("PENDING", "a,b", ""), false),
            (&partition, job("RUNNING", "a", "n1"), false),
            (&partition, job("COMPLETED", "b", "n1"), false),
            (&node, job("RUNNING", "a", "n[3-9]"), true),
            (&node, job("RUNNING", "a", "n9"), false),
            (&node, job("PENDING", "a", ""), false),
        ] {
            let waiting = waits_for(part, &with(std::slice::from_ref(&job)));
            assert_eq!(waiting.is_some(), waits, "{} {job}: {waiting:?}", part.subject);
        }
    }

    #[test]
    fn what_is_not_known_is_waited_for() {
        let part = part("GresTypes=gpu", "GresTypes=mps");
        assert_eq!(waits_for(&part, &with(&[])), None);
        assert!(
            waits_for(&part, &Knowledge::unknown("nobody answers"))
                .unwrap()
                .words
                .ends_with("nobody answers")
        );
        let unread = Knowledge::Known(Seen::of_nodes(Vec::new(), "2026-01-02T00:00:00Z".parse().unwrap()).into());
        assert!(waits_for(&part, &unread).is_some());
    }

    #[test]
    fn the_first_is_named() {
        let part = part("GresTypes=gpu", "GresTypes=mps");
        let mut older = job("RUNNING", "a", "n2");
        older["job_id"] = 5.into();
        let two = [job("RUNNING", "a", "n1"), older];
        assert_eq!(
            waits_for(&part, &with(&two)).unwrap().words,
            "job 5 and others are there"
        );
        assert_eq!(waits_for(&part, &with(&two[..1])).unwrap().words, "job 7 is there");
    }
}
