use std::fmt;

use crate::conf::configuration::Located;

/// The consequence of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Slurm accepts it, but it is probably a mistake.
    Warn,
    /// It must not reach slurmctld.
    Refuse,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub severity: Severity,
    pub file: String,
    /// From 1; `None` if a line is missing, or for the file as a whole.
    pub line: Option<usize>,
    pub key: Option<String>,
    /// A sentence without a full stop.
    pub reason: String,
    /// An imperative without a full stop.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, " line {line}")?;
        }
        write!(f, ": {}; {}", self.reason, self.remedy)
    }
}

/// Limits the problems of a garbage file; conditions have room for fewer.
const MAX_PROBLEMS: usize = 100;

/// The position of a problem.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) file: &'a str,
    pub(super) line: Option<usize>,
}

impl<'a> At<'a> {
    pub(super) fn line(file: &'a str, number: usize) -> Self {
        let line = Some(number);
        Self { file, line }
    }

    pub(super) fn of(located: &'a Located) -> Self {
        Self::line(&located.file, located.line.number)
    }
}

/// The problems found so far, in the order of the files.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<Problem>);

impl Problems {
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MAX_PROBLEMS
    }

    pub(super) fn refuse(
        &mut self,
        at: At<'_>,
        key: Option<&str>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Refuse, at, key, reason, remedy);
    }

    pub(super) fn warn(&mut self, at: At<'_>, key: Option<&str>, reason: impl Into<String>, remedy: impl Into<String>) {
        self.add(Severity::Warn, at, key, reason, remedy);
    }

    pub(super) fn add(
        &mut self,
        severity: Severity,
        at: At<'_>,
        key: Option<&str>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        if self.is_full() {
            return;
        }
        self.0.push(Problem {
            severity,
            file: at.file.to_owned(),
            line: at.line,
            key: key.map(str::to_owned),
            reason: reason.into(),
            remedy: remedy.into(),
        });
    }

    pub(super) fn into_vec(self) -> Vec<Problem> {
        self.0
    }
}

/// Limits the length of a value in a message, which ends up in a condition.
pub(super) fn shortened(text: &str) -> String {
    crate::hostlist::shortened(text, 80)
}
