//! Where the newest configuration goes: into the ConfigMaps, to the agent, or nowhere yet.

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

/// Where the newest configuration is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ConfigState {
    /// It cannot be made.
    #[default]
    Unknown,
    /// Somebody else's.
    External,
    /// Written for the first pod to start from.
    Written { sequence: u64, digest: Digest },
    /// slurmctld runs with it.
    Applied { sequence: u64, digest: Digest, pod: String },
    /// On its way to the agent of this pod.
    Pushing { digest: Digest, pod: String },
    /// In the pod, and slurmctld does not run.
    Waiting { digest: Digest, pod: String, why: String },
    /// The agent cannot be reached. The number under which it was sent by a ConfigMap, if it was.
    Away {
        digest: Digest,
        why: String,
        sent: Option<u64>,
    },
    /// The agent could not carry it out, and is asked again.
    Retrying { digest: Digest, pod: String, why: String },
    /// It was refused.
    Rejected { pod: String, rejection: Rejection },
    /// Waits for a restart, as the user wants it.
    Restarting { digest: Digest },
}

/// What becomes of the delivery to slurmctld's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DeliveryChange {
    /// It goes on as it is.
    #[default]
    None,
    /// No pod can take the configuration.
    Pause,
    Deliver(Box<Wanted>),
}

/// The delivery of the newest revision. `highest` is the highest sequence that Kubernetes has recorded.
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

/// An annotation on the pod that makes its kubelet refresh the pod's mounts, which it otherwise does about once a minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WakeKubelet {
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) sequence: u64,
}

impl WakeKubelet {
    /// `None` if the pod has the annotation already.
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

/// How a change reaches slurmctld.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    InPlace,
    Restart,
    /// Under a command of the user's own, the agent can neither make slurmctld read its files again nor see whether it did.
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
    /// Those of the others.
    standbys: Vec<Target>,
    /// What its agent said is live, if it was asked.
    live: Option<LiveRevision>,
    state: State,
    /// What a dry run there found good.
    checked: Option<Digest>,
    method: Method,
    /// Something in a pod may have read a configuration.
    started: bool,
    wanted: Digest,
    accepted: Option<(u64, Digest)>,
    /// The Controller's status says that slurmctld runs with the accepted revision, and that is the wanted one.
    was_applied: bool,
    /// slurmctld's pod was made for the wanted configuration.
    restarted: bool,
    /// The wanted configuration was sent by a ConfigMap, under this number.
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
        // Of several only the active one may have it first: what a standby takes is no proof of anything.
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

    /// What is on its way by a ConfigMap, and the pod it is for.
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

    /// Whether that restart may come now. An agent runs whatever the files say, so there is always one to wait for.
    fn may_restart(&self) -> bool {
        self.restarts_instead() && self.checked == Some(self.wanted)
    }

    fn highest_sequence(&self) -> u64 {
        let live = self.live.map_or(0, |live| live.sequence);
        let accepted = self.accepted.map_or(0, |(sequence, _)| sequence);
        live.max(accepted)
    }

    /// The revision to keep in the ConfigMaps, and where the newest one is.
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
                // What slurmctld has not started with yet is not what a pod should start from, if there is anything else.
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
        // Nobody can be harmed, or a restart is what the user wants: written for the pod that starts next.
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
            // A new leader has not asked yet; what the object says was found out by the one before.
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
