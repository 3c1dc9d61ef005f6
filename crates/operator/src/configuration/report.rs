//! Builds `status.configuration`. Pure: times are those of the facts, and a known fact keeps its time.

use api::{
    ConditionStatus,
    conditions::CONFIG_APPLIED,
    configuration::{
        AppliedRevision, ConfigurationAction, ConfigurationChange, ConfigurationStatus, ConfigurationStep, Delivery,
        HeldInput, LaggingStandby, RejectedRevision, WantedRevision,
    },
};
use jiff::Timestamp;
use kube::ResourceExt as _;
use slurm::{
    agent::{Action, StepTime},
    revision::Digest,
};

use super::{ConfigState, Held, Inputs};
use crate::{
    cluster::{
        Snapshot,
        deliver::{FinishedPush, LiveRevision, Rejection, Report},
        pods,
    },
    reason,
};

/// Returns the status, unchanged while no configuration can be built, and `None` if the operator does not manage it.
pub(crate) fn build_report(
    inputs: &Inputs,
    snapshot: &Snapshot,
    state: &ConfigState,
    held: &[Held],
) -> Option<ConfigurationStatus> {
    let before = inputs.status().cloned().unwrap_or_default();
    let wanted = match state {
        ConfigState::External => return None,
        ConfigState::Unknown => return inputs.status().cloned(),
        ConfigState::Written { sequence, digest } | ConfigState::Applied { sequence, digest, .. } => {
            revision(Some(*sequence), digest)
        }
        ConfigState::Rejected { rejection, .. } => revision(Some(rejection.sequence), &rejection.digest),
        ConfigState::Pushing { digest, .. }
        | ConfigState::Waiting { digest, .. }
        | ConfigState::Away { digest, .. }
        | ConfigState::Retrying { digest, .. }
        | ConfigState::Restarting { digest } => revision(None, digest),
    };
    let report = &snapshot.report;
    let last = report.finished.last();
    Some(ConfigurationStatus {
        applied: applied(report, state, &before, inputs.now),
        rejected: rejected(report, state, held, &before),
        held_inputs: held_inputs(report, state, held, &before),
        delivery: Some(delivery(report, state, &wanted, &before)),
        lagging_nodes: snapshot.lagging.nodes.clone(),
        lagging_standbys: lagging_standbys(inputs, report, state, &before),
        last_change: last.map(|push| change(push)).or(before.last_change),
        wanted: Some(wanted),
    })
}

/// Returns the standbys without the active revision. A new leader repeats the status until it has polled them.
fn lagging_standbys(
    inputs: &Inputs,
    report: &Report,
    state: &ConfigState,
    before: &ConfigurationStatus,
) -> Vec<LaggingStandby> {
    let ConfigState::Applied { sequence, digest, pod } = state else {
        return before.lagging_standbys.clone();
    };
    let controller = inputs.controller.as_ref();
    let names = (0..controller.spec.replicas()).map(|ordinal| controller.child_names().pod(ordinal));
    let lags = |name: &String| {
        let pod = inputs.pods.iter().find(|pod| pod.name_any() == *name);
        let Some(agent) = pod.and_then(|pod| pods::agent_of(pod)) else {
            return Some("its pod does not run".to_owned());
        };
        let mut known = report.standbys.iter();
        let Some(standby) = known.find(|standby| standby.pod == agent.uid) else {
            let mut noted = before.lagging_standbys.iter();
            return noted
                .find(|noted| noted.pod == *name)
                .map(|noted| noted.message.clone());
        };
        let others = |live: LiveRevision| format!("it has revision {} and not {sequence}", live.sequence);
        let behind = standby.live.filter(|live| live.digest != *digest).map(others);
        standby.why.clone().or(behind)
    };
    let standbys = names.filter(|name| name != pod);
    standbys
        .filter_map(|name| lags(&name).map(|message| LaggingStandby { pod: name, message }))
        .collect()
}

/// Whether the status says that slurmctld runs with this configuration.
pub(crate) fn says_applied(inputs: &Inputs, digest: &Digest) -> bool {
    let digest = digest.to_string();
    let applied = inputs.status().and_then(|before| before.applied.as_ref());
    let mut conditions = inputs.controller.status.iter().flat_map(|status| &status.conditions);
    applied.is_some_and(|applied| applied.digest == digest)
        || conditions.any(|condition| {
            condition.type_ == CONFIG_APPLIED
                && condition.status == ConditionStatus::True
                && condition.message.contains(&digest)
        })
}

/// The last rejected revision in the status, for a leader that has not seen a rejection itself yet.
pub(crate) fn rejected_before(inputs: &Inputs) -> Option<LiveRevision> {
    let rejected = inputs.status()?.rejected.as_ref()?;
    Some(LiveRevision {
        sequence: u64::try_from(rejected.sequence).ok()?,
        digest: rejected.digest.parse().ok()?,
    })
}

/// Whether an earlier leader saw this revision rejected, according to the status.
pub(crate) fn was_rejected_before(inputs: &Inputs, report: &Report, rejection: &Rejection) -> bool {
    let mut own = report.finished.iter();
    let is_own = own.any(|push| push.rejection.as_ref() == Some(rejection));
    let is_same = |noted: LiveRevision| noted.sequence == rejection.sequence && noted.digest == rejection.digest;
    !is_own && rejected_before(inputs).is_some_and(is_same)
}

