//! What the schema cannot say: checks that name the field, what is wrong with it and the remedy.
//!
//! They run in the webhook and again before every plan, since a webhook can be absent. They see one object (and, for a
//! change, the one before it); what needs other objects is checked where those are at hand, with the functions
//! [`check_config_file`], [`check_partition_config`] and [`check_shared_claim`].

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
    /// Problems of the object as it stands.
    fn check(&self) -> Problems;

    /// Problems of a new object, beyond those of [`Self::check`].
    fn check_new(&self) -> Problems {
        Problems::default()
    }

    /// Problems of the step from `old` to this object, beyond those of [`Self::check`].
    fn check_change(&self, _old: &Self) -> Problems {
        Problems::default()
    }

    /// What admission says to a new object.
    fn admit_create(&self) -> Problems {
        self.check().and(self.check_new())
    }

    /// What admission says to a changed object.
    ///
    /// An error that `old` had already is no reason to refuse: who adds a label to an object from an earlier release
    /// should not have to mend its spec first. And an object on its way out must be able to lose its finalizers.
    fn admit_update(&self, old: &Self) -> Problems {
        if self.meta().deletion_timestamp.is_some() {
            return Problems::default();
        }
        self.check().forgiving(&old.check()).and(self.check_change(old))
    }
}
