//! Decides where the newest configuration goes: into the ConfigMaps, to the agent, or nowhere yet.

use std::sync::Arc;

use api::{controller::ConfigUpdate, keys::annotations};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use slurm::{
    Revision,
    agent::AgentKey,
    revision::{Digest, next_sequence},
};

use super::{
    Facts,
    accepted::Standing,
    render::read_candidate,
    report::{rejected_before, says_applied},
};
use crate::{
    cluster::{
        deliver::{Goal, LiveRevision, Rejection, Report, Sent, State, Wanted},
        pods::{self, Target, active_pod},
    },
    parent::Parent,
};

/// The state of the newest configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ConfigState {
    /// It cannot be built.
    #[default]
    Unknown,
    /// The operator does not manage it.
    External,
    /// Written for the first pod to start with.
    Written { sequence: u64, digest: Digest },
    /// slurmctld runs with it.
    Applied { sequence: u64, digest: Digest, pod: String },
    /// Being sent to the agent of this pod.
    Pushing { digest: Digest, pod: String },
    /// In the pod, and slurmctld does not run.
    Waiting { digest: Digest, pod: String, why: String },
    /// The agent cannot be reached. `sent` is the sequence under which the revision was sent in a ConfigMap, if so.
    Away {
        digest: Digest,
        why: String,
        sent: Option<u64>,
    },
    /// The agent could not apply it; it is retried.
    Retrying { digest: Digest, pod: String, why: String },
    /// It was rejected.
    Rejected { pod: String, rejection: Rejection },
    /// It waits for a restart, as the user requires.
    Restarting { digest: Digest },
}

/// A change of the delivery to slurmctld's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DeliveryChange {
    /// The delivery continues unchanged.
    #[default]
    None,
    /// No pod can take the configuration.
    Pause,
    Deliver(Box<Wanted>),
}

/// An annotation that makes the kubelet refresh the pod's mounts, which it otherwise does about once a minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WakeKubelet {
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) sequence: u64,
}

impl WakeKubelet {
    /// Returns `None` if the pod has the annotation already.
    pub(super) fn of(pod: &Pod, sequence: u64) -> Option<Self> {
        let noted = pod.annotations().get(annotations::CANDIDATE);
        let differs = noted.is_none_or(|noted| *noted != sequence.to_string());
        differs.then(|| Self {
            pod: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            sequence,
        })
    }
}

/// How a change is applied to slurmctld.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    InPlace,
    Restart,
    /// Under the user's own command, the agent can neither reconfigure slurmctld nor check the result.
    RestartUnsupervised,
}

impl Method {
    pub(super) fn of(parent: &Parent) -> Self {
        if !parent.is_supervised() {
            Self::RestartUnsupervised
        } else if parent.controller.spec.config_update() == ConfigUpdate::Restart {
            Self::Restart
        } else {
            Self::InPlace
        }
    }

    pub(super) fn restarts(self) -> bool {
        self != Self::InPlace
    }
}

/// Which pod runs with which revision.
pub(super) struct Deployment<'a> {
    facts: &'a Facts<'a>,
    wanted: Digest,
    /// See [`Goal::Confirmed`].
    is_unconfirmed: bool,
    /// The agent to push to: that of the active slurmctld.
    target: Option<Target>,
    /// The agents of the standbys.
    standbys: Vec<Target>,
    /// The report about the target, if it was polled.
    report: Option<&'a Report>,
}

