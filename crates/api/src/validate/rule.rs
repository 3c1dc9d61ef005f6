//! One rule of a kind: what must hold, how the API server and the operator check it, and examples.

use kube::Resource;
use serde::Serialize;
use serde_json::Value;

use super::{
    Problems, Reason, Severity,
    cel::{self, Cel},
};

/// A rule for the objects of kind `K`.
///
/// The definitions, the checks of the operator, `docs/admission.md` and the tests are all made from it.
#[derive(Debug)]
pub struct Rule<K: 'static> {
    /// Name of the rule, unique within its kind. It does not change.
    pub id: &'static str,
    /// Path of the field, or of several separated by `, `. `[]` stands for the items of a list.
    pub field: &'static str,
    /// What must hold. It continues a sentence that begins with the field.
    pub holds: &'static str,
    /// What to do about an object that violates the rule.
    pub remedy: &'static str,
    /// How the API server checks it.
    pub cel: Cel,
    /// How the operator checks it.
    pub check: Check<K>,
    /// Changes of the smallest object of the kind, in YAML, that keep the rule. If the rule is about changes, the first
    /// one is the object before the change.
    pub good: &'static [&'static str],
    /// Changes of the smallest object that violate the rule.
    pub bad: &'static [&'static str],
}

/// How the operator checks a rule.
#[derive(Debug)]
pub enum Check<K: 'static> {
    /// Returns the fault of an object. Field and remedy are those of the rule.
    Fault(Reason, fn(&K) -> Option<String>),
    /// Returns why the object may not do what its owner intended. Field and remedy are those of the rule.
    Warning(Reason, fn(&K) -> Option<String>),
    /// Adds problems, of which each has its own field and remedy.
    Problems(fn(&K, &mut Problems)),
    /// Like `Fault`, for new objects only.
    New(Reason, fn(&K) -> Option<String>),
    /// Whether the second object keeps what the first one has.
    Unchanged(fn(&K, &K) -> bool),
}

/// When a rule is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Moment {
    /// Always.
    Always,
    /// When the object is created.
    Creation,
    /// When the object is changed.
    Change,
}

impl<K> Rule<K> {
    /// When the rule is checked.
    pub fn moment(&self) -> Moment {
        match self.check {
            Check::New(..) => Moment::Creation,
            Check::Unchanged(_) => Moment::Change,
            Check::Fault(..) | Check::Warning(..) | Check::Problems(_) => Moment::Always,
        }
    }

    /// Adds the problems of an object that was not changed just now.
    pub(super) fn find(&self, object: &K, problems: &mut Problems) {
        match self.check {
            Check::Fault(reason, fault) => self.report(problems, Severity::Error, reason, fault(object)),
            Check::Warning(reason, fault) => self.report(problems, Severity::Warning, reason, fault(object)),
            Check::Problems(find) => problems.of_rule(self.id, |problems| find(object, problems)),
            Check::New(..) | Check::Unchanged(_) => {}
        }
    }

    /// Adds the problems that only a new object has.
    pub(super) fn find_in_new(&self, object: &K, problems: &mut Problems) {
        if let Check::New(reason, fault) = self.check {
            self.report(problems, Severity::Error, reason, fault(object));
        }
    }

    /// Adds a problem if a field was changed that must not be.
    pub(super) fn find_in_change(&self, old: &K, new: &K, problems: &mut Problems) {
        if let Check::Unchanged(is_unchanged) = self.check
            && !is_unchanged(old, new)
        {
            let fault = Some("cannot be changed".to_owned());
            self.report(problems, Severity::Error, Reason::Immutable, fault);
        }
    }

    fn report(&self, problems: &mut Problems, severity: Severity, reason: Reason, fault: Option<String>) {
        if let Some(fault) = fault {
            problems.of_rule(self.id, |problems| {
                problems.push(severity, reason, self.field, fault, self.remedy);
            });
        }
    }
}

/// A rule without the type of its kind.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The kind.
    pub kind: String,
    /// Name of the rule within its kind.
    pub id: &'static str,
    /// Path of the field or fields.
    pub field: &'static str,
    /// What must hold.
    pub holds: &'static str,
    /// What to do about an object that violates the rule.
    pub remedy: &'static str,
    /// Whether a violation is an error.
    pub is_error: bool,
    /// When the rule is checked.
    pub moment: Moment,
    /// How the API server checks it.
    #[serde(skip)]
    pub cel: Cel,
    /// Whether the API server refuses objects that violate it.
    pub in_definition: bool,
    /// Objects that keep the rule; the first is the one before the change, if the rule is about changes.
    pub good: Vec<Value>,
    /// Objects that violate it.
    pub bad: Vec<Value>,
}

impl Entry {
    /// The entry of a rule; `smallest` is the smallest valid object of the kind, in YAML.
    pub(super) fn new<K: Resource<DynamicType = ()>>(rule: &Rule<K>, smallest: &str) -> Self {
        let objects = |examples: &[&str]| -> Vec<Value> {
            let object = |change: &&str| object::<K>(&[smallest, change]);
            examples.iter().map(object).collect()
        };
        Self {
            kind: K::kind(&()).into_owned(),
            id: rule.id,
            field: rule.field,
            holds: rule.holds,
            remedy: rule.remedy,
            is_error: rule.cel != cel::WARNING,
            moment: rule.moment(),
            cel: rule.cel,
            in_definition: !matches!(rule.cel, Cel::No(_)),
            good: objects(rule.good),
            bad: objects(rule.bad),
        }
    }

    /// The message of the API server about a violation, which it writes behind the field.
    pub fn message(&self) -> String {
        format!("{}; {}", self.holds, self.remedy)
    }
}

/// An object of kind `K` with these changes in YAML, of which a null removes a field.
#[expect(clippy::expect_used, reason = "a test makes the objects of all rules")]
fn object<K: Resource<DynamicType = ()>>(changes: &[&str]) -> Value {
    let mut object = serde_json::json!({
        "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": { "name": "compute", "namespace": "slurm" },
    });
    for change in changes {
        merge(&mut object, serde_saphyr::from_str(change).expect("examples are YAML"));
    }
    object
}

fn merge(into: &mut Value, change: Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (field, value) in change {
                if value.is_null() {
                    into.remove(&field);
                } else {
                    merge(into.entry(field).or_insert(Value::Null), value);
                }
            }
        }
        (into, change) => *into = change,
    }
}
