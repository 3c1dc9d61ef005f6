//! Changes that could end jobs, and the jobs they wait for.

use std::collections::BTreeSet;

use slurm::{
    Hostlist, Job,
    agent::PartitionInUse,
    conf::{Event, Part, RecordKind, Subject},
};

use crate::cluster::Knowledge;

/// Why jobs or QOS are not known during the first poll.
pub(crate) const NOT_READ: &str = "they have not been read yet";

/// Returns what a change must wait for, if anything, and whether that is only the poll in progress. Unknown jobs count as
/// jobs, and so does slurmctld's refusal to delete a partition.
pub(crate) fn waits_for(part: &Part, knowledge: &Knowledge, in_use: &[PartitionInUse]) -> Option<(String, bool)> {
    if let Some(partition) = in_use.iter().find(|partition| removes(&part.subject, &partition.name)) {
        return Some((format!("slurmctld does not delete it: {}", partition.why), false));
    }
    let jobs = match knowledge {
        Knowledge::Unknown { why } => {
            return Some((format!("it is not known whether there are any: {why}"), false));
        }
        Knowledge::Known(seen) => match &seen.jobs {
            None => return Some((NOT_READ.to_owned(), true)),
            Some(jobs) => jobs,
        },
    };
    let affected: BTreeSet<u64> = jobs
        .iter()
        .filter(|job| affects(&part.subject, job))
        .map(|job| job.id)
        .collect();
    let first = affected.first()?;
    // The number of jobs changes often, and every change of the message is a write.
    let message = if affected.len() > 1 {
        format!("job {first} and others are there")
    } else {
        format!("job {first} is there")
    };
    Some((message, false))
}

/// Whether the change removes the partition of this name.
fn removes(subject: &Subject, partition: &str) -> bool {
    let Subject::Record { kind, name, event } = subject else {
        return false;
    };
    *kind == RecordKind::Partition && *event == Event::Removed && name == partition
}

fn affects(subject: &Subject, job: &Job) -> bool {
    if job.state.is_finished() {
        return false;
    }
    match subject {
        // Slurm fails all jobs of a partition that disappears, including pending ones.
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
        // If unknown, wait.
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
            let waiting = waits_for(part, &with(std::slice::from_ref(&job)), &[]);
            assert_eq!(waiting.is_some(), waits, "{} {job}: {waiting:?}", part.subject);
        }
    }

    #[test]
    fn unknown_jobs_are_waited_for() {
        let part = part("GresTypes=gpu", "GresTypes=mps");
        assert_eq!(waits_for(&part, &with(&[]), &[]), None);
        assert!(
            waits_for(&part, &Knowledge::unknown("no response"), &[])
                .unwrap()
                .0
                .ends_with("no response")
        );
        let unread = Knowledge::Known(Seen::of_nodes(Vec::new(), "2026-01-02T00:00:00Z".parse().unwrap()).into());
        assert!(waits_for(&part, &unread, &[]).unwrap().1);
    }

    #[test]
    fn the_first_job_is_named() {
        let part = part("GresTypes=gpu", "GresTypes=mps");
        let mut older = job("RUNNING", "a", "n2");
        older["job_id"] = 5.into();
        let two = [job("RUNNING", "a", "n1"), older];
        assert_eq!(
            waits_for(&part, &with(&two), &[]).unwrap().0,
            "job 5 and others are there"
        );
        assert_eq!(waits_for(&part, &with(&two[..1]), &[]).unwrap().0, "job 7 is there");
    }
}
