//! Describes a problem of a file in terms of the objects it was rendered from.

use std::ops::RangeInclusive;

use slurm::conf::Problem;

use super::{content::Content, source::Source};

/// The origin of the lines of slurm.conf, counted from 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// The lines of NodeSets, of their partitions and of Partitions, each of them a record of its own.
    pub(crate) objects: Vec<(usize, Source)>,
    pub(crate) extra: Option<RangeInclusive<usize>>,
    /// Options of the user that are merged with those the cluster needs.
    pub(crate) merged: Option<RangeInclusive<usize>>,
}

impl Places {
    /// The problem with its field instead of a line of a generated file.
    pub(crate) fn describe(&self, problem: &Problem, content: &Content) -> String {
        let Problem { reason, remedy, .. } = problem;
        match self.field_of(problem, content) {
            Some(field) => format!("{field}: {reason}; {remedy}"),
            None => problem.to_string(),
        }
    }

    /// Whether the problem is in a line rendered from the Controller's typed fields. Those are validated in the spec.
    pub(crate) fn is_generated(&self, problem: &Problem, content: &Content) -> bool {
        problem.line.is_some() && self.field_of(problem, content).is_none()
    }

    fn field_of(&self, problem: &Problem, content: &Content) -> Option<String> {
        let mut files = content.files.iter();
        if let Some((_, file)) = files.find(|(name, _)| name.as_str() == problem.file) {
            let entry = file.label();
            return Some(match problem.line {
                Some(line) => format!("{entry} line {line}"),
                None => entry,
            });
        }
        let is_rendered = problem.file == api::wellknown::SLURM_CONF_FILE;
        problem
            .line
            .filter(|_| is_rendered)
            .and_then(|line| self.field_at(line))
    }

    /// The field that a line of slurm.conf comes from.
    pub(crate) fn field_at(&self, line: usize) -> Option<String> {
        if let Some(extra) = self.extra.as_ref().filter(|extra| extra.contains(&line)) {
            return Some(format!("spec.extraConf line {}", line - extra.start() + 1));
        }
        if self.merged.as_ref().is_some_and(|merged| merged.contains(&line)) {
            return Some("spec.extraConf".to_owned());
        }
        let (_, source) = self.objects.iter().find(|(place, _)| *place == line)?;
        Some(match source {
            Source::Partition(_) => format!("{source}.config"),
            other => other.to_string(),
        })
    }
}