impl<'a> Deployment<'a> {
    pub(super) fn of(facts: &'a Facts<'a>, wanted: Digest, is_unconfirmed: bool) -> Self {
        let Facts { inputs, snapshot, .. } = facts;
        let active = active_pod(&inputs.controller, &inputs.pods, &snapshot.report);
        let mut agents: Vec<Target> = inputs.pods.iter().filter_map(|pod| pods::agent_of(pod)).collect();
        // Of several slurmctlds, only the active one may get it first: a standby that accepts it proves nothing.
        let any = inputs.controller.spec.replicas() == 1 || active.is_none();
        let position = agents.iter().position(|agent| active.as_ref() == Some(&agent.pod));
        let position = position.or_else(|| (any && !agents.is_empty()).then_some(0));
        let target = position.map(|position| agents.remove(position));
        let report = target.as_ref().map(|target| (&snapshot.report, &target.uid));
        Self {
            facts,
            wanted,
            is_unconfirmed,
            standbys: agents,
            report: report.and_then(|(report, uid)| (report.pod == *uid).then_some(report)),
            target,
        }
    }

    /// Returns the delivery of the newest revision. `highest` is the highest sequence that Kubernetes has recorded.
    /// `waits_for_states`: the manual states of the live revision are not known yet.
    pub(super) fn deliver(&self, newest: &Revision, highest: u64, waits_for_states: bool) -> DeliveryChange {
        let (Some(target), Some(jwt_key)) = (&self.target, self.facts.jwt_key) else {
            return DeliveryChange::Pause;
        };
        let inputs = self.facts.inputs;
        let key = AgentKey::derive(&jwt_key.0).ok();
        let candidate = inputs.candidate.as_deref().zip(key);
        let sent_before = candidate
            .and_then(|(sent, key)| read_candidate(sent, &key))
            .unwrap_or(0);
        DeliveryChange::Deliver(Box::new(Wanted {
            goal: if self.is_unconfirmed {
                Goal::Confirmed
            } else if self.restarts_instead() {
                Goal::Checked
            } else {
                Goal::Live
            },
            standbys: self.standbys.clone(),
            files: Arc::new(newest.files.clone()),
            closed_by_hand: Arc::new(newest.closed_by_hand.clone()),
            digest: self.wanted,
            controller: newest.controller.clone(),
            target: target.clone(),
            floor: highest.max(sent_before),
            known: self.known_live(waits_for_states).map_or(0, |live| live.sequence),
            rejected: rejected_before(inputs),
            jwt_key: jwt_key.clone(),
        }))
    }

    /// The newest live revision whose manual states are known.
    fn known_live(&self, waits_for_states: bool) -> Option<LiveRevision> {
        let live = self.facts.snapshot.report.live.filter(|_| !waits_for_states);
        let known = live.into_iter().chain(self.facts.former.summary());
        known.max_by_key(|live| live.sequence)
    }

