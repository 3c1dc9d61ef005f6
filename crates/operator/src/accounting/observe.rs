//! Reads an Accounting, what it refers to, its children, and how its slurmdbd fares.

use std::sync::Arc;

use api::{
    Accounting, Controller,
    keys::apps,
    references::SecretKeyRef,
    wellknown::{JWT_KEY_FILE, SLURM_KEY_FILE},
};
use host::Host;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Pod, Secret},
};
use kube::{Api, ResourceExt as _, api::LogParams};
use slurm::{rpc::Error, transport};

use crate::{
    cluster::{external::client_of, pods::is_ready},
    defaults::Images,
    key_mismatch::{KeyMismatch, find_key_mismatch, find_other_key, is_refusal},
    runtime::{Caches, Context, Key},
    secret::entry,
};

const NO_SLURMDBD: &str = "what listens there is not slurmdbd";
/// The last lines of slurmdbd's log: enough for its last errors.
const LOG_LINES: i64 = 10;

/// Everything that a plan is made from.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(super) accounting: Arc<Accounting>,
    pub(super) slurm_key: Found,
    pub(super) jwt_key: Found,
    pub(super) password: Found,
    pub(super) jwks: Option<Arc<ConfigMap>>,
    pub(super) stateful_set: Option<Arc<StatefulSet>>,
    pub(super) pod: Option<Arc<Pod>>,
    /// The last errors in the log of a slurmdbd that does not become ready.
    pub(super) log_errors: Vec<String>,
    /// Why slurmdbd has no database, or why an external one does not respond.
    pub(super) database_trouble: Option<String>,
    /// The message that slurmctld and slurmdbd have different keys.
    pub(super) key_mismatch: Option<String>,
    /// Why slurmdbd is not started with a key of the cluster's Secrets.
    pub(super) other_key: Option<String>,
    /// Whether slurmdbd can be asked about its database.
    pub(super) is_polled: bool,
    pub(super) images: Images,
}

/// A reference to an entry of a Secret, and that Secret.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(super) reference: Option<SecretKeyRef>,
    pub(super) secret: Option<Arc<Secret>>,
}

/// Reads what concerns this Accounting, and asks slurmdbd how it fares.
pub(super) async fn observe(accounting: Arc<Accounting>, context: &Context) -> Observed {
    let (caches, access) = (&context.caches, &context.clusters);
    let mut observed = read(accounting, caches, context.defaults.images.clone());
    let is_external = observed.accounting.spec.is_external();
    if is_external {
        observed.database_trouble = probe_external(context.clock.host(), &observed).await;
    } else if !observed.pod.as_deref().is_some_and(is_ready) {
        if let Some(pod) = observed.pod.as_deref() {
            observed.log_errors = read_log(&context.client, pod).await;
        }
        return observed;
    }
    let referring = referring(&observed.accounting, caches);
    observed.is_polled = is_external || referring.is_some();
    if let Some(controller) = referring.as_deref() {
        let cluster = Key::of(controller);
        if observed.database_trouble.is_none() {
            observed.database_trouble = access.database_trouble(&cluster).await;
        }
        if !is_external {
            let known = find_key_mismatch(controller, caches, access, context.clock.now());
            let key = controller.slurm_key();
            let secret = key
                .as_ref()
                .and_then(|key| caches.secrets.get(&cluster.namespace, &key.name));
            observed.note_key_mismatch(known.as_ref(), secret.as_deref().zip(key.as_ref()));
        }
    }
    observed
}

/// Reads what concerns this Accounting from the caches.
pub(super) fn read(accounting: Arc<Accounting>, caches: &Caches, images: Images) -> Observed {
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
    let other_key = controller.as_deref().and_then(|controller| {
        let mut files = [SLURM_KEY_FILE, JWT_KEY_FILE].into_iter();
        files.find_map(|file| find_other_key(controller, caches, file))
    });
    Observed {
        slurm_key: find(slurm_key(&accounting, controller.as_deref())),
        jwt_key: find(jwt_key(&accounting, controller.as_deref())),
        other_key,
        password: find(storage.map(|storage| storage.password_key_ref.clone())),
        jwks: jwks.and_then(|jwks| caches.config_maps.get(&namespace, &jwks.name)),
        stateful_set: caches
            .stateful_sets
            .child_of(accounting.as_ref(), &names.stateful_set()),
        pod: caches.pods.get(&namespace, &names.pod()),
        log_errors: Vec::new(),
        database_trouble: None,
        key_mismatch: None,
        is_polled: false,
        accounting,
        images,
    }
}

