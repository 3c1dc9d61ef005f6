//! The children of a Controller. Pure: values in, objects out.

pub(super) mod config;
pub(super) mod containers;
pub(super) mod keys;
pub(super) mod layout;
pub(super) mod monitor;
pub(super) mod services;
pub(super) mod stateful_set;

use api::{
    Controller,
    keys::{apps, components},
    names::ControllerName,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;

use crate::template::metadata::{Marks, Words, component_labels, owner, selector_labels};

/// What every child of one Controller is built from.
#[derive(Clone, Debug)]
pub(super) struct Parent<'a> {
    pub(super) controller: &'a Controller,
    pub(super) names: ControllerName,
    pub(super) namespace: String,
}

impl<'a> Parent<'a> {
    pub(super) fn new(controller: &'a Controller) -> Self {
        Self {
            controller,
            names: controller.child_names(),
            namespace: controller.namespace().unwrap_or_default(),
        }
    }

    pub(super) fn owner(&self) -> OwnerReference {
        owner(self.controller)
    }

    pub(super) fn selector(&self) -> Words {
        selector_labels(apps::SLURMCTLD, self.names.as_str())
    }

    pub(super) fn labels(&self) -> Words {
        component_labels(apps::SLURMCTLD, self.names.as_str(), components::CONTROLLER)
    }

    /// Marks of a child that no user has a word about.
    pub(super) fn marks(&self) -> Marks {
        Marks::of(&self.controller.metadata).label(&self.labels())
    }
}