    /// The wanted revision that is being sent in a ConfigMap, if so.
    fn sent(&self) -> Option<&'a Sent> {
        let sent = self.report?.sent.as_deref();
        sent.filter(|sent| sent.revision.digest == self.wanted)
    }

    /// The revision that is being sent in a ConfigMap, and its pod.
    pub(super) fn candidate(&self) -> Option<(&'a Pod, &'a Sent)> {
        let sent = self.sent()?;
        let mut pods = self.facts.inputs.pods.iter();
        let pod = pods.find(|pod| pod.metadata.uid.as_ref() == Some(&sent.pod))?;
        Some((pod, sent))
    }

    /// The live revision that the agent reported, if it was polled.
    fn live(&self) -> Option<LiveRevision> {
        self.report?.live
    }

    /// The pods that were created with an agent.
    fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.facts.inputs.pods.iter().filter(|pod| pods::has_agent(pod))
    }

    /// Whether the change waits for the restart it causes: slurmctld's pod was not created for the wanted configuration.
    fn restarts_instead(&self) -> bool {
        let is_restarted = |pod: &Arc<Pod>| {
            let noted = pod.annotations().get(annotations::SLURM_CONFIG_HASH);
            noted.is_some_and(|digest| *digest == self.wanted.to_string())
        };
        self.facts.method.restarts()
            && self.live().is_none_or(|live| live.digest != self.wanted)
            && !self.pods().any(is_restarted)
    }

    /// Whether that restart may happen now. An agent always runs, so there is always one to wait for.
    fn may_restart(&self) -> bool {
        let checked = self.report.and_then(|report| report.checked);
        self.restarts_instead() && checked == Some(self.wanted) && !self.is_unconfirmed
    }

    /// Returns the state of the newest revision, and the sequence under which it becomes the accepted one. `None` if the
    /// former one stays in the ConfigMaps.
    pub(super) fn settle(&self) -> (Option<u64>, ConfigState) {
        let digest = self.wanted;
        let pod = self
            .target
            .as_ref()
            .map(|target| target.pod.clone())
            .unwrap_or_default();
        let state = self.report.map_or(&State::Busy, |report| &report.state);
        let accepted = self.facts.former.summary();
        let recorded = accepted.filter(|accepted| accepted.digest == digest);
        let recorded = recorded.map(|accepted| accepted.sequence);
        if let Some(live) = self.live().filter(|live| live.digest == digest) {
            let sequence = live.sequence.max(recorded.unwrap_or(0));
            return match state {
                // A pod should not start with a revision that slurmctld has not started with, if there is another.
                State::Waiting { why } if self.facts.method != Method::RestartUnsupervised => {
                    let why = why.clone();
                    let first = accepted.is_none().then_some(sequence);
                    (first, ConfigState::Waiting { digest, pod, why })
                }
                _ => (Some(sequence), ConfigState::Applied { sequence, digest, pod }),
            };
        }
        // The bundle of an older operator is proven once the agent has been polled.
        let unproven = match self.facts.former.standing {
            Standing::Untrusted(claimed) if claimed.digest == digest => Some(claimed.sequence),
            _ => None,
        };
        let known = [self.live(), accepted].into_iter().flatten();
        let highest = known.map(|revision| revision.sequence).max().unwrap_or(0);
        // No slurmctld has started, or the user requires a restart: written for the next pod. Once slurmctld has run, the next
        // pod starts with the configuration that it ran with, and its agent checks a newer one.
        let is_started = self.pods().any(|pod| pods::has_started(pod));
        let has_run = self
            .facts
            .former
            .accepted
            .as_ref()
            .is_some_and(|accepted| accepted.served);
        let is_checked_later = has_run && recorded.is_none() && self.facts.method != Method::RestartUnsupervised;
        if !is_started && !is_checked_later || self.may_restart() {
            let sequence = match recorded.map_or_else(|| next_sequence(highest), Ok) {
                Ok(sequence) => sequence,
                Err(implausible) => {
                    let bundle = self.facts.parent.names.bundle_config_map();
                    let why = format!("{implausible}; delete ConfigMap {bundle:?}, which the operator creates again");
                    return (None, ConfigState::Retrying { digest, pod, why });
                }
            };
            let config = if is_started {
                ConfigState::Restarting { digest }
            } else {
                ConfigState::Written { sequence, digest }
            };
            return (Some(sequence), config);
        }
        let config = match state {
            _ if self.target.is_none() => ConfigState::Away {
                digest,
                why: "the container reconfigure does not run".to_owned(),
                sent: None,
            },
            State::Away { why } => ConfigState::Away {
                digest,
                why: why.clone(),
                sent: self.sent().map(|sent| sent.revision.sequence),
            },
            State::Failed { why } => {
                let why = why.clone();
                ConfigState::Retrying { digest, pod, why }
            }
            State::Refused(rejection) if rejection.digest == digest => {
                let rejection = rejection.clone();
                ConfigState::Rejected { pod, rejection }
            }
            // A new leader has not polled yet; the status was written by the former one.
            State::Busy
                if self.live().is_none()
                    && recorded.or(unproven).is_some()
                    && says_applied(self.facts.inputs, &digest) =>
            {
                let sequence = highest.max(unproven.unwrap_or(0));
                ConfigState::Applied { sequence, digest, pod }
            }
            _ => ConfigState::Pushing { digest, pod },
        };
        (None, config)
    }
}
