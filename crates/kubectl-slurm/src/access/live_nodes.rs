//! What slurmctld reports on nodes.

use serde::{Deserialize, Serialize};

use super::Access;
use super::live::SlurmError;
use crate::cluster::Cluster;

/// What only the description of a node shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeDetails {
    /// In MiB.
    #[serde(rename(serialize = "memory"))]
    pub(crate) real_memory: u64,
    #[serde(rename(serialize = "allocatedMemory"))]
    pub(crate) alloc_memory: u64,
    pub(crate) gres: String,
    #[serde(rename(serialize = "gresUsed"))]
    pub(crate) gres_used: String,
    /// The version of its slurmd.
    pub(crate) version: String,
}

/// A job that has resources of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NodeJob {
    pub(crate) id: String,
    pub(crate) user: String,
    pub(crate) state: String,
    pub(crate) elapsed: String,
    pub(crate) partition: String,
    pub(crate) name: String,
}

/// The fields of [`NodeJob`] in the output of squeue. The name is the last, since it may contain anything.
const JOB_FORMAT: &str = "--format=%i|%u|%T|%M|%P|%j";

impl Access {
    /// Returns all nodes of slurmctld.
    pub(crate) async fn live_nodes(&self, cluster: &Cluster) -> Result<Vec<slurm::Node>, SlurmError> {
        let nodes = self.run_slurm(cluster, &["scontrol", "--all", "--json", "show", "nodes"]);
        nodes.await?.list()
    }

    /// Returns a node that slurmctld has, and its jobs.
    pub(crate) async fn live_node(
        &self,
        cluster: &Cluster,
        name: &str,
    ) -> Result<(NodeDetails, Vec<NodeJob>), SlurmError> {
        let node_list = format!("--nodelist={name}");
        let show = ["scontrol", "--all", "--json", "show", "node", name];
        let queue = ["squeue", "--all", "--noheader", &node_list, JOB_FORMAT];
        let (node, jobs) = futures::try_join!(self.run_slurm(cluster, &show), self.run_slurm(cluster, &queue))?;
        let jobs = jobs.succeeded()?;
        Ok((parse_details(&node.out), parse_jobs(&String::from_utf8_lossy(&jobs))))
    }
}

/// Returns what is known; a release without a field has none.
fn parse_details(json: &[u8]) -> NodeDetails {
    #[derive(Default, Deserialize)]
    struct Nodes {
        #[serde(default)]
        nodes: Vec<NodeDetails>,
    }
    let mut nodes: Nodes = serde_json::from_slice(json).unwrap_or_default();
    nodes.nodes.pop().unwrap_or_default()
}

fn parse_jobs(text: &str) -> Vec<NodeJob> {
    let jobs = text.lines().filter_map(|line| {
        let mut fields = line.trim().splitn(6, '|').map(str::to_owned);
        Some(NodeJob {
            id: fields.next()?,
            user: fields.next()?,
            state: fields.next()?,
            elapsed: fields.next()?,
            partition: fields.next()?,
            name: fields.next()?,
        })
    });
    jobs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_read_from_what_scontrol_prints() {
        let json = include_bytes!("../../../slurm/tests/captured/scontrol-nodes.json");
        let details = parse_details(json);
        assert_eq!((details.real_memory, details.version.as_str()), (1000, "26.05.5"));
        assert_eq!(parse_details(b"garbage"), NodeDetails::default());
    }

    #[test]
    fn a_job_may_have_any_name() {
        let jobs = parse_jobs("7|alice|RUNNING|1:02|gpu|a|b\nnonsense\n");
        assert_eq!(jobs.len(), 1);
        let job = jobs.first().unwrap();
        assert_eq!((job.id.as_str(), job.name.as_str()), ("7", "a|b"));
    }
}
