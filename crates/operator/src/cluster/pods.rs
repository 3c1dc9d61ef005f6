//! Reads facts from slurmctld's pods. Pure.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use api::{
    Controller,
    keys::{ON, labels},
};
use host::Host;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;
use runtime::Key;
use slurm::agent::{self, AgentKey, EmptyKey};

use super::deliver::{JwtKey, Report};
use crate::{
    kinds::Caches,
    layout::{CANDIDATE_VOLUME, name},
};

/// An agent that can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) address: SocketAddr,
    /// The pod mounts a ConfigMap by which the agent can also receive a revision.
    pub(crate) takes_candidates: bool,
}

impl Target {
    /// Returns a client, which connects when it is first used.
    pub(super) fn client(&self, host: &Host, jwt_key: &JwtKey) -> Result<agent::Client, EmptyKey> {
        let (key, options) = (AgentKey::derive(&jwt_key.0)?, agent::Options::default());
        Ok(agent::Client::new(host.clone(), self.address, &*self.uid, key, options))
    }
}

/// Whether the pod was created with an agent in it. Pods of another operator were not.
pub(crate) fn has_agent(pod: &Pod) -> bool {
    agent_port(pod).is_some()
}

/// Returns the pod's agent, if it runs.
pub(crate) fn agent_of(pod: &Pod) -> Option<Target> {
    let state = container_status(pod, name::RECONFIGURE)?.state.as_ref()?;
    agent_in(pod).filter(|_| state.running.is_some() && pod.metadata.deletion_timestamp.is_none())
}

/// Returns the pod's agent, which may not run.
pub(super) fn agent_in(pod: &Pod) -> Option<Target> {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    Some(Target {
        pod: pod.name_any(),
        uid: pod.uid()?,
        address: address(pod, agent_port(pod)?)?,
        takes_candidates: volumes.any(|volume| volume.name == CANDIDATE_VOLUME),
    })
}

/// Returns the pods of slurmctld, those that are being deleted included: those of the Controller's StatefulSet. Anybody who
/// may create pods can give them slurmctld's labels.
pub(super) fn slurmctld_pods(caches: &Caches, Key { namespace, name }: &Key) -> Vec<Arc<Pod>> {
    let controller = caches.controllers.get(namespace, name);
    let set = controller.and_then(|controller| {
        let set = controller.child_names().stateful_set();
        caches.stateful_sets.child_of(controller.as_ref(), &set)
    });
    let Some((set, uid)) = set.and_then(|set| Some((set.name_any(), set.uid()?))) else {
        return Vec::new();
    };
    let mut pods = caches.pods.owned_by(&uid);
    pods.retain(|pod| is_name_in(&set, &pod.name_any()));
    pods
}

/// Whether a StatefulSet gives its pods such names.
fn is_name_in(set: &str, pod: &str) -> bool {
    let ordinal = pod.strip_prefix(set).and_then(|rest| rest.strip_prefix('-'));
    ordinal.is_some_and(|ordinal| ordinal.parse::<u32>().is_ok_and(|number| number.to_string() == ordinal))
}

pub(super) fn address(pod: &Pod, port: u16) -> Option<SocketAddr> {
    let ip: IpAddr = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
    Some(SocketAddr::new(ip, port))
}

/// Whether any container of the pod may have read the configuration.
pub(crate) fn has_started(pod: &Pod) -> bool {
    let begun = |status: &ContainerStatus| {
        let state = status.state.as_ref();
        status.restart_count > 0 || state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    [name::PREPARE, name::RECONFIGURE, name::SLURMCTLD]
        .iter()
        .filter_map(|container| container_status(pod, container))
        .any(begun)
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.any(|condition| condition.status == "True")
}

/// Whether the Service routes clients to this pod.
pub(crate) fn is_labelled_active(pod: &Pod) -> bool {
    let label = pod.labels().get(labels::CONTROLLER_ACTIVE);
    label.is_some_and(|value| value == ON)
}

fn agent_port(pod: &Pod) -> Option<u16> {
    let spec = pod.spec.as_ref()?;
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let mut named = ports.filter(|port| port.name.as_deref() == Some(agent::PORT_NAME));
    named.find_map(|port| u16::try_from(port.container_port).ok())
}

fn container_status<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    container_statuses(pod).find(|status| status.name == container)
}

fn container_statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status.iter().flat_map(|status| {
        let all = [&status.init_container_statuses, &status.container_statuses];
        all.into_iter().flatten().flatten()
    })
}

/// The pod with the active slurmctld: as slurmctld itself reports, else the labelled one, else the first.
pub(crate) fn active_pod(controller: &Controller, pods: &[Arc<Pod>], report: &Report) -> Option<String> {
    let exists = |name: &String| pods.iter().any(|pod| pod.name_any() == *name);
    let first = Some(controller.child_names().pod(0)).filter(exists);
    if controller.spec.replicas() == 1 {
        return first;
    }
    let reported = report.active.clone().filter(exists);
    let labelled = pods.iter().find(|pod| is_labelled_active(pod));
    reported.or_else(|| Some(labelled?.name_any())).or(first)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, owner: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": {
            "namespace": "ns", "name": name, "uid": format!("uid-{name}"),
            "labels": { "app.kubernetes.io/name": "slurmctld", "app.kubernetes.io/instance": "slurm" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "slurm-controller",
                                  "uid": owner, "controller": true }],
        } })
    }

    fn found(set_owner: &str, pods: Vec<Value>) -> Vec<String> {
        let mut objects = vec![
            json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
                    "metadata": { "namespace": "ns", "name": "slurm", "uid": "c" }, "spec": {} }),
            json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {
                "namespace": "ns", "name": "slurm-controller", "uid": "set", "labels": { "app.kubernetes.io/name": "slurmctld" },
                "ownerReferences": [{ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "name": "slurm",
                                      "uid": set_owner, "controller": true }],
            } }),
        ];
        objects.extend(pods);
        let pods = slurmctld_pods(&Caches::of(objects), &Key::new("ns", "slurm"));
        pods.iter().map(|pod| pod.name_any()).collect()
    }

    #[test]
    fn a_pod_is_slurmctlds_by_its_owners_and_not_by_its_labels() {
        let pods = || vec![pod("slurm-controller-0", "set"), pod("slurm-controller-1", "other")];
        assert_eq!(found("c", pods()), ["slurm-controller-0"]);
        assert!(found("another Controller", pods()).is_empty());
        let mut orphan = pod("slurm-controller-0", "set");
        orphan["metadata"]["ownerReferences"] = json!([]);
        let forged = ["slurm-controller-x", "slurm-controller-01", "slurm-controller"].map(|name| pod(name, "set"));
        assert!(found("c", [vec![orphan], forged.to_vec()].concat()).is_empty());
    }
}
