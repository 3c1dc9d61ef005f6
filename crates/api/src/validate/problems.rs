//! What is wrong with an object, in words for its owner.

use std::fmt;

/// Whether a problem stops the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The object cannot be acted on.
    Error,
    /// The object is acted on, perhaps not as its owner meant.
    Warning,
}

/// What kind of problem it is: one word, for conditions and for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Something that is needed is absent or empty.
    Missing,
    /// A value means nothing, or nothing good.
    BadValue,
    /// A name that Kubernetes or Slurm would refuse.
    BadName,
    /// A reference into another namespace.
    OtherNamespace,
    /// A change of something that cannot be changed.
    Immutable,
    /// A field that core/v1 does not have.
    UnknownField,
    /// A value without effect.
    Ignored,
}

impl Reason {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "Missing",
            Self::BadValue => "BadValue",
            Self::BadName => "BadName",
            Self::OtherNamespace => "OtherNamespace",
            Self::Immutable => "Immutable",
            Self::UnknownField => "UnknownField",
            Self::Ignored => "Ignored",
        }
    }
}

/// One thing that is wrong, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether it stops the object.
    pub severity: Severity,
    /// What kind of problem it is.
    pub reason: Reason,
    /// Path of the field, for example `spec.controllerRef.name`.
    pub field: String,
    /// What is wrong with it.
    pub fault: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}; {}", self.field, self.fault, self.remedy)
    }
}

/// Everything that is wrong with an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    /// Those that stop the object.
    pub fn errors(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter().filter(|problem| problem.severity == Severity::Error)
    }

    /// Those that do not.
    pub fn warnings(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter().filter(|problem| problem.severity == Severity::Warning)
    }

    /// Whether nothing stops the object.
    pub fn is_ok(&self) -> bool {
        self.errors().next().is_none()
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

    /// These and those.
    pub(super) fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// These, with errors that were there `before` made warnings.
    pub(super) fn forgiving(mut self, before: &Self) -> Self {
        for problem in &mut self.0 {
            if before.0.contains(problem) {
                problem.severity = Severity::Warning;
            }
        }
        self
    }

    fn push(
        &mut self,
        severity: Severity,
        reason: Reason,
        field: impl Into<String>,
        fault: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (field, fault, remedy) = (field.into(), fault.into(), remedy.into());
        self.0.push(Problem {
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
