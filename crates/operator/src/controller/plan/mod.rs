//! Plans a Controller: its pods, Services and keys, around the outcome of its [`configuration`]. Pure.

mod workload;

use std::{collections::BTreeSet, time::Duration};

use api::{
    Problem, Validate,
    configuration::HeldInput,
    references::SecretKeyRef,
    validate::check_shared_claim,
    wellknown::{SLURM_CONF_FILE, STATE_DIR, STATE_VOLUME},
};
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Service};
use kube::ResourceExt;

use self::workload::{plan_keys, plan_pods};
use super::{
    build::{build_internal_service, build_monitor, build_service},
    observe::Observed,
};
use crate::{
    cluster::pods::{self, active_pod},
    configuration::{self, ConfigState, DeliveryChange, Outcome, gather_accounting, render::build_external_config_map},
    finding::{Blocks, Finding, is_blocked},
    parent::Parent,
    reason,
    runtime::{ServiceMonitor, Warning},
    template::service::plan_service,
};

/// The planned actions, in the order of its fields, and the findings.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) findings: Vec<Finding>,
    /// Keys to generate, once.
    pub(super) keys: Vec<SecretKeyRef>,
    pub(super) services: Vec<Service>,
    /// The configuration, whose ConfigMaps are written before the pods that read them.
    pub(super) configuration: Outcome,
    pub(super) stateful_set: Option<StatefulSet>,
    pub(super) service_monitor: Option<ServiceMonitor>,
    /// Children that are kept; all others of this owner are deleted. `None`: nothing is deleted.
    pub(super) keep: Option<Keep>,
    pub(super) effects: Vec<Effect>,
    /// Fields for files that the operator does not manage.
    pub(super) ignored: Vec<String>,
}

/// Names in Slurm that a plan depends on may be a few seconds old, and Slurm does not report new ones.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

impl Plan {
    /// Returns the events for the owner. Held inputs that are in the status already have had their event.
    pub(super) fn warnings<'a>(&'a self, noted: &'a [HeldInput]) -> impl Iterator<Item = Warning<'a>> {
        let doubts = self.configuration.doubts.iter().map(|message| Warning {
            reason: reason::CONFIG_DOUBTFUL,
            message,
            may_pass: false,
        });
        let findings = self.findings.iter().map(Finding::warning);
        let news = findings.filter(|warning| warning.may_pass || !self.is_reported(warning.message, noted));
        news.chain(doubts)
    }

    fn is_reported(&self, message: &str, noted: &[HeldInput]) -> bool {
        let mut about = self
            .configuration
            .held
            .iter()
            .filter(|held| held.finding().message == message);
        about.any(|held| {
            let is_same = |noted: &HeldInput| {
                noted.source == held.source && noted.reason == held.reason && noted.message == held.why
            };
            held.soon || noted.iter().any(is_same)
        })
    }

    /// When to reconcile again without a change.
    pub(super) fn requeue_after(&self) -> Option<Duration> {
        (!self.configuration.held.is_empty() || self.configuration.is_unsure).then_some(RECHECK_INTERVAL)
    }
}

/// Names of children that are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keep {
    pub(super) services: BTreeSet<String>,
    pub(super) config_maps: BTreeSet<String>,
    pub(super) stateful_sets: BTreeSet<String>,
    pub(super) service_monitors: BTreeSet<String>,
}

/// An action on something other than the children, with the precondition that must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Route clients to this pod, or away from it.
    LabelActive { pod: String, uid: String, active: bool },
    /// Replace a StatefulSet that cannot be changed in place. Its pods are recreated.
    DeleteStatefulSet { name: String, uid: String, why: String },
}

