//! A worker pod: typed access to what its name, labels, annotations, spec and status say. Knows neither NodeSets nor Slurm's state.

use std::{fmt, net::IpAddr};

use api::{
    keys::{annotations, labels},
    nodeset::ScalingMode,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerState, Pod, PodSpec, PodStatus};
use kube::ResourceExt;

/// Annotation of a worker whose Slurm node the operator has drained: since when the drain has been in force. If the node is no longer
/// drained, an administrator resumed it.
pub const DRAINED: &str = "nodeset.slinky.slurm.net/drained";
/// When the operator saw that an administrator had resumed the node since.
pub const RESUMED: &str = "nodeset.slinky.slurm.net/resumed";
/// Annotation of a worker whose Slurm node the operator drains: the reason it gives. It is written before the order is sent, and tells
/// the operator's drain from one that an administrator made with other words.
pub const DRAIN_REASON: &str = "nodeset.slinky.slurm.net/drain-reason";

/// The conditions of its Kubernetes node, as `Type=Status` with commas between them, for which the operator does not drain the node
/// again, because an administrator resumed it while they lasted.
pub const RESUMED_CONDITIONS: &str = "nodeset.slinky.slurm.net/resumed-conditions";

/// A worker pod.
#[derive(Clone, Copy, Debug)]
pub struct Worker<'a>(pub &'a Pod);

/// Name and UID of an object, so that another object of the same name is not meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId {
    pub name: String,
    pub uid: String,
}

