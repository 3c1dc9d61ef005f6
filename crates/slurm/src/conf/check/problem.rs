use std::fmt;

/// What is done about a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Slurm takes it, but it is hardly what was meant.
    Warn,
    /// It must not reach slurmctld.
    Refuse,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub severity: Severity,
    pub file: String,
    /// From 1; none where something is missing, or where the file as a whole is meant.
    pub line: Option<usize>,
    pub key: Option<String>,
    /// A sentence without its full stop.
    pub reason: String,
    /// What to do, likewise.
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

/// A file of rubbish has a problem on every line. Nobody reads more than these, and conditions have room for fewer.
const MOST: usize = 100;

/// Where a problem is.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) file: &'a str,
    pub(super) line: Option<usize>,
}

/// Problems as they are found, in the order of the files.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<Problem>);

impl Problems {
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MOST
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

/// A value in a sentence. It may be as long as the file allows; the sentence ends in a condition.
pub(super) fn shortened(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut short: String = text.chars().take(LONGEST).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
