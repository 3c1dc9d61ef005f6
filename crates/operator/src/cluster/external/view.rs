//! What was seen of a slurmctld outside Kubernetes at one look.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use slurm::{
    answer::ServedConf,
    conf::{Configuration, RecordKind, Settings},
    rpc::{Client, Error, LivePartition, ServedFile},
};

use super::requirements::{Unfit, check_requirements};
use crate::runtime::Clock;

/// One look.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// What it lacks, if it lacks something.
    pub(crate) unfit: Option<Unfit>,
    /// What it has, or why that is not known.
    pub(crate) cluster: Result<ExternalCluster, String>,
    /// When it was begun.
    pub(crate) at: Timestamp,
}

/// What a slurmctld has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExternalCluster {
    /// Whether anything is known of its slurm.conf: slurmrestd does not tell.
    pub(crate) is_file_known: bool,
    /// The partitions of its slurm.conf, with what its DEFAULT lines add, in the order of the file.
    pub(crate) lines: Vec<(String, Settings)>,
    /// The node sets that its slurm.conf defines.
    pub(crate) node_sets: BTreeSet<String>,
    /// It keeps what partitions were made and changed, whatever its files say (`ReconfigFlags=KeepPartInfo`).
    pub(crate) keeps_partitions: bool,
    /// Those it runs with.
    pub(crate) partitions: Vec<LivePartition>,
    /// When it read its files, by its own clock, which is whole seconds.
    boot_time: u64,
    /// The same by ours.
    pub(crate) booted_at: Timestamp,
}

impl View {
    pub(crate) async fn of(address: &str, client: &Client, clock: &Clock) -> Self {
        let at = clock.now();
        // What slurmd and sackd will ask for, with what slurmrestd's clients will show.
        let files = client.served_files().await;
        let unfit = check_requirements(address, &files);
        let cluster = match files {
            Ok(files) => look(&files, client, clock).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        Self { unfit, cluster, at }
    }

    /// Whether it says the same to whoever waits for news.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let cluster = |view: &Self| {
            let known = view.cluster.clone();
            // By the difference of two clocks that is another one each time.
            known.map(|cluster| ExternalCluster {
                booted_at: Timestamp::UNIX_EPOCH,
                ..cluster
            })
        };
        self.unfit == other.unfit && cluster(self) == cluster(other)
    }
}

async fn look(files: &[ServedFile], client: &Client, clock: &Clock) -> Result<ExternalCluster, Error> {
    let conf = client.live_conf().await?;
    let now = clock.now();
    let partitions = client.partitions().await?;
    Ok(ExternalCluster::new(files, partitions, &conf, now))
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

    /// What can be known without its slurm.conf: the `ReconfigFlags` it runs with, and its partitions.
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

    /// What its slurm.conf says of a partition.
    pub(crate) fn line(&self, name: &str) -> Option<&Settings> {
        let mut lines = self.lines.iter();
        lines.find_map(|(line, settings)| (line == name).then_some(settings))
    }

    pub(crate) fn partition(&self, name: &str) -> Option<&LivePartition> {
        self.partitions.iter().find(|partition| partition.name == name)
    }
}
