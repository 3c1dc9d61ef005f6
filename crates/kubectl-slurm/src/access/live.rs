//! What slurmctld says, asked by its own commands in its pod. Nothing depends on it: who may not exec into pods sees what the
//! objects say.

use std::collections::BTreeMap;
use std::time::Duration;

use api::keys::{apps, labels};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt as _,
    api::{AttachParams, ListParams},
};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use super::Access;
use crate::cluster::Cluster;
use crate::failure::with_causes;

/// Slurm's own commands give up after this long when slurmctld does not answer (MessageTimeout).
const PATIENCE: Duration = Duration::from_secs(12);
/// An answer for a cluster of ten thousand nodes has a few megabytes; more than this is no answer.
const LONGEST: u64 = 64 << 20;

/// What slurmctld has now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    pub(crate) partitions: Vec<slurm::Partition>,
    pub(crate) jobs: Jobs,
}

/// Jobs by partition; a job that waits for several counts in each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Jobs {
    pub(crate) running: usize,
    pub(crate) pending: usize,
    by_partition: BTreeMap<String, (usize, usize)>,
}

impl Jobs {
    /// From `squeue --noheader --format=%T|%P`.
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

    /// Running and pending ones of a partition.
    pub(crate) fn of(&self, partition: &str) -> (usize, usize) {
        self.by_partition.get(partition).copied().unwrap_or_default()
    }
}

/// What a command printed, and what it said if it failed.
#[derive(Debug)]
struct Printed {
    out: Vec<u8>,
    failure: Option<String>,
}

impl Printed {
    fn succeeded(self) -> Result<Vec<u8>, String> {
        self.failure.map_or(Ok(self.out), Err)
    }

    /// The partitions in it. When slurmdbd cannot be asked, or refuses, scontrol fails after it has printed what slurmctld has.
    fn shown(self) -> Result<Vec<slurm::Partition>, String> {
        let partitions = slurm::answer::decode_to_show(&self.out);
        partitions.map_err(|error| self.failure.unwrap_or_else(|| with_causes(&error)))
    }
}

impl Access {
    /// What slurmctld says of partitions and jobs, or why it cannot be asked.
    pub(crate) async fn live(&self, cluster: &Cluster) -> Result<Live, String> {
        let partitions = self.run_slurm(cluster, &["scontrol", "--all", "--json", "show", "partitions"]);
        let jobs = self.run_slurm(cluster, &["squeue", "--all", "--noheader", "--format=%T|%P"]);
        let (partitions, jobs) = futures::try_join!(partitions, jobs)?;
        Ok(Live {
            partitions: partitions.shown()?,
            jobs: Jobs::parse(&String::from_utf8_lossy(&jobs.succeeded()?)),
        })
    }

    /// Runs a command of Slurm's where slurmctld is.
    pub(crate) async fn slurm(&self, cluster: &Cluster, command: &[&str]) -> Result<Vec<u8>, String> {
        self.run_slurm(cluster, command).await?.succeeded()
    }

    async fn run_slurm(&self, cluster: &Cluster, command: &[&str]) -> Result<Printed, String> {
        if cluster.controller.spec.is_external() {
            return Err("slurmctld runs outside Kubernetes".to_owned());
        }
        let run = async {
            let pod = self.slurmctld_pod(cluster).await?;
            self.run_in(&cluster.namespace(), &pod, command).await
        };
        match timeout(PATIENCE, run).await {
            Ok(answer) => answer,
            Err(_) => Err(format!(
                "{} did not end within {} s",
                command.join(" "),
                PATIENCE.as_secs()
            )),
        }
    }

    async fn slurmctld_pod(&self, cluster: &Cluster) -> Result<String, String> {
        let name = cluster.name();
        let selector = format!("{}={name},{}={}", labels::INSTANCE, labels::NAME, apps::SLURMCTLD);
        let pods = self.api::<Pod>(&cluster.namespace());
        let pods = pods.list(&ListParams::default().labels(&selector)).await;
        let pods = pods.map_err(|error| with_causes(&error))?.items;
        let is_active = |pod: &&Pod| {
            pod.labels()
                .get(labels::CONTROLLER_ACTIVE)
                .is_some_and(|on| on == api::keys::ON)
        };
        let pod = pods.iter().find(is_active).or_else(|| pods.first());
        pod.map(kube::ResourceExt::name_any)
            .ok_or_else(|| "slurmctld has no pod".to_owned())
    }

    async fn run_in(&self, namespace: &str, pod: &str, command: &[&str]) -> Result<Printed, String> {
        let parameters = AttachParams::default()
            .container(apps::SLURMCTLD)
            .stdin(false)
            .stdout(true)
            .stderr(true);
        let attached = self
            .api::<Pod>(namespace)
            .exec(pod, command.iter().copied(), &parameters)
            .await;
        let mut attached = attached.map_err(|error| with_causes(&error))?;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let stdout = attached.stdout();
        let stderr = attached.stderr();
        let status = attached.take_status();
        let read_out = async {
            match stdout {
                Some(stream) => stream.take(LONGEST).read_to_end(&mut out).await.map(drop),
                None => Ok(()),
            }
        };
        let read_err = async {
            match stderr {
                Some(stream) => stream.take(LONGEST).read_to_end(&mut err).await.map(drop),
                None => Ok(()),
            }
        };
        let (from_out, from_err) = tokio::join!(read_out, read_err);
        from_out.and(from_err).map_err(|error| error.to_string())?;
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
        Ok(Printed { out, failure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_shown_although_slurmdbd_refuses() {
        let printed = |out: &str| Printed {
            out: out.as_bytes().to_vec(),
            failure: Some("Protocol authentication error".to_owned()),
        };
        // As 26.05 prints it, and ends well.
        let all = r#"{
            "partitions": [{ "name": "all", "partition": { "state": ["UP"] }, "nodes": { "configured": "ALL", "total": 2 } }],
            "errors": [{
                "description": "Slurmdb query failed", "error_number": 1007, "error": "Protocol authentication error",
                "source": "slurmdb_tres_get"
            }]
        }"#;
        let shown = printed(all).shown().unwrap();
        assert_eq!(shown.first().unwrap().name, "all");
        assert_eq!(printed("").shown().unwrap_err(), "Protocol authentication error");
        assert!(printed(all).succeeded().is_err());
    }

    #[test]
    fn jobs_are_counted_where_they_run_and_wait() {
        let jobs = Jobs::parse("RUNNING|gpu\nPENDING|gpu,long\nCOMPLETING|long\n\ngarbage\n");
        assert_eq!((jobs.running, jobs.pending), (2, 1));
        assert_eq!(
            (jobs.of("gpu"), jobs.of("long"), jobs.of("none")),
            ((1, 1), (1, 1), (0, 0))
        );
    }
}
