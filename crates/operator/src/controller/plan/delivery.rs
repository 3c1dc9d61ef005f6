//! Where the newest configuration goes: into the ConfigMaps, to the agent, or nowhere yet.

use std::sync::Arc;

use api::{controller::ConfigUpdate, keys::annotations, wellknown::SLURM_CONF_FILE};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use slurm::{
    Revision,
    conf::Document,
    revision::{ControllerUid, Digest},
};

use super::{Effect, Plan, active_pod, devices::undeclared_devices, keys::Keys};
use crate::controller::{
    build::{
        Parent,
        config::{
            Files, build_bundle, build_candidate, build_config_map, build_files, read_bundle, read_candidate,
            read_inputs,
        },
        containers::is_supervised,
    },
    configuration,
    fault::{Blocks, Fault, is_blocked},
    inputs::{Concerns, Inputs, gather},
    kept::find_kept,
    observe::Observed,
    partitions::{find_adopted, gather_partitions, has_leaving, is_waiting_for_nodes, standings},
    pods::{self, Target},
    push, reason,
    retained::find_retained,
    revise::{Accepted, Before, Held, Revised, Surroundings, hold_unreadable, max_node_count, revise},
    status,
    tries::Tried,
};

/// Where the newest configuration is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::controller) enum ConfigState {
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
    Rejected { pod: String, rejection: push::Rejection },
    /// Waits for a restart, as the user wants it.
    Restarting { digest: Digest },
}

/// Decides what the newest configuration is and where it goes. The result is its digest if a change of it is to restart
/// slurmctld.
pub(super) fn plan_config(
    observed: &Observed,
    parent: &Parent,
    keys: Option<&Keys>,
    plan: &mut Plan,
    faults: &mut Vec<Fault>,
) -> Option<Digest> {
    let uid = ControllerUid::new(parent.controller.metadata.uid.clone().unwrap_or_default()).ok()?;
    let former = Former::of(observed, &uid);
    let way = Way::of(parent);
    let restarts = way != Way::InPlace;
    let nothing = Inputs::default();
    let before = former.accepted.as_ref().map_or(&nothing, |accepted| &accepted.inputs);
    let (mut wanted, troubles, input_faults) = gather(observed, before);
    faults.extend(input_faults);
    let room = max_node_count(&observed.node_sets, former.revision.as_ref());
    let render = |inputs: &Inputs| document(&build_files(parent, inputs, room).files);
    let accepted = former.revision.as_ref();
    let refused = add_partitions(observed, before, accepted, way, &mut wanted, plan, render);
    faults.extend(refused.iter().map(Held::fault));
    let mut blocks = Blocks::Configuration;
    if let Some(accepted) = &former.accepted {
        // What was accepted has a last good version of everything.
        plan.held = hold_unreadable(&mut wanted, &accepted.inputs, &troubles);
        blocks = Blocks::Input;
    }
    plan.held.extend(refused);
    // A cluster that has not started yet can start without a partition.
    let is_new = matches!(former.before(observed), Before::Nothing);
    faults.extend(troubles.into_iter().map(|trouble| Fault {
        blocks: match trouble.concerns {
            Concerns::Partition(_) if is_new => Blocks::Input,
            _ => blocks,
        },
        ..trouble.fault
    }));
    let revised = if is_blocked(faults, Blocks::Configuration) {
        None
    } else {
        let surroundings = Surroundings {
            parent,
            before: former.before(observed),
            knowledge: &observed.knowledge,
            refusals: &observed.report.refusals,
            in_use: &observed.report.in_use,
            max_node_count: room,
        };
        revise(&surroundings, &wanted).map_err(|fault| faults.push(fault)).ok()
    };
    let Some(revised) = revised else {
        // What was accepted stays, and is put back if somebody changes it.
        let digest = former.revision.as_ref().map(Revision::digest);
        if let Some(revision) = &former.revision {
            write(parent, revision, former.accepted.as_ref(), plan, faults);
        }
        plan.standings = standings(observed, Some(before), &plan.held, &plan.config);
        return digest.filter(|_| restarts);
    };
    let Revised {
        inputs,
        files,
        held,
        warnings,
        needs_answers,
    } = revised;
    faults.extend(held.iter().map(Held::fault));
    plan.held.extend(held);
    plan.doubts = warnings;
    plan.doubts.extend(undeclared_devices(observed, &files));
    plan.needs_answers |= needs_answers;
    let newest = Revision {
        sequence: 0,
        controller: uid.clone(),
        files,
        closed_by_hand: inputs.kept.keys().cloned().collect(),
    };
    if former.revision.as_ref().map(Revision::digest) != Some(newest.digest()) {
        plan.tried = Some(Tried {
            revision: newest.clone(),
            inputs: inputs.clone(),
        });
    }
    let situation = Situation::of(observed, former.revision.as_ref(), &newest, way);
    let (accepted, config) = situation.settle(newest.clone(), former.revision);
    let served = former.accepted.as_ref().is_some_and(|accepted| accepted.served);
    let record = match &accepted {
        Some(accepted) if accepted.digest() == newest.digest() => Some(Accepted {
            inputs,
            served: served || matches!(config, ConfigState::Applied { .. }),
        }),
        _ => former.accepted,
    };
    let retained = record.iter().flat_map(|record| record.inputs.retained.keys());
    plan.retained = retained.cloned().collect();
    plan.standings = standings(
        observed,
        record.as_ref().map(|record| &record.inputs),
        &plan.held,
        &config,
    );
    plan.config = config;
    if let Some(accepted) = &accepted {
        write(parent, accepted, record.as_ref(), plan, faults);
    }
    let highest = accepted.as_ref().map_or(0, |accepted| accepted.sequence);
    deliver(observed, parent, keys, &situation, &newest, highest, plan);
    // What has not been tried restarts nobody yet.
    restarts.then(|| accepted.map_or_else(|| newest.digest(), |accepted| accepted.digest()))
}

