//! Reads a RestApi, its Controller and its children.

use std::sync::Arc;

use api::{Controller, RestApi, references::SecretKeyRef};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret},
};
use kube::ResourceExt as _;

use crate::{defaults::Images, runtime::Caches};

/// Everything that a plan is made from.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(super) rest_api: Arc<RestApi>,
    /// The Controller that it names.
    pub(super) controller: Option<Arc<Controller>>,
    /// The slurm.conf that slurmrestd reads.
    pub(super) config: Option<Arc<ConfigMap>>,
    pub(super) slurm_key: Option<Arc<Secret>>,
    pub(super) deployment: Option<Arc<Deployment>>,
    pub(super) images: Images,
}

/// Reads what concerns this RestApi from the caches.
pub(super) fn observe(rest_api: Arc<RestApi>, caches: &Caches, images: Images) -> Observed {
    let namespace = rest_api.namespace().unwrap_or_default();
    let controller = caches.controllers.get(&namespace, &rest_api.spec.controller_ref.name);
    let names = controller.as_ref().map(|controller| controller.child_names());
    let key: Option<SecretKeyRef> = controller.as_ref().and_then(|controller| controller.slurm_key());
    Observed {
        config: names.and_then(|names| caches.config_maps.get(&namespace, &names.config_map())),
        slurm_key: key.and_then(|key| caches.secrets.get(&namespace, &key.name)),
        deployment: caches
            .deployments
            .child_of(rest_api.as_ref(), &rest_api.child_names().deployment()),
        controller,
        rest_api,
        images,
    }
}
