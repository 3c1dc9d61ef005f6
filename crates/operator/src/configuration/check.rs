//! Checks whether a candidate may be sent to slurmctld, as far as that is known without slurmctld.

use std::{
    cell::{Cell, OnceCell},
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use api::keys::{ON, annotations};
use kube::ResourceExt as _;
use slurm::{
    conf::{Changes, Configuration, Known, Part, Problem, Severity, check, qos_in_database},
    revision::{Digest, digest_of_files},
};

use super::{
    Facts,
    content::Content,
    devices::undeclared_devices,
    explain::Places,
    jobs::{NOT_READ, waits_for},
    records::{RecordProblem, check_records},
    render::{Built, build_files},
    revise::HoldReason,
};
use crate::{
    cluster::{Knowledge, deliver::Files},
    reason,
};

/// No line of slurm.conf: lines are counted from 1.
const NO_LINES: RangeInclusive<usize> = 0..=0;

/// Checks candidates with everything known about the cluster. The facts that a change is compared with are computed
/// when there is a change: while nothing changes, the files are rendered and parsed once.
pub(crate) struct Checker<'a> {
    facts: &'a Facts<'a>,
    pub(crate) before: &'a Content,
    pub(crate) wanted: &'a Content,
    live: OnceCell<Option<Configuration>>,
    nodes: Option<BTreeSet<String>>,
    existing: OnceCell<Existing>,
    force: OnceCell<Option<Digest>>,
    depends_on_slurm: Cell<bool>,
}

/// Problems that existed before any change of an input, and do not count against a change.
#[derive(Default)]
struct Existing {
    /// Problems that exist already.
    problems: BTreeSet<(String, Option<String>, String)>,
    records: BTreeSet<RecordProblem>,
    /// Changes that the operator itself makes, whatever the inputs.
    changes: BTreeSet<String>,
}

/// The files of a choice of inputs.
pub(crate) struct Draft {
    pub(crate) content: Content,
    pub(crate) files: Files,
    pub(crate) digest: Digest,
    places: Places,
    /// The files, parsed.
    conf: Configuration,
    /// The checker's problems, also those that existed before.
    problems: Vec<Problem>,
}

impl<'a> Checker<'a> {
    /// `before` is the content that is compared with, also for a revision without a record.
    pub(crate) fn new(facts: &'a Facts<'a>, before: &'a Content, wanted: &'a Content) -> Self {
        let nodes = facts.snapshot.knowledge.known();
        Self {
            facts,
            before,
            wanted,
            live: OnceCell::new(),
            nodes: nodes.map(|seen| seen.nodes.keys().cloned().collect()),
            existing: OnceCell::new(),
            force: OnceCell::new(),
            depends_on_slurm: Cell::new(false),
        }
    }

    /// The configuration slurmctld runs with, if known.
    fn live(&self) -> Option<&Configuration> {
        let former = &self.facts.former;
        let live = self.live.get_or_init(|| match &former.revision {
            Some(revision) => Some(configuration(&revision.files)),
            // At the first start, identity is compared with the operator's own rendering.
            None => former.is_new.then(|| configuration(&self.built(self.before).files)),
        });
        live.as_ref()
    }

    fn existing(&self) -> &Existing {
        self.existing.get_or_init(|| {
            let former = &self.facts.former;
            let Some(revision) = &former.revision else {
                return Existing::default();
            };
            let Built { files, places } = self.built(self.before);
            let is_known = former.accepted.is_some();
            let conf = configuration(if is_known { &files } else { &revision.files });
            // Without a record it is not known who owns the lines.
            let records = is_known.then(|| check_records(&conf, &places, self.before));
            Existing {
                problems: self.problems(&conf, &places).iter().map(fingerprint).collect(),
                records: records.into_iter().flatten().collect(),
                changes: self.sensitive(&conf).into_keys().collect(),
            }
        })
    }

