//! Which Partitions a change affects. What their Controllers report about them wakes them directly.

use api::{Controller, NodeSet, Partition};
use k8s_openapi::api::core::v1::Namespace;

use crate::{
    references::{References, keys_of, select},
    runtime::Key,
};

pub(super) fn references() -> References<Partition> {
    References::<Partition>::new()
        .names::<Controller>(|partition, _| vec![partition.spec.controller_ref.name.clone()])
        .on::<Namespace>(|delta, caches| {
            let namespace = delta.key().map(|key| key.name).unwrap_or_default();
            select(caches, &namespace, |_: &Partition| true)
        })
        // slurm.conf names a partition's NodeSets, except where slurm.conf is not ours.
        .on::<NodeSet>(|delta, caches| {
            let mut controllers = keys_of(delta, |node_set| Some(&node_set.spec.controller_ref.name));
            controllers.retain(|Key { namespace, name }| {
                let controller = caches.controllers.get(namespace, name);
                controller.is_some_and(|controller| controller.spec.is_external())
            });
            let partitions = |Key { namespace, name }: &Key| {
                select(caches, namespace, |partition: &Partition| {
                    partition.spec.controller_ref.name == *name
                })
            };
            controllers.iter().flat_map(partitions).collect()
        })
}
