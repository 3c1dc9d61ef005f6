//! When the operator does not act on a NodeSet. Its running workers are left alone, and a rejection ends when its cause is
//! fixed.

use api::{Controller, NodeSet, Problems};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::{nodeset::observe::Observed, runtime::State};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The reason of the condition.
    pub reason: &'static str,
    /// The problem and its remedy.
    pub message: String,
    /// Whether the spec has to change, and not another object.
    pub is_invalid: bool,
}

impl Rejection {
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

/// Returns the Controller of the NodeSet, or why the operator does not act.
pub(super) fn check<'a>(observed: &'a Observed, problems: &Problems) -> Result<&'a Controller, Rejection> {
    let nodeset = observed.nodeset.as_ref();
    let errors: Vec<String> = problems.errors().map(ToString::to_string).collect();
    if let Some(first) = problems.errors().next() {
        return Err(Rejection::invalid(first.reason.as_str(), errors.join("\n")));
    }
    let name = &nodeset.spec.controller_ref.name;
    let Some(controller) = observed.controller.as_deref() else {
        let existing = if observed.controller_names.is_empty() {
            "there is none in this namespace".to_owned()
        } else {
            format!("existing Controllers: {}", observed.controller_names.join(", "))
        };
        return Err(Rejection::waiting(
            "ControllerNotFound",
            format!("spec.controllerRef.name is {name:?}, and no Controller of that name exists; {existing}"),
        ));
    };
    if controller.metadata.deletion_timestamp.is_some() {
        return Err(Rejection::waiting(
            "ControllerDeleted",
            format!("Controller {name:?} is being deleted; no workers are made for it"),
        ));
    }
    if let Some(rival) = rival(nodeset, observed.siblings.iter().map(AsRef::as_ref)) {
        return Err(Rejection::invalid(
            "NameTaken",
            format!(
                "NodeSet {rival:?} is older and has the same name in Slurm, {:?}; set another spec.template.spec.hostname \
                 or give this NodeSet another name",
                nodeset.slurm_name()
            ),
        ));
    }
    if controller.slurm_key().is_none() {
        return Err(Rejection::waiting(
            "KeyMissing",
            format!(
                "Controller {name:?} is external and names no slurmKeyRef; name the Secret with its slurm.key there"
            ),
        ));
    }
    if let Some(missing) = &observed.missing_secret {
        return Err(Rejection::waiting("SecretMissing", missing.clone()));
    }
    Ok(controller)
}

/// Returns the older NodeSet of the same Controller with the same name in Slurm. Of two NodeSets created in the same
/// second, the one whose name sorts first is older.
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
