//! Keys of a cluster.

use serde_json::{Value, json};

/// The StatefulSet of the slurmctld of Controller `slurm`, which was made with other keys than any Secret has.
pub(crate) fn made_with_other_keys(namespace: &str, controller_uid: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {
            "name": "slurm-controller", "namespace": namespace,
            "ownerReferences": [{
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "name": "slurm", "uid": controller_uid,
                "controller": true,
            }],
        },
        "spec": {
            "selector": {}, "serviceName": "", "template": { "metadata": { "annotations": {
                "slinky.slurm.net/slurm-key-hash": "another", "slinky.slurm.net/jwt-key-hash": "another",
            } } },
        },
    })
}
