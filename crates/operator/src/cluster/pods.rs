//! Reads facts from slurmctld's pods. Pure.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use api::{
    Controller,
    keys::{ON, apps, labels},
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
    template::metadata::selector_labels,
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

/// Returns the pods of slurmctld, those that are being deleted included.
pub(super) fn slurmctld_pods(caches: &Caches, Key { namespace, name }: &Key) -> Vec<Arc<Pod>> {
    let labels = selector_labels(apps::SLURMCTLD, name);
    let mut pods = caches.pods.list(namespace);
    pods.retain(|pod| labels.iter().all(|(key, value)| pod.labels().get(key) == Some(value)));
    pods
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

/// Why a container does not run, as the kubelet reports it.
pub(crate) fn trouble(pod: &Pod) -> Option<String> {
    container_statuses(pod).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let is_trouble = |reason: &&str| !matches!(*reason, "PodInitializing" | "ContainerCreating");
        let why = waiting.reason.as_deref().filter(is_trouble)?;
        let message = waiting.message.as_deref().unwrap_or_default();
        let (container, pod) = (&container.name, pod.name_any());
        let trouble = format!("container {container} of pod {pod}: {why} {message}");
        Some(trouble.trim_end().to_owned())
    })
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