/// The phase of a pod, in the order of the ranking for deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Also every phase that the ranking does not name.
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

    pub fn id(self) -> ObjectId {
        ObjectId {
            name: self.name().to_owned(),
            uid: self.uid().to_owned(),
        }
    }

    /// Returns the number at the end of its name, if the rest is the NodeSet's name.
    pub fn ordinal(self, nodeset: &str) -> Option<u32> {
        let (parent, number) = self.name().rsplit_once('-')?;
        let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        (parent == nodeset && digits).then(|| number.parse().ok()).flatten()
    }

    /// Returns its node name in Slurm. `None` while a pod that is named after its Kubernetes node is unscheduled.
    pub fn slurm_name(self) -> Option<&'a str> {
        if self.is_named_by_machine() {
            return self.kubernetes_node();
        }
        let hostname = self.spec().and_then(|spec| spec.hostname.as_deref());
        Some(hostname.filter(|name| !name.is_empty()).unwrap_or(self.name()))
    }

    /// Whether slurmd registers under the host name of its machine, which may differ from the name of the Kubernetes node.
    pub fn is_named_by_machine(self) -> bool {
        self.spec().is_some_and(|spec| spec.host_network == Some(true))
    }

    /// Whether it uses the PID namespace of its machine, so that jobs may outlive its containers.
    pub fn shares_machines_processes(self) -> bool {
        self.spec().is_some_and(|spec| spec.host_pid == Some(true))
    }

    /// Returns the scaling mode it was created in; pods without the label predate the choice of a mode.
    pub fn mode(self) -> ScalingMode {
        self.label(labels::SCALING_MODE)
            .map_or_else(ScalingMode::default, |mode| mode.to_owned().into())
    }

    pub fn revision(self) -> Option<&'a str> {
        self.label(labels::REVISION)
    }

    pub fn kubernetes_node(self) -> Option<&'a str> {
        let name = self.spec()?.node_name.as_deref()?;
        Some(name).filter(|name| !name.is_empty())
    }

    /// Returns the suffix of the names of its claims.
    pub fn claim_suffix(self) -> Option<&'a str> {
        self.label(labels::POD_INDEX)
            .or_else(|| self.label(labels::POD_HOSTNAME))
    }

    /// Returns its address, if `other` is an address that it does not have. Host names are not compared: Slurm resolves them itself.
    pub fn address_instead_of(self, other: &str) -> Option<&'a str> {
        other.parse::<IpAddr>().ok()?;
        let own = self.status()?.pod_ip.as_deref()?;
        (!self.has_address(other)).then_some(own)
    }

    pub fn has_address(self, other: &str) -> bool {
        self.addresses().any(|own| own == other)
    }

    pub fn addresses(self) -> impl Iterator<Item = &'a str> {
        self.status().into_iter().flat_map(|status| {
            let more = status.pod_ips.iter().flatten().map(|address| address.ip.as_str());
            status.pod_ip.as_deref().into_iter().chain(more)
        })
    }

    pub fn is_terminating(self) -> bool {
        self.0.metadata.deletion_timestamp.is_some()
    }

    /// Whether the kubelet reports that all its containers have ended for good, so that it runs no job.
    pub fn is_finished(self) -> bool {
        matches!(self.phase_text(), "Failed" | "Succeeded")
    }

    /// Whether none of its containers runs. The kubelet may restart them unless the pod is terminating.
    pub fn has_ended(self) -> bool {
        let containers = self.status().and_then(|status| status.container_statuses.as_deref());
        let has_ended = |state: &ContainerState| state.terminated.is_some();
        let containers = containers.unwrap_or_default();
        !containers.is_empty() && containers.iter().all(|it| it.state.as_ref().is_some_and(has_ended))
    }

    /// Whether it is neither finished nor terminating.
    pub fn is_active(self) -> bool {
        !self.is_terminating() && !self.is_finished()
    }

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

    /// Whether one of its containers may have run.
    pub fn may_have_started(self) -> bool {
        let lists = self.status().into_iter();
        let lists = lists.flat_map(|status| [&status.container_statuses, &status.init_container_statuses]);
        let has_started = |state: &ContainerState| state.running.is_some() || state.terminated.is_some();
        let mut containers = lists.flatten().flatten();
        self.phase() != Phase::Pending
            || containers.any(|it| it.restart_count > 0 || it.state.as_ref().is_some_and(has_started))
    }

    /// Returns when the last of its running containers started.
    pub fn last_start(self) -> Option<Timestamp> {
        let containers = self.status()?.container_statuses.as_deref()?.iter();
        let starts = containers.filter_map(|it| it.state.as_ref()?.running.as_ref()?.started_at.as_ref());
        starts.map(|time| time.0).max()
    }

    /// Returns when its start last went on: it was scheduled, it became ready, or a container started. `None` while it is
    /// unscheduled, so that no kubelet starts it.
    pub fn last_progress(self) -> Option<Timestamp> {
        self.kubernetes_node()?;
        let conditions = self.status().and_then(|status| status.conditions.as_deref());
        let changes = conditions.unwrap_or_default().iter();
        let changes = changes.filter_map(|it| Some(it.last_transition_time.as_ref()?.0));
        changes.chain(self.last_start()).chain(self.created()).max()
    }

    pub fn ready_since(self) -> Option<Timestamp> {
        let conditions = self.status()?.conditions.as_ref()?;
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
        let since = ready.last_transition_time.as_ref();
        (ready.status == "True").then(|| since.map_or(Timestamp::MIN, |time| time.0))
    }

    /// Whether it has been ready for `min_ready`.
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

    /// Returns the deletion cost from its annotation. Anything but a plain number counts as 0, as in upstream.
    pub fn deletion_cost(self) -> i32 {
        let cost = self.annotation(annotations::POD_DELETION_COST).unwrap_or_default();
        let digits = cost.strip_prefix('-').unwrap_or(cost);
        let plain = digits == "0" || !digits.starts_with(['0', '+']);
        if plain { cost.parse().unwrap_or(0) } else { 0 }
    }

    /// Returns when the time limit of its last job ends.
    pub fn deadline(self) -> Option<Timestamp> {
        self.annotation(annotations::POD_DEADLINE)?.parse().ok()
    }

    pub fn is_cordoned(self) -> bool {
        let mut keys = [annotations::POD_CORDON, annotations::POD_CORDON_OLD].into_iter();
        keys.any(|key| matches!(self.annotation(key), Some("1" | "t" | "T" | "true" | "TRUE" | "True")))
    }

    /// Returns why and since when it is leaving, if it was chosen to leave.
    pub fn leaving(self) -> Option<Leaving> {
        Leaving::parse(self.annotation(annotations::LEAVING)?)
    }

    /// Whether it has the annotation of a leaving worker, readable or not.
    pub fn is_marked(self) -> bool {
        self.annotation(annotations::LEAVING).is_some()
    }

    /// Returns the reason with which the operator drains its Slurm node.
    pub fn drain_reason(self) -> Option<&'a str> {
        self.annotation(DRAIN_REASON)
    }

    /// Returns since when the operator's drain has been in force.
    pub fn drained_since(self) -> Option<Timestamp> {
        self.annotation(DRAINED)?.parse().ok()
    }

    /// Returns when the operator saw that an administrator had reverted its drain.
    pub fn resumed_at(self) -> Option<Timestamp> {
        self.annotation(RESUMED)?.parse().ok()
    }

    /// Returns the conditions that do not drain its node, because an administrator resumed it.
    pub fn resumed_conditions(self) -> Vec<&'a str> {
        let list = self.annotation(RESUMED_CONDITIONS).unwrap_or_default();
        list.split(',').filter(|name| !name.is_empty()).collect()
    }

    pub fn label(self, key: &str) -> Option<&'a str> {
        self.0.labels().get(key).map(String::as_str)
    }

    pub fn annotation(self, key: &str) -> Option<&'a str> {
        self.0.annotations().get(key).map(String::as_str)
    }

    fn spec(self) -> Option<&'a PodSpec> {
        self.0.spec.as_ref()
    }

    fn status(self) -> Option<&'a PodStatus> {
        self.0.status.as_ref()
    }

    fn phase_text(self) -> &'a str {
        let phase = self.status().and_then(|status| status.phase.as_deref());
        phase.unwrap_or_default()
    }
}

