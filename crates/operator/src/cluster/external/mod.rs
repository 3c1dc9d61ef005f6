//! An external slurmctld: whether pods can work with it, and its partitions. Slurm reports no changes, so it is polled.

mod requirements;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use api::Controller;
use host::Host;
use jiff::Timestamp;
use runtime::{Clock, Key};
use slurm::{
    answer::ServedConf,
    conf::{RecordKind, Settings},
    rpc::{Client, Error, LivePartition, Options, ServedFile},
    token::{Issuer, SigningKey},
};

use self::requirements::{check_requirements, parse};
use super::{Cluster, Follower, deliver::JwtKey, lock, route::jwt_key};
use crate::finding::Finding;

/// Well above an intercontinental round trip.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The poll interval while something is wrong: a person may be waiting for it.
const SOON: Duration = Duration::from_secs(5);
/// The poll interval where Partitions exist: slurmctld loses their changes when it restarts.
const OFTEN: Duration = Duration::from_secs(15);
/// The poll interval otherwise.
const LATER: Duration = Duration::from_mins(1);
const USER: &str = "slurm";
/// A token is replaced when a fifth of it is left, which is more than clocks may differ.
const TOKEN_LIFETIME: Duration = Duration::from_mins(15);

/// The external slurmctld of one cluster, and the result of the last poll.
#[derive(Clone, Debug)]
pub(crate) struct External {
    /// `host:port`.
    pub(crate) address: String,
    pub(crate) client: Arc<Client>,
    key: JwtKey,
    latest: Arc<Mutex<Option<Arc<View>>>>,
    clock: Clock,
}

impl External {
    /// `None` until the first poll has ended.
    pub(crate) fn view(&self) -> Option<Arc<View>> {
        lock(&self.latest).clone()
    }

    /// Polls now. The second result is whether something changed.
    pub(crate) async fn poll(&self) -> (Arc<View>, bool) {
        let now = Arc::new(View::of(&self.address, &self.client, &self.clock).await);
        let before = lock(&self.latest).replace(Arc::clone(&now));
        let has_changed = before.is_none_or(|before| !now.is_same(&before));
        (now, has_changed)
    }
}

impl Cluster {
    /// Polls the slurmctld that an external Controller names from now on; none if the Controller names none or its key
    /// is missing, which is reported elsewhere.
    pub(super) fn update_external(&self, controller: &Controller) {
        let address = controller.spec.external_address();
        let address = address.map(|(host, port)| format!("{host}:{port}"));
        let endpoint = address.zip(jwt_key(&self.shared.caches, controller).ok());
        self.external.send_if_modified(|current| {
            let known = current.as_ref().map(|external| (&external.address, &external.key));
            if known == endpoint.as_ref().map(|(address, key)| (address, key)) {
                return false;
            }
            *current = endpoint.and_then(|(address, key)| {
                Some(External {
                    client: Arc::new(client_of(self.host(), address.clone(), &key.0)?),
                    address,
                    key,
                    latest: Arc::default(),
                    clock: self.shared.clock.clone(),
                })
            });
            true
        });
    }
}

/// Polls in a loop, and wakes the Controller and its Partitions when something changed.
pub(super) async fn run(cluster: &Cluster) {
    let mut externals = cluster.external.subscribe();
    loop {
        let external = externals.borrow_and_update().clone();
        let Some(external) = external else {
            // The error is ignored: the sender lives as long as the cluster.
            drop(externals.changed().await);
            continue;
        };
        let (view, has_changed) = external.poll().await;
        let polled = cluster.host().instant();
        if has_changed {
            cluster.wake(Follower::Controller);
            for partition in cluster.partitions_of() {
                cluster.wake(Follower::Partition(Key::of(partition.as_ref())));
            }
        }
        // A Partition may be created in the meantime.
        while cluster.host().instant().duration_since(polled) < interval(&view, cluster.partitions_of().is_empty()) {
            if tokio::time::timeout(SOON, externals.changed()).await.is_ok() {
                break;
            }
        }
    }
}

fn interval(view: &View, is_without_partitions: bool) -> Duration {
    match (&view.unfit, is_without_partitions) {
        (Some(_), _) => SOON,
        (None, false) => OFTEN,
        (None, true) => LATER,
    }
}

/// Returns a client for an external daemon that accepts tokens of this key. `None` if the key is invalid.
pub(crate) fn client_of(host: &Host, address: String, key: &[u8]) -> Option<Client> {
    let issuer = Issuer::new(SigningKey::new(key).ok()?, USER, TOKEN_LIFETIME);
    let options = Options {
        timeout: TIMEOUT,
        ..Options::default()
    };
    Some(Client::new(host.clone(), address, issuer, options))
}

/// The state of an external slurmctld at one poll.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// Why pods cannot work with it.
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
        let configuration = parse(files);
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
