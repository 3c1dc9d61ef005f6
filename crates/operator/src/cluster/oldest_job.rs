//! Since when the oldest job on each node has been running. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use slurm::Job;

use crate::unix_time::timestamp;

/// The start of the oldest job by node name. Nodes without a job have none.
pub type OldestJobs = BTreeMap<String, Timestamp>;

/// Returns the earliest start of the jobs on each node.
pub(crate) fn of_jobs(jobs: &[Job]) -> OldestJobs {
    let mut oldest_jobs = OldestJobs::new();
    for job in jobs {
        let since = job.on_its_nodes_since().and_then(timestamp);
        let (Some(since), Ok(nodes)) = (since, job.node_list()) else {
            continue;
        };
        for node in nodes.names() {
            let earliest = oldest_jobs.entry(node).or_insert(since);
            *earliest = since.min(*earliest);
        }
    }
    oldest_jobs
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_job_on_the_node_counts() {
        let job = |state: &[&str], nodes: &str, began: u64| -> Job {
            let start = json!({ "set": true, "infinite": false, "number": began });
            let job = json!({ "job_id": 1, "job_state": state, "nodes": nodes, "start_time": start });
            serde_json::from_value(job).unwrap()
        };
        let oldest_jobs = of_jobs(&[
            job(&["RUNNING"], "n[1-2]", 200),
            job(&["SUSPENDED"], "n2", 100),
            job(&["RUNNING", "CONFIGURING"], "n1", 50),
            job(&["COMPLETED", "COMPLETING"], "n3", 50),
            job(&["PENDING"], "", 50),
        ]);
        let expected = [("n1", 200), ("n2", 100)];
        let expected = expected.map(|(node, second)| (node.to_owned(), Timestamp::from_second(second).unwrap()));
        assert_eq!(oldest_jobs, expected.into());
    }
}
