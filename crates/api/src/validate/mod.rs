//! Checks beyond the schema. Each problem names the field, the fault and the remedy.
//!
//! They run before every plan, and serve an admission webhook. They see one object and, for a change, its previous
//! version; checks that need other objects run where those are known, with the functions [`check_config_file`],
//! [`check_partition_config`] and [`check_shared_claim`].

mod accounting;
mod controller;
mod core_fields;
mod fields;
mod lines;
mod loginset;
mod names;
mod nodeset;
mod partition;
mod problems;
mod restapi;
mod token;

use kube::Resource;
use serde_json::Value;

pub use self::{
    controller::{check_config_file, check_shared_claim},
    nodeset::check_partition_config,
    problems::{Problem, Problems, Reason, Severity},
};

/// A kind whose objects can be checked.
pub trait Validate: Resource {
    /// Adds the problems of the object.
    fn find_problems(&self, problems: &mut Problems);

    /// Problems of the object.
    fn check(&self) -> Problems {
        let mut problems = Problems::default();
        self.find_problems(&mut problems);
        problems
    }

    /// The fields that cannot be changed: path, value, and what to do instead.
    fn immutable(&self) -> Vec<(&'static str, Value, &'static str)> {
        Vec::new()
    }

    /// The result of the admission of a new object.
    fn admit_create(&self) -> Problems {
        self.check()
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
        let before = old.immutable();
        for (field, value, remedy) in self.immutable() {
            let old = before.iter().find(|(known, ..)| *known == field);
            if old.map_or(&Value::Null, |(_, old, _)| old) != &value {
                problems.error(Reason::Immutable, field, "cannot be changed", remedy);
            }
        }
        problems
    }
}
