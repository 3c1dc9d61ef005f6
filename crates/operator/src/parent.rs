//! The common input of all children of a Controller: its object, its names and its labels. Pure.

use api::{
    Controller,
    keys::{apps, components},
    names::ControllerName,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;

use crate::template::{
    container::user_command,
    metadata::{Marks, Words, component_labels, owner, selector_labels},
};

/// The common input of all children of one Controller.
#[derive(Clone, Debug)]
pub(crate) struct Parent<'a> {
    pub(crate) controller: &'a Controller,
    pub(crate) names: ControllerName,
    pub(crate) namespace: String,
}

impl<'a> Parent<'a> {
    pub(crate) fn new(controller: &'a Controller) -> Self {
        Self {
            controller,
            names: controller.child_names(),
            namespace: controller.namespace().unwrap_or_default(),
        }
    }

    pub(crate) fn owner(&self) -> OwnerReference {
        owner(self.controller)
    }

    pub(crate) fn selector(&self) -> Words {
        selector_labels(apps::SLURMCTLD, self.names.as_str())
    }

    pub(crate) fn labels(&self) -> Words {
        component_labels(apps::SLURMCTLD, self.names.as_str(), components::CONTROLLER)
    }

    /// The metadata of a child that users cannot change.
    pub(crate) fn marks(&self) -> Marks {
        Marks::of(&self.controller.metadata).label(&self.labels())
    }

    /// Whether slurmctld runs under the agent, and not under the user's own command.
    pub(crate) fn is_supervised(&self) -> bool {
        user_command(self.controller.spec.slurmctld.as_ref()).is_none()
    }
}
