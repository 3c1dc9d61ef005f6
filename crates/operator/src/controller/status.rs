//! Builds the status of a Controller. Pure.

use api::{
    Condition, ConditionStatus, ControllerStatus, Validate,
    conditions::{
        CONFIG_APPLIED, CONFIG_DOUBTFUL, DEGRADED, DRIFTED, PARTITION_RETAINED, PROGRESSING, READY, SUPERVISED,
    },
    configuration::RejectedBy,
};
use jiff::Timestamp;
use kube::ResourceExt as _;
use slurm::agent::PROTOCOL;

use super::{observe::Observed, plan::Plan};
use crate::{
    cluster::{deliver::Rejection, pods},
    configuration::{ConfigState, Held, report},
    finding::{Blocks, Finding, worst},
    parent::Parent,
    partition::rules::manual_state::ManualState,
    reason,
    runtime::{DesiredCondition, Failure, State, remarks, settle},
    startup::describe_startup,
};

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
        Some(finding) if finding.reason == reason::INVALID_SPEC || finding.blocks > Blocks::Nothing => finding.state(),
        _ if readiness.status != ConditionStatus::True => State::Progressing { why: readiness.message },
        _ => State::Settled,
    }
}

fn conditions(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> Vec<DesiredCondition> {
    let ready = ready(observed, plan, failure);
    let progressing = progressing(observed, plan, &ready);
    let mut wanted = vec![
        ready,
        progressing,
        degraded(observed, plan, failure),
        config_applied(observed, plan),
    ];
    wanted.extend(supervised(observed));
    // Content that Slurm accepts but that is probably a mistake.
    let doubts = plan.configuration.doubts.iter().cloned();
    wanted.extend(true_if_any(CONFIG_DOUBTFUL, reason::CONFIG_DOUBTFUL, doubts));
    wanted.extend(drifted(observed, plan));
    wanted.extend(retained(plan));
    wanted.extend(remarks(
        &observed.outdated,
        observed.inputs.controller.check().warnings(),
    ));
    wanted
}

/// The condition with these lines, if there are any.
fn true_if_any(
    type_: &'static str,
    reason: &'static str,
    lines: impl Iterator<Item = String>,
) -> Option<DesiredCondition> {
    let message = lines.collect::<Vec<_>>().join("\n");
    (!message.is_empty()).then(|| DesiredCondition::true_(type_, reason, message))
}

/// The messages of these findings, after the first message.
fn messages<'a>(first: Option<&'a str>, findings: impl IntoIterator<Item = &'a Finding>) -> String {
    let findings = findings.into_iter().map(|finding| finding.message.as_str());
    first.into_iter().chain(findings).collect::<Vec<_>>().join("\n")
}

/// The reason of the worst finding that blocks something, and the messages of all of these.
fn blocking(plan: &Plan) -> Option<(&'static str, String)> {
    let blocks = |finding: &&Finding| finding.blocks > Blocks::Nothing;
    let worst = worst(&plan.findings).filter(blocks)?;
    Some((worst.reason, messages(None, plan.findings.iter().filter(blocks))))
}

/// Whether slurmctld does not run with the newest configuration, and will not without a change.
fn is_stuck(state: &ConfigState) -> bool {
    match state {
        ConfigState::Rejected { .. }
        | ConfigState::Retrying { .. }
        | ConfigState::Away { .. }
        | ConfigState::Waiting { .. } => true,
        ConfigState::Unknown
        | ConfigState::External
        | ConfigState::Written { .. }
        | ConfigState::Applied { .. }
        | ConfigState::Pushing { .. }
        | ConfigState::Restarting { .. } => false,
    }
}

