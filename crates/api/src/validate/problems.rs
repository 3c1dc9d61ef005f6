//! Problems of an object, described for its owner.

use std::fmt;

/// Severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The operator does not act on the object.
    Error,
    /// The operator acts on the object, possibly not as its owner intended.
    Warning,
}

/// Class of a problem, for conditions and programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A required value is absent or empty.
    Missing,
    /// A value is invalid.
    BadValue,
    /// A name that Kubernetes or Slurm would reject.
    BadName,
    /// A reference into another namespace.
    OtherNamespace,
    /// A change of an immutable field.
    Immutable,
    /// A field that core/v1 does not have.
    UnknownField,
    /// A value without effect.
    Ignored,
}

/// A fault of one field and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The rule of the kind that the object violates, if it is one of its table.
    pub rule: Option<&'static str>,
    /// Severity of the problem.
    pub severity: Severity,
    /// Class of the problem.
    pub reason: Reason,
    /// Path of the field, for example `spec.controllerRef.name`.
    pub field: String,
    /// Description of the fault.
    pub fault: String,
    /// How to correct it.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}; {}", self.field, self.fault, self.remedy)
    }
}

/// All problems of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Returns all problems.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    /// Returns the errors.
    pub fn errors(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter().filter(|problem| problem.severity == Severity::Error)
    }

    /// Returns the warnings.
    pub fn warnings(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter().filter(|problem| problem.severity == Severity::Warning)
    }

    /// Whether there are no errors.
    pub fn is_ok(&self) -> bool {
        self.errors().next().is_none()
    }

    /// A required value is absent or empty.
    pub(super) fn missing(&mut self, field: impl Into<String>, fault: impl Into<String>, remedy: impl Into<String>) {
        self.error(Reason::Missing, field, fault, remedy);
    }

    /// A value is invalid.
    pub(super) fn bad_value(&mut self, field: impl Into<String>, fault: impl Into<String>, remedy: impl Into<String>) {
        self.error(Reason::BadValue, field, fault, remedy);
    }

    /// Kubernetes or Slurm would reject a name.
    pub(super) fn bad_name(&mut self, field: impl Into<String>, fault: impl Into<String>, remedy: impl Into<String>) {
        self.error(Reason::BadName, field, fault, remedy);
    }

    pub(super) fn error(
        &mut self,
        reason: Reason,
        field: impl Into<String>,
        fault: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.push(Severity::Error, reason, field, fault, remedy);
    }

    pub(super) fn warn(
        &mut self,
        reason: Reason,
        field: impl Into<String>,
        fault: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.push(Severity::Warning, reason, field, fault, remedy);
    }

    /// Adds the problems that `find` adds, as violations of a rule.
    pub(super) fn of_rule(&mut self, rule: &'static str, find: impl FnOnce(&mut Self)) {
        let known = self.0.len();
        find(self);
        for problem in self.0.iter_mut().skip(known) {
            problem.rule = Some(rule);
        }
    }

    /// Turns errors that were there `before` into warnings.
    pub(super) fn forgiving(mut self, before: &Self) -> Self {
        for problem in &mut self.0 {
            if before.0.contains(problem) {
                problem.severity = Severity::Warning;
            }
        }
        self
    }

    pub(super) fn push(
        &mut self,
        severity: Severity,
        reason: Reason,
        field: impl Into<String>,
        fault: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (field, fault, remedy) = (field.into(), fault.into(), remedy.into());
        self.0.push(Problem {
            rule: None,
            severity,
            reason,
            field,
            fault,
            remedy,
        });
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}
