//! What slurmctld reports by its own commands in its pod. Users without the right to exec into pods see the objects only.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use api::keys::{apps, labels};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt as _,
    api::{AttachParams, ListParams},
};
use slurm::answer::DecodeError;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use super::Access;
use crate::cluster::Cluster;
use crate::failure::with_causes;

/// Slurm's commands give up after 10 s if slurmctld does not respond (MessageTimeout).
const TIMEOUT: Duration = Duration::from_secs(12);
/// The output for a cluster of ten thousand nodes has a few megabytes.
const MAX_OUTPUT: u64 = 64 << 20;

/// Why a command of Slurm did not run or failed.
#[derive(Debug, Error)]
pub(crate) enum SlurmError {
    #[error("slurmctld runs outside Kubernetes")]
    External,
    #[error("slurmctld has no pod")]
    NoPod,
    #[error("{command} did not end within {} s", TIMEOUT.as_secs())]
    TimedOut { command: String },
    /// What the command wrote to standard error.
    #[error("{0}")]
    Failed(String),
    #[error("{}", with_causes(.0))]
    Kube(#[from] kube::Error),
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("{}", with_causes(.0))]
    Decode(#[from] DecodeError),
}

/// The current state of slurmctld.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    pub(crate) partitions: Vec<slurm::Partition>,
    pub(crate) jobs: Jobs,
}

/// Jobs by partition; a job that is pending for several counts in each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Jobs {
    pub(crate) running: usize,
    pub(crate) pending: usize,
    by_partition: BTreeMap<String, (usize, usize)>,
}

impl Jobs {
    /// Parses the output of `squeue --noheader --format=%T|%P`.
    pub(crate) fn parse(text: &str) -> Self {
        let mut jobs = Self::default();
        for (state, partitions) in text.lines().filter_map(|line| line.trim().split_once('|')) {
            let pending = state == "PENDING";
            *if pending { &mut jobs.pending } else { &mut jobs.running } += 1;
            for partition in partitions.split(',') {
                let (running, waiting) = jobs.by_partition.entry(partition.to_owned()).or_default();
                *if pending { waiting } else { running } += 1;
            }
        }
        jobs
    }

    /// Returns the running and pending jobs of a partition.
    pub(crate) fn of(&self, partition: &str) -> (usize, usize) {
        self.by_partition.get(partition).copied().unwrap_or_default()
    }
}

/// The output of a command, and its error message if it failed.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) out: Vec<u8>,
    failure: Option<String>,
}

impl Output {
    pub(super) fn succeeded(self) -> Result<Vec<u8>, SlurmError> {
        self.failure
            .map_or(Ok(self.out), |failure| Err(SlurmError::Failed(failure)))
    }

    /// Returns the list in the output. If slurmdbd does not respond or refuses, scontrol fails after it has printed it.
    pub(super) fn list<T>(&self) -> Result<Vec<T>, SlurmError>
    where
        Vec<T>: slurm::answer::Payload,
    {
        let list = slurm::answer::decode_to_show(&self.out);
        list.map_err(|error| {
            self.failure
                .clone()
                .map_or(SlurmError::Decode(error), SlurmError::Failed)
        })
    }
}

impl Access {
    /// Returns the partitions and jobs of slurmctld.
    pub(crate) async fn live(&self, cluster: &Cluster) -> Result<Live, SlurmError> {
        let partitions = self.run_slurm(cluster, &["scontrol", "--all", "--json", "show", "partitions"]);
        let jobs = self.run_slurm(cluster, &["squeue", "--all", "--noheader", "--format=%T|%P"]);
        let (partitions, jobs) = futures::try_join!(partitions, jobs)?;
        Ok(Live {
            partitions: partitions.list()?,
            jobs: Jobs::parse(&String::from_utf8_lossy(&jobs.succeeded()?)),
        })
    }

