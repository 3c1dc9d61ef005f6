//! What is to be done about a Controller. Pure.

mod delivery;
mod devices;
mod keys;
mod workload;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::{
    Severity, Validate,
    configuration::HeldInput,
    validate::check_shared_claim,
    wellknown::{SLURM_CONF_FILE, STATE_DIR, STATE_VOLUME},
};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Pod, Service},
};
use kube::ResourceExt;
use slurm::conf::Document;

pub(super) use self::delivery::ConfigState;
use self::{delivery::plan_config, keys::plan_keys, workload::plan_pods};
use super::{
    active::Candidate,
    build::{
        Parent,
        config::build_external_config_map,
        keys::NewKey,
        monitor::build_monitor,
        services::{build_internal_service, build_service},
    },
    fault::{Blocks, Fault, is_blocked},
    inputs::gather_accounting,
    kept::KeptStates,
    observe::Observed,
    partitions::standings,
    pods, push, reason,
    revise::Held,
    tries::Tried,
};
use crate::{
    outside::Unfit,
    partition::board::Standings,
    runtime::{ServiceMonitor, Warning},
};

/// What is to be done, in the order of its fields, and what is wrong.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) faults: Vec<Fault>,
    /// Keys to make, once.
    pub(super) keys: Vec<NewKey>,
    pub(super) services: Vec<Service>,
    pub(super) config_maps: Vec<ConfigMap>,
    pub(super) stateful_set: Option<StatefulSet>,
    pub(super) service_monitor: Option<ServiceMonitor>,
    /// Children that stay; all others of this owner go. `None`: nothing goes.
    pub(super) keep: Option<Keep>,
    pub(super) effects: Vec<Effect>,
    pub(super) config: ConfigState,
    /// The newest configuration, if it is not the accepted one.
    pub(super) tried: Option<Tried>,
    /// What is written for files that are not ours to write, by where it stands.
    pub(super) unheeded: Vec<String>,
    /// Inputs that are not in the newest configuration as their owners wrote them.
    pub(super) held: Vec<Held>,
    /// What is in it and hardly meant.
    pub(super) doubts: Vec<String>,
    /// How the Partitions stand by it.
    pub(super) standings: Standings,
    /// What people closed in Slurm by hand.
    pub(super) kept: KeptStates,
    /// Partitions that stay only for their jobs.
    pub(super) retained: Vec<String>,
    /// Slurm may have other states than it was told.
    pub(super) unsure: bool,
    /// Whether what Slurm says of jobs, or of QOS, decides over what is held.
    pub(super) needs_answers: bool,
}

/// Names in Slurm that a plan was judged by may be a few seconds old, and nobody tells when others come.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl Plan {
    /// What its owner should hear of. What is held and stands in the status already was told when it came there.
    pub(super) fn warnings<'a>(&'a self, noted: &'a [HeldInput]) -> impl Iterator<Item = Warning<'a>> {
        let doubts = self.doubts.iter().map(|message| Warning {
            reason: reason::CONFIG_DOUBTFUL,
            message,
            may_pass: false,
        });
        let faults = self.faults.iter().map(Fault::warning);
        let news = faults.filter(|warning| warning.may_pass || !self.is_told(warning.message, noted));
        news.chain(doubts)
    }

    fn is_told(&self, message: &str, noted: &[HeldInput]) -> bool {
        let mut about = self.held.iter().filter(|held| held.fault().message == message);
        about.any(|held| {
            let is_same = |noted: &HeldInput| {
                noted.source == held.source && noted.reason == held.reason && noted.message == held.why
            };
            held.soon || noted.iter().any(is_same)
        })
    }

    /// When to look again although nothing was heard.
    pub(super) fn look_again(&self) -> Option<Duration> {
        (!self.held.is_empty() || self.unsure).then_some(LOOK_AGAIN)
    }
}

/// Names of children that stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keep {
    pub(super) services: BTreeSet<String>,
    pub(super) config_maps: BTreeSet<String>,
    pub(super) stateful_sets: BTreeSet<String>,
    pub(super) service_monitors: BTreeSet<String>,
}

/// Something to do outside of the children, with what must still hold when it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Have slurmctld run with these files.
    PushConfig(Box<push::Wanted>),
    /// There is nobody to push to.
    StopPushing,
    /// Find out which of these pods serves.
    WatchActive(Vec<Candidate>),
    /// Lead clients to this pod, or away from it.
    LabelActive { pod: String, uid: String, active: bool },
    /// A revision was sent to the pod by a ConfigMap: has its kubelet look.
    NoteCandidate { pod: String, uid: String, sequence: u64 },
    /// It cannot be changed into what is wanted. Its pods go with it and come back.
    DeleteStatefulSet { name: String, uid: String, why: String },
}

