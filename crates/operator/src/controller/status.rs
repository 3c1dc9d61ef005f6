//! Builds the status of a Controller. Pure.

use api::{
    Condition, ConditionStatus, ControllerStatus, Validate,
    conditions::{DEGRADED, DRIFTED, PARTITION_RETAINED, PROGRESSING, READY},
    configuration::RejectedBy,
};
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::{observe::Observed, plan::Plan};
use crate::{
    cluster::{ExternalState, deliver::Rejection, pods},
    configuration::{
        ConfigState, Held,
        report::{self, CONFIG_APPLIED},
    },
    finding::{Blocks, Finding, worst},
    key_mismatch::KEY_MISMATCH,
    parent::Parent,
    partition::rules::manual_state::ManualState,
    reason,
    runtime::{DesiredCondition, Failure, State, remarks, settle},
};

/// slurmctld runs under the agent, which restarts it and keeps its last output.
pub(super) const SUPERVISED: &str = "Supervised";

/// The status to write.
pub(super) fn build_status(
    observed: &Observed,
    plan: &Plan,
    failure: Option<&Failure>,
    now: Timestamp,
) -> ControllerStatus {
    let controller = observed.inputs.controller.as_ref();
    let generation = controller.metadata.generation.unwrap_or_default();
    let previous = conditions_of(observed);
    ControllerStatus {
        conditions: settle(previous, &conditions(observed, plan, failure), generation, now),
        // Upstream's definitions, if installed, drop these fields: they would be written again and again.
        observed_generation: observed.outdated.is_empty().then_some(generation),
        configuration: plan
            .configuration
            .status
            .clone()
            .filter(|_| observed.outdated.is_empty()),
    }
}

