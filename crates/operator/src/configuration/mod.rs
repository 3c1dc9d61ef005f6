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
pub(crate) use self::partitions::{gather_partitions, taken_by};
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
    partition::rules::{manual_state::ManualStates, mark::Joining},
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
    let planner = Planner {
        method: Method::of(&parent),
        parent,
        inputs,
        snapshot,
        jwt_key,
    };
    let max_node_count = max_node_count(&inputs.node_sets, former.slurm_conf.as_ref());
    let mut gathered = gather(
        inputs,
        snapshot,
        &planner.parent,
        &former,
        planner.method,
        max_node_count,
    );
    if is_blocked(&gathered.findings, Blocks::Configuration) {
        return planner.keep(&former, gathered);
    }
    let context = CheckContext {
        parent: &planner.parent,
        before: former.before(inputs),
        knowledge: &snapshot.knowledge,
        refusals: &snapshot.report.refusals,
        in_use: &snapshot.report.in_use,
        max_node_count,
    };
    match revise(&context, &gathered.content) {
        Ok(revised) => planner.take(uid, former, gathered, revised),
        Err(finding) => {
            gathered.findings.push(finding);
            planner.keep(&former, gathered)
        }
    }
}

struct Planner<'a> {
    inputs: &'a Inputs,
    snapshot: &'a Snapshot,
    parent: Parent<'a>,
    method: Method,
    jwt_key: Option<&'a JwtKey>,
}

impl Planner<'_> {
    /// Takes the revised content into the newest revision.
    fn take(self, uid: ControllerUid, former: Former, gathered: Gathered, revised: Revised) -> Outcome {
        let Self { inputs, snapshot, .. } = self;
        let newest = Revision {
            sequence: 0,
            controller: uid,
            closed_by_hand: revised.content.manual_states.keys().cloned().collect(),
            files: revised.files,
        };
        let newest_accepted = Accepted {
            content: revised.content,
            served: former.accepted.as_ref().is_some_and(|accepted| accepted.served),
        };
        let digest = newest.digest();
        let sent = (former.digest != Some(digest)).then(|| SentRevision {
            record: newest_accepted.to_json(&newest),
            revision: newest.clone(),
        });
        let deployment = Deployment::of(inputs, snapshot, &former, digest, self.method);
        let (accepted, state) = deployment.settle(newest.clone(), former.revision.zip(former.digest));
        let record = match &accepted {
            Some((_, accepted_digest)) if *accepted_digest == digest => Some(Accepted {
                served: newest_accepted.served || matches!(state, ConfigState::Applied { .. }),
                ..newest_accepted
            }),
            _ => former.accepted,
        };
        let retained = record.iter().flat_map(|record| record.content.retained.keys());
        let highest = accepted.as_ref().map_or(0, |(accepted, _)| accepted.sequence);
        let candidate = deployment.sent(inputs, snapshot);
        let mut doubts = revised.warnings;
        doubts.extend(undeclared_devices(&inputs.node_sets, &newest.files));
        let mut outcome = Outcome {
            delivery: deliver(inputs, &deployment, &newest, highest, self.jwt_key),
            wake_kubelet: candidate.and_then(|(pod, sent)| WakeKubelet::of(pod, sent.revision.sequence)),
            // A revision that was not tried yet does not restart slurmctld.
            restart: Some(accepted.as_ref().map_or(digest, |(_, digest)| *digest)).filter(|_| self.method.restarts()),
            retained: retained.cloned().collect(),
            findings: revised.held.iter().map(Held::finding).collect(),
            held: revised.held,
            depends_on_slurm: revised.depends_on_slurm,
            sent,
            doubts,
            state,
            ..Outcome::default()
        };
        outcome.findings.splice(0..0, gathered.findings);
        outcome.held.splice(0..0, gathered.held);
        self.complete(
            Outcome {
                manual_states: gathered.manual_states,
                is_unsure: gathered.is_unsure,
                depends_on_slurm: outcome.depends_on_slurm || gathered.depends_on_slurm,
                ..outcome
            },
            accepted.as_ref().map(|(accepted, _)| accepted),
            record.as_ref(),
            candidate.map(|(_, sent)| build_candidate(&self.parent, &sent.candidate)),
        )
    }

    /// Keeps the accepted revision while no newer one can be built, and restores its ConfigMaps.
    fn keep(self, former: &Former, gathered: Gathered) -> Outcome {
        let outcome = Outcome {
            restart: former.digest.filter(|_| self.method.restarts()),
            findings: gathered.findings,
            held: gathered.held,
            manual_states: gathered.manual_states,
            is_unsure: gathered.is_unsure,
            depends_on_slurm: gathered.depends_on_slurm,
            ..Outcome::default()
        };
        self.complete(outcome, former.revision.as_ref(), former.accepted.as_ref(), None)
    }

    /// Adds what follows from the accepted revision: its ConfigMaps, the history and the reports.
    fn complete(
        &self,
        mut outcome: Outcome,
        accepted: Option<&Revision>,
        record: Option<&Accepted>,
        candidate: Option<ConfigMap>,
    ) -> Outcome {
        let Self {
            inputs,
            snapshot,
            parent,
            ..
        } = self;
        match accepted.map(|accepted| write(parent, accepted, record)).transpose() {
            Ok(written) => outcome.config_maps.extend(written.into_iter().flatten()),
            Err(finding) => outcome.findings.push(finding),
        }
        let content = record.map(|record| &record.content);
        Outcome {
            history: build_history(inputs, snapshot, parent, &outcome.config_maps),
            config_maps: outcome.config_maps.into_iter().chain(candidate).collect(),
            partitions: report_partitions(inputs, snapshot, content, &outcome.held, &outcome.state),
            status: build_report(inputs, snapshot, &outcome.state, &outcome.held),
            ..outcome
        }
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
