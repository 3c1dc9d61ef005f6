//! What is said about a Controller. Pure.

use api::{
    Condition, ConditionStatus, ControllerStatus, Validate,
    conditions::{DEGRADED, DRIFTED, PARTITION_RETAINED, PROGRESSING, READY},
    configuration::RejectedBy,
};
use jiff::Timestamp;
use kube::ResourceExt as _;
use slurm::revision::Digest;

use super::{
    build::{Parent, containers::is_supervised},
    configuration::{self, build_configuration},
    fault::{Blocks, Fault, worst},
    kept::Kept,
    observe::Observed,
    plan::{ConfigState, Plan},
    pods,
    push::Rejection,
    reason,
    revise::Held,
};
use crate::{
    key_mismatch::KEY_MISMATCH,
    runtime::{DesiredCondition, Failure, State, remarks, settle},
};

/// slurmctld runs with the newest configuration; the message says which revision.
pub(super) const CONFIG_APPLIED: &str = "ConfigurationApplied";
/// slurmctld runs under the agent, which restarts it and keeps its last words.
pub(super) const SUPERVISED: &str = "Supervised";

/// The status to write.
pub(super) fn build_status(
    observed: &Observed,
    plan: &Plan,
    failure: Option<&Failure>,
    now: Timestamp,
) -> ControllerStatus {
    let controller = observed.controller.as_ref();
    let generation = controller.metadata.generation.unwrap_or_default();
    let previous = conditions_of(observed);
    ControllerStatus {
        conditions: settle(previous, &conditions(observed, plan, failure), generation, now),
        // Upstream's definitions, which may be the installed ones, drop these: they would be written again and again.
        observed_generation: observed.outdated.is_empty().then_some(generation),
        configuration: build_configuration(observed, plan, now).filter(|_| observed.outdated.is_empty()),
    }
}

/// How things stand, for the queue.
pub(super) fn state(observed: &Observed, plan: &Plan) -> State {
    let readiness = ready(observed, plan, None);
    match worst(&plan.faults) {
        Some(fault) if fault.reason == reason::INVALID_SPEC => State::Invalid {
            message: fault.message.clone(),
        },
        Some(fault) if fault.blocks > Blocks::Nothing => State::Blocked {
            on: fault.message.clone(),
        },
        _ if readiness.status != ConditionStatus::True => State::Progressing { why: readiness.message },
        _ => State::Settled,
    }
}

