//! Reads facts from slurmctld's pods. Pure.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use api::{
    Controller,
    keys::{ON, labels},
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;
use slurm::agent;

use super::deliver::Report;
use crate::layout::{CANDIDATE_VOLUME, name};

/// An agent that can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) address: SocketAddr,
    /// The pod mounts a ConfigMap by which the agent can also receive a revision.
    pub(crate) takes_candidates: bool,
}

/// Whether the pod was created with an agent in it. Pods of another operator were not.
pub(crate) fn has_agent(pod: &Pod) -> bool {
    agent_port(pod).is_some()
}

/// Returns the pod's agent, if it runs.
pub(crate) fn agent_of(pod: &Pod) -> Option<Target> {
    if pod.metadata.deletion_timestamp.is_some() || !is_running(container_status(pod, name::RECONFIGURE)?) {
        return None;
    }
    let ip: IpAddr = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
    Some(Target {
        pod: pod.name_any(),
        uid: pod.uid()?,
        address: SocketAddr::new(ip, agent_port(pod)?),
        takes_candidates: pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten())
            .any(|volume| volume.name == CANDIDATE_VOLUME),
    })
}

/// The address slurmctld listens on, once the pod has one.
pub(crate) fn slurmctld_address(pod: &Pod) -> Option<SocketAddr> {
    let ip: IpAddr = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
    Some(SocketAddr::new(ip, api::wellknown::SLURMCTLD_PORT))
}

/// Whether any container of the pod may have read the configuration.
pub(crate) fn has_started(pod: &Pod) -> bool {
    let begun = |status: &ContainerStatus| {
        let state = status.state.as_ref();
        let ended =
            |state: &k8s_openapi::api::core::v1::ContainerState| state.running.is_some() || state.terminated.is_some();
        status.restart_count > 0 || state.is_some_and(ended)
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
    pod.labels()
        .get(labels::CONTROLLER_ACTIVE)
        .is_some_and(|value| value == ON)
}

/// Why a container does not run, as the kubelet reports it.
pub(crate) fn trouble(pod: &Pod) -> Option<String> {
    container_statuses(pod).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let why = waiting
            .reason
            .as_deref()
            .filter(|reason| !matches!(*reason, "PodInitializing" | "ContainerCreating"))?;
        let message = waiting.message.as_deref().unwrap_or_default();
        Some(
            format!(
                "container {} of pod {}: {why} {message}",
                container.name,
                pod.name_any()
            )
            .trim_end()
            .to_owned(),
        )
    })
}

pub(super) fn agent_port(pod: &Pod) -> Option<u16> {
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
    let status = pod.status.iter();
    status.flat_map(|status| {
        [&status.init_container_statuses, &status.container_statuses]
            .into_iter()
            .flatten()
            .flatten()
    })
}

fn is_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

/// The pod with the active slurmctld: as slurmctld itself reports, else the labelled one, else the first.
pub(crate) fn active_pod(controller: &Controller, pods: &[Arc<Pod>], report: &Report) -> Option<String> {
    let exists = |name: &String| pods.iter().any(|pod| pod.name_any() == *name);
    let first = Some(controller.child_names().pod(0)).filter(exists);
    if controller.spec.replicas() == 1 {
        return first;
    }
    let reported = report.active.clone().filter(exists);
    let labelled = || {
        pods.iter()
            .find(|pod| is_labelled_active(pod))
            .map(|pod| pod.name_any())
    };
    reported.or_else(labelled).or(first)
}
