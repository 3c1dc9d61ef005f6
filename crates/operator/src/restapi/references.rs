//! Which RestApis a change affects.

use api::{Controller, RestApi};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret, Service},
};
use kube::ResourceExt as _;

use crate::{
    references::{References, key_secret, select},
    runtime::Key,
};

pub(super) fn references() -> References<RestApi> {
    References::<RestApi>::new()
        .owns::<Deployment>()
        .owns::<Service>()
        .names::<Controller>(|rest_api, _| vec![rest_api.spec.controller_ref.name.clone()])
        .names::<Secret>(|rest_api, caches| {
            let namespace = rest_api.namespace().unwrap_or_default();
            let key = key_secret(caches, &namespace, &rest_api.spec.controller_ref.name);
            key.into_iter().collect()
        })
        // slurmrestd is started when its Controller has a slurm.conf.
        .on::<ConfigMap>(|delta, caches| {
            let controllers = delta.owners::<Controller>();
            let of_controller = |controller: &Key| {
                select(caches, &controller.namespace, |rest_api: &RestApi| {
                    rest_api.spec.controller_ref.name == controller.name
                })
            };
            controllers.iter().flat_map(of_controller).collect()
        })
}
