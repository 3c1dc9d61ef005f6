//! Checks whether a candidate may be sent to slurmctld, as far as that is known without slurmctld.

use std::{
    cell::{Cell, OnceCell},
    collections::{BTreeMap, BTreeSet},
};

use api::keys::{ON, annotations};
use kube::ResourceExt as _;
use slurm::{
    conf::{Changes, Configuration, Known, Part, Problem, Severity, check, qos_in_database},
    revision::{Digest, digest_of_files},
};

use super::{
    accepted::Accepted,
    content::Content,
    explain::{describe, is_generated},
    jobs::{Wait, is_in_use, waits_for},
    records::{RecordProblem, check_records},
    render::{Built, build_files},
    revise::{CheckContext, HoldReason, StartingPoint},
};
use crate::{
    cluster::{Knowledge, deliver::Files},
    parent::Parent,
    reason,
};

/// Checks candidates with everything known about the cluster. The facts that a change is compared with are computed
/// when there is a change: while nothing changes, the files are rendered and parsed once.
pub(crate) struct Checker<'a> {
    context: &'a CheckContext<'a>,
    before: &'a Content,
    wanted: &'a Content,
    live: OnceCell<Option<Configuration>>,
    nodes: Option<BTreeSet<String>>,
    existing: OnceCell<Existing>,
    force: OnceCell<Force>,
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
pub(crate) struct CheckedFiles {
    pub(crate) content: Content,
    pub(crate) files: Files,
    pub(crate) digest: Digest,
    pub(crate) warnings: Vec<String>,
}

/// Whether a change must wait for jobs.
enum Force {
    /// There can be no jobs, or the owner forces the change.
    Now,
    Wait {
        /// The digest of the wanted files, for the force annotation.
        wanted: Digest,
    },
}