pub(super) fn plan(observed: &Observed) -> Plan {
    let controller = observed.controller.as_ref();
    if controller.metadata.deletion_timestamp.is_some() {
        // Its children go with it.
        return Plan::default();
    }
    let parent = Parent::new(controller);
    let mut faults = check(observed);
    let (service_monitor, missing) = plan_monitor(observed, &parent);
    faults.extend(missing);
    if is_blocked(&faults, Blocks::Everything) {
        return Plan {
            standings: standings(observed, None, &[], &ConfigState::Unknown),
            faults,
            ..Plan::default()
        };
    }
    if controller.spec.is_external() {
        return plan_external(observed, &parent, service_monitor, faults);
    }

    let (services, clash) = plan_services(&parent);
    faults.extend(clash);
    let (keys, new_keys, key_faults) = plan_keys(observed);
    faults.extend(key_faults);
    let mut plan = Plan {
        services,
        keys: new_keys,
        ..Plan::default()
    };
    let restart = plan_config(observed, &parent, keys.as_ref(), &mut plan, &mut faults);
    plan_pods(observed, &parent, keys.as_ref(), restart, &mut plan, &mut faults);
    plan_labels(observed, &mut plan);
    plan.keep = Some(Keep {
        services: BTreeSet::from([
            parent.names.service(),
            parent.names.internal_service(),
            // NodeSets make it, and may have made it this Controller's.
            parent.names.workers_service(),
        ]),
        config_maps: [
            parent.names.config_map(),
            parent.names.bundle_config_map(),
            parent.names.history_config_map(),
        ]
        .into_iter()
        .chain(keep_candidate(observed).then(|| parent.names.candidate_config_map()))
        .collect(),
        stateful_sets: BTreeSet::from([parent.names.stateful_set()]),
        service_monitors: service_monitor.iter().map(ResourceExt::name_any).collect(),
    });
    plan.service_monitor = service_monitor;
    plan.faults = faults;
    plan
}

/// What was sent by a ConfigMap stays until its agent is heard of: it tells how high numbers are.
fn keep_candidate(observed: &Observed) -> bool {
    observed.report.sent.is_some() || observed.report.live.is_none()
}

/// What is wrong with the object itself, or with its being there.
fn check(observed: &Observed) -> Vec<Fault> {
    let controller = observed.controller.as_ref();
    let mut faults: Vec<Fault> = controller
        .check()
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .map(|problem| Fault::new(Blocks::Everything, reason::INVALID_SPEC, problem.to_string()))
        .collect();
    if let Some(rival) = &observed.rival {
        faults.push(Fault::new(
            Blocks::Everything,
            reason::CLUSTER_NAME_TAKEN,
            format!(
                "spec.clusterName is {:?}, which the older Controller {rival} has; set another one, since both would write under one name",
                controller.cluster_name()
            ),
        ));
    }
    if let Some(before) = former_cluster_name(observed) {
        faults.push(Fault::new(
            Blocks::Everything,
            reason::CLUSTER_NAME_CHANGED,
            format!("spec.clusterName cannot be changed, since the cluster's state is kept under {before:?}; set it back to that, or make another Controller"),
        ));
    }
    if let Some(claim) = &observed.claim {
        let modes = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.access_modes.clone())
            .unwrap_or_default();
        let problems = check_shared_claim(controller, &modes);
        faults.extend(
            problems
                .errors()
                .map(|problem| Fault::new(Blocks::Pods, reason::BAD_CLAIM, problem.to_string())),
        );
    }
    faults
}

/// The name under which the cluster has been running, if its spec has another now. Where its state is mounted tells it, and
/// so does slurm.conf; as long as one of them has the spec's name, somebody only put a hand on the other.
fn former_cluster_name(observed: &Observed) -> Option<String> {
    let pod = observed.stateful_set.as_ref()?.spec.as_ref()?.template.spec.as_ref()?;
    let mounts = pod
        .containers
        .iter()
        .flat_map(|container| container.volume_mounts.iter().flatten());
    let mounted = mounts.filter(|mount| mount.name == STATE_VOLUME).find_map(|mount| {
        let name = mount.mount_path.strip_prefix(STATE_DIR)?.strip_prefix('/')?;
        Some(name.to_owned())
    });
    let conf = observed.config.as_ref()?.data.as_ref()?.get(SLURM_CONF_FILE)?;
    let written = Document::parse(conf).value("ClusterName").map(str::to_owned);
    let known: Vec<String> = mounted.into_iter().chain(written).collect();
    let is_kept = known.contains(&observed.controller.cluster_name());
    known.into_iter().next().filter(|_| !is_kept)
}

