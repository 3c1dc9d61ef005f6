//! The rules of the API server, in its expression language CEL.
//!
//! An object that was stored before a rule existed may violate it. Its status must still be written and its finalizers
//! removed, and in Kubernetes 1.29 both run every rule. So the expression of a rule is written to the definition twice:
//!
//! * `has(self.status) || holds`. The API server removes the status of a new object and keeps that of an existing one, so
//!   this applies until the operator writes the first status.
//! * `unchanged(fields) || holds`, with the object before the change as `oldSelf`. The API server runs a rule that
//!   mentions `oldSelf` on updates only.
//!
//! `optionalOldSelf` would do both in one, but Kubernetes 1.29 does not have it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, ValidationRule};

use super::{Entry, Moment};

/// How the API server checks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cel {
    /// An expression in which `{}` stands for the value of the field. It holds if the field is absent.
    Value(&'static str),
    /// An expression on the object, `self`, that depends on its name and the fields in `reads`.
    Object {
        /// Paths of the fields.
        reads: &'static [&'static str],
        /// The expression.
        holds: &'static str,
    },
    /// An expression on the object, `self`, whose value cannot be changed.
    Constant(&'static str),
    /// An expression on the object before and after a change, `oldSelf` and `self`.
    Change(&'static str),
    /// The schema has a keyword for it, as in upstream's definitions or in a field that upstream does not have.
    Schema,
    /// It does not, for this reason.
    No(&'static str),
}

/// Why the API server does not check a field of a core/v1 type.
pub(super) const OPEN: Cel = Cel::No("the schema of the field is open");
/// Why the API server does not give warnings.
pub(super) const WARNING: Cel = Cel::No("it is a warning");
/// Why the API server does not compare namespaces.
pub(super) const NAMESPACE: Cel = Cel::No("CEL does not see the namespace of an object");
/// Why the API server does not check the items of a list.
pub(super) const LIST: Cel = Cel::No("the list has no maximum length, and the expression would exceed the cost limit");

/// The name of an object. A shorter expression than Kubernetes' own costs less, and accepts dots beside dots and dashes.
macro_rules! is_name {
    ($value:expr) => {
        concat!(
            "size(",
            $value,
            ") <= 253 && ",
            $value,
            ".matches('^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$')"
        )
    };
}

/// The name of an object and one of its keys.
macro_rules! is_entry {
    ($value:expr) => {
        concat!(
            $crate::validate::cel::is_name!(concat!($value, ".name")),
            " && ",
            $value,
            ".key.matches('^[-._a-zA-Z0-9]+$')"
        )
    };
}

/// The name of the object, of which the name of a Service is made.
macro_rules! is_label {
    ($longest:literal) => {
        concat!(
            "size(self.metadata.name) <= ",
            $longest,
            " && !self.metadata.name.contains('.')"
        )
    };
}

/// A duration as Go writes it, positive or zero.
macro_rules! is_duration {
    ($value:expr) => {
        concat!($value, r".matches('^[+]?([0-9.]+(ns|us|µs|μs|ms|s|m|h))+$')")
    };
}

/// Whether slurmctld or slurmdbd runs outside Kubernetes.
macro_rules! is_external {
    () => {
        "(has(self.spec.external) && self.spec.external)"
    };
}

pub(super) use {is_duration, is_entry, is_external, is_label, is_name};

/// The rules that a definition with this schema gets from an entry of the table.
pub(crate) fn validations(entry: &Entry, schema: &JSONSchemaProps) -> Vec<ValidationRule> {
    let is_change = entry.moment == Moment::Change;
    let located = has_field(schema, entry.field);
    let rule = |rule: String| ValidationRule {
        rule,
        message: Some(if located {
            entry.message()
        } else {
            format!("{} {}", entry.field, entry.message())
        }),
        field_path: located.then(|| format!(".{}", entry.field)),
        reason: is_change.then(|| "FieldValueForbidden".to_owned()),
        ..ValidationRule::default()
    };
    let (reads, holds) = match entry.cel {
        Cel::Value(holds) => (
            &[entry.field] as &[&str],
            format!(
                "(!({}) || ({}))",
                given("self", entry.field),
                holds.replace("{}", &format!("self.{}", entry.field))
            ),
        ),
        Cel::Object { reads, holds } => (reads, format!("({holds})")),
        Cel::Constant(form) => {
            let old = form.replace("self.", "oldSelf.");
            return vec![rule(of_specs(&format!("({form}) == ({old})")))];
        }
        Cel::Change(holds) => return vec![rule(of_specs(&format!("({holds})")))],
        Cel::Schema | Cel::No(_) => return Vec::new(),
    };
    // Another rule says that the spec is missing.
    let spec = if reads.is_empty() { "" } else { "!has(self.spec) || " };
    let mut rules = vec![rule(format!("has(self.status) || {spec}{holds}"))];
    if !reads.is_empty() && entry.moment == Moment::Always {
        let same: Vec<String> = reads.iter().map(|field| unchanged(field)).collect();
        rules.push(rule(of_specs(&format!("({}) || {holds}", same.join(" && ")))));
    }
    rules
}

/// The rules that an object has a spec. A keyword of the schema would keep the finalizers of an object without one, which
/// upstream accepts.
pub(crate) fn spec_is_required() -> [ValidationRule; 2] {
    [
        "has(self.status) || has(self.spec)",
        "has(self.spec) || !has(oldSelf.spec)",
    ]
    .map(|rule| ValidationRule {
        rule: rule.to_owned(),
        message: Some("is required".to_owned()),
        field_path: Some(".spec".to_owned()),
        reason: Some("FieldValueRequired".to_owned()),
        ..ValidationRule::default()
    })
}

/// Upstream may have stored an object without a spec, in which the API server would find none of its fields.
fn of_specs(holds: &str) -> String {
    format!("!has(self.spec) || !has(oldSelf.spec) || {holds}")
}

/// Whether `object` has the field.
fn given(object: &str, field: &str) -> String {
    let mut path = object.to_owned();
    let mut parts = Vec::new();
    for name in field.split('.') {
        path = format!("{path}.{name}");
        parts.push(format!("has({path})"));
    }
    // The spec is there: see `of_specs`.
    parts.get(1..).unwrap_or_default().join(" && ")
}

/// Whether the field has the same value before and after the change, or is absent in both.
fn unchanged(field: &str) -> String {
    let (new, old) = (given("self", field), given("oldSelf", field));
    format!("({new} ? {old} && self.{field} == oldSelf.{field} : !({old}))")
}

/// Whether the schema describes the field of this path.
fn has_field(schema: &JSONSchemaProps, path: &str) -> bool {
    let mut schema = schema;
    for name in path.split('.') {
        match schema.properties.as_ref().and_then(|properties| properties.get(name)) {
            Some(inner) => schema = inner,
            None => return false,
        }
    }
    true
}