    /// The digest of the wanted files, by which the owner can force a change. `None` if no change waits for jobs: there can
    /// be none, or the owner has forced it.
    fn force(&self) -> Option<Digest> {
        *self.force.get_or_init(|| {
            let former = &self.facts.former;
            let may_have_jobs = former
                .accepted
                .as_ref()
                .map_or(!former.is_new, |accepted| accepted.served);
            let forced = self
                .facts
                .parent
                .controller
                .annotations()
                .get(annotations::FORCE_CONFIG);
            if !may_have_jobs || forced.is_some_and(|value| value == ON) {
                return None;
            }
            let wanted = digest_of_files(&self.built(self.wanted).files);
            Some(wanted).filter(|wanted| forced.is_none_or(|value| *value != wanted.to_string()))
        })
    }

    /// Renders these inputs.
    pub(crate) fn draft(&self, content: Content) -> Draft {
        let Built { files, places } = self.built(&content);
        let conf = configuration(&files);
        Draft {
            problems: self.problems(&conf, &places),
            digest: digest_of_files(&files),
            content,
            files,
            places,
            conf,
        }
    }

    /// Checks whether the files may be sent to slurmctld.
    pub(crate) fn check(&self, draft: &Draft) -> Result<(), HoldReason> {
        let records = self.records(draft);
        let message = |finding: &RecordProblem| finding.message().to_owned();
        let is_joined = |finding: &&RecordProblem| matches!(finding, RecordProblem::Joined(_));
        // Only the first of these are reported: they are the cause of the others.
        let refused: [Vec<String>; 3] = [
            records.iter().filter(is_joined).map(message).collect(),
            self.refusals(draft),
            records.iter().map(message).collect(),
        ];
        if let Some(refused) = refused.into_iter().find(|messages| !messages.is_empty()) {
            return Err(HoldReason {
                reason: reason::CONFIG_REJECTED,
                message: refused.join("\n"),
                soon: false,
            });
        }
        let Some(wanted) = self.force() else {
            return Ok(());
        };
        let wait = self.waits_for_jobs(&draft.conf).map(|wait| (wait, "have ended"));
        match wait.or_else(|| Some((self.waits_for_qos(&draft.conf)?, "are known"))) {
            None => Ok(()),
            Some((wait, until)) => Err(HoldReason {
                message: format!(
                    "{}; it is applied automatically when they {until}, or now with the annotation {}={wanted}",
                    wait.message,
                    annotations::FORCE_CONFIG,
                ),
                ..wait
            }),
        }
    }

    /// Errors of the checker that did not exist before, with the fields they come from.
    fn refusals(&self, draft: &Draft) -> Vec<String> {
        let Draft { places, content, .. } = draft;
        let errors = draft.problems.iter();
        errors
            .filter(|problem| problem.severity == Severity::Refuse)
            .filter(|problem| !self.existing().problems.contains(&fingerprint(problem)))
            .filter(|problem| !places.is_generated(problem, content))
            .map(|problem| places.describe(problem, content))
            .collect()
    }

    /// Objects without a record of their own in slurm.conf, except those that had none before.
    fn records(&self, draft: &Draft) -> Vec<RecordProblem> {
        let is_recorded = self.facts.former.known_content().is_some();
        let mut findings = check_records(&draft.conf, &draft.places, &draft.content);
        findings.retain(|finding| is_recorded || !matches!(finding, RecordProblem::Twice(_)));
        findings.retain(|finding| !self.existing().records.contains(finding));
        findings
    }

    /// Warnings about content that Slurm accepts but that is probably a mistake.
    pub(crate) fn warnings(&self, draft: &Draft) -> Vec<String> {
        let warnings = draft.problems.iter();
        warnings
            .filter(|problem| problem.severity == Severity::Warn)
            .map(|problem| draft.places.describe(problem, &draft.content))
            .chain(undeclared_devices(&self.facts.inputs.node_sets, &draft.conf))
            .collect()
    }

    /// Whether a decision depended on jobs or QOS in Slurm.
    pub(crate) fn depends_on_slurm(&self) -> bool {
        self.depends_on_slurm.get()
    }