impl<'a> Checker<'a> {
    pub(crate) fn new(context: &'a CheckContext<'a>, before: &'a Content, wanted: &'a Content) -> Self {
        let nodes = context.knowledge.known();
        Self {
            context,
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
        let live = self.live.get_or_init(|| match self.context.before {
            // At the first start, identity is compared with the operator's own rendering.
            StartingPoint::Nothing => Some(configuration(&self.built(self.before).files)),
            StartingPoint::Accepted(revision, _) => Some(configuration(&revision.files)),
            StartingPoint::Unrecorded(revision) => revision.map(|revision| configuration(&revision.files)),
        });
        live.as_ref()
    }

    fn existing(&self) -> &Existing {
        self.existing.get_or_init(|| {
            let old = match self.context.before {
                StartingPoint::Nothing | StartingPoint::Unrecorded(None) => return Existing::default(),
                StartingPoint::Accepted(..) => self.built(self.before),
                StartingPoint::Unrecorded(Some(revision)) => Built {
                    files: revision.files.clone(),
                    places: self.built(self.before).places,
                },
            };
            let conf = configuration(&old.files);
            let records = match self.context.before {
                StartingPoint::Accepted(..) => check_records(&conf, &old.places, self.before),
                // It is not known who owns the lines.
                StartingPoint::Nothing | StartingPoint::Unrecorded(_) => Vec::new(),
            };
            Existing {
                problems: self.check(&conf, &old).iter().map(fingerprint).collect(),
                records: records.into_iter().collect(),
                changes: self.sensitive(&conf).into_keys().collect(),
            }
        })
    }

    fn force(&self) -> &Force {
        self.force.get_or_init(|| {
            let may_have_jobs = match self.context.before {
                StartingPoint::Nothing => false,
                StartingPoint::Accepted(_, Accepted { served, .. }) => *served,
                StartingPoint::Unrecorded(_) => true,
            };
            let wanted = || digest_of_files(&self.built(self.wanted).files);
            Force::of(self.context.parent, may_have_jobs, wanted)
        })
    }

    /// Returns the files of these inputs, if they may be sent to slurmctld.
    pub(crate) fn check_candidate(&self, content: Content) -> Result<CheckedFiles, HoldReason> {
        let built = self.built(&content);
        let conf = configuration(&built.files);
        let problems = self.check(&conf, &built);
        let records = self.records(&conf, &built, &content);
        let joined = records
            .iter()
            .filter(|finding| matches!(finding, RecordProblem::Joined(_)));
        let mut refused: Vec<String> = joined.map(|finding| finding.message().to_owned()).collect();
        if refused.is_empty() {
            refused = self.refusals(&problems, &built, &content);
        }
        if refused.is_empty() {
            refused = records.iter().map(|finding| finding.message().to_owned()).collect();
        }
        if !refused.is_empty() {
            return Err(HoldReason {
                reason: reason::CONFIG_REJECTED,
                message: refused.join("\n"),
                soon: false,
            });
        }
        if let Force::Wait { wanted } = self.force() {
            let now = format!("or now with the annotation {}={wanted}", annotations::FORCE_CONFIG);
            if let Some(Wait { message, soon }) = self.waits(&conf) {
                return Err(HoldReason {
                    reason: reason::WAITS_FOR_JOBS,
                    message: format!("{message}; it is applied automatically when they have ended, {now}"),
                    soon,
                });
            }
            if let Some(Wait { message, soon }) = self.waits_for_qos(&conf) {
                return Err(HoldReason {
                    reason: reason::WAITS_FOR_ACCOUNTING,
                    message: format!("{message}; it is applied automatically when they are known, {now}"),
                    soon,
                });
            }
        }
        Ok(candidate(content, built, &problems))
    }

    /// Errors of the checker that did not exist before, with the fields they come from.
    fn refusals(&self, problems: &[Problem], built: &Built, content: &Content) -> Vec<String> {
        problems
            .iter()
            .filter(|problem| problem.severity == Severity::Refuse)
            .filter(|problem| !self.existing().problems.contains(&fingerprint(problem)))
            .filter(|problem| !is_generated(problem, &built.places, content))
            .map(|problem| describe(problem, &built.places, content))
            .collect()
    }

    /// Objects without a record of their own in slurm.conf, except those that had none before.
    fn records(&self, conf: &Configuration, built: &Built, content: &Content) -> Vec<RecordProblem> {
        let mut findings = check_records(conf, &built.places, content);
        if findings.is_empty() {
            return findings;
        }
        let is_recorded = !matches!(self.context.before, StartingPoint::Unrecorded(_));
        findings.retain(|finding| is_recorded || !matches!(finding, RecordProblem::Twice(_)));
        findings.retain(|finding| !self.existing().records.contains(finding));
        findings
    }

    /// Returns the files of these inputs without a check.
    pub(crate) fn build(&self, content: Content) -> CheckedFiles {
        let built = self.built(&content);
        let problems = self.check(&configuration(&built.files), &built);
        candidate(content, built, &problems)
    }

    /// Whether a decision depended on jobs or QOS in Slurm.
    pub(crate) fn depends_on_slurm(&self) -> bool {
        self.depends_on_slurm.get()
    }

    fn built(&self, content: &Content) -> Built {
        build_files(self.context.parent, content, self.context.max_node_count)
    }

    fn check(&self, conf: &Configuration, built: &Built) -> Vec<Problem> {
        let seen = self.context.knowledge.known();
        let known = Known {
            live: self.live(),
            nodes: self.nodes.as_ref(),
            qos: seen.and_then(|seen| seen.qos.as_ref()?.as_ref().ok()),
            release: seen.and_then(|seen| seen.release),
            user_lines: Some(built.places.extra.as_ref().unwrap_or(&NO_LINES)),
        };
        let mut problems = check(conf, &known);
        if matches!(self.context.before, StartingPoint::Nothing) {
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

    /// A QOS that the database lacks passes a dry run and fails the reconfigure.
    fn waits_for_qos(&self, conf: &Configuration) -> Option<Wait> {
        self.context.parent.controller.spec.accounting_name()?;
        let named = self.live().map(qos_in_database).unwrap_or_default();
        let new = qos_in_database(conf);
        let first = new.difference(&named).next()?;
        self.depends_on_slurm.set(true);
        let mut wait = match self.context.knowledge {
            Knowledge::Unknown { why } => Wait::for_long(why.clone()),
            Knowledge::Known(seen) => match &seen.qos {
                Some(Ok(_)) => return None,
                Some(Err(why)) => Wait::for_long(why.clone()),
                None => Wait::for_poll(),
            },
        };
        wait.message = format!(
            "QOS {first:?} has not been found in the accounting database yet: {}",
            wait.message
        );
        Some(wait)
    }

    fn waits(&self, conf: &Configuration) -> Option<Wait> {
        let parts = self.sensitive(conf);
        let mut new = parts
            .iter()
            .filter(|(name, _)| !self.existing().changes.contains(*name))
            .peekable();
        if new.peek().is_some() {
            self.depends_on_slurm.set(true);
        }
        new.find_map(|(name, part)| {
            let in_use = is_in_use(part, self.context.in_use).map(Wait::for_long);
            let Wait { message, soon } = in_use.or_else(|| waits_for(part, self.context.knowledge))?;
            Some(Wait {
                message: format!("{name}, which can end jobs, and {message}"),
                soon,
            })
        })
    }
}

/// No line of slurm.conf: lines are counted from 1.
const NO_LINES: std::ops::RangeInclusive<usize> = 0..=0;

impl Force {
    fn of(parent: &Parent<'_>, may_have_jobs: bool, wanted: impl FnOnce() -> Digest) -> Self {
        let forced = parent.controller.annotations().get(annotations::FORCE_CONFIG);
        if !may_have_jobs || forced.is_some_and(|value| value == ON) {
            return Self::Now;
        }
        let wanted = wanted();
        if forced.is_some_and(|value| *value == wanted.to_string()) {
            return Self::Now;
        }
        Self::Wait { wanted }
    }
}

fn candidate(content: Content, built: Built, problems: &[Problem]) -> CheckedFiles {
    let warnings = problems.iter().filter(|problem| problem.severity == Severity::Warn);
    CheckedFiles {
        warnings: warnings
            .map(|problem| describe(problem, &built.places, &content))
            .collect(),
        digest: digest_of_files(&built.files),
        files: built.files,
        content,
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