impl Observed {
    /// Records that slurmctld and slurmdbd have different keys: this Accounting names another one than the Controller, the
    /// mismatch is known of slurmdbd's pod or of slurmctld, or slurmdbd rejected slurmctld.
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
                     Accounting (entry {:?} of Secret {:?}), so slurmdbd rejects its slurmctld; name that one",
                    own.key, own.name, theirs.key, theirs.name
                )
            });
        let known = known.and_then(|known| known.of_pods(std::slice::from_ref(pod)));
        let known = known.or_else(|| refused.map(|_| KeyMismatch::of_slurmdbd(pod, &own.name)));
        self.key_mismatch = other.or_else(|| known.map(|mismatch| mismatch.message()));
    }
}

/// Why an external slurmdbd does not respond at the address of its Accounting. `None` also without a key to ask with.
/// slurmrestd, which asks it for records, may still use an older address: it reads slurm.conf only when it starts.
async fn probe_external(machine: &Host, observed: &Observed) -> Option<String> {
    let (host, port) = observed.accounting.spec.external_address()?;
    let key = &observed.jwt_key;
    let bytes = entry(key.secret.as_deref(), &key.reference.as_ref()?.key)?;
    let client = client_of(machine, format!("{host}:{port}"), bytes)?;
    describe_silence(&client.greet_slurmdbd().await)
}

fn describe_silence(response: &Result<(), Error>) -> Option<String> {
    match response {
        // slurmdbd also responds to callers that it rejects.
        Err(Error::Transport(error)) if error.is_hang_up() => Some(NO_SLURMDBD.to_owned()),
        Err(Error::Transport(transport::Error::Malformed { .. }) | Error::Unsupported) => Some(NO_SLURMDBD.to_owned()),
        Err(Error::Transport(transport::Error::Unreachable { reason, .. })) => Some(reason.clone()),
        Err(Error::Refused { code, .. } | Error::Unauthorized(code)) => Some(format!(
            "it rejects the operator's token ({code}), so it lacks auth/jwt or has another key"
        )),
        Ok(()) | Err(Error::Unpackable(_) | Error::Token(_)) => None,
    }
}

/// Reads the errors in slurmdbd's log: it retries its database for ever, and only the log tells why that fails.
async fn read_log(client: &kube::Client, pod: &Pod) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let parameters = LogParams {
        container: Some(apps::SLURMDBD.to_owned()),
        tail_lines: Some(LOG_LINES),
        ..LogParams::default()
    };
    // A container that has not started has no log; its pod's status tells why.
    let log = pods.logs(&pod.name_any(), &parameters).await.unwrap_or_default();
    find_errors(&log)
}

/// The errors in a log, without their times and each once.
fn find_errors(log: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in log.lines() {
        let message = line.split_once("] ").map_or(line, |(_, message)| message);
        let is_error = message.starts_with("error: ") || message.starts_with("fatal: ");
        if is_error && !found.iter().any(|known| known == message) {
            found.push(message.to_owned());
        }
    }
    found
}

/// The Controller that refers to this Accounting, the first by name if there are several: they all have the same keys, or
/// slurmdbd would reject their records.
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

/// The names of the Secrets with slurmdbd's keys and password.
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
    use std::io::{self, ErrorKind};

    use slurm::rpc::ReturnCode;

    use super::*;

    #[test]
    fn errors_are_found_in_a_log() {
        let log = "[2026-11-15T15:49:54.795] error: mysql_real_connect failed: 1045 Access denied\n\
                   [2026-11-15T15:49:54.796] error: Trying again\n[2026-11-15T15:49:55.000] debug: x\n\
                   [2026-11-15T15:49:59.813] error: mysql_real_connect failed: 1045 Access denied\nodd\n";
        let expected = [
            "error: mysql_real_connect failed: 1045 Access denied",
            "error: Trying again",
        ];
        assert_eq!(find_errors(log), expected);
        assert_eq!(find_errors(""), Vec::<String>::new());
    }

    fn unreachable(kind: ErrorKind) -> Error {
        Error::Transport(transport::Error::Unreachable {
            reason: "dbd:6819: its reason".to_owned(),
            source: Some(Box::new(io::Error::from(kind))),
        })
    }

    #[test]
    fn a_missing_slurmdbd_and_a_rejected_token_are_reported() {
        let malformed = Error::Transport(transport::Error::Malformed {
            reason: String::new(),
            source: None,
        });
        let refused = Error::Refused {
            code: ReturnCode::AUTHENTICATION,
            said: None,
        };
        for (response, expected) in [
            (Ok(()), ""),
            (Err(unreachable(ErrorKind::ConnectionRefused)), "dbd:6819: its reason"),
            (Err(unreachable(ErrorKind::UnexpectedEof)), NO_SLURMDBD),
            (Err(Error::Unsupported), NO_SLURMDBD),
            (Err(malformed), NO_SLURMDBD),
            (Err(refused), "it lacks auth/jwt or has another key"),
        ] {
            let found = describe_silence(&response).unwrap_or_default();
            assert!(
                found.ends_with(expected) && found.is_empty() == expected.is_empty(),
                "{response:?} {found}"
            );
        }
    }
}
