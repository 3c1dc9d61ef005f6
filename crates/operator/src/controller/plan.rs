//! Plans a Controller: its pods, Services and keys, around the outcome of its [`configuration`]. Pure.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::{
    ControllerSpec, Problem, Validate,
    configuration::HeldInput,
    references::SecretKeyRef,
    validate::check_shared_claim,
    wellknown::{JWT_KEY_FILE, SLURM_CONF_FILE, SLURM_KEY_FILE, STATE_DIR, STATE_VOLUME},
};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Pod, Secret, Service},
};
use kube::ResourceExt;

use super::{
    build::{
        build_internal_service, build_monitor, build_service,
        stateful_set::{Keys, build_stateful_set},
    },
    observe::Observed,
};
use crate::{
    cluster::{
        deliver::JwtKey,
        pods::{self, active_pod},
    },
    configuration::{
        self, ConfigState, DeliveryChange, Outcome, gather_accounting, render::build_external_config_map,
        report::held_input,
    },
    finding::{Blocks, Finding, is_blocked},
    parent::Parent,
    reason,
    runtime::{ServiceMonitor, Warning},
    secret::entry,
    slurm_release::without_metrics,
    template::{container::user_image, metadata::Marks, service::plan_service},
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
        let mut held = self.configuration.held.iter();
        held.any(|held| held.finding().message == message && (held.soon || noted.contains(&held_input(held))))
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
    /// Replace a pod that never starts slurmctld again. No slurmctld runs in it.
    DeletePod { pod: String, uid: String, why: String },
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
    findings.extend(check_metrics(&controller.spec));
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
    let given = controller.spec.service.as_ref();
    let services = [(None, build_internal_service(&parent)), (given, build_service(&parent))];
    let services = services
        .into_iter()
        .filter_map(|(given, built)| plan_service(given, built, &mut faults))
        .collect();
    let clashes = faults.into_iter();
    findings.extend(clashes.map(|finding| Finding {
        blocks: Blocks::Nothing,
        ..finding
    }));
    let (keys, new_keys) = plan_keys(observed, &mut findings);
    let replaced_pod = plan_superseded(observed).unwrap_or_else(|finding| {
        findings.push(finding);
        None
    });
    let configuration = configuration::plan(inputs, snapshot, keys.as_ref().map(|keys| &keys.jwt));
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
        effects: replace
            .into_iter()
            .chain(plan_labels(observed))
            .chain(replaced_pod)
            .collect(),
        configuration,
    }
}

/// A revision sent in a ConfigMap is kept until its agent reports: it records the highest sequence.
fn keep_candidate(observed: &Observed) -> bool {
    observed.snapshot.report.sent.is_some() || observed.snapshot.report.live.is_none()
}

/// Checks the object itself, and conflicts with other Controllers.
fn check(observed: &Observed) -> Vec<Finding> {
    let controller = observed.inputs.controller.as_ref();
    let mut findings = Finding::of(&controller.check());
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
    findings.extend(view.and_then(|view| view.unfit.clone()));
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
        findings,
        ..Plan::default()
    }
}

