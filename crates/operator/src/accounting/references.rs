//! Which Accountings a change affects.

use api::{Accounting, Controller, keys::apps};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Secret, Service},
};

use super::observe::{referenced_secrets, referring};
use crate::references::References;

pub(super) fn references() -> References<Accounting> {
    References::<Accounting>::new()
        .owns::<StatefulSet>()
        .owns::<Service>()
        .owns::<Secret>()
        .runs(apps::SLURMDBD)
        // An Accounting without keys of its own has those of its Controller.
        .named_by::<Controller>(|controller| controller.spec.accounting_name())
        .names::<Secret>(|accounting, caches| {
            let controller = referring(accounting, caches);
            referenced_secrets(accounting, controller.as_deref()).collect()
        })
        .names::<ConfigMap>(|accounting, _| {
            let jwks = accounting.spec.jwks_key_ref.as_ref();
            jwks.map(|jwks| jwks.name.clone()).into_iter().collect()
        })
}