    /// Runs a command of Slurm in slurmctld's pod.
    pub(crate) async fn slurm(&self, cluster: &Cluster, command: &[&str]) -> Result<Vec<u8>, SlurmError> {
        self.run_slurm(cluster, command).await?.succeeded()
    }

    pub(super) async fn run_slurm(&self, cluster: &Cluster, command: &[&str]) -> Result<Output, SlurmError> {
        if cluster.controller.spec.is_external() {
            return Err(SlurmError::External);
        }
        let run = async {
            let pod = self.slurmctld_pod(cluster).await?;
            self.run_in(&cluster.namespace(), &pod, command).await
        };
        let command = || command.join(" ");
        timeout(TIMEOUT, run)
            .await
            .unwrap_or_else(|_| Err(SlurmError::TimedOut { command: command() }))
    }

    async fn slurmctld_pod(&self, cluster: &Cluster) -> Result<String, SlurmError> {
        let name = cluster.name();
        let selector = format!("{}={name},{}={}", labels::INSTANCE, labels::NAME, apps::SLURMCTLD);
        let pods = self.api::<Pod>(&cluster.namespace());
        let pods = pods.list(&ListParams::default().labels(&selector)).await?.items;
        let is_active = |pod: &&Pod| {
            pod.labels()
                .get(labels::CONTROLLER_ACTIVE)
                .is_some_and(|on| on == api::keys::ON)
        };
        let pod = pods.iter().find(is_active).or_else(|| pods.first());
        pod.map(kube::ResourceExt::name_any).ok_or(SlurmError::NoPod)
    }

    async fn run_in(&self, namespace: &str, pod: &str, command: &[&str]) -> Result<Output, SlurmError> {
        let parameters = AttachParams::default()
            .container(apps::SLURMCTLD)
            .stdin(false)
            .stdout(true)
            .stderr(true);
        let pods = self.api::<Pod>(namespace);
        let mut attached = pods.exec(pod, command.iter().copied(), &parameters).await?;
        let (stdout, stderr) = (attached.stdout(), attached.stderr());
        let status = attached.take_status();
        let (out, err) = tokio::try_join!(read(stdout), read(stderr))?;
        let status = match status {
            Some(status) => status.await,
            None => None,
        };
        let failed = status.is_none_or(|status| status.status.as_deref() != Some("Success"));
        let failure = failed.then(|| {
            let said = String::from_utf8_lossy(&err).trim().to_owned();
            if said.is_empty() {
                format!("{} failed", command.join(" "))
            } else {
                said
            }
        });
        Ok(Output { out, failure })
    }
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(MAX_OUTPUT).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_shown_although_slurmdbd_refuses() {
        let output = |out: &str| Output {
            out: out.as_bytes().to_vec(),
            failure: Some("Protocol authentication error".to_owned()),
        };
        // The output of 26.05, which exits with success.
        let all = r#"{
            "partitions": [{ "name": "all", "partition": { "state": ["UP"] }, "nodes": { "configured": "ALL", "total": 2 } }],
            "errors": [{
                "description": "Slurmdb query failed", "error_number": 1007, "error": "Protocol authentication error",
                "source": "slurmdb_tres_get"
            }]
        }"#;
        let shown: Vec<slurm::Partition> = output(all).list().unwrap();
        assert_eq!(shown.first().unwrap().name, "all");
        assert_eq!(
            output("").list::<slurm::Partition>().unwrap_err().to_string(),
            "Protocol authentication error"
        );
        assert!(output(all).succeeded().is_err());
    }

    #[test]
    fn jobs_are_counted_in_each_of_their_partitions() {
        let jobs = Jobs::parse("RUNNING|gpu\nPENDING|gpu,long\nCOMPLETING|long\n\ngarbage\n");
        assert_eq!((jobs.running, jobs.pending), (2, 1));
        assert_eq!(
            (jobs.of("gpu"), jobs.of("long"), jobs.of("none")),
            ((1, 1), (1, 1), (0, 0))
        );
    }
}
