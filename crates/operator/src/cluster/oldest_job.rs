//! Since when jobs have been on each node. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use slurm::Job;

/// Of the oldest job there, by the node's name; nodes without a job are not in it.
pub type OldestJobs = BTreeMap<String, Timestamp>;

/// The earliest beginning of the jobs that are on nodes, node by node.
pub(crate) fn of_jobs(jobs: &[Job]) -> OldestJobs {
    let mut beginnings = OldestJobs::new();
    for job in jobs {
        let since = job
            .on_its_nodes_since()
            .and_then(|seconds| Timestamp::from_second(i64::try_from(seconds).ok()?).ok());
        let (Some(since), Ok(nodes)) = (since, job.node_list()) else {
            continue;
        };
        for node in nodes.names() {
            let earliest = beginnings.entry(node).or_insert(since);
            *earliest = since.min(*earliest);
        }
    }
    beginnings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_job_that_is_there_counts() {
        let job = |state: &[&str], nodes: &str, began: u64| -> Job {
            let start = json!({ "set": true, "infinite": false, "number": began });
            let job = json!({ "job_id": 1, "job_state": state, "nodes": nodes, "start_time": start });
            serde_json::from_value(job).unwrap()
        };
        let beginnings = of_jobs(&[
            job(&["RUNNING"], "n[1-2]", 200),
            job(&["SUSPENDED"], "n2", 100),
            job(&["RUNNING", "CONFIGURING"], "n1", 50),
            job(&["COMPLETED", "COMPLETING"], "n3", 50),
            job(&["PENDING"], "", 50),
        ]);
        let expected = [("n1", 200), ("n2", 100)];
        let expected = expected.map(|(node, second)| (node.to_owned(), Timestamp::from_second(second).unwrap()));
        assert_eq!(beginnings, expected.into());
    }
}
