//! Reads a LoginSet, what it refers to, its children and the logs of its pods.

use std::sync::Arc;

use api::{Controller, LoginSet, keys::apps, wellknown::SLURM_KEY_FILE};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Secret},
};
use kube::{Api, ResourceExt as _, api::LogParams};

use super::build::RELOAD;
use crate::{
    defaults::Images,
    key_mismatch::{find_key_mismatch, find_other_key},
    references::daemon_pods,
    runtime::{Caches, Context},
    secret::unreadable_controller,
};

/// The container that reloads the daemons logs only changes, so that its last lines hold the current state of every file.
const LOG_LINES: i64 = 100;
/// All pods have the same problems, so the logs of a few are enough.
const LOGS_READ: usize = 3;

/// Everything that a plan is made from.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(super) login_set: Arc<LoginSet>,
    /// The Controller that it names.
    pub(super) controller: Option<Arc<Controller>>,
    /// Why the Controller is not known although it exists.
    pub(super) unreadable_controller: Option<String>,
    pub(super) slurm_key: Option<Arc<Secret>>,
    /// Why no pod is made with that key.
    pub(super) other_key: Option<String>,
    pub(super) sssd_conf: Option<Arc<Secret>>,
    pub(super) host_keys: Option<Arc<Secret>>,
    pub(super) deployment: Option<Arc<Deployment>>,
    pub(super) pods: Vec<Arc<Pod>>,
    /// Problems that the pods report: files that a daemon rejects, an unreachable directory.
    pub(super) complaints: Vec<String>,
    /// The message that pods have another key than slurmctld.
    pub(super) key_mismatch: Option<String>,
    pub(super) images: Images,
    pub(super) cluster_domain: String,
}

/// Reads what concerns this LoginSet, and the logs of its pods.
pub(super) async fn observe(login_set: Arc<LoginSet>, context: &Context) -> Observed {
    let images = context.defaults.images.clone();
    let mut observed = read(login_set, &context.caches, images, context.cluster_domain.clone());
    observed.complaints = read_complaints(&context.client, &observed.pods).await;
    observed.key_mismatch = observed.controller.as_deref().and_then(|controller| {
        let mismatch = find_key_mismatch(controller, &context.caches, &context.clusters, context.clock.now())?;
        Some(mismatch.of_pods(&observed.pods)?.message())
    });
    observed
}

/// Reads what concerns this LoginSet from the caches.
pub(super) fn read(login_set: Arc<LoginSet>, caches: &Caches, images: Images, cluster_domain: String) -> Observed {
    let namespace = login_set.namespace().unwrap_or_default();
    let controller = caches.controllers.get(&namespace, &login_set.spec.controller_ref.name);
    let key = controller.as_ref().and_then(|controller| controller.slurm_key());
    let names = login_set.child_names();
    let cluster = controller.as_deref();
    Observed {
        other_key: cluster.and_then(|controller| find_other_key(controller, caches, SLURM_KEY_FILE)),
        unreadable_controller: unreadable_controller(caches, &namespace, &login_set.spec.controller_ref.name),
        slurm_key: key.and_then(|key| caches.secrets.get(&namespace, &key.name)),
        sssd_conf: caches.secrets.get(&namespace, &login_set.spec.sssd_conf_ref.name),
        host_keys: caches.secrets.get(&namespace, &names.ssh_host_keys_secret()),
        deployment: caches.deployments.child_of(login_set.as_ref(), &names.deployment()),
        pods: daemon_pods(login_set.as_ref(), caches, apps::LOGIN),
        complaints: Vec::new(),
        key_mismatch: None,
        controller,
        login_set,
        images,
        cluster_domain,
    }
}

/// Reads the problems that some pods report in their logs.
async fn read_complaints(client: &kube::Client, pods: &[Arc<Pod>]) -> Vec<String> {
    let parameters = LogParams {
        container: Some(RELOAD.to_owned()),
        tail_lines: Some(LOG_LINES),
        ..LogParams::default()
    };
    let mut found: Vec<String> = Vec::new();
    for pod in pods.iter().filter(|pod| runs(pod)).take(LOGS_READ) {
        let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        // A pod that is being deleted may have no log.
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

/// The last state of each subject, if it is a problem.
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
    fn the_last_state_of_a_subject_counts() {
        let log = "sshd_config: refused: line 9: Bad configuration option: Foo\ndirectory: unreachable: ldap:389\n\
                   sssd.conf: in use\nodd\nsshd_config: in use\n";
        assert_eq!(complaints(log), ["directory unreachable: ldap:389"]);
        assert_eq!(complaints(""), Vec::<String>::new());
    }
}
