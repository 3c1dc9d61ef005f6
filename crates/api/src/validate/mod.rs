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

pub use self::{
    controller::{check_config_file, check_shared_claim},
    nodeset::check_partition_config,
    problems::{Problem, Problems, Reason, Severity},
};

/// A kind whose objects can be checked.
pub trait Validate: Resource {
    /// Problems of the object.
    fn check(&self) -> Problems;

    /// Problems of a new object, beyond those of [`Self::check`].
    fn check_new(&self) -> Problems {
        Problems::default()
    }

    /// Problems of the step from `old` to this object, beyond those of [`Self::check`].
    fn check_change(&self, _old: &Self) -> Problems {
        Problems::default()
    }

    /// The result of the admission of a new object.
    fn admit_create(&self) -> Problems {
        self.check().and(self.check_new())
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
        self.check().forgiving(&old.check()).and(self.check_change(old))
    }
}
