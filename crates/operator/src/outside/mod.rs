//! Whether the slurmctld outside Kubernetes that a Controller names is one that pods can work with. Nobody tells when that
//! changes, so it is asked again from time to time; nothing is ever changed there.

mod judge;

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use slurm::{
    rpc::{Client, Options},
    token::{Issuer, SigningKey},
};

pub(super) use self::judge::Unfit;
use super::observe::Observed;
use crate::{
    runtime::{Clock, Key},
    secret::entry,
};

/// A slurmctld on another continent answers sooner.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon what was wrong is looked at again: somebody may be waiting for it.
const SOON: Duration = Duration::from_secs(5);
/// How soon what was right is.
const LATER: Duration = Duration::from_mins(1);
const USER: &str = "slurm";
const TOKEN_LIFETIME: Duration = Duration::from_mins(5);

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) unfit: Option<Unfit>,
    /// When to look again.
    pub(super) again: Duration,
}

#[derive(Clone, Debug)]
struct Past {
    /// What was asked, and with which key.
    question: u64,
    at: Timestamp,
    unfit: Option<Unfit>,
}

/// The last look at each.
#[derive(Debug, Default)]
pub(super) struct Looks(Mutex<HashMap<Key, Past>>);

impl Looks {
    pub(super) fn forget(&self, key: &Key) {
        self.past().remove(key);
    }

    /// Looks at the slurmctld of an external Controller, unless that was done just now. `None` where there is none to look at,
    /// or no key to ask with, which is said elsewhere.
    pub(super) async fn look(&self, key: &Key, observed: &Observed, clock: &Clock) -> Option<Look> {
        let controller = observed.controller.as_ref();
        let Some((host, port)) = controller.spec.external_address() else {
            self.forget(key);
            return None;
        };
        let bytes = entry(observed.jwt_key.as_deref(), &controller.jwt_key()?.key)?;
        let address = format!("{host}:{port}");
        let question = fingerprint(&address, bytes);
        let now = clock.now();
        let past = self.past().get(key).filter(|past| past.question == question).cloned();
        if let Some(Past { at, unfit, .. }) = past {
            let age = Duration::try_from(now.duration_since(at)).unwrap_or_default();
            if let Some(again) = pause(unfit.as_ref()).checked_sub(age).filter(|left| !left.is_zero()) {
                return Some(Look { unfit, again });
            }
        }
        let options = Options {
            timeout: PATIENCE,
            ..Options::default()
        };
        let issuer = Issuer::new(SigningKey::new(bytes).ok()?, USER, TOKEN_LIFETIME);
        // What slurmd and sackd will ask for, with what slurmrestd's clients will show.
        let answer = Client::new(address.clone(), issuer, options).served_files().await;
        let unfit = judge::judge(&address, &answer);
        let again = pause(unfit.as_ref());
        let past = Past {
            question,
            at: now,
            unfit: unfit.clone(),
        };
        self.past().insert(key.clone(), past);
        Some(Look { unfit, again })
    }

    fn past(&self) -> MutexGuard<'_, HashMap<Key, Past>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pause(unfit: Option<&Unfit>) -> Duration {
    if unfit.is_some() { SOON } else { LATER }
}

fn fingerprint(address: &str, key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (address, key).hash(&mut hasher);
    hasher.finish()
}
