//! Which Partitions a change affects. What their Controllers report about them wakes them directly.

use std::sync::{Arc, LazyLock};

use api::{Controller, NodeSet, Partition};
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt as _;

use crate::{
    references::{References, select},
    runtime::{Caches, Change, Key},
};

static REFERENCES: LazyLock<References<Partition>> = LazyLock::new(|| {
    References::<Partition>::new()
        .names::<Controller>(|partition, _| vec![partition.spec.controller_ref.name.clone()])
        .on::<Namespace>(|delta, caches| {
            let namespace = delta.key().map(|key| key.name).unwrap_or_default();
            select(caches, &namespace, |_: &Partition| true)
        })
        // slurm.conf names a partition's NodeSets, except where slurm.conf is not ours.
        .on::<NodeSet>(|delta, caches| {
            let controllers = delta.sides().filter_map(|node_set| {
                let namespace = node_set.namespace().unwrap_or_default();
                caches.controllers.get(&namespace, &node_set.spec.controller_ref.name)
            });
            let external = controllers.filter(|controller| controller.spec.is_external());
            let of_controller = |controller: Arc<Controller>| {
                let Key { namespace, name } = Key::of(controller.as_ref());
                select(caches, &namespace, |partition: &Partition| {
                    partition.spec.controller_ref.name == name
                })
            };
            external.flat_map(of_controller).collect()
        })
});

pub(super) fn interested(change: &Change, caches: &Caches) -> Vec<Key> {
    REFERENCES.affected(change, caches)
}
