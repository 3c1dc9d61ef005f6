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
mod private_data;
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
    agent::BundleKey,
    revision::{ControllerUid, Digest},
};

#[cfg(test)]
pub(crate) use self::partitions::{gather_partitions, taken_by};
use self::{
    accepted::{Accepted, Former, Standing},
    check::Draft,
    delivery::{Deployment, Method},
    gather::{Gathered, gather},
    history::build_history,
    node_count::max_node_count,
    private_data::hides_records,
    render::{build_bundle, build_candidate, build_config_map},
    report::build_report,
    revise::{Revised, revise},
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
    layout,
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
    /// The manual states to keep while Slurm does not respond: those it has shown last, without what was lifted since. They may not be
    /// in an accepted revision yet.
    pub(crate) remembered_states: Option<ManualStates>,
    /// Names of partitions that are kept only for their jobs.
    pub(crate) retained: Vec<String>,
    /// Slurm may have other states than written.
    pub(crate) is_unsure: bool,
    /// Whether slurmctld hides records from users without privileges, or may do so. `None` if that is not known.
    pub(crate) hides_records: Option<bool>,
    /// A decision depended on jobs or QOS in Slurm.
    pub(crate) depends_on_slurm: bool,
    /// `status.configuration`.
    pub(crate) status: Option<ConfigurationStatus>,
}

impl Outcome {
    /// For a configuration that cannot be built, or that the operator does not manage.
    pub(crate) fn without_files(inputs: &Inputs, snapshot: &Snapshot, state: ConfigState) -> Self {
        let former = Former::of(inputs, snapshot, None);
        Self {
            partitions: report_partitions(inputs, snapshot, former.known_content(), &[], &state),
            status: build_report(inputs, snapshot, &state, &[]),
            state,
            ..Self::default()
        }
    }
}

/// What a plan is made from.
pub(crate) struct Facts<'a> {
    pub(crate) inputs: &'a Inputs,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) parent: Parent<'a>,
    pub(crate) former: Former,
    pub(crate) method: Method,
    pub(crate) max_node_count: u32,
    /// Signs the bundle and orders to agents.
    pub(crate) jwt_key: Option<&'a JwtKey>,
}

impl Facts<'_> {
    /// Whether neither Kubernetes nor this operator has a record of the live revision: another leader pushed it.
    fn is_live_unrecorded(&self) -> bool {
        let recorded = self.former.summary();
        let live = self.snapshot.report.live.filter(|_| !self.snapshot.is_live_own);
        live.is_some_and(|live| {
            !recorded.is_some_and(|recorded| live.sequence <= recorded.sequence || live.digest == recorded.digest)
        })
    }
}

/// Decides what the newest configuration is and where it goes. `jwt_key` signs orders to agents.
pub(crate) fn plan(inputs: &Inputs, snapshot: &Snapshot, jwt_key: Option<&JwtKey>) -> Outcome {
    let Ok(uid) = ControllerUid::new(inputs.controller.metadata.uid.clone().unwrap_or_default()) else {
        return Outcome::default();
    };
    let parent = Parent::new(&inputs.controller);
    let former = Former::of(inputs, snapshot, jwt_key);
    let facts = Facts {
        inputs,
        snapshot,
        method: Method::of(&parent),
        parent,
        max_node_count: max_node_count(&inputs.node_sets, former.slurm_conf.as_ref()),
        former,
        jwt_key,
    };
    let mut gathered = gather(&facts);
    gathered
        .findings
        .extend(facts.former.distrust(inputs, &snapshot.report));
    let outcome = if is_blocked(&gathered.findings, Blocks::Configuration) {
        keep(&facts, gathered, None)
    } else {
        match revise(&facts, &gathered.content) {
            Ok(revised) => take(&facts, uid, gathered, revised),
            Err(finding) => keep(&facts, gathered, Some(finding)),
        }
    };
    let sent = outcome.sent.as_ref().map(|sent| &sent.revision);
    // slurmctld may run with either.
    let mut revisions = facts.former.revision.iter().chain(sent);
    let hides_records = facts.is_live_unrecorded() || revisions.any(|revision| hides_records(&revision.files));
    Outcome {
        hides_records: Some(hides_records),
        ..outcome
    }
}

