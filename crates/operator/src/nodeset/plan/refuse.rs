//! When a NodeSet is not acted on. What already runs is left alone, and every reason goes away by itself when its cause
//! does.

use api::{Controller, NodeSet, Problems};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::{nodeset::observe::Observed, runtime::State};

/// Why a NodeSet is not acted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// One word for programs.
    pub reason: &'static str,
    /// What is wrong and what to do about it.
    pub message: String,
    /// Whether another spec is needed, and not just another object.
    pub is_invalid: bool,
}

impl Refused {
    fn invalid(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            is_invalid: true,
        }
    }

    fn waiting(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            is_invalid: false,
            ..Self::invalid(reason, message)
        }
    }

    /// Where the NodeSet stands because of it.
    pub fn state(&self) -> State {
        if self.is_invalid {
            State::Invalid {
                message: self.message.clone(),
            }
        } else {
            State::Blocked {
                on: self.message.clone(),
            }
        }
    }
}

/// The Controller to work for, or why not to work.
pub(super) fn check<'a>(observed: &'a Observed, problems: &Problems) -> Result<&'a Controller, Refused> {
    let nodeset = observed.nodeset.as_ref();
    let errors: Vec<String> = problems.errors().map(ToString::to_string).collect();
    if let Some(first) = problems.errors().next() {
        return Err(Refused::invalid(first.reason.as_str(), errors.join("\n")));
    }
    let name = &nodeset.spec.controller_ref.name;
    let Some(controller) = observed.controller.as_deref() else {
        let existing = if observed.controller_names.is_empty() {
            "there is none in this namespace".to_owned()
        } else {
            format!("existing Controllers: {}", observed.controller_names.join(", "))
        };
        return Err(Refused::waiting(
            "ControllerNotFound",
            format!("spec.controllerRef.name is {name:?}, and no Controller of that name exists; {existing}"),
        ));
    };
    if controller.metadata.deletion_timestamp.is_some() {
        return Err(Refused::waiting(
            "ControllerDeleted",
            format!("Controller {name:?} is being deleted; no workers are made for it"),
        ));
    }
    if let Some(rival) = rival(nodeset, observed.siblings.iter().map(AsRef::as_ref)) {
        return Err(Refused::invalid(
            "NameTaken",
            format!(
                "NodeSet {rival:?} is older and has the same name in Slurm, {:?}; set another spec.template.spec.hostname \
                 or give this NodeSet another name",
                nodeset.slurm_name()
            ),
        ));
    }
    if controller.slurm_key().is_none() {
        return Err(Refused::waiting(
            "KeyMissing",
            format!(
                "Controller {name:?} is external and names no slurmKeyRef; name the Secret with its slurm.key there"
            ),
        ));
    }
    if let Some(missing) = &observed.missing_secret {
        return Err(Refused::waiting("SecretMissing", missing.clone()));
    }
    Ok(controller)
}

/// The older NodeSet of the same Controller that has the same name in Slurm, if there is one. The older is the one that
/// was created first; of two from the same second the one whose name comes first.
pub fn rival<'a>(nodeset: &NodeSet, siblings: impl IntoIterator<Item = &'a NodeSet>) -> Option<String> {
    let name = nodeset.slurm_name();
    siblings
        .into_iter()
        .filter(|other| other.metadata.uid != nodeset.metadata.uid || other.name_any() != nodeset.name_any())
        .filter(|other| other.spec.controller_ref.name == nodeset.spec.controller_ref.name)
        .filter(|other| other.slurm_name().eq_ignore_ascii_case(&name) && age(other) < age(nodeset))
        .map(ResourceExt::name_any)
        .next()
}

fn age(nodeset: &NodeSet) -> (Timestamp, String) {
    let created = nodeset.metadata.creation_timestamp.as_ref();
    (created.map_or(Timestamp::MAX, |time| time.0), nodeset.name_any())
}
