//! A worker pod, with the questions the plan asks of it.

use std::net::IpAddr;

use api::{
    keys::{annotations, labels},
    nodeset::ScalingMode,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::fate::Leaving;
use crate::nodeset::{DRAIN_REASON, DRAINED};

/// A worker pod.
#[derive(Clone, Copy, Debug)]
pub struct Worker<'a>(pub &'a Pod);

/// Where a pod is in its life. The order is that of the ranking for deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Also every phase that has no place of its own in the ranking.
    Pending,
    Unknown,
    Running,
}

impl<'a> Worker<'a> {
    pub fn name(self) -> &'a str {
        self.0.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn uid(self) -> &'a str {
        self.0.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The number at the end of its name, if what stands before it is the set's name.
    pub fn ordinal(self, nodeset: &str) -> Option<u32> {
        let (parent, number) = self.name().rsplit_once('-')?;
        let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        (parent == nodeset && digits).then(|| number.parse().ok()).flatten()
    }

    /// Slurm's name for it. `None` as long as its Kubernetes node, which names it, is not chosen.
    pub fn slurm_name(self) -> Option<&'a str> {
        let Some(spec) = &self.0.spec else {
            return Some(self.name());
        };
        if spec.host_network == Some(true) {
            return spec.node_name.as_deref().filter(|name| !name.is_empty());
        }
        Some(
            spec.hostname
                .as_deref()
                .filter(|name| !name.is_empty())
                .unwrap_or(self.name()),
        )
    }

    /// Whether its name in Slurm is the name of a machine, which the machine itself may spell otherwise.
    pub fn is_named_by_machine(self) -> bool {
        self.0.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true))
    }

    /// Whether its processes are the machine's, so that jobs may outlive its containers.
    pub fn shares_machines_processes(self) -> bool {
        self.0.spec.as_ref().is_some_and(|spec| spec.host_pid == Some(true))
    }

    /// The scaling mode it was made in. A pod without the label is from before it was chosen.
    pub fn mode(self) -> ScalingMode {
        self.label(labels::SCALING_MODE)
            .map_or_else(ScalingMode::default, |mode| mode.to_owned().into())
    }

    pub fn revision(self) -> Option<&'a str> {
        self.label(labels::REVISION)
    }

    pub fn kubernetes_node(self) -> Option<&'a str> {
        self.0
            .spec
            .as_ref()?
            .node_name
            .as_deref()
            .filter(|name| !name.is_empty())
    }

    /// Its address, if this one is not among those it has. A name is not compared: Slurm looks it up by itself.
    pub fn address_instead_of(self, other: &str) -> Option<&'a str> {
        other.parse::<IpAddr>().ok()?;
        let own = self.0.status.as_ref()?.pod_ip.as_deref()?;
        (!self.has_address(other)).then_some(own)
    }

    /// Whether this is one of its addresses.
    pub fn has_address(self, other: &str) -> bool {
        self.0.status.as_ref().is_some_and(|status| {
            let mut all = status.pod_ips.iter().flatten().map(|address| address.ip.as_str());
            status.pod_ip.as_deref() == Some(other) || all.any(|address| address == other)
        })
    }

    /// Somebody has deleted it, and it is on its way out.
    pub fn is_terminating(self) -> bool {
        self.0.metadata.deletion_timestamp.is_some()
    }

    /// All its containers have ended for good, by the kubelet's word: no job can be in it.
    pub fn is_finished(self) -> bool {
        matches!(self.phase_text(), "Failed" | "Succeeded")
    }

    /// None of its containers runs any more. Unless it is on its way out, they may be started again.
    pub fn has_ended(self) -> bool {
        let status = self.0.status.as_ref();
        let mut containers = status
            .and_then(|status| status.container_statuses.as_ref())
            .into_iter()
            .flatten()
            .peekable();
        containers.peek().is_some()
            && containers.all(|container| container.state.as_ref().is_some_and(|state| state.terminated.is_some()))
    }

    /// Neither finished nor on its way out.
    pub fn is_active(self) -> bool {
        !self.is_terminating() && !self.is_finished()
    }

    /// Kubernetes has seen it at all.
    pub fn has_phase(self) -> bool {
        !self.phase_text().is_empty()
    }

    pub fn phase(self) -> Phase {
        match self.phase_text() {
            "Running" => Phase::Running,
            "Unknown" => Phase::Unknown,
            _ => Phase::Pending,
        }
    }

    /// Whether a container of it can ever have run.
    pub fn may_have_started(self) -> bool {
        let status = self.0.status.as_ref();
        self.phase() != Phase::Pending
            || status.is_some_and(|status| {
                let containers = status.container_statuses.iter().flatten();
                let mut statuses = containers.chain(status.init_container_statuses.iter().flatten());
                statuses.any(|container| {
                    container.restart_count > 0
                        || container
                            .state
                            .as_ref()
                            .is_some_and(|state| state.running.is_some() || state.terminated.is_some())
                })
            })
    }

    /// Since when it has been ready.
    pub fn ready_since(self) -> Option<Timestamp> {
        let conditions = self.0.status.as_ref()?.conditions.as_ref()?;
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
        (ready.status == "True").then(|| {
            ready
                .last_transition_time
                .as_ref()
                .map_or(Timestamp::MIN, |time| time.0)
        })
    }

    /// Ready, and that for as long as the set asks for.
    pub fn is_available(self, min_ready: SignedDuration, now: Timestamp) -> bool {
        let since = self.ready_since().filter(|_| self.is_ready());
        since.is_some_and(|since| since.checked_add(min_ready).unwrap_or(Timestamp::MAX) <= now)
    }

    pub fn is_ready(self) -> bool {
        self.phase() == Phase::Running && self.ready_since().is_some()
    }

    pub fn created(self) -> Option<Timestamp> {
        self.0.metadata.creation_timestamp.as_ref().map(|time| time.0)
    }

    /// What deleting it costs, by its annotation; one that is no plain number counts as 0, as upstream has it.
    pub fn deletion_cost(self) -> i32 {
        let cost = self.annotation(annotations::POD_DELETION_COST).unwrap_or_default();
        let digits = cost.strip_prefix('-').unwrap_or(cost);
        let plain = digits == "0" || !digits.starts_with(['0', '+']);
        if plain { cost.parse().unwrap_or(0) } else { 0 }
    }

    /// When the last of its jobs must have ended.
    pub fn deadline(self) -> Option<Timestamp> {
        self.annotation(annotations::POD_DEADLINE)?.parse().ok()
    }

    pub fn is_cordoned(self) -> bool {
        [annotations::POD_CORDON, annotations::POD_CORDON_OLD]
            .iter()
            .any(|key| {
                let value = self.annotation(key).unwrap_or_default();
                matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True")
            })
    }

    /// Why it goes, and since when, if it was chosen to go.
    pub fn leaving(self) -> Option<Leaving> {
        self.annotation(annotations::LEAVING)?.parse().ok()
    }

    /// It carries the mark of one that goes, though nobody may be able to read it.
    pub fn is_marked(self) -> bool {
        self.annotation(annotations::LEAVING).is_some()
    }

    /// The reason we gave, or are about to give, when we drain its Slurm node.
    pub fn drain_reason(self) -> Option<&'a str> {
        self.annotation(DRAIN_REASON)
    }

    /// Since when a drain of ours has been in force.
    pub fn drained_since(self) -> Option<Timestamp> {
        self.annotation(DRAINED)?.parse().ok()
    }

    pub fn label(self, key: &str) -> Option<&'a str> {
        self.0.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    pub fn annotation(self, key: &str) -> Option<&'a str> {
        self.0.annotations().get(key).map(String::as_str)
    }

    fn phase_text(self) -> &'a str {
        self.0
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            .unwrap_or_default()
    }
}