/// Takes the revised content into the newest revision.
fn take(facts: &Facts, uid: ControllerUid, gathered: Gathered, revised: Revised) -> Outcome {
    let former = &facts.former;
    let Draft {
        content, files, digest, ..
    } = revised.newest;
    let deployment = Deployment::of(facts, digest, revised.is_unconfirmed);
    let (sequence, state) = deployment.settle();
    let newest = Revision {
        sequence: sequence.unwrap_or_default(),
        controller: uid,
        closed_by_hand: content.manual_states.keys().cloned().collect(),
        files,
    };
    let was_served = former.accepted.as_ref().is_some_and(|accepted| accepted.served);
    let record = Accepted {
        content,
        served: was_served || matches!(state, ConfigState::Applied { .. }),
    };
    let sent = (former.digest != Some(digest)).then(|| SentRevision {
        record: record.to_json(digest),
        revision: newest.clone(),
    });
    let (accepted, accepted_digest) = match sequence {
        Some(_) => (Some(&newest), Some(digest)),
        None => (former.revision.as_ref(), former.digest),
    };
    let record = Some(&record)
        .filter(|_| accepted_digest == Some(digest))
        .or(former.accepted.as_ref());
    let retained = record.iter().flat_map(|record| record.content.retained.keys());
    let candidate = deployment.candidate();
    let findings = gathered.findings.into_iter();
    // The live revision has no record, and Slurm was not polled yet: its manual states are not known.
    let waits_for_states = facts.is_live_unrecorded() && facts.method == Method::InPlace && !gathered.knows_states;
    let outcome = Outcome {
        delivery: deployment.deliver(
            &newest,
            accepted.map_or(0, |accepted| accepted.sequence),
            waits_for_states,
        ),
        wake_kubelet: candidate.and_then(|(pod, sent)| WakeKubelet::of(pod, sent.revision.sequence)),
        // A revision that was not tried yet does not restart slurmctld.
        restart: accepted_digest.or(Some(digest)).filter(|_| facts.method.restarts()),
        retained: retained.cloned().collect(),
        findings: findings.chain(revised.held.iter().map(Held::finding)).collect(),
        held: gathered.held.into_iter().chain(revised.held).collect(),
        config_maps: candidate
            .map(|(_, sent)| build_candidate(&facts.parent, &sent.candidate))
            .into_iter()
            .collect(),
        manual_states: gathered.content.manual_states,
        remembered_states: gathered.remembered_states,
        is_unsure: gathered.is_unsure,
        depends_on_slurm: gathered.depends_on_slurm || revised.depends_on_slurm,
        doubts: revised.warnings,
        sent,
        state,
        ..Outcome::default()
    };
    complete(facts, outcome, accepted, record)
}

/// Keeps the accepted revision while no newer one can be built, and restores its ConfigMaps.
fn keep(facts: &Facts, gathered: Gathered, finding: Option<Finding>) -> Outcome {
    let former = &facts.former;
    let outcome = Outcome {
        restart: former.digest.filter(|_| facts.method.restarts()),
        findings: gathered.findings.into_iter().chain(finding).collect(),
        held: gathered.held,
        manual_states: gathered.content.manual_states,
        remembered_states: gathered.remembered_states,
        is_unsure: gathered.is_unsure,
        depends_on_slurm: gathered.depends_on_slurm,
        ..Outcome::default()
    };
    complete(facts, outcome, former.revision.as_ref(), former.accepted.as_ref())
}

/// Adds what follows from the accepted revision: its ConfigMaps, the history and the reports.
fn complete(facts: &Facts, outcome: Outcome, accepted: Option<&Revision>, record: Option<&Accepted>) -> Outcome {
    let Facts {
        inputs,
        snapshot,
        parent,
        ..
    } = facts;
    let content = record.map(|record| &record.content);
    // Nothing is written from a bundle that may be forged.
    let accepted = accepted.filter(|_| facts.former.standing != Standing::Unjudged);
    let key = facts.jwt_key.and_then(|key| BundleKey::derive(&key.0).ok());
    let bundle = accepted
        .zip(key)
        .map(|(accepted, key)| build_bundle(parent, accepted, record, &key))
        .transpose();
    let (bundle, too_large) = match bundle {
        Ok(bundle) => (bundle, None),
        Err(error) => (
            None,
            Some(Finding::new(
                Blocks::Configuration,
                reason::CONFIG_TOO_LARGE,
                format!("{error}; make the files of spec.configFileRefs and the script references smaller"),
            )),
        ),
    };
    let revision = |config_map: &ConfigMap| config_map.binary_data.as_ref()?.get(layout::BUNDLE_FILE).cloned();
    let before = inputs.bundle.as_deref().and_then(revision);
    let replacement = bundle.as_ref().filter(|bundle| revision(bundle) != before);
    let replacement = accepted.filter(|_| replacement.is_some());
    // Without a key there is no bundle yet, and slurm.conf is for people and slurmrestd only.
    let config_map = accepted
        .filter(|_| too_large.is_none())
        .map(|accepted| build_config_map(parent, &accepted.files, content));
    Outcome {
        history: build_history(inputs, snapshot, parent, replacement),
        partitions: report_partitions(
            inputs,
            snapshot,
            content.or(facts.former.known_content()),
            &outcome.held,
            &outcome.state,
        ),
        status: build_report(inputs, snapshot, &outcome.state, &outcome.held),
        findings: outcome.findings.into_iter().chain(too_large).collect(),
        config_maps: config_map
            .into_iter()
            .chain(bundle)
            .chain(outcome.config_maps)
            .collect(),
        ..outcome
    }
}
