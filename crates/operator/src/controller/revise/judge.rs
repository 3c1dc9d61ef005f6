//! Whether a candidate may go to slurmctld: as far as we can tell without asking it.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use api::keys::{ON, annotations};
use kube::ResourceExt as _;
use slurm::{
    conf::{Changes, Configuration, Known, Part, Problem, Severity, check},
    revision::{Digest, digest_of_files},
};

use super::{
    Accepted, Before, Surroundings, Why,
    jobs::{is_in_use, waits_for},
    words::{describe, is_ours},
};
use crate::controller::{
    build::{
        Parent,
        config::{Built, Files, build_files},
    },
    inputs::Inputs,
    reason,
};

/// Knows what there is to know about the cluster, and looks candidates over.
pub(super) struct Judge<'a> {
    surroundings: &'a Surroundings<'a>,
    live: Option<Configuration>,
    nodes: Option<BTreeSet<String>>,
    /// What is wrong already; it is not held against a change of something else.
    old_problems: BTreeSet<(String, Option<String>, String)>,
    /// What the operator itself changes, whatever the inputs; likewise.
    old_changes: BTreeSet<String>,
    force: Force,
    needs_jobs: Cell<bool>,
}

/// What the files would be.
pub(super) struct Candidate {
    pub(super) inputs: Inputs,
    pub(super) files: Files,
    pub(super) digest: Digest,
    pub(super) warnings: Vec<String>,
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

impl<'a> Judge<'a> {
    pub(super) fn new(surroundings: &'a Surroundings<'a>, before: &Inputs, wanted: &Inputs) -> Self {
        let Surroundings {
            parent,
            before: accepted,
            knowledge,
            max_node_count,
            ..
        } = surroundings;
        let built = |inputs: &Inputs| build_files(parent, inputs, *max_node_count);
        let live = match accepted {
            // What we render ourselves is what identity is compared with at the first start.
            Before::Nothing => Some(configuration(&built(before).files)),
            Before::Accepted(revision, _) => Some(configuration(&revision.files)),
            Before::Unrecorded(revision) => revision.map(|revision| configuration(&revision.files)),
        };
        let may_have_jobs = match accepted {
            Before::Nothing => false,
            Before::Accepted(_, Accepted { served, .. }) => *served,
            Before::Unrecorded(_) => true,
        };
        let mut judge = Self {
            surroundings,
            nodes: knowledge.known().map(|seen| seen.nodes.keys().cloned().collect()),
            old_problems: BTreeSet::new(),
            old_changes: BTreeSet::new(),
            force: Force::of(parent, may_have_jobs, || digest_of_files(&built(wanted).files)),
            needs_jobs: Cell::new(false),
            live,
        };
        let old = match accepted {
            Before::Nothing | Before::Unrecorded(None) => return judge,
            Before::Accepted(..) => built(before),
            Before::Unrecorded(Some(revision)) => Built {
                files: revision.files.clone(),
                places: built(before).places,
            },
        };
        let conf = configuration(&old.files);
        judge.old_problems = judge.check(&conf, &old).iter().map(fingerprint).collect();
        judge.old_changes = judge.sensitive(&conf).into_keys().collect();
        judge
    }

    /// The files of these inputs, if they may go to slurmctld.
    pub(super) fn judge(&self, inputs: Inputs) -> Result<Candidate, Why> {
        let built = self.built(&inputs);
        let conf = configuration(&built.files);
        let problems = self.check(&conf, &built);
        let refused: Vec<String> = problems
            .iter()
            .filter(|problem| problem.severity == Severity::Refuse)
            .filter(|problem| !self.old_problems.contains(&fingerprint(problem)))
            .filter(|problem| !is_ours(problem, &built.places, &inputs))
            .map(|problem| describe(problem, &built.places, &inputs))
            .collect();
        if !refused.is_empty() {
            return Err(Why {
                reason: reason::CONFIG_REJECTED,
                words: refused.join("\n"),
            });
        }
        if let Force::Wait { wanted } = self.force
            && let Some(words) = self.waits(&conf)
        {
            return Err(Why {
                reason: reason::WAITS_FOR_JOBS,
                words: format!(
                    "{words}; it goes live by itself when they are gone, or now with the annotation {}={wanted}",
                    annotations::FORCE_CONFIG,
                ),
            });
        }
        Ok(candidate(inputs, built, &problems))
    }

    /// The same without a judgement.
    pub(super) fn build(&self, inputs: Inputs) -> Candidate {
        let built = self.built(&inputs);
        let problems = self.check(&configuration(&built.files), &built);
        candidate(inputs, built, &problems)
    }

    /// Whether jobs decided over something.
    pub(super) fn needs_jobs(&self) -> bool {
        self.needs_jobs.get()
    }

    fn built(&self, inputs: &Inputs) -> Built {
        build_files(self.surroundings.parent, inputs, self.surroundings.max_node_count)
    }

    fn check(&self, conf: &Configuration, built: &Built) -> Vec<Problem> {
        let known = Known {
            live: self.live.as_ref(),
            nodes: self.nodes.as_ref(),
            user_lines: Some(built.places.extra.as_ref().unwrap_or(&NO_LINES)),
            ..Known::default()
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
        let Some(live) = &self.live else { return BTreeMap::new() };
        let changes = Changes::between(live, conf);
        let parts = changes
            .job_sensitive()
            .map(|part| (part.subject.to_string(), part.clone()));
        parts.collect()
    }

    fn waits(&self, conf: &Configuration) -> Option<String> {
        let parts = self.sensitive(conf);
        let mut new = parts
            .iter()
            .filter(|(name, _)| !self.old_changes.contains(*name))
            .peekable();
        if new.peek().is_some() {
            self.needs_jobs.set(true);
        }
        new.find_map(|(name, part)| {
            let held_by_slurm = is_in_use(part, self.surroundings.in_use);
            let jobs = held_by_slurm.or_else(|| waits_for(part, self.surroundings.knowledge))?;
            Some(format!("{name}, which can end jobs, and {jobs}"))
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

fn candidate(inputs: Inputs, built: Built, problems: &[Problem]) -> Candidate {
    let warnings = problems.iter().filter(|problem| problem.severity == Severity::Warn);
    Candidate {
        warnings: warnings
            .map(|problem| describe(problem, &built.places, &inputs))
            .collect(),
        digest: digest_of_files(&built.files),
        files: built.files,
        inputs,
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