/// Has it pushed, and sent by a ConfigMap where that does not do.
fn deliver(
    observed: &Observed,
    parent: &Parent,
    keys: Option<&Keys>,
    situation: &Situation,
    newest: &Revision,
    highest: u64,
    plan: &mut Plan,
) {
    if let Some((pod, sent)) = situation.sent(observed) {
        plan.config_maps.push(build_candidate(parent, &sent.candidate));
        plan.effects.extend(wake_kubelet(pod, sent.revision.sequence));
    }
    let sent_before = observed.candidate.as_deref().and_then(read_candidate).unwrap_or(0);
    match (&situation.target, keys) {
        (Some(target), Some(keys)) => {
            plan.effects.push(Effect::PushConfig(Box::new(push::Wanted {
                goal: if situation.restarts_instead() {
                    push::Goal::Checked
                } else {
                    push::Goal::Live
                },
                standbys: situation.standbys.clone(),
                files: Arc::new(newest.files.clone()),
                closed_by_hand: Arc::new(newest.closed_by_hand.clone()),
                digest: newest.digest(),
                controller: newest.controller.clone(),
                target: target.clone(),
                floor: highest.max(sent_before),
                rejected: configuration::rejected_before(observed),
                jwt_key: push::JwtKey(keys.jwt_bytes.clone()),
            })));
        }
        _ => plan.effects.push(Effect::StopPushing),
    }
}

/// Adds what Partitions bring and what people did in Slurm to what is wanted. The result is the Partitions that stay as they were.
fn add_partitions(
    observed: &Observed,
    before: &Inputs,
    accepted: Option<&Revision>,
    way: Way,
    wanted: &mut Inputs,
    plan: &mut Plan,
    render: impl FnOnce(&Inputs) -> Document,
) -> Vec<Held> {
    let fresh = accepted.and_then(|revision| observed.fresh(revision.digest()));
    plan.needs_answers = has_leaving(observed, before);
    let refused = gather_partitions(observed, wanted, before, fresh.is_some());
    plan.needs_answers |= is_waiting_for_nodes(&refused);
    wanted.adopted = find_adopted(observed, &before.adopted, wanted, fresh);
    let written = accepted.and_then(slurm_conf);
    wanted.retained = find_retained(observed, before, written.as_ref(), wanted);
    plan.needs_answers |= !wanted.retained.is_empty() || !before.retained.is_empty();
    // Nobody wants slurmctld to start anew because a partition was closed.
    let is_fresh = fresh.is_some() && way == Way::InPlace;
    let judgement = find_kept(observed, &before.kept, written.as_ref(), || render(wanted), is_fresh);
    plan.unsure = judgement.look_again;
    wanted.kept.clone_from(&judgement.kept);
    plan.kept = judgement.kept;
    refused
}