/// Why a worker is leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The NodeSet has more workers than desired.
    ScaleIn,
    /// It was created in the other scaling mode.
    OtherMode,
    /// Its Kubernetes node does not match the NodeSet.
    Unfit,
    /// It is of an older revision.
    Update,
    /// Its NodeSet is deleted.
    Deletion,
    /// Slurm's power saving has stopped its node.
    PowerDown,
}

impl Cause {
    const ALL: [Self; 6] = [
        Self::ScaleIn,
        Self::OtherMode,
        Self::Unfit,
        Self::Update,
        Self::Deletion,
        Self::PowerDown,
    ];

    /// Returns the text in the annotation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ScaleIn => "scale-in",
            Self::OtherMode => "other-mode",
            Self::Unfit => "unfit",
            Self::Update => "update",
            Self::Deletion => "deletion",
            Self::PowerDown => "power-down",
        }
    }

    /// Returns the text in drain reasons and messages.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::ScaleIn => "scale-in",
            Self::OtherMode => "another scaling mode",
            Self::Unfit => "its Kubernetes node, where it should not be",
            Self::Update => "an update",
            Self::Deletion => "deletion of its NodeSet",
            Self::PowerDown => "power saving",
        }
    }
}

/// The annotation of a leaving worker. It is written before anything else happens, so that the next leader continues with the same
/// worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    pub cause: Cause,
    pub since: Timestamp,
}

impl fmt::Display for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:.0}", self.cause.as_str(), self.since)
    }
}

impl Leaving {
    fn parse(text: &str) -> Option<Self> {
        let (cause, since) = text.split_once(' ')?;
        let cause = Cause::ALL.into_iter().find(|known| known.as_str() == cause)?;
        let since = since.parse().ok()?;
        Some(Self { cause, since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_parses_what_it_displays() {
        for cause in Cause::ALL {
            let leaving = Leaving {
                cause,
                since: "2026-01-01T00:00:00Z".parse().unwrap(),
            };
            assert_eq!(Leaving::parse(&leaving.to_string()), Some(leaving));
        }
        for text in [
            "",
            "update",
            "update ",
            "update yesterday",
            "lunch 2026-01-01T00:00:00Z",
        ] {
            assert_eq!(Leaving::parse(text), None, "{text:?}");
        }
    }
}
