//! Whether a candidate may go to slurmctld: as far as we can tell without asking it.

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
    explain::{describe, is_ours},
    jobs::{Wait, is_in_use, waits_for},
    records::{RecordProblem, check_records},
    render::{Built, build_files},
    revise::{Before, Surroundings, Why},
};
use crate::{
    cluster::{Knowledge, deliver::Files},
    parent::Parent,
    reason,
};

/// Knows what there is to know about the cluster, and looks candidates over. What it takes to judge a change is found out when
/// there is one: at rest the files are rendered and read once.
pub(crate) struct Checker<'a> {
    surroundings: &'a Surroundings<'a>,
    before: &'a Content,
    wanted: &'a Content,
    live: OnceCell<Option<Configuration>>,
    nodes: Option<BTreeSet<String>>,
    old: OnceCell<Old>,
    force: OnceCell<Force>,
    needs_answers: Cell<bool>,
}

/// What is there before any change of an input, and is not held against one.
#[derive(Default)]
struct Old {
    /// What is wrong already.
    problems: BTreeSet<(String, Option<String>, String)>,
    records: BTreeSet<RecordProblem>,
    /// What the operator itself changes, whatever the inputs.
    changes: BTreeSet<String>,
}

/// What the files would be.
pub(crate) struct Candidate {
    pub(crate) content: Content,
    pub(crate) files: Files,
    pub(crate) digest: Digest,
    pub(crate) warnings: Vec<String>,
}

/// Whether jobs are to be waited for.
enum Force {
    /// There can be none, or their owner does not mind.
    Now,
    Wait {
        /// What was asked for, for whoever wants it now.
        wanted: Digest,
    },
}

impl<'a> Checker<'a> {
    pub(crate) fn new(surroundings: &'a Surroundings<'a>, before: &'a Content, wanted: &'a Content) -> Self {
        let nodes = surroundings.knowledge.known();
        Self {
            surroundings,
            before,
            wanted,
            live: OnceCell::new(),
            nodes: nodes.map(|seen| seen.nodes.keys().cloned().collect()),
            old: OnceCell::new(),
            force: OnceCell::new(),
            needs_answers: Cell::new(false),
        }
    }

    /// What slurmctld runs with, as far as it is known.
    fn live(&self) -> Option<&Configuration> {
        let live = self.live.get_or_init(|| match self.surroundings.before {
            // What we render ourselves is what identity is compared with at the first start.
            Before::Nothing => Some(configuration(&self.built(self.before).files)),
            Before::Accepted(revision, _) => Some(configuration(&revision.files)),
            Before::Unrecorded(revision) => revision.map(|revision| configuration(&revision.files)),
        });
        live.as_ref()
    }

    fn old(&self) -> &Old {
        self.old.get_or_init(|| {
            let old = match self.surroundings.before {
                Before::Nothing | Before::Unrecorded(None) => return Old::default(),
                Before::Accepted(..) => self.built(self.before),
                Before::Unrecorded(Some(revision)) => Built {
                    files: revision.files.clone(),
                    places: self.built(self.before).places,
                },
            };
            let conf = configuration(&old.files);
            let records = match self.surroundings.before {
                Before::Accepted(..) => check_records(&conf, &old.places, self.before),
                // Whose lines they are is not known.
                Before::Nothing | Before::Unrecorded(_) => Vec::new(),
            };
            Old {
                problems: self.check(&conf, &old).iter().map(fingerprint).collect(),
                records: records.into_iter().collect(),
                changes: self.sensitive(&conf).into_keys().collect(),
            }
        })
    }

    fn force(&self) -> &Force {
        self.force.get_or_init(|| {
            let may_have_jobs = match self.surroundings.before {
                Before::Nothing => false,
                Before::Accepted(_, Accepted { served, .. }) => *served,
                Before::Unrecorded(_) => true,
            };
            let wanted = || digest_of_files(&self.built(self.wanted).files);
            Force::of(self.surroundings.parent, may_have_jobs, wanted)
        })
    }

    /// The files of these inputs, if they may go to slurmctld.
    pub(crate) fn check_candidate(&self, content: Content) -> Result<Candidate, Why> {
        let built = self.built(&content);
        let conf = configuration(&built.files);
        let problems = self.check(&conf, &built);
        let records = self.records(&conf, &built, &content);
        let joined = records
            .iter()
            .filter(|finding| matches!(finding, RecordProblem::Joined(_)));
        let mut refused: Vec<String> = joined.map(|finding| finding.words().to_owned()).collect();
        if refused.is_empty() {
            refused = self.refusals(&problems, &built, &content);
        }
        if refused.is_empty() {
            refused = records.iter().map(|finding| finding.words().to_owned()).collect();
        }
        if !refused.is_empty() {
            return Err(Why {
                reason: reason::CONFIG_REJECTED,
                words: refused.join("\n"),
                soon: false,
            });
        }
        if let Force::Wait { wanted } = self.force() {
            let now = format!("or now with the annotation {}={wanted}", annotations::FORCE_CONFIG);
            if let Some(Wait { words, soon }) = self.waits(&conf) {
                return Err(Why {
                    reason: reason::WAITS_FOR_JOBS,
                    words: format!("{words}; it goes live by itself when they are gone, {now}"),
                    soon,
                });
            }
            if let Some(Wait { words, soon }) = self.waits_for_qos(&conf) {
                return Err(Why {
                    reason: reason::WAITS_FOR_ACCOUNTING,
                    words: format!("{words}; it goes live by itself when they are known, {now}"),
                    soon,
                });
            }
        }
        Ok(candidate(content, built, &problems))
    }

