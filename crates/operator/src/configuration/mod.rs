//! The configuration of a Slurm cluster: the files its slurmctld must run with. Pure.
//!
//! ```text
//!  gather ▶ revise (check, choose) ▶ render ▶ delivery ▶ report, history
//! ```
//! [`plan`] takes the declared state in Kubernetes ([`Inputs`]) and the known state of the cluster ([`Snapshot`]), and
//! returns the [`Outcome`].

pub(crate) mod accepted;
mod check;
mod choose;
pub(crate) mod content;
pub(crate) mod delivery;
mod devices;
mod explain;
mod gather;
pub(crate) mod history;
mod jobs;
mod node_count;
mod partitions;
mod records;
pub(crate) mod render;
pub(crate) mod report;
pub(crate) mod revise;
mod source;

use std::{collections::BTreeMap, sync::Arc};

use api::{Accounting, Controller, NodeSet, Partition, configuration::ConfigurationStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use slurm::{
    Revision,
    revision::{ControllerUid, Digest},
};

#[cfg(test)]
pub(crate) use self::partitions::gather_partitions;
use self::{
    accepted::Accepted,
    delivery::{Deployment, Method, deliver},
    devices::undeclared_devices,
    gather::{Former, Gathered, gather},
    history::build_history,
    node_count::max_node_count,
    render::{build_bundle, build_candidate, build_config_map},
    report::build_report,
    revise::{CheckContext, Revised, revise},
};
pub(crate) use self::{
    delivery::{ConfigState, DeliveryChange, WakeKubelet},
    gather::gather_accounting,
    partitions::report_partitions,
    revise::Held,
};
use crate::{
    cluster::{Snapshot, deliver::JwtKey, partition_reports::PartitionReports, sent_revisions::SentRevision},
    finding::{Blocks, Finding, is_blocked},
    parent::Parent,
    partition::rules::{joining::Joining, manual_state::ManualStates},
    reason,
};

/// The declared state in Kubernetes, and what the operator wrote there before.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    pub(crate) controller: Arc<Controller>,
    /// The Accounting the Controller refers to.
    pub(crate) accounting: Option<Arc<Accounting>>,
    /// The NodeSets that refer to the Controller, by name.
    pub(crate) node_sets: Vec<Arc<NodeSet>>,
    /// The Partitions that refer to the Controller, by name.
    pub(crate) partitions: Vec<Arc<Partition>>,
    /// Workers of the NodeSets that Slurm may not list yet.
    pub(crate) joining: Vec<Joining>,
    /// The ConfigMaps the Controller refers to, by name.
    pub(crate) config_maps: BTreeMap<String, Arc<ConfigMap>>,
    pub(crate) config: Option<Arc<ConfigMap>>,
    pub(crate) bundle: Option<Arc<ConfigMap>>,
    pub(crate) history: Option<Arc<ConfigMap>>,
    /// The revision for an agent that cannot be reached.
    pub(crate) candidate: Option<Arc<ConfigMap>>,
    /// slurmctld's pods, by name.
    pub(crate) pods: Vec<Arc<Pod>>,
    /// When these were read.
    pub(crate) now: Timestamp,
}

impl Inputs {
    /// The Controller's status of the configuration.
    pub(crate) fn status(&self) -> Option<&ConfigurationStatus> {
        self.controller.status.as_ref()?.configuration.as_ref()
    }
}

/// The result of planning.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) findings: Vec<Finding>,
    /// The state of the newest configuration.
    pub(crate) state: ConfigState,
    /// The history with new entries, if any. It is written before the revision: a new leader in between writes both.
    pub(crate) history: Option<ConfigMap>,
    /// ConfigMaps to write, in this order.
    pub(crate) config_maps: Vec<ConfigMap>,
    pub(crate) delivery: DeliveryChange,
    /// A revision was sent in a ConfigMap; the kubelet should refresh the mount.
    pub(crate) wake_kubelet: Option<WakeKubelet>,
    /// The newest revision, if it is not the accepted one.
    pub(crate) sent: Option<SentRevision>,
    /// Digest of the configuration, if a change of it must restart slurmctld.
    pub(crate) restart: Option<Digest>,
    /// Inputs that are not in the newest configuration as their owners wrote them.
    pub(crate) held: Vec<Held>,
    /// Warnings about content that Slurm accepts but that is probably a mistake.
    pub(crate) doubts: Vec<String>,
    /// The reports about the Partitions.
    pub(crate) partitions: PartitionReports,
    /// Partition states that people set in Slurm.
    pub(crate) manual_states: ManualStates,
    /// Names of partitions that are kept only for their jobs.
    pub(crate) retained: Vec<String>,
    /// Slurm may have other states than written.
    pub(crate) is_unsure: bool,
    /// A decision depended on jobs or QOS in Slurm.
    pub(crate) depends_on_slurm: bool,
    /// `status.configuration`.
    pub(crate) status: Option<ConfigurationStatus>,
}

impl Outcome {
    /// For a configuration that cannot be built, or that the operator does not manage.
    pub(crate) fn without_files(inputs: &Inputs, snapshot: &Snapshot, state: ConfigState) -> Self {
        Self {
            partitions: report_partitions(inputs, snapshot, None, &[], &state),
            status: build_report(inputs, snapshot, &state, &[]),
            state,
            ..Self::default()
        }
    }
}