fn plan_external(
    observed: &Observed,
    parent: &Parent,
    service_monitor: Option<ServiceMonitor>,
    mut faults: Vec<Fault>,
) -> Plan {
    let accounting = gather_accounting(observed).unwrap_or_else(|fault| {
        faults.push(fault);
        None
    });
    let (_, _, key_faults) = plan_keys(observed);
    faults.extend(key_faults);
    let unfit = observed.outside.as_ref().and_then(|view| view.unfit.as_ref());
    // Pods that are there may have come before it was changed, and go on; what they are made from is not harmed by it.
    faults.extend(unfit.map(|Unfit { reason, message }| Fault::new(Blocks::Input, reason, message)));
    let blocked = is_blocked(&faults, Blocks::Configuration);
    Plan {
        config_maps: build_external_config_map(parent, accounting)
            .into_iter()
            .filter(|_| !blocked)
            .collect(),
        keep: Some(Keep {
            services: BTreeSet::from([parent.names.workers_service()]),
            config_maps: BTreeSet::from([parent.names.config_map()]),
            stateful_sets: BTreeSet::new(),
            service_monitors: service_monitor.iter().map(ResourceExt::name_any).collect(),
        }),
        service_monitor,
        effects: vec![Effect::StopPushing],
        standings: standings(observed, None, &[], &ConfigState::External),
        config: ConfigState::External,
        unheeded: unheeded(observed),
        faults,
        ..Plan::default()
    }
}

/// Where somebody has written what belongs into the files of a slurmctld that keeps its own.
fn unheeded(observed: &Observed) -> Vec<String> {
    let spec = &observed.controller.spec;
    let lines = spec.extra_conf.as_deref().is_some_and(|lines| !lines.trim().is_empty());
    let files = spec
        .file_refs()
        .into_iter()
        .filter(|(_, references)| !references.is_empty());
    let partitions = observed
        .node_sets
        .iter()
        .filter(|node_set| node_set.spec.wanted_partition().is_some())
        .map(|node_set| format!("spec.partition of NodeSet {:?}", node_set.name_any()));
    lines
        .then(|| "spec.extraConf".to_owned())
        .into_iter()
        .chain(files.map(|(field, _)| format!("spec.{field}")))
        .chain(partitions)
        .collect()
}

/// The ServiceMonitor, if one is wanted and can be made.
fn plan_monitor(observed: &Observed, parent: &Parent) -> (Option<ServiceMonitor>, Option<Fault>) {
    let metrics = observed.controller.spec.metrics.as_ref();
    let Some(wanted) = metrics.and_then(|metrics| metrics.wanted_monitor()) else {
        return (None, None);
    };
    if observed.has_service_monitors {
        return (Some(build_monitor(parent, wanted)), None);
    }
    let fault = Fault::new(
        Blocks::Nothing,
        reason::NO_SERVICE_MONITORS,
        "spec.metrics.serviceMonitor is enabled, and the cluster has no ServiceMonitors; install the Prometheus operator, or switch it off",
    );
    (None, Some(fault))
}

fn plan_services(parent: &Parent) -> (Vec<Service>, Vec<Fault>) {
    let mut services = Vec::new();
    let mut faults = Vec::new();
    for built in [build_internal_service(parent), build_service(parent)] {
        match built.map(serde_json::from_value::<Service>) {
            Ok(Ok(service)) => services.push(service),
            Ok(Err(error)) => faults.push(Fault::new(
                Blocks::Nothing,
                reason::INVALID_SPEC,
                format!("spec.service.spec is no Service's: {error}; correct it"),
            )),
            Err(clash) => faults.push(Fault::new(Blocks::Nothing, reason::INVALID_SPEC, clash.to_string())),
        }
    }
    (services, faults)
}

fn plan_labels(observed: &Observed, plan: &mut Plan) {
    let active = active_pod(observed);
    if observed.controller.spec.replicas() > 1 {
        let candidate = |pod: &Arc<Pod>| {
            Some(Candidate {
                pod: pod.name_any(),
                address: pods::slurmctld_address(pod)?,
            })
        };
        plan.effects.push(Effect::WatchActive(
            observed.pods.iter().filter_map(candidate).collect(),
        ));
    }
    for pod in &observed.pods {
        let is_active = active.as_ref() == Some(&pod.name_any());
        if let Some(uid) = pod.uid().filter(|_| is_active != pods::is_labelled_active(pod)) {
            plan.effects.push(Effect::LabelActive {
                pod: pod.name_any(),
                uid,
                active: is_active,
            });
        }
    }
}

/// The pod whose slurmctld serves: as slurmctld itself says, or as it was, or the first.
fn active_pod(observed: &Observed) -> Option<String> {
    let named = |name: &String| observed.pods.iter().any(|pod| pod.name_any() == *name);
    let single = observed.controller.spec.replicas() == 1;
    let said = observed.report.active.clone().filter(|_| !single).filter(named);
    let labelled = || {
        observed
            .pods
            .iter()
            .find(|pod| !single && pods::is_labelled_active(pod))
            .map(|pod| pod.name_any())
    };
    let first = observed.controller.child_names().pod(0);
    said.or_else(labelled).or(Some(first).filter(named))
}
