//! Decides where the newest configuration goes: into the ConfigMaps, to the agent, or nowhere yet.

use std::sync::Arc;

use api::{controller::ConfigUpdate, keys::annotations};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use slurm::{Revision, revision::Digest};

use super::{
    Inputs,
    gather::Former,
    render::read_candidate,
    report::{rejected_before, says_applied},
};
use crate::{
    cluster::{
        Snapshot,
        deliver::{Goal, JwtKey, LiveRevision, Rejection, Sent, State, Wanted},
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

/// Returns the delivery of the newest revision. `highest` is the highest sequence that Kubernetes has recorded.
pub(super) fn deliver(
    inputs: &Inputs,
    deployment: &Deployment,
    newest: &Revision,
    highest: u64,
    jwt_key: Option<&JwtKey>,
) -> DeliveryChange {
    let (Some(target), Some(jwt_key)) = (&deployment.target, jwt_key) else {
        return DeliveryChange::Pause;
    };
    let sent_before = inputs.candidate.as_deref().and_then(read_candidate).unwrap_or(0);
    DeliveryChange::Deliver(Box::new(Wanted {
        goal: if deployment.restarts_instead() {
            Goal::Checked
        } else {
            Goal::Live
        },
        standbys: deployment.standbys.clone(),
        files: Arc::new(newest.files.clone()),
        closed_by_hand: Arc::new(newest.closed_by_hand.clone()),
        digest: deployment.wanted,
        controller: newest.controller.clone(),
        target: target.clone(),
        floor: highest.max(sent_before),
        rejected: rejected_before(inputs),
        jwt_key: jwt_key.clone(),
    }))
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
#[derive(Clone, Debug)]
pub(super) struct Deployment {
    /// The agent to push to: that of the active slurmctld.
    target: Option<Target>,
    /// The agents of the standbys.
    standbys: Vec<Target>,
    /// The live revision that its agent reported, if it was polled.
    live: Option<LiveRevision>,
    state: State,
    /// The revision that passed a dry run there.
    checked: Option<Digest>,
    method: Method,
    /// A container may have read a configuration.
    started: bool,
    wanted: Digest,
    accepted: Option<(u64, Digest)>,
    /// The Controller's status says that slurmctld runs with the accepted revision, and that is the wanted one.
    was_applied: bool,
    /// slurmctld's pod was created for the wanted configuration.
    restarted: bool,
    /// The sequence under which the wanted configuration was sent in a ConfigMap.
    sent: Option<u64>,
}

impl Deployment {
    pub(super) fn of(inputs: &Inputs, snapshot: &Snapshot, former: &Former, wanted: Digest, method: Method) -> Self {
        let ours: Vec<&Arc<Pod>> = inputs.pods.iter().filter(|pod| pods::has_agent(pod)).collect();
        let active = active_pod(&inputs.controller, &inputs.pods, &snapshot.report);
        let agents: Vec<(bool, Target)> = ours
            .iter()
            .filter_map(|pod| Some((active.as_ref() == Some(&pod.name_any()), pods::agent_of(pod)?)))
            .collect();
        // Of several slurmctlds, only the active one may get it first: a standby that accepts it proves nothing.
        let any = inputs.controller.spec.replicas() == 1 || active.is_none();
        let target = agents
            .iter()
            .find(|(active, _)| *active)
            .or(agents.first().filter(|_| any))
            .map(|(_, target)| target.clone());
        let standbys = agents
            .iter()
            .map(|(_, agent)| agent)
            .filter(|agent| Some(*agent) != target.as_ref());
        let report =
            Some(&snapshot.report).filter(|report| target.as_ref().is_some_and(|target| report.pod == target.uid));
        let restarted = ours.iter().any(|pod| {
            let noted = pod.annotations().get(annotations::SLURM_CONFIG_HASH);
            noted.is_some_and(|digest| *digest == wanted.to_string())
        });
        Self {
            method,
            live: report.and_then(|report| report.live),
            state: report.map(|report| report.state.clone()).unwrap_or_default(),
            started: inputs
                .pods
                .iter()
                .any(|pod| pods::has_agent(pod) && pods::has_started(pod)),
            checked: report.and_then(|report| report.checked),
            standbys: standbys.cloned().collect(),
            target,
            wanted,
            accepted: former
                .revision
                .as_ref()
                .map(|revision| revision.sequence)
                .zip(former.digest),
            sent: report
                .and_then(|report| report.sent.as_ref())
                .filter(|sent| sent.revision.digest == wanted)
                .map(|sent| sent.revision.sequence),
            was_applied: former.digest == Some(wanted) && says_applied(inputs, &wanted),
            restarted,
        }
    }

    /// The revision that is being sent in a ConfigMap, and its pod.
    pub(super) fn sent<'a>(&self, inputs: &'a Inputs, snapshot: &'a Snapshot) -> Option<(&'a Pod, &'a Sent)> {
        self.sent?;
        let sent = snapshot.report.sent.as_deref()?;
        let mut pods = inputs.pods.iter();
        let pod = pods.find(|pod| pod.metadata.uid.as_ref() == Some(&sent.pod))?;
        Some((pod, sent))
    }

    /// Whether the change waits for the restart it causes.
    fn restarts_instead(&self) -> bool {
        self.method != Method::InPlace && !self.restarted && self.live.is_none_or(|live| live.digest != self.wanted)
    }

    /// Whether that restart may happen now. An agent always runs, so there is always one to wait for.
    fn may_restart(&self) -> bool {
        self.restarts_instead() && self.checked == Some(self.wanted)
    }

    fn highest_sequence(&self) -> u64 {
        let live = self.live.map_or(0, |live| live.sequence);
        let accepted = self.accepted.map_or(0, |(sequence, _)| sequence);
        live.max(accepted)
    }

    /// Returns the revision to keep in the ConfigMaps, and the state of the newest one.
    pub(super) fn settle(
        &self,
        newest: Revision,
        former: Option<(Revision, Digest)>,
    ) -> (Option<(Revision, Digest)>, ConfigState) {
        let digest = self.wanted;
        let pod = || {
            self.target
                .as_ref()
                .map(|target| target.pod.clone())
                .unwrap_or_default()
        };
        if let Some(live) = self.live.filter(|live| live.digest == digest) {
            let sequence = live.sequence.max(
                self.accepted
                    .filter(|(_, accepted)| *accepted == digest)
                    .map_or(0, |(sequence, _)| sequence),
            );
            let newest = Revision { sequence, ..newest };
            return match &self.state {
                // A pod should not start with a revision that slurmctld has not started with, if there is another.
                State::Waiting { why } if self.method != Method::RestartUnsupervised => {
                    let why = why.clone();
                    (
                        former.or(Some((newest, digest))),
                        ConfigState::Waiting {
                            digest,
                            pod: pod(),
                            why,
                        },
                    )
                }
                _ => (
                    Some((newest, digest)),
                    ConfigState::Applied {
                        sequence,
                        digest,
                        pod: pod(),
                    },
                ),
            };
        }
        // No slurmctld has started, or the user requires a restart: written for the next pod.
        if !self.started || self.may_restart() {
            let sequence = match self.accepted {
                Some((sequence, accepted)) if accepted == digest => sequence,
                _ => self.highest_sequence() + 1,
            };
            let config = if self.started {
                ConfigState::Restarting { digest }
            } else {
                ConfigState::Written { sequence, digest }
            };
            return (Some((Revision { sequence, ..newest }, digest)), config);
        }
        let config = match (&self.target, &self.state) {
            (None, _) => ConfigState::Away {
                digest,
                why: "the container reconfigure does not run".to_owned(),
                sent: None,
            },
            (Some(_), State::Away { why }) => ConfigState::Away {
                digest,
                why: why.clone(),
                sent: self.sent,
            },
            (Some(_), State::Failed { why }) => ConfigState::Retrying {
                digest,
                pod: pod(),
                why: why.clone(),
            },
            (Some(_), State::Refused(rejection)) if rejection.digest == digest => ConfigState::Rejected {
                pod: pod(),
                rejection: rejection.clone(),
            },
            // A new leader has not polled yet; the status was written by the former one.
            (Some(_), State::Busy) if self.live.is_none() && self.was_applied => ConfigState::Applied {
                sequence: self.highest_sequence(),
                digest,
                pod: pod(),
            },
            (Some(_), _) => ConfigState::Pushing { digest, pod: pod() },
        };
        (former, config)
    }
}