    /// What the checker refuses and what was not wrong before, in words for the owners of the fields.
    fn refusals(&self, problems: &[Problem], built: &Built, content: &Content) -> Vec<String> {
        problems
            .iter()
            .filter(|problem| problem.severity == Severity::Refuse)
            .filter(|problem| !self.old().problems.contains(&fingerprint(problem)))
            .filter(|problem| !is_ours(problem, &built.places, content))
            .map(|problem| describe(problem, &built.places, content))
            .collect()
    }

    /// Objects without a record of their own in slurm.conf, but for those that had none before.
    fn records(&self, conf: &Configuration, built: &Built, content: &Content) -> Vec<RecordProblem> {
        let mut findings = check_records(conf, &built.places, content);
        if findings.is_empty() {
            return findings;
        }
        let is_recorded = !matches!(self.surroundings.before, Before::Unrecorded(_));
        findings.retain(|finding| is_recorded || !matches!(finding, RecordProblem::Twice(_)));
        findings.retain(|finding| !self.old().records.contains(finding));
        findings
    }

    /// The same without a judgement.
    pub(crate) fn build(&self, content: Content) -> Candidate {
        let built = self.built(&content);
        let problems = self.check(&configuration(&built.files), &built);
        candidate(content, built, &problems)
    }

    /// Whether what Slurm says of jobs, or of QOS, decided over something.
    pub(crate) fn needs_answers(&self) -> bool {
        self.needs_answers.get()
    }

    fn built(&self, content: &Content) -> Built {
        build_files(self.surroundings.parent, content, self.surroundings.max_node_count)
    }

    fn check(&self, conf: &Configuration, built: &Built) -> Vec<Problem> {
        let seen = self.surroundings.knowledge.known();
        let known = Known {
            live: self.live(),
            nodes: self.nodes.as_ref(),
            qos: seen.and_then(|seen| seen.qos.as_ref()?.as_ref().ok()),
            release: seen.and_then(|seen| seen.release),
            user_lines: Some(built.places.extra.as_ref().unwrap_or(&NO_LINES)),
        };
        let mut problems = check(conf, &known);
        if matches!(self.surroundings.before, Before::Nothing) {
            // Options of the user's go beside ours, and a cluster that has not started yet can take them.
            problems.retain(|problem| problem.key.as_deref() != Some("AuthAltParameters"));
        }
        problems
    }

    /// What could end jobs, by its name.
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

    /// A QOS that the database does not have passes a dry run and fails the reconfigure.
    fn waits_for_qos(&self, conf: &Configuration) -> Option<Wait> {
        self.surroundings.parent.controller.spec.accounting_name()?;
        let named = self.live().map(qos_in_database).unwrap_or_default();
        let new = qos_in_database(conf);
        let first = new.difference(&named).next()?;
        self.needs_answers.set(true);
        let mut wait = match self.surroundings.knowledge {
            Knowledge::Unknown { why } => Wait::for_long(why.clone()),
            Knowledge::Known(seen) => match &seen.qos {
                Some(Ok(_)) => return None,
                Some(Err(why)) => Wait::for_long(why.clone()),
                None => Wait::for_a_look(),
            },
        };
        wait.words = format!("QOS {first:?} is looked up in the accounting database: {}", wait.words);
        Some(wait)
    }

    fn waits(&self, conf: &Configuration) -> Option<Wait> {
        let parts = self.sensitive(conf);
        let mut new = parts
            .iter()
            .filter(|(name, _)| !self.old().changes.contains(*name))
            .peekable();
        if new.peek().is_some() {
            self.needs_answers.set(true);
        }
        new.find_map(|(name, part)| {
            let held_by_slurm = is_in_use(part, self.surroundings.in_use).map(Wait::for_long);
            let Wait { words, soon } = held_by_slurm.or_else(|| waits_for(part, self.surroundings.knowledge))?;
            Some(Wait {
                words: format!("{name}, which can end jobs, and {words}"),
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

fn candidate(content: Content, built: Built, problems: &[Problem]) -> Candidate {
    let warnings = problems.iter().filter(|problem| problem.severity == Severity::Warn);
    Candidate {
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

/// Without its line, which shifts with every line before it.
fn fingerprint(problem: &Problem) -> (String, Option<String>, String) {
    (problem.file.clone(), problem.key.clone(), problem.reason.clone())
}
