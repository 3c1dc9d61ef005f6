//! An external slurmctld: whether pods can work with it, and its partitions. Slurm reports no changes, so it is polled.

mod requirements;
mod view;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use api::Controller;
use host::Host;
use runtime::{Clock, Key};
use slurm::{
    rpc::{Client, Options},
    token::{Issuer, SigningKey},
};

pub(crate) use self::view::{ExternalCluster, View};
use super::{Cluster, Follower, deliver::JwtKey, lock, route::jwt_key};

/// Well above an intercontinental round trip.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The poll interval while something is wrong: a person may be waiting for it.
const SOON: Duration = Duration::from_secs(5);
/// The poll interval where Partitions exist: slurmctld loses their changes when it restarts.
const OFTEN: Duration = Duration::from_secs(15);
/// The poll interval otherwise.
const LATER: Duration = Duration::from_mins(1);
const USER: &str = "slurm";
const TOKEN_LIFETIME: Duration = Duration::from_mins(5);

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