pub(super) fn plan(observed: &Observed) -> Plan {
    let Observed { inputs, snapshot, .. } = observed;
    let controller = inputs.controller.as_ref();
    if controller.metadata.deletion_timestamp.is_some() {
        // The garbage collector deletes its children.
        return Plan::default();
    }
    let parent = Parent::new(controller);
    let mut findings = check(observed);
    let service_monitor = plan_monitor(observed, &parent, &mut findings);
    if is_blocked(&findings, Blocks::Everything) {
        return Plan {
            configuration: Outcome::without_files(inputs, snapshot, ConfigState::Unknown),
            findings,
            ..Plan::default()
        };
    }
    if controller.spec.is_external() {
        return plan_external(observed, &parent, service_monitor, findings);
    }

    let mut faults = Vec::new();
    let services = [build_internal_service(&parent), build_service(&parent)];
    let services = services
        .into_iter()
        .filter_map(|built| plan_service(built, &mut faults))
        .collect();
    let clashes = faults.into_iter();
    findings.extend(clashes.map(|fault| Finding::new(Blocks::Nothing, fault.reason, fault.message)));
    let (keys, new_keys) = plan_keys(observed, &mut findings);
    let configuration = configuration::plan(inputs, snapshot, keys.as_ref().map(|keys| &keys.jwt_key));
    findings.extend(configuration.findings.iter().cloned());
    let planned = plan_pods(observed, &parent, keys.as_ref(), &configuration, &findings);
    let (stateful_set, replace) = planned.unwrap_or_else(|finding| {
        findings.push(finding);
        (None, None)
    });
    Plan {
        findings,
        keys: new_keys,
        services,
        stateful_set,
        keep: Some(Keep {
            services: BTreeSet::from([
                parent.names.service(),
                parent.names.internal_service(),
                // NodeSets create it, and may have made this Controller its owner.
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
        }),
        service_monitor,
        effects: replace.into_iter().chain(plan_labels(observed)).collect(),
        configuration,
        ignored: Vec::new(),
    }
}

/// A revision sent in a ConfigMap is kept until its agent reports: it records the highest sequence.
fn keep_candidate(observed: &Observed) -> bool {
    observed.snapshot.report.sent.is_some() || observed.snapshot.report.live.is_none()
}

/// Checks the object itself, and conflicts with other Controllers.
fn check(observed: &Observed) -> Vec<Finding> {
    let controller = observed.inputs.controller.as_ref();
    let mut findings: Vec<Finding> = controller
        .check()
        .errors()
        .map(|problem| Finding::new(Blocks::Everything, reason::INVALID_SPEC, problem.to_string()))
        .collect();
    if let Some(rival) = &observed.rival {
        findings.push(Finding::new(
            Blocks::Everything,
            reason::CLUSTER_NAME_TAKEN,
            format!(
                "spec.clusterName is {:?}, which the older Controller {rival} has; set another one, because both would write records under the same name",
                controller.cluster_name()
            ),
        ));
    }
    if let Some(before) = former_cluster_name(observed) {
        findings.push(Finding::new(
            Blocks::Everything,
            reason::CLUSTER_NAME_CHANGED,
            format!("spec.clusterName cannot be changed, because the cluster's state is stored under {before:?}; set it back, or create another Controller"),
        ));
    }
    if let Some(claim) = &observed.claim {
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref());
        let problems = check_shared_claim(controller, modes.unwrap_or_default());
        let bad = |problem: &Problem| Finding::new(Blocks::Pods, reason::BAD_CLAIM, problem.to_string());
        findings.extend(problems.errors().map(bad));
    }
    findings
}

/// The name under which the cluster has been running, if its spec has another one now. The mount of its state and
/// slurm.conf contain it; as long as one of them has the spec's name, the other was changed manually.
fn former_cluster_name(observed: &Observed) -> Option<String> {
    let pod = observed.stateful_set.as_ref()?.spec.as_ref()?.template.spec.as_ref()?;
    let mounts = pod
        .containers
        .iter()
        .flat_map(|container| container.volume_mounts.iter().flatten());
    let mounted = mounts
        .filter(|mount| mount.name == STATE_VOLUME)
        .find_map(|mount| mount.mount_path.strip_prefix(STATE_DIR)?.strip_prefix('/'));
    let conf = observed.inputs.config.as_ref()?.data.as_ref()?.get(SLURM_CONF_FILE)?;
    let written = conf.lines().find_map(|line| line.strip_prefix("ClusterName="));
    let name = observed.inputs.controller.cluster_name();
    let is_kept = [mounted, written].contains(&Some(name.as_str()));
    mounted.or(written).filter(|_| !is_kept).map(str::to_owned)
}

fn plan_external(
    observed: &Observed,
    parent: &Parent,
    service_monitor: Option<ServiceMonitor>,
    mut findings: Vec<Finding>,
) -> Plan {
    let Observed { inputs, snapshot, .. } = observed;
    let accounting = gather_accounting(inputs).unwrap_or_else(|finding| {
        findings.push(finding);
        None
    });
    plan_keys(observed, &mut findings);
    let view = snapshot.external.as_ref().and_then(|(_, view)| view.as_ref());
    let unfit = view.and_then(|view| view.unfit.as_ref());
    // Existing pods may be older than the problem, and keep running; their inputs are not affected.
    findings.extend(unfit.map(|fault| Finding::new(Blocks::Input, fault.reason, &fault.message)));
    let blocked = is_blocked(&findings, Blocks::Configuration);
    let config_map = build_external_config_map(parent, accounting).filter(|_| !blocked);
    Plan {
        keep: Some(Keep {
            services: BTreeSet::from([parent.names.workers_service()]),
            config_maps: BTreeSet::from([parent.names.config_map()]),
            stateful_sets: BTreeSet::new(),
            service_monitors: service_monitor.iter().map(ResourceExt::name_any).collect(),
        }),
        service_monitor,
        configuration: Outcome {
            delivery: DeliveryChange::Pause,
            config_maps: config_map.into_iter().collect(),
            ..Outcome::without_files(inputs, snapshot, ConfigState::External)
        },
        ignored: ignored_fields(observed),
        findings,
        ..Plan::default()
    }
}

/// Fields that belong in the files of an external slurmctld.
fn ignored_fields(observed: &Observed) -> Vec<String> {
    let spec = &observed.inputs.controller.spec;
    let has_lines = spec.extra_conf.as_deref().is_some_and(|lines| !lines.trim().is_empty());
    let lines = has_lines.then(|| "spec.extraConf".to_owned()).into_iter();
    let files = spec
        .file_refs()
        .into_iter()
        .filter(|(_, references)| !references.is_empty());
    let files = files.map(|(field, _)| format!("spec.{field}"));
    let node_sets = observed.inputs.node_sets.iter();
    let partitions = node_sets
        .filter(|node_set| node_set.spec.wanted_partition().is_some())
        .map(|node_set| format!("spec.partition of NodeSet {:?}", node_set.name_any()));
    lines.chain(files).chain(partitions).collect()
}

/// The ServiceMonitor, if it is wanted and its kind exists.
fn plan_monitor(observed: &Observed, parent: &Parent, findings: &mut Vec<Finding>) -> Option<ServiceMonitor> {
    let wanted = observed.inputs.controller.spec.metrics.as_ref()?.wanted_monitor()?;
    if observed.has_service_monitors {
        return Some(build_monitor(parent, wanted));
    }
    findings.push(Finding::new(
        Blocks::Nothing,
        reason::NO_SERVICE_MONITORS,
        "spec.metrics.serviceMonitor is enabled, and the API server has no ServiceMonitor kind; install the Prometheus operator, or disable it",
    ));
    None
}

fn plan_labels(observed: &Observed) -> Vec<Effect> {
    let inputs = &observed.inputs;
    let active = active_pod(&inputs.controller, &inputs.pods, &observed.snapshot.report);
    let mut effects = Vec::new();
    for pod in &inputs.pods {
        let is_active = active.as_ref() == Some(&pod.name_any());
        if let Some(uid) = pod.uid().filter(|_| is_active != pods::is_labelled_active(pod)) {
            effects.push(Effect::LabelActive {
                pod: pod.name_any(),
                uid,
                active: is_active,
            });
        }
    }
    effects
}