fn slurm_conf(revision: &Revision) -> Option<Document> {
    let has_one = revision.files.keys().any(|name| name.as_str() == SLURM_CONF_FILE);
    has_one.then(|| document(&revision.files))
}

fn document(files: &Files) -> Document {
    let conf = files.iter().find(|(name, _)| name.as_str() == SLURM_CONF_FILE);
    let text = conf.map(|(_, file)| String::from_utf8_lossy(&file.content));
    Document::parse(&text.unwrap_or_default())
}

/// A kubelet looks after a pod's mounts when something about the pod changes, else about once a minute.
fn wake_kubelet(pod: &Pod, sequence: u64) -> Option<Effect> {
    let noted = pod.annotations().get(annotations::CANDIDATE);
    let differs = noted.is_none_or(|noted| *noted != sequence.to_string());
    differs.then(|| Effect::NoteCandidate {
        pod: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        sequence,
    })
}

/// What was accepted, by Kubernetes' word or because slurmctld runs with it by now.
struct Former {
    revision: Option<Revision>,
    accepted: Option<Accepted>,
}

impl Former {
    fn of(observed: &Observed, uid: &ControllerUid) -> Self {
        let bundle = observed.bundle.as_deref();
        let revision = bundle.and_then(read_bundle).filter(|bundle| bundle.controller == *uid);
        let accepted = bundle
            .zip(revision.as_ref())
            .and_then(|(bundle, revision)| read_inputs(bundle, revision));
        let written = revision.as_ref().map_or(0, |revision| revision.sequence);
        match &observed.served {
            Some((live, tried)) if live.sequence > written => Self {
                revision: Some(Revision {
                    sequence: live.sequence,
                    ..tried.revision.clone()
                }),
                accepted: Some(Accepted {
                    inputs: tried.inputs.clone(),
                    served: true,
                }),
            },
            _ => Self { revision, accepted },
        }
    }

    fn before(&self, observed: &Observed) -> Before<'_> {
        match (&self.revision, &self.accepted) {
            (Some(revision), Some(accepted)) => Before::Accepted(revision, accepted),
            (None, _) if is_new(observed) => Before::Nothing,
            (revision, _) => Before::Unrecorded(revision.as_ref()),
        }
    }
}

/// Whether no slurmctld ever ran, under another operator neither: what is left out of its files could be what jobs are in.
fn is_new(observed: &Observed) -> bool {
    observed.config.is_none() && !observed.pods.iter().any(|pod| pods::has_started(pod))
}

/// Whether anything in a pod may have read a configuration.
fn has_started(observed: &Observed) -> bool {
    observed
        .pods
        .iter()
        .any(|pod| pods::has_agent(pod) && pods::has_started(pod))
}

fn write(parent: &Parent, revision: &Revision, accepted: Option<&Accepted>, plan: &mut Plan, faults: &mut Vec<Fault>) {
    match build_bundle(parent, revision, accepted) {
        Ok(bundle) => {
            let users = accepted.map(|accepted| &accepted.inputs);
            plan.config_maps.push(build_config_map(parent, &revision.files, users));
            plan.config_maps.push(bundle);
        }
        Err(error) => faults.push(Fault::new(
            Blocks::Configuration,
            reason::CONFIG_TOO_LARGE,
            format!("{error}; make the files of spec.configFileRefs and the script references smaller"),
        )),
    }
}

/// How a change reaches slurmctld.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    InPlace,
    Restart,
    /// By a restart too: under a command of the user's own nobody could tell slurmctld to read its files again, or see
    /// whether it did.
    RestartUnsupervised,
}

impl Way {
    fn of(parent: &Parent) -> Self {
        if !is_supervised(parent) {
            Self::RestartUnsupervised
        } else if parent.controller.spec.config_update() == ConfigUpdate::Restart {
            Self::Restart
        } else {
            Self::InPlace
        }
    }
}

