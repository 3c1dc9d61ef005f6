//! Which LoginSets a change affects.

use api::{Controller, LoginSet, keys::apps};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret, Service},
};
use kube::ResourceExt as _;

use crate::references::{References, key_secret};

pub(super) fn references() -> References<LoginSet> {
    References::<LoginSet>::new()
        .owns::<Deployment>()
        .owns::<Service>()
        .owns::<ConfigMap>()
        .owns::<Secret>()
        .runs(apps::LOGIN)
        .names::<Controller>(|login_set, _| vec![login_set.spec.controller_ref.name.clone()])
        .names::<Secret>(|login_set, caches| {
            let namespace = login_set.namespace().unwrap_or_default();
            let key = key_secret(caches, &namespace, &login_set.spec.controller_ref.name);
            key.into_iter()
                .chain([login_set.spec.sssd_conf_ref.name.clone()])
                .collect()
        })
}
