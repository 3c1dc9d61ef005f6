//! Which LoginSets a change affects.

use std::sync::LazyLock;

use api::{Controller, LoginSet, keys::apps};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret, Service},
};
use kube::ResourceExt as _;

use crate::{
    references::{References, key_secret},
    runtime::{Caches, Change, Key},
};

static REFERENCES: LazyLock<References<LoginSet>> = LazyLock::new(|| {
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
});

pub(super) fn interested(change: &Change, caches: &Caches) -> Vec<Key> {
    REFERENCES.affected(change, caches)
}