/// Reports metrics that the release of slurmctld does not have.
fn check_metrics(spec: &ControllerSpec) -> Option<Finding> {
    spec.metrics.as_ref().filter(|metrics| metrics.is_enabled())?;
    let image = user_image(spec.slurmctld.as_ref());
    let (year, month) = without_metrics(image)?;
    let message = format!(
        "spec.metrics is enabled, and slurmctld of Slurm {year}.{month:02} ({}) has no metrics; disable it, or use Slurm 25.11 or newer",
        image.unwrap_or_default()
    );
    Some(Finding::new(Blocks::Nothing, reason::SLURM_TOO_OLD, message))
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

/// A restore of etcd brings a pod back whose successor has its state volume: arbitration does not let it start slurmctld again. It is
/// the pod that Kubernetes has, so the next one of its name will be the rightful one. The successor yields to that one, if it is alive;
/// but it may also be a pod of another cluster, and the two would replace each other in turn, so then a person decides.
fn plan_superseded(observed: &Observed) -> Result<Option<Effect>, Finding> {
    let Some((uid, superseded)) = &observed.snapshot.superseded else {
        return Ok(None);
    };
    let is_it = |pod: &&Arc<Pod>| pod.uid().as_ref() == Some(uid) && pod.metadata.deletion_timestamp.is_none();
    let Some(pod) = observed.inputs.pods.iter().find(is_it).map(|pod| pod.name_any()) else {
        return Ok(None);
    };
    let by = &superseded.by;
    if superseded.responds {
        return Err(Finding::new(
            Blocks::Nothing,
            reason::POD_SUPERSEDED,
            format!(
                "pod {pod} does not start slurmctld, because a later pod of this name (UID {by}) is alive on the same state volume, and Kubernetes does not have that pod; if its machine cannot be reached, end it there, or let the next pod take over with `kubectl delete pod {pod}`; if it belongs to another cluster, give that one another volume"
            ),
        ));
    }
    Ok(Some(Effect::DeletePod {
        pod,
        uid: uid.clone(),
        why: format!("a later pod of its name (UID {by}) had its state volume, and is gone"),
    }))
}

/// Returns both keys if they exist, and the keys to generate. Reports those that are missing.
fn plan_keys(observed: &Observed, findings: &mut Vec<Finding>) -> (Option<Keys>, Vec<SecretKeyRef>) {
    let controller = observed.inputs.controller.as_ref();
    let spec = &controller.spec;
    let mut new = Vec::new();
    let remedy = if spec.is_external() {
        "create it from the key of the cluster"
    } else {
        "create it, or remove the reference to have a key generated"
    };
    let mut find = |field: &str, file, reference: Option<SecretKeyRef>, given: bool, secret: Option<&Arc<Secret>>| {
        let reference = reference?;
        let SecretKeyRef { name, key, .. } = &reference;
        let missing = match secret.map(|secret| entry(Some(secret), key)) {
            Some(Some(bytes)) => return Some(bytes.to_vec()),
            Some(None) => format!(
                "spec.{field}.key names entry {key:?}, which Secret {name:?} does not have or has empty; add it, or name another one"
            ),
            // A generated key would not be the one that the daemons have.
            None if observed.stateful_set.is_some() => format!(
                "spec.{field}.name names Secret {name:?}, which does not exist any more; running daemons keep its key, and new pods wait \
                 for it: create it again with the same key, which slurmctld's container has in /etc/slurm/{file}"
            ),
            None if given => format!("spec.{field}.name names Secret {name:?}, which does not exist; {remedy}"),
            None => {
                new.push(reference);
                return None;
            }
        };
        findings.push(Finding::new(Blocks::Pods, reason::SECRET_MISSING, missing));
        None
    };
    let slurm = find(
        "slurmKeyRef",
        SLURM_KEY_FILE,
        controller.slurm_key(),
        spec.slurm_key_ref.is_some(),
        observed.slurm_key.as_ref(),
    );
    let jwt_field = if spec.jwt_key_ref.is_none() && spec.jwt_hs256_key_ref.is_some() {
        "jwtHs256KeyRef"
    } else {
        "jwtKeyRef"
    };
    let jwt = find(
        jwt_field,
        JWT_KEY_FILE,
        controller.jwt_key(),
        spec.effective_jwt_key_ref().is_some(),
        observed.jwt_key.as_ref(),
    );
    let others = observed.other_keys.iter();
    findings.extend(others.map(|other| Finding::new(Blocks::Pods, reason::KEY_MISMATCH, other)));
    let keys = slurm.zip(jwt.map(JwtKey)).filter(|_| observed.other_keys.is_empty());
    (keys.map(|(slurm, jwt)| Keys { slurm, jwt }), new)
}

/// Plans slurmctld's StatefulSet, or the effect that must come first. `findings` are the earlier findings.
fn plan_pods(
    observed: &Observed,
    parent: &Parent,
    keys: Option<&Keys>,
    configuration: &Outcome,
    findings: &[Finding],
) -> Result<(Option<StatefulSet>, Option<Effect>), Finding> {
    check_storage_change(observed, parent)?;
    // A pod without any configuration would only fail; it is created once there is one.
    let has_config = observed.inputs.bundle.is_some() || !configuration.config_maps.is_empty();
    let (Some(keys), true, false) = (keys, has_config, is_blocked(findings, Blocks::Pods)) else {
        return Ok((None, None));
    };
    let service = parent.names.internal_service();
    if let Some(set) = &observed.stateful_set
        && let Some(before) = set.spec.as_ref().and_then(|spec| spec.service_name.as_ref())
        && *before != service
        && set.metadata.deletion_timestamp.is_none()
    {
        let replace = Effect::DeleteStatefulSet {
            name: set.name_any(),
            uid: set.uid().unwrap_or_default(),
            why: format!("its Service is {before:?} and must be {service:?}, which cannot be changed in place"),
        };
        return Ok((None, Some(replace)));
    }
    let (images, before) = (&observed.images, observed.stateful_set.as_deref());
    let release = observed.snapshot.knowledge.known().and_then(|seen| seen.release);
    let hold = is_held(observed);
    let set = build_stateful_set(parent, keys, configuration.restart, images, before, release, hold);
    let set = set.map_err(|error| {
        Finding::new(
            Blocks::Pods,
            reason::INVALID_SPEC,
            format!("spec.template.spec, or an override of a container, does not fit the PodSpec schema: {error}; correct it"),
        )
    })?;
    Ok((Some(set), None))
}

/// Whether pods of another operator run, which must not be restarted just because this one took over. A new annotation
/// on the Controller, such as `restart-trigger`, requests a restart.
fn is_held(observed: &Observed) -> bool {
    let wanted = Marks::of_for_pods(&observed.inputs.controller.metadata).annotations;
    let untouched = |pod: &Pod| {
        wanted
            .iter()
            .all(|(key, value)| pod.annotations().get(key) == Some(value))
    };
    observed
        .inputs
        .pods
        .iter()
        .any(|pod| pods::is_ready(pod) && !pods::has_agent(pod) && untouched(pod))
}

/// Kubernetes does not allow a StatefulSet to change its claims, and the cluster's state would be lost.
fn check_storage_change(observed: &Observed, parent: &Parent) -> Result<(), Finding> {
    let set = observed.stateful_set.as_ref();
    let Some(spec) = set.and_then(|set| set.spec.as_ref()) else {
        return Ok(());
    };
    let describe = |has_own: bool, claim: Option<&str>| match claim {
        _ if has_own => "a claim of its own".to_owned(),
        Some(claim) => format!("claim {claim:?}"),
        None => "no volume".to_owned(),
    };
    let mut claims = spec.volume_claim_templates.iter().flatten();
    let mut volumes = spec.template.spec.iter().flat_map(|pod| pod.volumes.iter().flatten());
    let volume = volumes.find(|volume| volume.name == STATE_VOLUME);
    let claim = volume.and_then(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()));
    let before = describe(claims.any(|claim| claim.name_any() == STATE_VOLUME), claim);
    let wanted = &parent.controller.spec;
    let claim = wanted.existing_claim();
    let now = describe(claim.is_none() && wanted.is_persistent(), claim);
    if before == now {
        return Ok(());
    }
    Err(Finding::new(
        Blocks::Pods,
        reason::INVALID_SPEC,
        format!(
            "spec.persistence cannot be changed, because the cluster's state would be lost: it is on {before}, and the spec now requires {now}; set it back, or create another Controller"
        ),
    ))
}
