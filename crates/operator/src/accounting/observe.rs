//! What there is: the Accounting, what it refers to and its children. Reads only.

use std::sync::Arc;

use api::{Accounting, Controller, keys::apps, references::SecretKeyRef};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Pod, Secret},
};
use kube::{Api, ResourceExt as _, api::LogParams};

use crate::{
    defaults::Images,
    key_mismatch::{KeyMismatch, is_refusal},
    runtime::Caches,
    secret::entry,
};

/// Enough to know what is wrong.
const LAST_LINES: i64 = 10;

/// Everything a plan is made from.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) accounting: Arc<Accounting>,
    pub(super) slurm_key: Found,
    pub(super) jwt_key: Found,
    pub(super) password: Found,
    pub(super) jwks: Option<Arc<ConfigMap>>,
    pub(super) stateful_set: Option<Arc<StatefulSet>>,
    pub(super) pod: Option<Arc<Pod>>,
    /// What a slurmdbd complains of that does not come up: the last lines of its log.
    pub(super) complaints: Vec<String>,
    /// What a slurmdbd that is up answers without its database, or why one outside Kubernetes gives no answer.
    pub(super) database_trouble: Option<String>,
    /// That slurmctld and slurmdbd have different keys, in words for people.
    pub(super) key_mismatch: Option<String>,
    pub(super) images: Images,
    /// Definitions that are older than this operator.
    pub(super) outdated: Vec<String>,
}

/// A reference to an entry of a Secret, and what is there.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) reference: Option<SecretKeyRef>,
    pub(super) secret: Option<Arc<Secret>>,
}

/// Reads from the caches what concerns this Accounting.
pub(super) fn observe(accounting: Arc<Accounting>, caches: &Caches, images: Images, outdated: Vec<String>) -> Observed {
    let namespace = accounting.namespace().unwrap_or_default();
    let controller = referring(&accounting, caches);
    let find = |reference: Option<SecretKeyRef>| Found {
        secret: reference
            .as_ref()
            .and_then(|reference| caches.secrets.get(&namespace, &reference.name)),
        reference,
    };
    let storage = accounting.spec.storage_config.as_ref();
    let jwks = accounting.spec.jwks_key_ref.as_ref();
    let names = accounting.child_names();
    Observed {
        slurm_key: find(slurm_key(&accounting, controller.as_deref())),
        jwt_key: find(jwt_key(&accounting, controller.as_deref())),
        password: find(storage.map(|storage| storage.password_key_ref.clone())),
        jwks: jwks.and_then(|jwks| caches.config_maps.get(&namespace, &jwks.name)),
        stateful_set: caches
            .stateful_sets
            .child_of(accounting.as_ref(), &names.stateful_set()),
        pod: caches.pods.get(&namespace, &names.pod()),
        complaints: Vec::new(),
        database_trouble: None,
        key_mismatch: None,
        accounting,
        images,
        outdated,
    }
}

impl Observed {
    /// Tells of different keys: that another one is referred to than the Controller has, what is known of slurmdbd's pod or of
    /// slurmctld, or else that slurmdbd refused slurmctld.
    pub(super) fn note_key_mismatch(&mut self, known: Option<&KeyMismatch>, theirs: Option<(&Secret, &SecretKeyRef)>) {
        let (Some(pod), Some(own)) = (&self.pod, &self.slurm_key.reference) else {
            return;
        };
        let refused = self.database_trouble.take_if(|words| is_refusal(words));
        let own_key = entry(self.slurm_key.secret.as_deref(), &own.key);
        let other = theirs
            .filter(|(secret, reference)| own_key.is_some() && entry(Some(*secret), &reference.key) != own_key)
            .map(|(_, theirs)| {
                format!(
                    "spec.slurmKeyRef names entry {:?} of Secret {:?}, which is not the key of the Controller that uses this \
                     Accounting (entry {:?} of Secret {:?}), so that slurmdbd refuses its slurmctld; name that one",
                    own.key, own.name, theirs.key, theirs.name
                )
            });
        let known = known.and_then(|known| known.of_pods(std::slice::from_ref(pod)));
        let known = known.or_else(|| refused.map(|_| KeyMismatch::of_slurmdbd(pod, &own.name)));
        self.key_mismatch = other.or_else(|| known.map(|mismatch| mismatch.message()));
    }

    /// Whether slurmdbd answers.
    pub(super) fn is_up(&self) -> bool {
        let conditions = self
            .pod
            .as_ref()
            .and_then(|pod| pod.status.as_ref()?.conditions.as_ref());
        let ready = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == "Ready");
        ready.is_some_and(|ready| ready.status == "True")
    }
}

/// Asks for slurmdbd's log: while it cannot work with its database it goes on trying, and nothing else says why.
pub(super) async fn read_complaints(client: &kube::Client, pod: &Pod) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let parameters = LogParams {
        container: Some(apps::SLURMDBD.to_owned()),
        tail_lines: Some(LAST_LINES),
        ..LogParams::default()
    };
    // A container that has not started has none, and that will be seen elsewhere.
    let log = pods.logs(&pod.name_any(), &parameters).await.unwrap_or_default();
    complaints(&log)
}

/// The errors in a log, without their times and each once.
fn complaints(log: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in log.lines() {
        let words = line.split_once("] ").map_or(line, |(_, words)| words);
        let is_complaint = words.starts_with("error: ") || words.starts_with("fatal: ");
        if is_complaint && !found.iter().any(|known| known == words) {
            found.push(words.to_owned());
        }
    }
    found
}

/// The Controller that refers to it, the first by name if there are several: they all have the same keys, or their records
/// would not be taken.
pub(super) fn referring(accounting: &Accounting, caches: &Caches) -> Option<Arc<Controller>> {
    let namespace = accounting.namespace().unwrap_or_default();
    let name = accounting.name_any();
    let all = caches.controllers.list(&namespace).into_iter();
    all.filter(|controller| controller.spec.accounting_name() == Some(name.as_str()))
        .min_by_key(|controller| controller.name_any())
}

fn slurm_key(accounting: &Accounting, controller: Option<&Controller>) -> Option<SecretKeyRef> {
    let given = accounting.spec.slurm_key_ref.clone();
    given.or_else(|| controller.and_then(Controller::slurm_key))
}

fn jwt_key(accounting: &Accounting, controller: Option<&Controller>) -> Option<SecretKeyRef> {
    let given = accounting.spec.effective_jwt_key_ref().cloned();
    given.or_else(|| controller.and_then(Controller::jwt_key))
}

/// The Secrets slurmdbd's configuration and keys are made from.
pub(super) fn referenced_secrets(
    accounting: &Accounting,
    controller: Option<&Controller>,
) -> impl Iterator<Item = String> {
    let storage = accounting.spec.storage_config.as_ref();
    let references = [
        slurm_key(accounting, controller),
        jwt_key(accounting, controller),
        storage.map(|storage| storage.password_key_ref.clone()),
    ];
    references.into_iter().flatten().map(|reference| reference.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_for_what_is_wrong() {
        let log = "[2026-11-15T15:49:54.795] error: mysql_real_connect failed: 1045 Access denied\n\
                   [2026-11-15T15:49:54.796] error: Trying again\n[2026-11-15T15:49:55.000] debug: x\n\
                   [2026-11-15T15:49:59.813] error: mysql_real_connect failed: 1045 Access denied\nodd\n";
        let expected = [
            "error: mysql_real_connect failed: 1045 Access denied",
            "error: Trying again",
        ];
        assert_eq!(complaints(log), expected);
        assert_eq!(complaints(""), Vec::<String>::new());
    }
}