/// The inputs that are held according to the status.
pub(crate) fn held_before(inputs: &Inputs) -> &[HeldInput] {
    inputs
        .status()
        .map(|before| before.held_inputs.as_slice())
        .unwrap_or_default()
}

fn revision(sequence: Option<u64>, digest: &Digest) -> WantedRevision {
    WantedRevision {
        sequence: sequence.map(number),
        digest: digest.to_string(),
    }
}

fn applied(
    report: &Report,
    state: &ConfigState,
    before: &ConfigurationStatus,
    now: Timestamp,
) -> Option<AppliedRevision> {
    let ConfigState::Applied { sequence, digest, .. } = state else {
        return before.applied.clone();
    };
    let pushed = accepted(report, digest).map(|push| time(push.at));
    let noted = before
        .applied
        .as_ref()
        .filter(|applied| applied.digest == digest.to_string());
    Some(AppliedRevision {
        sequence: number(*sequence),
        digest: digest.to_string(),
        time: pushed
            .or_else(|| noted.map(|applied| applied.time.clone()))
            .unwrap_or_else(|| time(now)),
    })
}

fn rejected(
    report: &Report,
    state: &ConfigState,
    held: &[Held],
    before: &ConfigurationStatus,
) -> Option<RejectedRevision> {
    if matches!(state, ConfigState::Applied { .. }) && held.is_empty() {
        return None;
    }
    let mut newest = report.finished.iter().rev();
    // If inputs are held, others may have gone live since.
    let last = if held.is_empty() {
        newest.next()
    } else {
        newest.find(|push| push.rejection.is_some())
    };
    let Some(last) = last else {
        return before.rejected.clone();
    };
    let rejection = last.rejection.as_ref()?;
    Some(RejectedRevision {
        sequence: number(rejection.sequence),
        digest: rejection.digest.to_string(),
        time: time(last.at),
        by: rejection.by.clone(),
        reason: rejection.why.clone(),
    })
}

/// Rejections by slurmctld are not known to a new leader until it has polled the agent: until then it repeats the
/// status, so that no event is sent twice.
fn held_inputs(report: &Report, state: &ConfigState, held: &[Held], before: &ConfigurationStatus) -> Vec<HeldInput> {
    let rejected = before.rejected.as_ref();
    let is_open = match state {
        ConfigState::Pushing { .. } => true,
        ConfigState::Away { digest, .. } => rejected.is_some_and(|rejected| rejected.digest == digest.to_string()),
        _ => false,
    };
    let is_unpolled = is_open && report.live.is_none();
    let judged = |known: &HeldInput| held.iter().any(|input| input.source == known.source);
    let is_refused = |known: &&HeldInput| known.reason == reason::CONFIG_REJECTED && !judged(known);
    let known = before.held_inputs.iter().filter(|_| is_unpolled);
    let inputs = held.iter().map(held_input);
    inputs.chain(known.filter(is_refused).cloned()).collect()
}

pub(crate) fn held_input(held: &Held) -> HeldInput {
    HeldInput {
        source: held.source.clone(),
        reason: held.reason.to_owned(),
        message: held.why.clone(),
    }
}

fn delivery(report: &Report, state: &ConfigState, wanted: &WantedRevision, before: &ConfigurationStatus) -> Delivery {
    // If it was not pushed by this leader, the status says how it was delivered.
    let noted = before
        .wanted
        .as_ref()
        .filter(|before| before.digest == wanted.digest)
        .and(before.delivery.clone());
    match state {
        ConfigState::Written { .. } => Delivery::Written,
        ConfigState::Restarting { .. } => Delivery::Restart,
        ConfigState::Away { sent: Some(_), .. } => Delivery::ConfigMap,
        ConfigState::Applied { digest, .. } => match accepted(report, digest) {
            Some(push) if push.by_candidate => Delivery::ConfigMap,
            Some(_) => Delivery::Agent,
            None => noted.unwrap_or(Delivery::Written),
        },
        _ => noted.unwrap_or(Delivery::Agent),
    }
}

/// The push that made these files live.
fn accepted<'a>(report: &'a Report, digest: &Digest) -> Option<&'a FinishedPush> {
    let newest = report.finished.iter().rev();
    let mut accepted = newest.filter(|push| push.rejection.is_none() && push.digest == *digest);
    accepted.next().map(AsRef::as_ref)
}

fn change(push: &FinishedPush) -> ConfigurationChange {
    ConfigurationChange {
        sequence: number(push.sequence),
        time: time(push.at),
        action: match push.action {
            Action::Nothing => Some(ConfigurationAction::Nothing),
            Action::PartitionRpc => Some(ConfigurationAction::PartitionRpc),
            Action::Reconfigure => Some(ConfigurationAction::Reconfigure),
            Action::Restart => Some(ConfigurationAction::Restart),
            Action::Unknown => None,
        },
        milliseconds: number(push.milliseconds),
        steps: push
            .steps
            .iter()
            .map(|StepTime { step, milliseconds }| ConfigurationStep {
                step: step.to_string(),
                milliseconds: number(*milliseconds),
            })
            .collect(),
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn time(at: Timestamp) -> api::time::Timestamp {
    format!("{at:.3}").into()
}