/// Decides what the newest configuration is and where it goes. `jwt_key` signs orders to agents.
pub(crate) fn plan(inputs: &Inputs, snapshot: &Snapshot, jwt_key: Option<&JwtKey>) -> Outcome {
    let Ok(uid) = ControllerUid::new(inputs.controller.metadata.uid.clone().unwrap_or_default()) else {
        return Outcome::default();
    };
    let parent = Parent::new(&inputs.controller);
    let former = Former::of(inputs, snapshot, &uid);
    let method = Method::of(&parent);
    let max_node_count = max_node_count(&inputs.node_sets, former.slurm_conf.as_ref());
    let Gathered {
        content,
        mut findings,
        mut held,
        manual_states,
        is_unsure,
        mut depends_on_slurm,
    } = gather(inputs, snapshot, &parent, &former, method, max_node_count);
    let revised = if is_blocked(&findings, Blocks::Configuration) {
        None
    } else {
        let context = CheckContext {
            parent: &parent,
            before: former.before(inputs),
            knowledge: &snapshot.knowledge,
            refusals: &snapshot.report.refusals,
            in_use: &snapshot.report.in_use,
            max_node_count,
        };
        revise(&context, &content)
            .map_err(|finding| findings.push(finding))
            .ok()
    };
    let Some(revised) = revised else {
        return keep_accepted(
            inputs,
            snapshot,
            &parent,
            &former,
            method,
            Outcome {
                findings,
                held,
                manual_states,
                is_unsure,
                depends_on_slurm,
                ..Outcome::default()
            },
        );
    };
    let Revised {
        content,
        files,
        held: held_by_checks,
        warnings: mut doubts,
        depends_on_slurm: checks_depend_on_slurm,
    } = revised;
    findings.extend(held_by_checks.iter().map(Held::finding));
    held.extend(held_by_checks);
    doubts.extend(undeclared_devices(&inputs.node_sets, &files));
    depends_on_slurm |= checks_depend_on_slurm;
    let newest = Revision {
        sequence: 0,
        controller: uid,
        files,
        closed_by_hand: content.manual_states.keys().cloned().collect(),
    };
    let newest_accepted = Accepted {
        content,
        served: former.accepted.as_ref().is_some_and(|accepted| accepted.served),
    };
    let digest = newest.digest();
    let sent = (former.digest != Some(digest)).then(|| SentRevision {
        record: newest_accepted.to_json(&newest),
        revision: newest.clone(),
    });
    let deployment = Deployment::of(inputs, snapshot, &former, digest, method);
    let (accepted, state) = deployment.settle(newest.clone(), former.revision.zip(former.digest));
    let record = match &accepted {
        Some((_, accepted_digest)) if *accepted_digest == digest => Some(Accepted {
            served: newest_accepted.served || matches!(state, ConfigState::Applied { .. }),
            ..newest_accepted
        }),
        _ => former.accepted,
    };
    let mut config_maps = Vec::new();
    if let Some((accepted, _)) = &accepted {
        match write(&parent, accepted, record.as_ref()) {
            Ok(written) => config_maps.extend(written),
            Err(finding) => findings.push(finding),
        }
    }
    let history = build_history(inputs, snapshot, &parent, &config_maps);
    let candidate = deployment.sent(inputs, snapshot);
    config_maps.extend(candidate.map(|(_, sent)| build_candidate(&parent, &sent.candidate)));
    let highest = accepted.as_ref().map_or(0, |(accepted, _)| accepted.sequence);
    Outcome {
        delivery: deliver(inputs, &deployment, &newest, highest, jwt_key),
        wake_kubelet: candidate.and_then(|(pod, sent)| WakeKubelet::of(pod, sent.revision.sequence)),
        // A revision that was not tried yet does not restart slurmctld.
        restart: method
            .restarts()
            .then(|| accepted.as_ref().map_or(digest, |(_, digest)| *digest)),
        retained: record
            .iter()
            .flat_map(|record| record.content.retained.keys())
            .cloned()
            .collect(),
        partitions: report_partitions(
            inputs,
            snapshot,
            record.as_ref().map(|record| &record.content),
            &held,
            &state,
        ),
        status: build_report(inputs, snapshot, &state, &held),
        history,
        config_maps,
        findings,
        state,
        sent,
        held,
        doubts,
        manual_states,
        is_unsure,
        depends_on_slurm,
    }
}

/// Keeps the accepted revision while no newer one can be built, and restores its ConfigMaps.
fn keep_accepted(
    inputs: &Inputs,
    snapshot: &Snapshot,
    parent: &Parent,
    former: &Former,
    method: Method,
    outcome: Outcome,
) -> Outcome {
    let state = ConfigState::Unknown;
    let mut findings = outcome.findings;
    let mut config_maps = Vec::new();
    if let Some(revision) = &former.revision {
        match write(parent, revision, former.accepted.as_ref()) {
            Ok(written) => config_maps.extend(written),
            Err(finding) => findings.push(finding),
        }
    }
    Outcome {
        history: build_history(inputs, snapshot, parent, &config_maps),
        restart: former.digest.filter(|_| method.restarts()),
        partitions: report_partitions(inputs, snapshot, Some(former.content()), &outcome.held, &state),
        status: build_report(inputs, snapshot, &state, &outcome.held),
        config_maps,
        findings,
        state,
        ..outcome
    }
}

/// The ConfigMaps of an accepted revision.
fn write(parent: &Parent, revision: &Revision, accepted: Option<&Accepted>) -> Result<[ConfigMap; 2], Finding> {
    let bundle = build_bundle(parent, revision, accepted).map_err(|error| {
        Finding::new(
            Blocks::Configuration,
            reason::CONFIG_TOO_LARGE,
            format!("{error}; make the files of spec.configFileRefs and the script references smaller"),
        )
    })?;
    let content = accepted.map(|accepted| &accepted.content);
    Ok([build_config_map(parent, &revision.files, content), bundle])
}