/// Who could run with which revision.
#[derive(Clone, Debug)]
struct Situation {
    /// The agent to push to: that of the active slurmctld.
    target: Option<Target>,
    /// Those of the others.
    standbys: Vec<Target>,
    /// What its agent said is live, if it was asked.
    live: Option<push::Live>,
    state: push::State,
    /// What a dry run there found good.
    checked: Option<Digest>,
    way: Way,
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

impl Situation {
    fn of(observed: &Observed, bundle: Option<&Revision>, newest: &Revision, way: Way) -> Self {
        let ours: Vec<&Arc<Pod>> = observed.pods.iter().filter(|pod| pods::has_agent(pod)).collect();
        let active = active_pod(observed);
        let agents: Vec<(bool, Target)> = ours
            .iter()
            .filter_map(|pod| Some((active.as_ref() == Some(&pod.name_any()), pods::agent_of(pod)?)))
            .collect();
        // Of several only the active one may have it first: what a standby takes is no proof of anything.
        let any = observed.controller.spec.replicas() == 1 || active.is_none();
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
            Some(&observed.report).filter(|report| target.as_ref().is_some_and(|target| report.pod == target.uid));
        let wanted = newest.digest();
        let restarted = ours.iter().any(|pod| {
            let noted = pod.annotations().get(api::keys::annotations::SLURM_CONFIG_HASH);
            noted.is_some_and(|digest| *digest == wanted.to_string())
        });
        Self {
            way,
            live: report.and_then(|report| report.live),
            state: report.map(|report| report.state.clone()).unwrap_or_default(),
            started: has_started(observed),
            checked: report.and_then(|report| report.checked),
            standbys: standbys.cloned().collect(),
            target,
            wanted,
            accepted: bundle.map(|bundle| (bundle.sequence, bundle.digest())),
            sent: report
                .and_then(|report| report.sent.as_ref())
                .filter(|sent| sent.revision.digest == wanted)
                .map(|sent| sent.revision.sequence),
            was_applied: bundle.is_some_and(|bundle| bundle.digest() == wanted)
                && status::says_applied(observed, &wanted),
            restarted,
        }
    }

    /// What is on its way by a ConfigMap, and the pod it is for.
    fn sent<'a>(&self, observed: &'a Observed) -> Option<(&'a Pod, &'a push::Sent)> {
        self.sent?;
        let sent = observed.report.sent.as_deref()?;
        let mut pods = observed.pods.iter();
        let pod = pods.find(|pod| pod.metadata.uid.as_ref() == Some(&sent.pod))?;
        Some((pod, sent))
    }

    /// Whether the change waits for the restart it causes.
    fn restarts_instead(&self) -> bool {
        self.way != Way::InPlace && !self.restarted && self.live.is_none_or(|live| live.digest != self.wanted)
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
    fn settle(&self, newest: Revision, bundle: Option<Revision>) -> (Option<Revision>, ConfigState) {
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
                push::State::Waiting { why } if self.way != Way::RestartUnsupervised => {
                    let why = why.clone();
                    (
                        bundle.or(Some(newest)),
                        ConfigState::Waiting {
                            digest,
                            pod: pod(),
                            why,
                        },
                    )
                }
                _ => (
                    Some(newest),
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
            return (Some(Revision { sequence, ..newest }), config);
        }
        let config = match (&self.target, &self.state) {
            (None, _) => ConfigState::Away {
                digest,
                why: "the container reconfigure does not run".to_owned(),
                sent: None,
            },
            (Some(_), push::State::Away { why }) => ConfigState::Away {
                digest,
                why: why.clone(),
                sent: self.sent,
            },
            (Some(_), push::State::Failed { why }) => ConfigState::Retrying {
                digest,
                pod: pod(),
                why: why.clone(),
            },
            (Some(_), push::State::Refused(rejection)) if rejection.digest == digest => ConfigState::Rejected {
                pod: pod(),
                rejection: rejection.clone(),
            },
            // A new leader has not asked yet; what the object says was found out by the one before.
            (Some(_), push::State::Busy) if self.live.is_none() && self.was_applied => ConfigState::Applied {
                sequence: self.highest_sequence(),
                digest,
                pod: pod(),
            },
            (Some(_), _) => ConfigState::Pushing { digest, pod: pod() },
        };
        (bundle, config)
    }
}