fn conditions(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> Vec<DesiredCondition> {
    let ready = ready(observed, plan, failure);
    let mut wanted = vec![
        progressing(plan, &ready),
        degraded(observed, plan, failure),
        config_applied(plan),
    ];
    wanted.insert(0, ready);
    wanted.extend(supervised(observed));
    wanted.extend(doubtful(plan));
    wanted.extend(drifted(observed, plan));
    wanted.extend(retained(plan));
    wanted.extend(remarks(&observed.outdated, observed.controller.check().warnings()));
    wanted
}

fn ready(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> DesiredCondition {
    if let Some(failure) = failure.filter(|failure| failure.is_name_taken()) {
        return DesiredCondition::false_(READY, failure.reason, with_faults(failure, &plan.faults));
    }
    if let Some(fault) = worst(&plan.faults).filter(|fault| fault.blocks > Blocks::Nothing) {
        return DesiredCondition::false_(READY, fault.reason, blocking_messages(&plan.faults));
    }
    if let Some(failure) = failure.filter(|failure| failure.needs_a_person()) {
        return DesiredCondition::false_(READY, failure.reason, failure.message.clone());
    }
    match &plan.config {
        ConfigState::External => {
            let message = match (&observed.outside, observed.controller.spec.external_address()) {
                (Some(_), Some((host, port))) => format!("slurmctld outside Kubernetes answers at {host}:{port}"),
                _ => "slurmctld runs outside Kubernetes".to_owned(),
            };
            return DesiredCondition::true_(READY, reason::EXTERNAL, message);
        }
        ConfigState::Rejected { .. }
        | ConfigState::Retrying { .. }
        | ConfigState::Away { .. }
        | ConfigState::Waiting { .. } => {
            return DesiredCondition {
                type_: READY,
                ..config_applied(plan)
            };
        }
        ConfigState::Unknown
        | ConfigState::Written { .. }
        | ConfigState::Applied { .. }
        | ConfigState::Pushing { .. }
        | ConfigState::Restarting { .. } => {}
    }
    let serving = observed
        .pods
        .iter()
        .find(|pod| pods::is_labelled_active(pod) && pods::is_ready(pod));
    if let Some(pod) = serving {
        return DesiredCondition::true_(
            READY,
            reason::READY,
            format!("slurmctld serves in pod {}", pod.name_any()),
        );
    }
    let trouble = observed.pods.iter().find_map(|pod| pods::trouble(pod));
    let message = trouble.unwrap_or_else(|| "slurmctld's pod is not ready yet".to_owned());
    DesiredCondition::false_(READY, reason::STARTING, message)
}

fn blocking_messages(faults: &[Fault]) -> String {
    let blocking = faults.iter().filter(|fault| fault.blocks > Blocks::Nothing);
    let messages: Vec<&str> = blocking.map(|fault| fault.message.as_str()).collect();
    messages.join("\n")
}

fn progressing(plan: &Plan, ready: &DesiredCondition) -> DesiredCondition {
    let config = config_applied(plan);
    match &plan.config {
        ConfigState::Pushing { .. } | ConfigState::Restarting { .. } => DesiredCondition {
            type_: PROGRESSING,
            status: ConditionStatus::True,
            ..config
        },
        _ if ready.status != ConditionStatus::True && ready.reason == reason::STARTING => {
            DesiredCondition::true_(PROGRESSING, reason::STARTING, ready.message.clone())
        }
        _ => DesiredCondition::false_(PROGRESSING, reason::SETTLED, ""),
    }
}

/// A taken name comes first: as long as it is, nothing else can be put right.
fn with_faults(failure: &Failure, faults: &[Fault]) -> String {
    let faults = faults.iter().map(|fault| fault.message.as_str());
    let messages: Vec<&str> = std::iter::once(failure.message.as_str()).chain(faults).collect();
    messages.join("\n")
}

fn degraded(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> DesiredCondition {
    if let Some(failure) = failure.filter(|failure| failure.is_name_taken()) {
        return DesiredCondition::true_(DEGRADED, failure.reason, with_faults(failure, &plan.faults));
    }
    if let Some(message) = key_mismatch(observed)
        && worst(&plan.faults).is_none_or(|fault| fault.blocks == Blocks::Nothing)
    {
        let faults = plan.faults.iter().map(|fault| fault.message.clone());
        let messages: Vec<String> = std::iter::once(message).chain(faults).collect();
        return DesiredCondition::true_(DEGRADED, KEY_MISMATCH, messages.join("\n"));
    }
    if let Some(fault) = worst(&plan.faults) {
        let messages: Vec<&str> = plan.faults.iter().map(|fault| fault.message.as_str()).collect();
        return DesiredCondition::true_(DEGRADED, fault.reason, messages.join("\n"));
    }
    if let Some(failure) = failure {
        return DesiredCondition::true_(DEGRADED, failure.reason, failure.message.clone());
    }
    if matches!(
        plan.config,
        ConfigState::Rejected { .. }
            | ConfigState::Retrying { .. }
            | ConfigState::Away { .. }
            | ConfigState::Waiting { .. }
    ) {
        return DesiredCondition {
            type_: DEGRADED,
            status: ConditionStatus::True,
            ..config_applied(plan)
        };
    }
    match agentless(observed) {
        Some(message) => DesiredCondition::true_(DEGRADED, reason::AGENT_MISSING, message),
        None => DesiredCondition::false_(DEGRADED, reason::HEALTHY, ""),
    }
}

/// What is known of different keys, here and by the Accounting, which is told by slurmctld that slurmdbd refuses it.
fn key_mismatch(observed: &Observed) -> Option<String> {
    let accounting = observed
        .accounting
        .as_ref()
        .and_then(|accounting| accounting.status.as_ref());
    let conditions = accounting.iter().flat_map(|status| &status.conditions);
    let told = conditions
        .filter(|condition| condition.type_ == DEGRADED && condition.reason == KEY_MISMATCH)
        .map(|condition| condition.message.clone())
        .filter(|message| Some(message) != observed.key_mismatch.as_ref());
    let messages: Vec<String> = observed.key_mismatch.iter().cloned().chain(told).collect();
    (!messages.is_empty()).then(|| messages.join("\n"))
}

fn config_applied(plan: &Plan) -> DesiredCondition {
    match &plan.config {
        ConfigState::Unknown => {
            let message = blocking_messages(&plan.faults);
            match worst(&plan.faults).filter(|fault| fault.blocks > Blocks::Nothing) {
                Some(fault) => DesiredCondition::false_(CONFIG_APPLIED, fault.reason, message),
                None => DesiredCondition::unknown(
                    CONFIG_APPLIED,
                    reason::STARTING,
                    "the configuration has not been made yet",
                ),
            }
        }
        ConfigState::External => {
            let ours = "the configuration of a slurmctld outside Kubernetes is not the operator's";
            let message = match plan.unheeded.join(", ") {
                none if none.is_empty() => ours.to_owned(),
                unheeded => format!("{ours}, so nothing comes of {unheeded}; write it into the files there"),
            };
            DesiredCondition::unknown(CONFIG_APPLIED, reason::EXTERNAL, message)
        }
        ConfigState::Written { sequence, digest } => DesiredCondition::false_(
            CONFIG_APPLIED,
            reason::WRITTEN,
            format!("revision {sequence} ({digest}) is written for slurmctld's pod to start from"),
        ),
        ConfigState::Applied { sequence, digest, pod } => {
            let runs = format!("slurmctld in pod {pod} runs with revision {sequence} ({digest}), as its agent says");
            match held(plan) {
                Some((reason, held)) => DesiredCondition::false_(CONFIG_APPLIED, reason, format!("{held}\n{runs}")),
                None => DesiredCondition::true_(CONFIG_APPLIED, reason::APPLIED, runs),
            }
        }
        ConfigState::Pushing { digest, pod } => DesiredCondition::false_(
            CONFIG_APPLIED,
            reason::PUSHING,
            format!("the configuration {digest} is on its way to the agent of pod {pod}"),
        ),
        ConfigState::Waiting { digest, pod, why } => DesiredCondition::false_(
            CONFIG_APPLIED,
            reason::SLURMCTLD_AWAY,
            format!("the configuration {digest} is in pod {pod}, and slurmctld does not run with it yet: {why}"),
        ),
        ConfigState::Away { digest, why, sent } => DesiredCondition::false_(
            CONFIG_APPLIED,
            reason::AGENT_AWAY,
            match sent {
                None => format!(
                    "the configuration {digest} waits, and slurmctld goes on with the one it has, since its agent cannot be reached: {why}; look at the log of the container reconfigure"
                ),
                Some(sequence) => format!(
                    "the configuration {digest} was sent as revision {sequence} by a ConfigMap that the agent takes it from, since the agent cannot be reached: {why}; how it ended is known when it can, or by the log of the container reconfigure"
                ),
            },
        ),
        ConfigState::Retrying { digest, pod, why } => DesiredCondition::false_(
            CONFIG_APPLIED,
            reason::RETRYING,
            format!(
                "the configuration {digest} is tried again, and slurmctld goes on with the one it has, since the agent of pod {pod} could not carry it out: {why}"
            ),
        ),
        ConfigState::Rejected { pod, rejection } => {
            DesiredCondition::false_(CONFIG_APPLIED, reason::CONFIG_REJECTED, rejected(pod, rejection))
        }
        ConfigState::Restarting { digest } => DesiredCondition::false_(
            CONFIG_APPLIED,
            reason::PUSHING,
            format!("slurmctld is restarted with the configuration {digest}, as spec.configUpdate asks for"),
        ),
    }
}

/// What Slurm takes and nobody can have meant, while there is something.
fn doubtful(plan: &Plan) -> Option<DesiredCondition> {
    let message = plan.doubts.join("\n");
    (!message.is_empty()).then(|| DesiredCondition::true_(reason::CONFIG_DOUBTFUL, reason::CONFIG_DOUBTFUL, message))
}

/// What somebody closed in Slurm of the partitions that have no object to say it.
fn drifted(observed: &Observed, plan: &Plan) -> Option<DesiredCondition> {
    let has_object = |name: &String| {
        observed
            .partitions
            .iter()
            .any(|partition| partition.slurm_name() == *name)
    };
    let closed = plan.kept.iter().filter(|(name, _)| !has_object(name));
    let lines: Vec<String> = closed
        .map(|(name, Kept { state, wanted, since })| {
            format!(
                "partition {name} is {state} in Slurm and not {wanted} since {since}, and stays so, after a restart too; open it by `scontrol update PartitionName={name} State={wanted}`, or set another State where it is written"
            )
        })
        .collect();
    (!lines.is_empty()).then(|| DesiredCondition::true_(DRIFTED, reason::CLOSED_BY_HAND, lines.join("\n")))
}

/// What nobody wants any more and stays for its jobs.
fn retained(plan: &Plan) -> Option<DesiredCondition> {
    let lines: Vec<String> = plan
        .retained
        .iter()
        .map(|name| {
            format!(
                "partition {name} was taken away and has jobs: it takes no new ones, and goes by itself when they have ended; `squeue --partition={name}` lists them"
            )
        })
        .collect();
    (!lines.is_empty()).then(|| DesiredCondition::true_(PARTITION_RETAINED, reason::WAITS_FOR_JOBS, lines.join("\n")))
}

/// What is not in the newest configuration as it was written, and the first reason for that.
fn held(plan: &Plan) -> Option<(&'static str, String)> {
    let first = plan.held.first()?;
    let lines: Vec<String> = plan
        .held
        .iter()
        .map(|Held { source, why, .. }| format!("{source} is held at its last good version: {why}"))
        .collect();
    Some((first.reason, lines.join("\n")))
}

fn rejected(pod: &str, rejection: &Rejection) -> String {
    const REMEDY: &str = "correct spec.extraConf, the referenced files or the NodeSets' partitions";
    let Rejection {
        sequence,
        digest,
        by,
        why,
    } = rejection;
    let revision = format!("revision {sequence} ({digest})");
    match by {
        RejectedBy::Slurmctld => format!(
            "slurmctld in pod {pod} refused {revision} and was put back to the one before, with which it runs: {why}; {REMEDY}"
        ),
        RejectedBy::Agent => format!(
            "the agent of pod {pod} cannot read {revision}, and slurmctld goes on with the one before: {why}; {REMEDY}"
        ),
        RejectedBy::DryRun | RejectedBy::Other(_) => format!(
            "a dry run in pod {pod} refused {revision}, of which the running slurmctld was told nothing; it goes on with the one before: {why}; {REMEDY}"
        ),
    }
}

/// What is worth an event: that the configuration does not come through, when that is new.
pub(super) fn setback<'a>(
    observed: &Observed,
    plan: &Plan,
    status: &'a ControllerStatus,
) -> Option<(&'static str, &'a str)> {
    const SETBACKS: [&str; 3] = [reason::CONFIG_REJECTED, reason::AGENT_AWAY, reason::RETRYING];
    let applied = |conditions: &'a [Condition]| conditions.iter().find(|condition| condition.type_ == CONFIG_APPLIED);
    let now = applied(&status.conditions)?;
    let word = SETBACKS.into_iter().find(|word| *word == now.reason)?;
    // Each input that is held is told of by itself.
    if word == reason::CONFIG_REJECTED && !plan.held.is_empty() {
        return None;
    }
    // Since then this leader has said that it asks the agent.
    if let ConfigState::Rejected { rejection, .. } = &plan.config
        && configuration::was_rejected_before(observed, rejection)
    {
        return None;
    }
    let said = conditions_of(observed).iter().any(|before| {
        // Another refusal is news; another failure to reach the same agent is not.
        let passing = [reason::AGENT_AWAY, reason::RETRYING].contains(&word);
        before.type_ == CONFIG_APPLIED && before.reason == now.reason && (passing || before.message == now.message)
    });
    (!said).then_some((word, now.message.as_str()))
}

fn supervised(observed: &Observed) -> Option<DesiredCondition> {
    let controller = observed.controller.as_ref();
    if controller.spec.is_external() {
        return None;
    }
    if let Some(message) = agentless(observed) {
        return Some(DesiredCondition::false_(SUPERVISED, reason::AGENT_MISSING, message));
    }
    Some(if is_supervised(&Parent::new(controller)) {
        DesiredCondition::true_(SUPERVISED, reason::AGENT, "slurmctld runs under slurm-agent")
    } else {
        DesiredCondition::false_(
            SUPERVISED,
            reason::OWN_COMMAND,
            "spec.slurmctld.command replaces the agent, so that a bad configuration can end slurmctld; remove it unless you need it",
        )
    })
}

fn agentless(observed: &Observed) -> Option<String> {
    let pod = observed.pods.iter().find(|pod| !pods::has_agent(pod))?;
    Some(format!(
        "pod {} was made by another operator and has no agent, so changes of the configuration reach it late; restart it once with `kubectl annotate controller.slinky.slurm.net {} restart-trigger=1`",
        pod.name_any(),
        observed.controller.name_any()
    ))
}

fn conditions_of(observed: &Observed) -> &[Condition] {
    observed
        .controller
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default()
}

/// Whether the status says that slurmctld runs with this configuration.
pub(super) fn says_applied(observed: &Observed, digest: &Digest) -> bool {
    configuration::says_applied(observed, digest)
        || conditions_of(observed).iter().any(|condition| {
            condition.type_ == CONFIG_APPLIED
                && condition.status == ConditionStatus::True
                && condition.message.contains(&digest.to_string())
        })
}
