//! The slurmctlds outside Kubernetes that Controllers name: whether pods can work with them, and what they have. Nobody tells when
//! that changes, so each is asked again from time to time, by a task of its own: one that hangs delays nobody.

mod judge;
mod view;

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api::Controller;
use kube::ResourceExt as _;
use slurm::{
    rpc::{Client, Options},
    token::{Issuer, SigningKey},
};
use tokio::{task::JoinHandle, time::Instant};

pub(crate) use self::{
    judge::Unfit,
    view::{Cluster, View},
};
use crate::{
    runtime::{Caches, Clock, Key, Triggers},
    secret::entry,
};

/// A daemon on another continent answers sooner.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon what was wrong is looked at again: somebody may be waiting for it.
const SOON: Duration = Duration::from_secs(5);
/// How soon one is that Partitions are made in: what they changed there is gone when it starts anew.
const OFTEN: Duration = Duration::from_secs(15);
/// How soon what was right is.
const LATER: Duration = Duration::from_mins(1);
const USER: &str = "slurm";
const TOKEN_LIFETIME: Duration = Duration::from_mins(5);

/// All of them. A clone shares it.
#[derive(Clone, Debug, Default)]
pub struct Outsides(Arc<Mutex<HashMap<Key, Lookout>>>);

/// The way to one slurmctld outside, and what was seen there last.
#[derive(Clone, Debug)]
pub(crate) struct Outside {
    /// `host:port`.
    pub(crate) address: String,
    pub(crate) client: Arc<Client>,
    latest: Arc<Mutex<Option<Arc<View>>>>,
    clock: Clock,
}

/// The task that looks at one.
#[derive(Debug)]
struct Lookout {
    /// Who is asked, and with which key.
    question: u64,
    outside: Outside,
    task: JoinHandle<()>,
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Outsides {
    /// Has the slurmctld of an external Controller looked at from now on. `None` where there is none to look at, or no key to ask
    /// with, which is said elsewhere. Whoever is concerned by what is seen is told by `triggers`.
    pub(crate) fn look_at(
        &self,
        controller: &Controller,
        caches: &Caches,
        clock: &Clock,
        triggers: &Triggers,
    ) -> Option<Outside> {
        let key = Key::of(controller);
        let Some((question, address, client)) = question(controller, caches) else {
            self.forget(&key);
            return None;
        };
        let mut all = self.all();
        if let Some(lookout) = all.get(&key).filter(|lookout| lookout.question == question) {
            return Some(lookout.outside.clone());
        }
        let outside = Outside {
            address,
            client: Arc::new(client()?),
            latest: Arc::default(),
            clock: clock.clone(),
        };
        let task = tokio::spawn(look_again_and_again(
            key.clone(),
            outside.clone(),
            caches.clone(),
            triggers.clone(),
        ));
        let lookout = Lookout {
            question,
            outside: outside.clone(),
            task,
        };
        all.insert(key, lookout);
        Some(outside)
    }

    /// The one of this Controller, if it is looked at.
    pub(crate) fn find(&self, controller: &Key) -> Option<Outside> {
        self.all().get(controller).map(|lookout| lookout.outside.clone())
    }

    pub(crate) fn forget(&self, controller: &Key) {
        self.all().remove(controller);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Key, Lookout>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outside {
    /// `None` until it was looked at.
    pub(crate) fn view(&self) -> Option<Arc<View>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks now. The second result is whether that is news.
    pub(crate) async fn look(&self) -> (Arc<View>, bool) {
        let now = Arc::new(View::of(&self.address, &self.client, &self.clock).await);
        let before = self
            .latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(Arc::clone(&now));
        let is_news = before.is_none_or(|before| !now.is_same(&before));
        (now, is_news)
    }
}

async fn look_again_and_again(controller: Key, outside: Outside, caches: Caches, triggers: Triggers) {
    loop {
        let (view, is_news) = outside.look().await;
        let looked = Instant::now();
        if is_news {
            triggers.controller.add(controller.clone());
            for partition in partitions_of(&caches, &controller) {
                triggers.partition.add(partition);
            }
        }
        // A Partition may come meanwhile.
        while looked.elapsed() < pause(&view, partitions_of(&caches, &controller).is_empty()) {
            tokio::time::sleep(SOON).await;
        }
    }
}

fn pause(view: &View, is_without_partitions: bool) -> Duration {
    match (&view.unfit, is_without_partitions) {
        (Some(_), _) => SOON,
        (None, false) => OFTEN,
        (None, true) => LATER,
    }
}

fn partitions_of(caches: &Caches, controller: &Key) -> Vec<Key> {
    let all = caches.partitions.list(&controller.namespace).into_iter();
    all.filter(|partition| partition.spec.controller_ref.name == controller.name)
        .map(|partition| Key::new(&controller.namespace, partition.name_any()))
        .collect()
}

/// Who is to be asked, and how.
fn question(controller: &Controller, caches: &Caches) -> Option<(u64, String, impl FnOnce() -> Option<Client>)> {
    let (host, port) = controller.spec.external_address()?;
    let reference = controller.jwt_key()?;
    let secret = caches
        .secrets
        .get(&controller.namespace().unwrap_or_default(), &reference.name)?;
    let key = entry(Some(&secret), &reference.key)?.to_vec();
    let address = format!("{host}:{port}");
    let mut hasher = DefaultHasher::new();
    (&address, &key).hash(&mut hasher);
    let asked = address.clone();
    Some((hasher.finish(), address, move || client_of(asked, &key)))
}

/// The way to a daemon outside Kubernetes that takes tokens of this key. `None` for what is no key.
pub(crate) fn client_of(address: String, key: &[u8]) -> Option<Client> {
    let issuer = Issuer::new(SigningKey::new(key).ok()?, USER, TOKEN_LIFETIME);
    let options = Options {
        timeout: PATIENCE,
        ..Options::default()
    };
    Some(Client::new(host::Host::real(), address, issuer, options))
}
