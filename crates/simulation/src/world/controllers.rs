//! Small controllers of Kubernetes: StatefulSets and the garbage collector.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use super::{
    World,
    objects::{at, name_of, text, uid_of},
};

impl World {
    /// One look of all controllers.
    pub(super) fn run_controllers(&self) {
        let sets: Vec<Arc<Value>> = self.access.server.store().all("statefulsets").cloned().collect();
        for set in &sets {
            self.run_stateful_set(set);
        }
    }

    fn run_stateful_set(&self, set: &Value) {
        if set.pointer("/metadata/deletionTimestamp").is_some() {
            return;
        }
        let replicas = set.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1);
        let template = &set["spec"]["template"];
        let revision = format!("{}-{:x}", name_of(set), hash(&template.to_string()));
        let mut ready = 0;
        for ordinal in 0..replicas {
            let name = format!("{}-{ordinal}", name_of(set));
            let Ok(pod) = self.get("pods", &name) else {
                self.create_pod_of(set, &name, ordinal, &revision);
                continue;
            };
            let is_ending = pod.pointer("/metadata/deletionTimestamp").is_some();
            let is_old = text(&pod, "/metadata/labels/controller-revision-hash") != revision;
            let has_failed = text(&pod, "/status/phase") == "Failed";
            if (is_old || has_failed) && !is_ending {
                self.tell(format!("StatefulSet replaces {name}"));
                self.access.note_deleted_pod("StatefulSet", &name);
                let _ = self.edit(|store| store.delete(&at("pods", &name), &json!({})));
            }
            let conditions = pod
                .pointer("/status/conditions")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            ready += u64::from(
                conditions
                    .iter()
                    .any(|found| found["type"] == "Ready" && found["status"] == "True"),
            );
        }
        let status = json!({
            "replicas": replicas, "readyReplicas": ready, "currentReplicas": replicas, "updatedReplicas": replicas,
            "currentRevision": revision, "updateRevision": revision, "observedGeneration": set["metadata"]["generation"],
        });
        if set["status"] != status {
            self.set_status("statefulsets", &name_of(set), &status);
        }
    }

    fn create_pod_of(&self, set: &Value, name: &str, ordinal: u64, revision: &str) {
        let mut pod = set["spec"]["template"].clone();
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        pod["metadata"]["name"] = name.into();
        pod["metadata"]["labels"]["controller-revision-hash"] = revision.into();
        pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = name.into();
        pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] = ordinal.to_string().into();
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "StatefulSet", "name": name_of(set), "uid": uid_of(set), "controller": true,
            "blockOwnerDeletion": true,
        }]);
        pod["spec"]["hostname"] = name.into();
        let _ = self.edit(|store| store.create(&at("pods", ""), pod, "statefulset-controller"));
    }

    /// Deletes objects whose owners are all gone.
    pub(super) fn collect_garbage(&self) {
        let mut orphans = Vec::new();
        {
            let store = self.access.server.store();
            let plurals = store.plurals();
            let all = || {
                plurals
                    .iter()
                    .flat_map(|plural| store.all(plural).map(move |object| (plural, object)))
            };
            let uids: BTreeSet<String> = all().map(|(_, object)| uid_of(object)).collect();
            for (plural, object) in all() {
                let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
                let owners = owners.filter(|owners| !owners.is_empty());
                let is_orphan =
                    owners.is_some_and(|owners| owners.iter().all(|owner| !uids.contains(&text(owner, "/uid"))));
                if is_orphan && object.pointer("/metadata/deletionTimestamp").is_none() {
                    orphans.push((plural.clone(), name_of(object)));
                }
            }
        }
        for (plural, name) in orphans {
            self.tell(format!("garbage collector deletes {plural} {name}"));
            if plural == "pods" {
                self.access.note_deleted_pod("garbage collector", &name);
            }
            let _ = self.edit(|store| store.delete(&at(&plural, &name), &json!({})));
        }
    }
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}
