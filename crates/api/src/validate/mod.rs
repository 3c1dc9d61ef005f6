//! Rules beyond the schema. Each problem names the field, the fault and the remedy.
//!
//! A rule is one entry in the table of its kind. The API server checks it with an expression in the definition, where one
//! is possible; the operator checks it before every plan, and an admission webhook can. The entries see one object and,
//! for a change, its previous version; checks that need other objects run where those are known, with the functions
//! [`check_config_file`], [`check_partition_config`] and [`check_shared_claim`].

mod accounting;
pub(crate) mod cel;
mod controller;
mod core_fields;
mod document;
mod fields;
mod lines;
mod loginset;
mod names;
mod nodeset;
mod partition;
mod problems;
mod restapi;
mod rule;
mod shared;
mod token;

use kube::Resource;

use crate::{Accounting, Controller, LoginSet, NodeSet, Partition, RestApi, Token};

pub use self::{
    cel::Cel,
    controller::{check_config_file, check_shared_claim},
    document::render_markdown,
    nodeset::check_partition_config,
    problems::{Problem, Problems, Reason, Severity},
    rule::{Check, Entry, Moment, Rule},
};

/// A kind whose objects can be checked.
pub trait Validate: Resource<DynamicType = ()> + Sized + 'static {
    /// The rules, in the order in which their problems are listed.
    const RULES: &'static [Rule<Self>];

    /// Fields of the spec without a rule: any value that the schema accepts is valid.
    const FREE: &'static [&'static str];

    /// The smallest valid object, in YAML.
    const SMALLEST: &'static str;

    /// Problems of the object.
    fn check(&self) -> Problems {
        let mut problems = Problems::default();
        for rule in Self::RULES {
            rule.find(self, &mut problems);
        }
        problems
    }

    /// The result of the admission of a new object.
    fn admit_create(&self) -> Problems {
        let mut problems = self.check();
        for rule in Self::RULES {
            rule.find_in_new(self, &mut problems);
        }
        problems
    }

    /// The result of the admission of a changed object.
    ///
    /// An error that `old` has too does not reject the change: a user who adds a label to an object from an earlier
    /// release should not have to correct its spec first. An object that is being deleted must be able to lose its
    /// finalizers.
    fn admit_update(&self, old: &Self) -> Problems {
        if self.meta().deletion_timestamp.is_some() {
            return Problems::default();
        }
        let mut problems = self.check().forgiving(&old.check());
        for rule in Self::RULES {
            rule.find_in_change(old, self, &mut problems);
        }
        problems
    }

    /// The rules without the type of the kind.
    fn entries() -> Vec<Entry> {
        Self::RULES
            .iter()
            .map(|rule| Entry::new(rule, Self::SMALLEST))
            .collect()
    }
}

/// The rules of all kinds.
pub fn entries() -> Vec<Entry> {
    [
        Accounting::entries(),
        Controller::entries(),
        LoginSet::entries(),
        NodeSet::entries(),
        Partition::entries(),
        RestApi::entries(),
        Token::entries(),
    ]
    .concat()
}
