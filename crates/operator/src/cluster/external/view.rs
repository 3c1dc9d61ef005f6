//! The state of an external slurmctld at one poll.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use runtime::Clock;
use slurm::{
    answer::ServedConf,
    conf::{Configuration, RecordKind, Settings},
    rpc::{Client, Error, LivePartition, ServedFile},
};

use super::requirements::check_requirements;
use crate::finding::Finding;

#[derive(Clone, Debug)]
pub(crate) struct View {
    /// The missing requirements, if any.
    pub(crate) unfit: Option<Finding>,
    /// The cluster's state, or why it is not known.
    pub(crate) cluster: Result<ExternalCluster, String>,
    /// When the poll began.
    pub(crate) at: Timestamp,
}

/// The partitions and node sets of an external slurmctld.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExternalCluster {
    /// Whether its slurm.conf is known: slurmrestd does not return it.
    pub(crate) is_file_known: bool,
    /// The partitions of its slurm.conf, with the values of its DEFAULT lines, in the order of the file.
    pub(crate) lines: Vec<(String, Settings)>,
    /// The node sets that its slurm.conf defines.
    pub(crate) node_sets: BTreeSet<String>,
    /// It keeps run-time changes of partitions, regardless of its files (`ReconfigFlags=KeepPartInfo`).
    pub(crate) keeps_partitions: bool,
    /// The live partitions.
    pub(crate) partitions: Vec<LivePartition>,
    /// When it read its files, by its own clock, in whole seconds.
    boot_time: u64,
    /// The same by the operator's clock.
    pub(crate) booted_at: Timestamp,
}

impl View {
    pub(crate) async fn of(address: &str, client: &Client, clock: &Clock) -> Self {
        let at = clock.now();
        // The request that slurmd and sackd will send, with the token that slurmrestd's clients will send.
        let files = client.served_files().await;
        let unfit = check_requirements(address, &files);
        let cluster = async {
            let files = files?;
            let conf = client.live_conf().await?;
            let now = clock.now();
            Ok(ExternalCluster::new(&files, client.partitions().await?, &conf, now))
        };
        let cluster = cluster.await.map_err(|error: Error| error.to_string());
        Self { unfit, cluster, at }
    }

    /// Whether both results are the same apart from their times.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let cluster = |view: &Self| {
            let known = view.cluster.clone();
            // It is computed from two clocks, and differs at each poll.
            known.map(|cluster| ExternalCluster {
                booted_at: Timestamp::UNIX_EPOCH,
                ..cluster
            })
        };
        self.unfit == other.unfit && cluster(self) == cluster(other)
    }
}

impl ExternalCluster {
    pub(crate) fn new(files: &[ServedFile], partitions: Vec<LivePartition>, conf: &ServedConf, now: Timestamp) -> Self {
        let read = files
            .iter()
            .filter_map(|file| Some((file.name.as_str(), file.content.as_deref()?)));
        let configuration = Configuration::parse(read);
        let document = configuration.slurm_conf_document();
        let lines = document.effective(RecordKind::Partition).into_iter();
        let node_sets = document.effective(RecordKind::NodeSet).into_iter();
        let flags = configuration.value("ReconfigFlags").unwrap_or_default().split(',');
        Self {
            is_file_known: true,
            lines: lines.map(|(name, settings)| (name.to_owned(), settings)).collect(),
            node_sets: node_sets.map(|(name, _)| name.to_owned()).collect(),
            ..Self::without_file(flags.map(str::trim), partitions, conf, now)
        }
    }

    /// The state that is known without its slurm.conf: the `ReconfigFlags` it runs with, and its partitions.
    pub(crate) fn without_file<S: AsRef<str>>(
        flags: impl IntoIterator<Item = S>,
        partitions: Vec<LivePartition>,
        conf: &ServedConf,
        now: Timestamp,
    ) -> Self {
        let mut flags = flags.into_iter();
        let age = Duration::from_secs(conf.now.saturating_sub(conf.boot_time));
        Self {
            is_file_known: false,
            lines: Vec::new(),
            node_sets: BTreeSet::new(),
            keeps_partitions: flags.any(|flag| flag.as_ref().eq_ignore_ascii_case("KeepPartInfo")),
            partitions,
            boot_time: conf.boot_time,
            booted_at: now.checked_sub(age).unwrap_or(now),
        }
    }

    /// The line of a partition in its slurm.conf.
    pub(crate) fn line(&self, name: &str) -> Option<&Settings> {
        let mut lines = self.lines.iter();
        lines.find_map(|(line, settings)| (line == name).then_some(settings))
    }

    pub(crate) fn partition(&self, name: &str) -> Option<&LivePartition> {
        self.partitions.iter().find(|partition| partition.name == name)
    }
}