/// The state for the queue.
pub(super) fn state(observed: &Observed, plan: &Plan) -> State {
    let readiness = ready(observed, plan, None);
    match worst(&plan.findings) {
        Some(finding) if finding.reason == reason::INVALID_SPEC => State::Invalid {
            message: finding.message.clone(),
        },
        Some(finding) if finding.blocks > Blocks::Nothing => State::Blocked {
            on: finding.message.clone(),
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
    wanted.extend(remarks(
        &observed.outdated,
        observed.inputs.controller.check().warnings(),
    ));
    wanted
}

fn ready(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> DesiredCondition {
    if let Some(failure) = failure.filter(|failure| failure.is_name_taken()) {
        return DesiredCondition::false_(READY, failure.reason, with_findings(failure, &plan.findings));
    }
    if let Some(finding) = worst(&plan.findings).filter(|finding| finding.blocks > Blocks::Nothing) {
        return DesiredCondition::false_(READY, finding.reason, blocking_messages(&plan.findings));
    }
    if let Some(failure) = failure.filter(|failure| failure.needs_a_person()) {
        return DesiredCondition::false_(READY, failure.reason, failure.message.clone());
    }
    match &plan.configuration.state {
        ConfigState::External => {
            let message = match (
                &observed.snapshot.external,
                observed.inputs.controller.spec.external_address(),
            ) {
                (ExternalState::Polled(_), Some((host, port))) => {
                    format!("external slurmctld responds at {host}:{port}")
                }
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
        .inputs
        .pods
        .iter()
        .find(|pod| pods::is_labelled_active(pod) && pods::is_ready(pod));
    if let Some(pod) = serving {
        return DesiredCondition::true_(
            READY,
            reason::READY,
            format!("slurmctld is active in pod {}", pod.name_any()),
        );
    }
    let trouble = observed.inputs.pods.iter().find_map(|pod| pods::trouble(pod));
    let message = trouble.unwrap_or_else(|| "slurmctld's pod is not ready yet".to_owned());
    DesiredCondition::false_(READY, reason::STARTING, message)
}

fn blocking_messages(findings: &[Finding]) -> String {
    let blocking = findings.iter().filter(|finding| finding.blocks > Blocks::Nothing);
    let messages: Vec<&str> = blocking.map(|finding| finding.message.as_str()).collect();
    messages.join("\n")
}

fn progressing(plan: &Plan, ready: &DesiredCondition) -> DesiredCondition {
    let config = config_applied(plan);
    match &plan.configuration.state {
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

/// A taken name comes first: until it is resolved, nothing else can be.
fn with_findings(failure: &Failure, findings: &[Finding]) -> String {
    let findings = findings.iter().map(|finding| finding.message.as_str());
    let messages: Vec<&str> = std::iter::once(failure.message.as_str()).chain(findings).collect();
    messages.join("\n")
}

fn degraded(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> DesiredCondition {
    if let Some(failure) = failure.filter(|failure| failure.is_name_taken()) {
        return DesiredCondition::true_(DEGRADED, failure.reason, with_findings(failure, &plan.findings));
    }
    if let Some(message) = key_mismatch(observed)
        && worst(&plan.findings).is_none_or(|finding| finding.blocks == Blocks::Nothing)
    {
        let findings = plan.findings.iter().map(|finding| finding.message.clone());
        let messages: Vec<String> = std::iter::once(message).chain(findings).collect();
        return DesiredCondition::true_(DEGRADED, KEY_MISMATCH, messages.join("\n"));
    }
    if let Some(finding) = worst(&plan.findings) {
        let messages: Vec<&str> = plan.findings.iter().map(|finding| finding.message.as_str()).collect();
        return DesiredCondition::true_(DEGRADED, finding.reason, messages.join("\n"));
    }
    if let Some(failure) = failure {
        return DesiredCondition::true_(DEGRADED, failure.reason, failure.message.clone());
    }
    if matches!(
        plan.configuration.state,
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

/// Known key mismatches, found here or by the Accounting, which knows whether slurmdbd refuses slurmctld.
fn key_mismatch(observed: &Observed) -> Option<String> {
    let accounting = observed
        .inputs
        .accounting
        .as_ref()
        .and_then(|accounting| accounting.status.as_ref());
    let conditions = accounting.iter().flat_map(|status| &status.conditions);
    let reported = conditions
        .filter(|condition| condition.type_ == DEGRADED && condition.reason == KEY_MISMATCH)
        .map(|condition| condition.message.clone())
        .filter(|message| Some(message) != observed.key_mismatch.as_ref());
    let messages: Vec<String> = observed.key_mismatch.iter().cloned().chain(reported).collect();
    (!messages.is_empty()).then(|| messages.join("\n"))
}

fn config_applied(plan: &Plan) -> DesiredCondition {
    match &plan.configuration.state {
        ConfigState::Unknown => {
            let message = blocking_messages(&plan.findings);
            match worst(&plan.findings).filter(|finding| finding.blocks > Blocks::Nothing) {
                Some(finding) => DesiredCondition::false_(CONFIG_APPLIED, finding.reason, message),
                None => DesiredCondition::unknown(
                    CONFIG_APPLIED,
                    reason::STARTING,
                    "the configuration has not been built yet",
                ),
            }
        }
        ConfigState::External => {
            let ours = "the operator does not manage the configuration of an external slurmctld";
            let message = match plan.ignored.join(", ") {
                none if none.is_empty() => ours.to_owned(),
                ignored => format!("{ours}, so these have no effect: {ignored}; write them into the files there"),
            };
            DesiredCondition::unknown(CONFIG_APPLIED, reason::EXTERNAL, message)
        }
        ConfigState::Written { sequence, digest } => DesiredCondition::false_(
            CONFIG_APPLIED,
            reason::WRITTEN,
            format!("revision {sequence} ({digest}) is written for slurmctld's pod to start with"),
        ),
        ConfigState::Applied { sequence, digest, pod } => {
            let runs =
                format!("slurmctld in pod {pod} runs with revision {sequence} ({digest}), according to its agent");
            match held(plan) {
                Some((reason, held)) => DesiredCondition::false_(CONFIG_APPLIED, reason, format!("{held}\n{runs}")),
                None => DesiredCondition::true_(CONFIG_APPLIED, reason::APPLIED, runs),
            }
        }
        ConfigState::Pushing { digest, pod } => DesiredCondition::false_(
            CONFIG_APPLIED,
            reason::PUSHING,
            format!("the configuration {digest} is being sent to the agent of pod {pod}"),
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
                    "the configuration {digest} waits, and slurmctld keeps the current one, because its agent cannot be reached: {why}; see the log of the container reconfigure"
                ),
                Some(sequence) => format!(
                    "the configuration {digest} was sent as revision {sequence} in a ConfigMap, because the agent cannot be reached: {why}; the result is known when it can be reached, or from the log of the container reconfigure"
                ),
            },
        ),
        ConfigState::Retrying { digest, pod, why } => DesiredCondition::false_(
            CONFIG_APPLIED,
            reason::RETRYING,
            format!(
                "the configuration {digest} is retried, and slurmctld keeps the current one, because the agent of pod {pod} could not apply it: {why}"
            ),
        ),
        ConfigState::Rejected { pod, rejection } => {
            DesiredCondition::false_(CONFIG_APPLIED, reason::CONFIG_REJECTED, rejected(pod, rejection))
        }
        ConfigState::Restarting { digest } => DesiredCondition::false_(
            CONFIG_APPLIED,
            reason::PUSHING,
            format!("slurmctld is restarted with the configuration {digest}, as spec.configUpdate requires"),
        ),
    }
}

/// Warnings about content that Slurm accepts but that is probably a mistake.
fn doubtful(plan: &Plan) -> Option<DesiredCondition> {
    let message = plan.configuration.doubts.join("\n");
    (!message.is_empty()).then(|| DesiredCondition::true_(reason::CONFIG_DOUBTFUL, reason::CONFIG_DOUBTFUL, message))
}

/// Manual states of partitions without an object.
fn drifted(observed: &Observed, plan: &Plan) -> Option<DesiredCondition> {
    let has_object = |name: &String| {
        observed
            .inputs
            .partitions
            .iter()
            .any(|partition| partition.slurm_name() == *name)
    };
    let closed = plan
        .configuration
        .manual_states
        .iter()
        .filter(|(name, _)| !has_object(name));
    let lines: Vec<String> = closed
        .map(|(name, ManualState { state, wanted, since })| {
            format!(
                "partition {name} was set to {state} manually in Slurm, where {wanted} is wanted (known since {since}); it is kept, also across restarts; open it with `scontrol update PartitionName={name} State={wanted}`, or set another State in its source"
            )
        })
        .collect();
    (!lines.is_empty()).then(|| DesiredCondition::true_(DRIFTED, reason::CLOSED_BY_HAND, lines.join("\n")))
}

/// Partitions without an owner that are kept for their jobs.
fn retained(plan: &Plan) -> Option<DesiredCondition> {
    let lines: Vec<String> = plan
        .configuration
        .retained
        .iter()
        .map(|name| {
            format!(
                "partition {name} was removed and has jobs: it accepts no new ones, and is deleted automatically when they have ended; `squeue --partition={name}` lists them"
            )
        })
        .collect();
    (!lines.is_empty()).then(|| DesiredCondition::true_(PARTITION_RETAINED, reason::WAITS_FOR_JOBS, lines.join("\n")))
}

/// The inputs that are not in the newest configuration as written, and the first reason.
fn held(plan: &Plan) -> Option<(&'static str, String)> {
    let first = plan.configuration.held.first()?;
    let lines: Vec<String> = plan
        .configuration
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
            "slurmctld in pod {pod} rejected {revision} and was rolled back to the former one, which it runs with: {why}; {REMEDY}"
        ),
        RejectedBy::Agent => format!(
            "the agent of pod {pod} cannot read {revision}, and slurmctld keeps the former one: {why}; {REMEDY}"
        ),
        RejectedBy::DryRun | RejectedBy::Other(_) => format!(
            "a dry run in pod {pod} rejected {revision}, which was not sent to the running slurmctld; it keeps the former one: {why}; {REMEDY}"
        ),
    }
}

/// The event for a new failure to apply the configuration.
pub(super) fn setback<'a>(
    observed: &Observed,
    plan: &Plan,
    status: &'a ControllerStatus,
) -> Option<(&'static str, &'a str)> {
    const SETBACKS: [&str; 3] = [reason::CONFIG_REJECTED, reason::AGENT_AWAY, reason::RETRYING];
    let applied = |conditions: &'a [Condition]| conditions.iter().find(|condition| condition.type_ == CONFIG_APPLIED);
    let now = applied(&status.conditions)?;
    let reason = SETBACKS.into_iter().find(|reason| *reason == now.reason)?;
    // Each held input has its own event.
    if reason == reason::CONFIG_REJECTED && !plan.configuration.held.is_empty() {
        return None;
    }
    // The former leader reported it already; the condition has changed since only because this leader polled the agent.
    if let ConfigState::Rejected { rejection, .. } = &plan.configuration.state
        && report::was_rejected_before(&observed.inputs, &observed.snapshot.report, rejection)
    {
        return None;
    }
    let is_reported = conditions_of(observed).iter().any(|before| {
        // Another rejection is news; another failure to reach the same agent is not.
        let passing = [reason::AGENT_AWAY, reason::RETRYING].contains(&reason);
        before.type_ == CONFIG_APPLIED && before.reason == now.reason && (passing || before.message == now.message)
    });
    (!is_reported).then_some((reason, now.message.as_str()))
}

fn supervised(observed: &Observed) -> Option<DesiredCondition> {
    let controller = observed.inputs.controller.as_ref();
    if controller.spec.is_external() {
        return None;
    }
    if let Some(message) = agentless(observed) {
        return Some(DesiredCondition::false_(SUPERVISED, reason::AGENT_MISSING, message));
    }
    Some(if Parent::new(controller).is_supervised() {
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
    let pod = observed.inputs.pods.iter().find(|pod| !pods::has_agent(pod))?;
    Some(format!(
        "pod {} was created by another operator and has no agent, so changes of the configuration reach it late; restart it once with `kubectl annotate controller.slinky.slurm.net {} restart-trigger=1`",
        pod.name_any(),
        observed.inputs.controller.name_any()
    ))
}

fn conditions_of(observed: &Observed) -> &[Condition] {
    observed
        .inputs
        .controller
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default()
}
