//! When the operator does not act on a NodeSet and leaves its running workers alone, until the cause is fixed.

use api::{Controller, NodeSet, Problems};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    finding::{Finding, messages},
    nodeset::observe::Observed,
    reason,
    secret::missing_controller,
};

/// Returns the Controller of the NodeSet, or why the operator does not act.
pub(super) fn check<'a>(observed: &'a Observed, problems: &Problems) -> Result<&'a Controller, Finding> {
    let nodeset = observed.nodeset.as_ref();
    let reject = |reason, message: String| Err(Finding::blocking(reason, message));
    let invalid = Finding::of(problems);
    if !invalid.is_empty() {
        return Err(Finding::invalid(messages(&invalid)));
    }
    let name = &nodeset.spec.controller_ref.name;
    let Some(controller) = observed.controller.as_deref() else {
        if let Some(why) = &observed.unreadable_controller {
            return Err(missing_controller(name, Some(why)));
        }
        let existing = if observed.controller_names.is_empty() {
            "there is none in this namespace".to_owned()
        } else {
            format!("existing Controllers: {}", observed.controller_names.join(", "))
        };
        let message = format!("spec.controllerRef.name is {name:?}, and no Controller of that name exists; {existing}");
        return reject(reason::CONTROLLER_MISSING, message);
    };
    if controller.metadata.deletion_timestamp.is_some() {
        let message = format!("Controller {name:?} is being deleted; no workers are made for it");
        return reject(reason::CONTROLLER_DELETED, message);
    }
    if let Some(rival) = rival(observed) {
        let message = format!(
            "NodeSet {rival:?} is older and has the same name in Slurm, {:?}; set another spec.template.spec.hostname \
             or give this NodeSet another name",
            nodeset.slurm_name()
        );
        return reject(reason::NODE_SET_NAME_TAKEN, message);
    }
    if nodeset.spec.autoscaling().is_some() && controller.spec.is_external() {
        let message = format!(
            "spec.autoscaling.enabled is true, but the slurmctld of Controller {name:?} is external, and the operator creates no \
             nodes there; disable autoscaling"
        );
        return reject(reason::INVALID_SPEC, message);
    }
    if controller.slurm_key().is_none() {
        let message = format!(
            "Controller {name:?} is external and names no slurmKeyRef; name the Secret with its slurm.key there"
        );
        return reject(reason::KEY_MISSING, message);
    }
    match &observed.missing_secret {
        Some(missing) => reject(missing.reason, missing.message.clone()),
        None => Ok(controller),
    }
}

/// Returns the older NodeSet of the same Controller with the same name in Slurm. Of two NodeSets created in the same
/// second, the one whose name sorts first is older.
fn rival(observed: &Observed) -> Option<String> {
    let nodeset = observed.nodeset.as_ref();
    let age = |nodeset: &NodeSet| {
        let created = nodeset.metadata.creation_timestamp.as_ref();
        (created.map_or(Timestamp::MAX, |time| time.0), nodeset.name_any())
    };
    let name = nodeset.slurm_name();
    let is_rival = |other: &NodeSet| other.slurm_name().eq_ignore_ascii_case(&name) && age(other) < age(nodeset);
    let rival = observed.siblings.iter().find(|other| is_rival(other))?;
    Some(rival.name_any())
}