fn ready(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> DesiredCondition {
    let not_ready = |reason, message| DesiredCondition::false_(READY, reason, message);
    // Until a taken name is resolved, nothing else can be.
    if let Some(failure) = failure.filter(|failure| failure.is_name_taken()) {
        return not_ready(failure.reason, messages(Some(&failure.message), &plan.findings));
    }
    if let Some((reason, message)) = blocking(plan) {
        return not_ready(reason, message);
    }
    if let Some(failure) = failure.filter(|failure| failure.needs_a_person()) {
        return not_ready(failure.reason, failure.message.clone());
    }
    let inputs = &observed.inputs;
    if plan.configuration.state == ConfigState::External {
        let message = match &observed.snapshot.external {
            Some((address, Some(_))) => format!("external slurmctld responds at {address}"),
            _ => "slurmctld runs outside Kubernetes".to_owned(),
        };
        return DesiredCondition::true_(READY, reason::EXTERNAL, message);
    }
    if is_stuck(&plan.configuration.state) {
        return DesiredCondition {
            type_: READY,
            ..config_applied(observed, plan)
        };
    }
    let mut serving = inputs
        .pods
        .iter()
        .filter(|pod| pods::is_labelled_active(pod) && pods::is_ready(pod));
    if let Some(pod) = serving.next() {
        let message = format!("slurmctld is active in pod {}", pod.name_any());
        return DesiredCondition::true_(READY, reason::READY, message);
    }
    match stuck(observed) {
        Some(message) => not_ready(reason::PODS_DO_NOT_START, message),
        None => not_ready(reason::STARTING, "slurmctld's pod is not ready yet".to_owned()),
    }
}

/// Describes what keeps pods of slurmctld from starting, if waiting does not help.
fn stuck(observed: &Observed) -> Option<String> {
    let pods = observed.inputs.pods.iter().map(AsRef::as_ref);
    describe_startup(pods.filter(|pod| !pods::is_ready(pod) && pod.metadata.deletion_timestamp.is_none()))
}

fn progressing(observed: &Observed, plan: &Plan, ready: &DesiredCondition) -> DesiredCondition {
    match &plan.configuration.state {
        ConfigState::Pushing { .. } | ConfigState::Restarting { .. } => DesiredCondition {
            type_: PROGRESSING,
            status: ConditionStatus::True,
            ..config_applied(observed, plan)
        },
        _ if ready.status != ConditionStatus::True && ready.reason == reason::STARTING => {
            DesiredCondition::true_(PROGRESSING, reason::STARTING, ready.message.clone())
        }
        _ => DesiredCondition::false_(PROGRESSING, reason::SETTLED, ""),
    }
}

fn degraded(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> DesiredCondition {
    let is_blocked = blocking(plan).is_some();
    let taken = failure.filter(|failure| failure.is_name_taken());
    let mismatch = key_mismatch(observed).filter(|_| !is_blocked);
    let (reason, message) = if let Some(failure) = taken {
        (failure.reason, messages(Some(&failure.message), &plan.findings))
    } else if let Some(mismatch) = mismatch {
        (reason::KEY_MISMATCH, messages(Some(&mismatch), &plan.findings))
    } else if let Some(finding) = worst(&plan.findings) {
        (finding.reason, messages(None, &plan.findings))
    } else if let Some(failure) = failure {
        (failure.reason, failure.message.clone())
    } else if let Some(message) = stuck(observed) {
        (reason::PODS_DO_NOT_START, message)
    } else if is_stuck(&plan.configuration.state) {
        let config = config_applied(observed, plan);
        (config.reason, config.message)
    } else if let Some(message) = agentless(observed) {
        (reason::AGENT_MISSING, message)
    } else if let Some(agent) = &observed.snapshot.report.old_agent {
        let name = observed.inputs.controller.name_any();
        let message = format!(
            "the agent in {agent} is older than this operator (protocol {PROTOCOL}): it does not compare a node with the state that an order was planned on, which the operator does a moment earlier instead, and does not report keys; restart it when convenient with `kubectl annotate controller.slinky.slurm.net {name} restart-trigger=\"$(date +%s)\" --overwrite`"
        );
        (reason::AGENT_OUTDATED, message)
    } else {
        return DesiredCondition::false_(DEGRADED, reason::HEALTHY, "");
    };
    DesiredCondition::true_(DEGRADED, reason, message)
}

/// Known key mismatches, found here or by the Accounting, which knows whether slurmdbd refuses slurmctld.
fn key_mismatch(observed: &Observed) -> Option<String> {
    let accounting = observed.inputs.accounting.as_ref();
    let status = accounting.and_then(|accounting| accounting.status.as_ref());
    let conditions = status.iter().flat_map(|status| &status.conditions);
    let reported = conditions
        .filter(|condition| condition.type_ == DEGRADED && condition.reason == reason::KEY_MISMATCH)
        .map(|condition| condition.message.clone())
        .filter(|message| Some(message) != observed.key_mismatch.as_ref());
    let messages: Vec<String> = observed.key_mismatch.iter().cloned().chain(reported).collect();
    (!messages.is_empty()).then(|| messages.join("\n"))
}

fn config_applied(observed: &Observed, plan: &Plan) -> DesiredCondition {
    let (reason, message) = match &plan.configuration.state {
        ConfigState::Unknown => {
            let Some(blocking) = blocking(plan) else {
                let message = "the configuration has not been built yet";
                return DesiredCondition::unknown(CONFIG_APPLIED, reason::STARTING, message);
            };
            blocking
        }
        ConfigState::External => {
            let ours = "the operator does not manage the configuration of an external slurmctld";
            let message = match ignored_fields(observed).join(", ") {
                none if none.is_empty() => ours.to_owned(),
                ignored => format!("{ours}, so these have no effect: {ignored}; write them into the files there"),
            };
            return DesiredCondition::unknown(CONFIG_APPLIED, reason::EXTERNAL, message);
        }
        ConfigState::Written { sequence, digest } => (
            reason::WRITTEN,
            format!("revision {sequence} ({digest}) is written for slurmctld's pod to start with"),
        ),
        ConfigState::Applied { sequence, digest, pod } => {
            let runs =
                format!("slurmctld in pod {pod} runs with revision {sequence} ({digest}), according to its agent");
            let held = &plan.configuration.held;
            let Some(first) = held.first() else {
                return DesiredCondition::true_(CONFIG_APPLIED, reason::APPLIED, runs);
            };
            let held = held
                .iter()
                .map(|Held { source, why, .. }| format!("{source} is held at its last good version: {why}"));
            (first.reason, held.chain([runs]).collect::<Vec<_>>().join("\n"))
        }
        ConfigState::Pushing { digest, pod } => (
            reason::PUSHING,
            format!("the configuration {digest} is being sent to the agent of pod {pod}"),
        ),
        ConfigState::Waiting { digest, pod, why } => (
            reason::SLURMCTLD_AWAY,
            format!("the configuration {digest} is in pod {pod}, and slurmctld does not run with it yet: {why}"),
        ),
        ConfigState::Away { digest, why, sent } => {
            let message = match sent {
                None => format!(
                    "the configuration {digest} waits, and slurmctld keeps the current one, because its agent cannot be reached: {why}; see the log of the container reconfigure"
                ),
                Some(sequence) => format!(
                    "the configuration {digest} was sent as revision {sequence} in a ConfigMap, because the agent cannot be reached: {why}; the result is known when it can be reached, or from the log of the container reconfigure"
                ),
            };
            (reason::AGENT_AWAY, message)
        }
        ConfigState::Retrying { digest, pod, why } => (
            reason::RETRYING,
            format!(
                "the configuration {digest} is retried, and slurmctld keeps the current one, because the agent of pod {pod} could not apply it: {why}"
            ),
        ),
        ConfigState::Rejected { pod, rejection } => (reason::CONFIG_REJECTED, rejected(pod, rejection)),
        ConfigState::Restarting { digest } => (
            reason::PUSHING,
            format!("slurmctld is restarted with the configuration {digest}, as spec.configUpdate requires"),
        ),
    };
    DesiredCondition::false_(CONFIG_APPLIED, reason, message)
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

/// Manual states of partitions without an object.
fn drifted(observed: &Observed, plan: &Plan) -> Option<DesiredCondition> {
    let partitions = &observed.inputs.partitions;
    let has_object = |name: &String| partitions.iter().any(|partition| partition.slurm_name() == *name);
    let states = plan.configuration.manual_states.iter();
    let closed = states.filter(|(name, _)| !has_object(name));
    let lines = closed.map(|(name, ManualState { state, wanted, since })| {
        format!(
            "partition {name} was set to {state} manually in Slurm, where {wanted} is wanted (known since {since}); it is kept, also across restarts; open it with `scontrol update PartitionName={name} State={wanted}`, or set another State in its source"
        )
    });
    true_if_any(DRIFTED, reason::CLOSED_BY_HAND, lines)
}

/// Partitions without an owner that are kept for their jobs.
fn retained(plan: &Plan) -> Option<DesiredCondition> {
    let lines = plan.configuration.retained.iter().map(|name| {
        format!(
            "partition {name} was removed and has jobs: it accepts no new ones, and is deleted automatically when they have ended; `squeue --partition={name}` lists them"
        )
    });
    true_if_any(PARTITION_RETAINED, reason::WAITS_FOR_JOBS, lines)
}

fn rejected(pod: &str, rejection: &Rejection) -> String {
    const REMEDY: &str = "correct spec.extraConf, the referenced files or the NodeSets' partitions";
    let revision = format!("revision {} ({})", rejection.sequence, rejection.digest);
    let why = &rejection.why;
    match &rejection.by {
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
    let status = observed.inputs.controller.status.as_ref();
    status.map(|status| status.conditions.as_slice()).unwrap_or_default()
}
