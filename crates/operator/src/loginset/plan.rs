//! Decides what to do about a LoginSet. Pure.

use api::keys::{annotations, apps};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod, Secret, Service},
};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use slurm::revision::Digest;

use super::{
    build::{INITCONF, Ingredients, build_deployment, build_service, build_ssh_config, ssh_port},
    files::{check_sssd_conf, render_authorized_keys, render_sshd_config},
    host_keys::{KINDS, private_file, public_file},
    observe::Observed,
};
use crate::{
    finding::Finding,
    reason,
    secret::{entry, missing, missing_controller},
    template::{
        container::{image_to_run, shell_image},
        service::plan_service,
    },
};

/// The remedy for a missing entry of a Secret.
const CREATE_IT: &str = "create it, or name another";

/// The children to apply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Whether host keys have to be generated.
    pub(super) makes_host_keys: bool,
    pub(super) service: Option<Service>,
    pub(super) ssh_config: Option<ConfigMap>,
    pub(super) deployment: Option<Deployment>,
    /// Names of running pods, each with a patch of its annotations: the digests of its files. When they change, the kubelet
    /// syncs the pod and updates its files at once; otherwise that takes a minute or more.
    pub(super) notes: Vec<(String, Value)>,
}

pub(super) fn plan(observed: &Observed, findings: &mut Vec<Finding>) -> Plan {
    let login_set = observed.login_set.as_ref();
    let sshd_config = render_sshd_config(login_set, ssh_port(login_set));
    let authorized_keys = render_authorized_keys(login_set);
    let service = plan_service(login_set.spec.service.as_ref(), build_service(login_set), findings);
    let sssd_conf = find_sssd_conf(observed, findings);
    let deployment = plan_deployment(observed, findings);
    let ssh_files = Digest::of([sshd_config.as_str(), &authorized_keys].concat().as_bytes());
    let notes = sssd_conf.map(|sssd_conf| plan_notes(observed, ssh_files, Digest::of(&sssd_conf)));
    Plan {
        makes_host_keys: observed.host_keys.is_none(),
        service,
        ssh_config: Some(build_ssh_config(login_set, &sshd_config, &authorized_keys)),
        deployment,
        notes: notes.unwrap_or_default(),
    }
}

/// Pods without their keys would only wait, so the Deployment is not changed until everything exists.
fn plan_deployment(observed: &Observed, findings: &mut Vec<Finding>) -> Option<Deployment> {
    let login_set = observed.login_set.as_ref();
    let name = &login_set.spec.controller_ref.name;
    let Some(controller) = observed.controller.as_deref() else {
        findings.push(missing_controller(name, observed.unreadable_controller.as_deref()));
        return None;
    };
    let mut slurm_key = None;
    if let Some(key) = controller.slurm_key() {
        match entry(observed.slurm_key.as_deref(), &key.key) {
            Some(bytes) => slurm_key = Some((key, Digest::of(bytes))),
            None => findings.push(missing(
                &format!("Controller {name:?} has its key in"),
                &key,
                observed.slurm_key.as_deref(),
                CREATE_IT,
            )),
        }
    }
    let other_key = observed.other_key.as_ref();
    findings.extend(other_key.map(|other| Finding::blocking(reason::KEY_MISMATCH, other)));
    let host_keys = observed
        .host_keys
        .as_deref()
        .and_then(|secret| find_host_keys(secret, findings));
    if !findings.is_empty() {
        return None;
    }
    let deployed = observed.deployment.as_ref();
    let running = deployed.and_then(|deployment| deployment.spec.as_ref()?.template.spec.as_ref());
    let given = login_set.spec.login.as_ref();
    let login_image = image_to_run(given, running, apps::LOGIN, &observed.images.login);
    let initconf_image = shell_image(&observed.images.initconf, given, &login_image);
    let ingredients = Ingredients {
        controller,
        slurm_key,
        host_keys: host_keys?,
        cluster_domain: &observed.cluster_domain,
        initconf_image: image_to_run(login_set.spec.initconf.as_ref(), running, INITCONF, initconf_image),
        login_image,
    };
    build_deployment(login_set, &ingredients)
        .map_err(|error| {
            findings.push(Finding::invalid(format!(
                "spec.template.spec, spec.login, spec.initconf or spec.strategy does not fit the Deployment schema: {error}; correct it"
            )));
        })
        .ok()
}

fn find_sssd_conf(observed: &Observed, findings: &mut Vec<Finding>) -> Option<Vec<u8>> {
    let reference = &observed.login_set.spec.sssd_conf_ref;
    let secret = observed.sssd_conf.as_deref();
    let Some(bytes) = entry(secret, &reference.key) else {
        findings.push(missing("spec.sssdConfRef names", reference, secret, CREATE_IT));
        return None;
    };
    if let Some(problem) = check_sssd_conf(bytes) {
        findings.push(Finding::blocking(
            reason::SSSD_CONF_INVALID,
            format!(
                "the sssd.conf in entry {:?} of Secret {:?} {problem}; correct it",
                reference.key, reference.name
            ),
        ));
        return None;
    }
    Some(bytes.to_vec())
}

fn find_host_keys(secret: &Secret, findings: &mut Vec<Finding>) -> Option<Digest> {
    let mut all = Vec::new();
    for file in KINDS.iter().flat_map(|kind| [private_file(kind), public_file(kind)]) {
        let Some(bytes) = entry(Some(secret), &file) else {
            findings.push(Finding::blocking(
                reason::HOST_KEYS_INCOMPLETE,
                format!(
                    "Secret {:?} has no {file:?}; add it, or delete the Secret to generate new keys, of which SSH clients will warn",
                    secret.name_any()
                ),
            ));
            return None;
        };
        all.extend(bytes);
    }
    Some(Digest::of(&all))
}

fn plan_notes(observed: &Observed, ssh_files: Digest, sssd_conf: Digest) -> Vec<(String, Value)> {
    let noted = [
        (annotations::SSHD_CONF_HASH, ssh_files.to_string()),
        (annotations::SSSD_CONF_HASH, sssd_conf.to_string()),
    ];
    let has = |pod: &Pod, (key, digest): &(&str, String)| pod.annotations().get(*key) == Some(digest);
    let behind = observed.pods.iter();
    let behind = behind.filter(|pod| !noted.iter().all(|digest| has(pod, digest)));
    let noted = Value::from_iter(noted.clone());
    behind
        .map(|pod| {
            (
                pod.name_any(),
                json!({ "metadata": { "uid": pod.uid(), "annotations": noted } }),
            )
        })
        .collect()
}