    fn built(&self, content: &Content) -> Built {
        build_files(&self.facts.parent, content, self.facts.max_node_count)
    }

    fn problems(&self, conf: &Configuration, places: &Places) -> Vec<Problem> {
        let seen = self.facts.snapshot.knowledge.known();
        let known = Known {
            live: self.live(),
            nodes: self.nodes.as_ref(),
            qos: seen.and_then(|seen| seen.qos.as_ref()?.as_ref().ok()),
            release: seen.and_then(|seen| seen.release),
            user_lines: Some(places.extra.as_ref().unwrap_or(&NO_LINES)),
        };
        let mut problems = check(conf, &known);
        if self.facts.former.is_new {
            // Users may add options to the operator's, and a cluster that has not started yet can accept them.
            problems.retain(|problem| problem.key.as_deref() != Some("AuthAltParameters"));
        }
        problems
    }

    /// Changes that could end jobs, by name.
    fn sensitive(&self, conf: &Configuration) -> BTreeMap<String, Part> {
        let Some(live) = self.live() else {
            return BTreeMap::new();
        };
        let changes = Changes::between(live, conf);
        let parts = changes
            .job_sensitive()
            .map(|part| (part.subject.to_string(), part.clone()));
        parts.collect()
    }

    /// Those of them that a change of an input causes.
    fn new_sensitive(&self, conf: &Configuration) -> BTreeMap<String, Part> {
        let mut parts = self.sensitive(conf);
        parts.retain(|name, _| !self.existing().changes.contains(name));
        parts
    }

    /// Whether the files could end jobs, and only slurmrestd has shown that there are none.
    pub(crate) fn is_unconfirmed(&self, draft: &Draft) -> bool {
        let seen = self.facts.snapshot.knowledge.known();
        seen.is_some_and(|seen| seen.doubt().is_some())
            && self.force().is_some()
            && !self.new_sensitive(&draft.conf).is_empty()
    }

    /// A QOS that the database lacks passes a dry run and fails the reconfigure.
    fn waits_for_qos(&self, conf: &Configuration) -> Option<HoldReason> {
        self.facts.parent.controller.spec.accounting_name()?;
        let named = self.live().map(qos_in_database).unwrap_or_default();
        let new = qos_in_database(conf);
        let first = new.difference(&named).next()?;
        self.depends_on_slurm.set(true);
        let (why, soon) = match &self.facts.snapshot.knowledge {
            Knowledge::Unknown { why } => (why.as_str(), false),
            Knowledge::Known(seen) => match &seen.qos {
                Some(Ok(_)) => return None,
                Some(Err(why)) => (why.as_str(), false),
                None => (NOT_READ, true),
            },
        };
        Some(HoldReason {
            reason: reason::WAITS_FOR_ACCOUNTING,
            message: format!("QOS {first:?} has not been found in the accounting database yet: {why}"),
            soon,
        })
    }

    fn waits_for_jobs(&self, conf: &Configuration) -> Option<HoldReason> {
        let snapshot = self.facts.snapshot;
        let new = self.new_sensitive(conf);
        if !new.is_empty() {
            self.depends_on_slurm.set(true);
        }
        new.iter().find_map(|(name, part)| {
            let (why, soon) = waits_for(part, &snapshot.knowledge, &snapshot.report.in_use)?;
            Some(HoldReason {
                reason: reason::WAITS_FOR_JOBS,
                message: format!("{name}, which can end jobs, and {why}"),
                soon,
            })
        })
    }
}

fn configuration(files: &Files) -> Configuration {
    Configuration::parse(
        files
            .iter()
            .map(|(name, file)| (name.as_str(), file.content.as_slice())),
    )
}

/// Identifies a problem without its line, which shifts with every line before it.
fn fingerprint(problem: &Problem) -> (String, Option<String>, String) {
    (problem.file.clone(), problem.key.clone(), problem.reason.clone())
}
