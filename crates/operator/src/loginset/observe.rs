//! What there is: the LoginSet, what it refers to, its children and its pods. Reads only.

use std::sync::Arc;

use api::{
    Controller, LoginSet,
    keys::{apps, labels},
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Secret},
};
use kube::{Api, ResourceExt as _, api::LogParams};

use super::build::RELOAD;
use crate::{defaults::Images, references::is_daemon, runtime::Caches};

/// Whoever brings files to the daemons says something only when it changes.
const LAST_LINES: i64 = 100;
/// What is wrong is wrong in all of them alike; the log of a few tells it.
const PODS_ASKED: usize = 3;

/// Everything a plan is made from.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) login_set: Arc<LoginSet>,
    /// The one it refers to.
    pub(super) controller: Option<Arc<Controller>>,
    pub(super) slurm_key: Option<Arc<Secret>>,
    pub(super) sssd_conf: Option<Arc<Secret>>,
    pub(super) host_keys: Option<Arc<Secret>>,
    pub(super) deployment: Option<Arc<Deployment>>,
    pub(super) pods: Vec<Arc<Pod>>,
    /// What the pods complain of: files that a daemon refuses, a directory out of reach.
    pub(super) complaints: Vec<String>,
    /// Pods that have another key than slurmctld, in words for people.
    pub(super) key_mismatch: Option<String>,
    pub(super) images: Images,
    pub(super) cluster_domain: String,
    /// Definitions that are older than this operator.
    pub(super) outdated: Vec<String>,
}

/// Reads from the caches what concerns this LoginSet.
pub(super) fn observe(
    login_set: Arc<LoginSet>,
    caches: &Caches,
    images: Images,
    cluster_domain: String,
    outdated: Vec<String>,
) -> Observed {
    let namespace = login_set.namespace().unwrap_or_default();
    let controller = caches.controllers.get(&namespace, &login_set.spec.controller_ref.name);
    let key = controller.as_ref().and_then(|controller| controller.slurm_key());
    let names = login_set.child_names();
    let pods = caches.pods.list(&namespace).into_iter();
    Observed {
        slurm_key: key.and_then(|key| caches.secrets.get(&namespace, &key.name)),
        sssd_conf: caches.secrets.get(&namespace, &login_set.spec.sssd_conf_ref.name),
        host_keys: caches.secrets.get(&namespace, &names.ssh_host_keys_secret()),
        deployment: caches.deployments.child_of(login_set.as_ref(), &names.deployment()),
        pods: pods
            .filter(|pod| pod.metadata.deletion_timestamp.is_none() && is_daemon(pod, apps::LOGIN))
            .filter(|pod| pod.labels().get(labels::INSTANCE) == login_set.metadata.name.as_ref())
            .collect(),
        complaints: Vec::new(),
        key_mismatch: None,
        controller,
        login_set,
        images,
        cluster_domain,
        outdated,
    }
}

/// Asks some pods what is wrong with what they were given.
pub(super) async fn read_complaints(client: &kube::Client, pods: &[Arc<Pod>]) -> Vec<String> {
    let parameters = LogParams {
        container: Some(RELOAD.to_owned()),
        tail_lines: Some(LAST_LINES),
        ..LogParams::default()
    };
    let mut found: Vec<String> = Vec::new();
    for pod in pods.iter().filter(|pod| runs(pod)).take(PODS_ASKED) {
        let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        // One that is just going has no log, and that will be seen elsewhere.
        let log = api.logs(&pod.name_any(), &parameters).await.unwrap_or_default();
        for complaint in complaints(&log) {
            if !found.contains(&complaint) {
                found.push(complaint);
            }
        }
    }
    found
}

fn runs(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running")
}

/// The last word on each subject, if it is a complaint.
fn complaints(log: &str) -> Vec<String> {
    let mut states: Vec<(&str, &str)> = Vec::new();
    for (subject, state) in log.lines().filter_map(|line| line.split_once(": ")) {
        states.retain(|(known, _)| *known != subject);
        states.push((subject, state));
    }
    let bad = |state: &str| ["refused", "unreachable"].iter().any(|word| state.starts_with(word));
    let bad = states.into_iter().filter(|(_, state)| bad(state));
    bad.map(|(subject, state)| format!("{subject} {}", state.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_on_a_subject_counts() {
        let log = "sshd_config: refused: line 9: Bad configuration option: Foo\ndirectory: unreachable: ldap:389\n\
                   sssd.conf: in use\nodd\nsshd_config: in use\n";
        assert_eq!(complaints(log), ["directory unreachable: ldap:389"]);
        assert_eq!(complaints(""), Vec::<String>::new());
    }
}
