//! Revisions: the part of a spec that decides whether a pod is up to date, and their history.
//!
//! Data and hash equal upstream's, so that after a takeover the running pods are up to date. Upstream's data comes from Go
//! structs, which write some empty fields and omit others; where ours differs nevertheless, [`makes_same_pods`] finds the
//! revision that upstream created.

use std::collections::BTreeSet;

use api::{
    NodeSet,
    keys::{apps, labels},
    names::NodeSetName,
    templates::PodTemplate,
};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use crate::{
    defaults::{FORMER_LOGFILE_IMAGE, Images},
    nodeset::observe::Observed,
    overlay::is_empty,
    template::{
        fields,
        metadata::{is_release_label, owner, selector_labels},
        set,
        tidy::{UNSTORED, write_out},
    },
    worker::{ObjectId, Worker},
};

/// The characters of hashes in Kubernetes: no vowels, so that no words appear.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Upstream truncates the name so that name, dash and hash fit into 253 characters.
const LONGEST_NAME: usize = 223;
/// The pull policy of the operator's images, and of most others.
const IF_NOT_PRESENT: &str = "IfNotPresent";

#[derive(Clone, Debug, PartialEq)]
pub struct RevisionPlan {
    /// Hash of the newest revision, which is on the pods.
    pub hash: String,
    /// How many hash collisions there were.
    pub collisions: i32,
    /// The newest revision, if it does not exist.
    pub create: Option<Value>,
    /// Name and new number of an older revision that is the newest again.
    pub renumber: Option<(String, i64)>,
    /// Unused revisions beyond the history limit.
    pub delete: Vec<ObjectId>,
}

pub(super) fn plan_revision(observed: &Observed) -> RevisionPlan {
    let nodeset = observed.nodeset.as_ref();
    let data = build_revision_data(nodeset);
    let mut history: Vec<&ControllerRevision> = observed.revisions.iter().map(AsRef::as_ref).collect();
    history.sort_by_key(|revision| (revision.revision, revision.name_any()));
    let newest = history.last().map_or(0, |revision| revision.revision);
    let status = nodeset.status.as_ref();
    let collisions = status.and_then(|status| status.collision_count).unwrap_or(0);
    let same = history.iter().rev().find_map(|revision| {
        let stored = revision.data.as_ref().map(|data| &data.0)?;
        let hash = hash_of(revision)?;
        makes_same_pods(stored, &data, &observed.environment.images).then_some((revision, hash.to_owned()))
    });
    let next = newest.saturating_add(1);
    let mut renumber = None;
    let (collisions, hash) = if let Some((revision, hash)) = &same {
        renumber = (revision.revision < newest).then(|| (revision.name_any(), next));
        (collisions, hash.clone())
    } else {
        // Another revision may have the name; the next collision count gives another hash.
        let is_free = |name: String| !history.iter().any(|revision| revision.name_any() == name);
        (collisions..=collisions.saturating_add(1000))
            .map(|count| (count, hash(&data, count)))
            .find(|(_, hash)| is_free(revision_name(nodeset, hash)))
            .unwrap_or_else(|| (collisions, hash(&data, collisions)))
    };
    let create = same.is_none().then(|| build_revision(nodeset, &data, &hash, next));
    RevisionPlan {
        delete: surplus(observed, &history, &hash),
        hash,
        collisions,
        create,
        renumber,
    }
}

/// Returns the oldest unused revisions beyond the history limit.
fn surplus(observed: &Observed, history: &[&ControllerRevision], newest: &str) -> Vec<ObjectId> {
    let on_pods = observed.workers().filter_map(Worker::revision);
    let used: BTreeSet<&str> = on_pods.chain([newest]).collect();
    let is_unused = |revision: &&&ControllerRevision| hash_of(revision).is_none_or(|hash| !used.contains(hash));
    let unused: Vec<&&ControllerRevision> = history.iter().filter(is_unused).collect();
    let limit = observed.nodeset.spec.revision_history_limit();
    let too_many = unused.len().saturating_sub(limit);
    let ids = unused.into_iter().take(too_many).map(|revision| ObjectId {
        name: revision.name_any(),
        uid: revision.uid().unwrap_or_default(),
    });
    ids.collect()
}

/// Builds the data of a ControllerRevision: the part of a spec that makes pods differ, with sorted fields as Go has them.
fn build_revision_data(nodeset: &NodeSet) -> Value {
    let spec = &nodeset.spec;
    let extra_conf = spec.extra_conf.as_ref().filter(|text| !text.is_empty());
    let logfile = spec.logfile.as_ref().filter(|logfile| !logfile.fields().is_empty());
    let mut data = fields(json!({
        "extraConf": extra_conf,
        "logfile": logfile.map(|logfile| replace(container(json!(logfile)))),
        "ordinalPadding": spec.ordinal_padding.unwrap_or(0),
        "oversubscribeNode": spec.oversubscribes_node(),
        "slurmd": replace(container(json!(spec.slurmd))),
        "ssh": spec.ssh.as_ref().map(|ssh| replace(like_go(json!(ssh)))),
        "template": replace(template(spec.template.as_ref())),
    }));
    data.retain(|_, value| !value.is_null());
    let mut data = json!({ "spec": data });
    data.sort_all_objects();
    data
}

/// Returns the hash of a revision after this many collisions.
fn hash(data: &Value, collisions: i32) -> String {
    let text = format!("{}{collisions}", go_text(data));
    // FNV-1 of 32 bits.
    let sum = text.bytes().fold(0x811c_9dc5_u32, |sum, byte| {
        sum.wrapping_mul(0x0100_0193) ^ u32::from(byte)
    });
    let letters = sum.to_string().into_bytes().into_iter();
    letters
        .filter_map(|letter| ALPHABET.get(usize::from(letter) % ALPHABET.len()))
        .map(|byte| char::from(*byte))
        .collect()
}

/// Whether two revisions make the same pods, whatever empty fields and defaults they contain. So Helm can adopt a NodeSet
/// that was created by hand, and the chart version can change, without replacing pods.
fn makes_same_pods(one: &Value, other: &Value, images: &Images) -> bool {
    let essence = |data: &Value| essence(without_defaults(data.clone(), images));
    essence(one) == essence(other)
}

/// Removes what a pod has anyway: the defaults of the charts, and their release labels, which running pods get by a patch.
fn without_defaults(mut data: Value, images: &Images) -> Value {
    let mut change = |pointer: &str, edit: &dyn Fn(&mut Map<String, Value>)| {
        if let Some(Value::Object(object)) = data.pointer_mut(pointer) {
            edit(object);
        }
    };
    change("/spec/template/metadata/labels", &|labels| {
        labels.retain(|label, _| !is_release_label(label));
    });
    // Slurm's images run on Linux only.
    change("/spec/template/spec/nodeSelector", &|selector| {
        selector.retain(|label, value| label != "kubernetes.io/os" || value != "linux");
    });
    change("/spec/logfile", &|logfile| {
        let has = |field: &str, default: &str| logfile.get(field).is_some_and(|value| value == default);
        let is_default = has("image", &images.logfile) || has("image", FORMER_LOGFILE_IMAGE);
        if is_default && has("imagePullPolicy", IF_NOT_PRESENT) {
            logfile.retain(|field, _| field != "image" && field != "imagePullPolicy");
        }
    });
    for container in ["/spec/slurmd", "/spec/logfile"] {
        change(container, &|container| {
            let image = container.get("image").and_then(Value::as_str);
            let default = image.map_or(IF_NOT_PRESENT, kubernetes_pull_policy);
            container.retain(|field, value| field != "imagePullPolicy" || value != default);
        });
    }
    data
}

/// Returns the pull policy that the API server sets by default.
fn kubernetes_pull_policy(image: &str) -> &'static str {
    let last = image.rsplit('/').next().unwrap_or_default();
    let is_latest = !image.contains('@') && (!last.contains(':') || last.ends_with(":latest"));
    if is_latest { "Always" } else { IF_NOT_PRESENT }
}

fn build_revision(nodeset: &NodeSet, data: &Value, hash: &str, number: i64) -> Value {
    let metadata = nodeset.spec.pod_metadata().cloned().unwrap_or_default();
    let mut labels = metadata.labels.unwrap_or_default();
    labels.insert(labels::REVISION.to_owned(), hash.to_owned());
    // These labels select it: upstream omits them, and then never finds a revision again.
    labels.extend(selector_labels(apps::SLURMD, &nodeset.name_any()));
    json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "namespace": nodeset.namespace(),
            "name": revision_name(nodeset, hash),
            "labels": labels,
            "ownerReferences": [owner(nodeset)],
        },
        "data": data,
        "revision": number,
    })
}

fn revision_name(nodeset: &NodeSet, hash: &str) -> String {
    let name: String = nodeset.name_any().chars().take(LONGEST_NAME).collect();
    NodeSetName::new(name).revision(hash)
}

fn hash_of(revision: &ControllerRevision) -> Option<&str> {
    revision.labels().get(labels::REVISION).map(String::as_str)
}

fn replace(object: Value) -> Value {
    let mut object = fields(object);
    set(&mut object, "$patch", "replace");
    object.into()
}

/// Serializes a container like Go: name and resources also when they are empty.
fn container(given: Value) -> Value {
    let mut container = fields(like_go(given));
    container.entry("name").or_insert_with(|| "".into());
    container.entry("resources").or_insert_with(|| json!({}));
    container.into()
}

fn template(template: Option<&PodTemplate>) -> Value {
    let mut metadata = fields(json!(template.and_then(|template| template.metadata.as_ref())));
    metadata.retain(|_, words| !is_empty(words));
    let spec = template.and_then(|template| template.spec.as_ref());
    let mut spec = fields(like_go(json!(spec)));
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for item in containers.into_iter().flatten().filter(|item| item.is_object()) {
            *item = container(item.take());
        }
    }
    spec.entry("containers").or_insert(Value::Null);
    json!({ "metadata": metadata, "spec": spec })
}

/// Fields that are maps in Go: an empty one is omitted, while an empty object behind a pointer is written.
const MAPS: &[&str] = &[
    "annotations",
    "labels",
    "limits",
    "matchLabels",
    "nodeSelector",
    "overhead",
    "requests",
];

fn is_left_out(field: &str, value: &Value) -> bool {
    let is_zero = *value == Value::Bool(false) || value.as_f64() == Some(0.0);
    is_zero && (field == "optional" || UNSTORED.contains(&field))
}

/// Removes what Go's `omitempty` omits.
fn like_go(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => fields.retain(|field, value| {
            match value {
                Value::Object(amounts) if field == "limits" || field == "requests" => write_out(amounts),
                _ => *value = like_go(value.take()),
            }
            let is_pointer = value.is_object() && !MAPS.contains(&field.as_str());
            (is_pointer || !is_empty(value)) && !is_left_out(field, value)
        }),
        Value::Array(items) => items.iter_mut().for_each(|item| *item = like_go(item.take())),
        _ => {}
    }
    value
}

/// Serializes like Go's encoder, which escapes the special characters of HTML.
fn go_text(data: &Value) -> String {
    data.to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// Removes empty parts.
fn essence(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => fields.retain(|field, value| {
            if field == "$patch" || is_left_out(field, value) {
                return false;
            }
            *value = essence(value.take());
            !is_empty(value)
        }),
        Value::Array(items) => {
            for item in items.iter_mut() {
                *item = essence(item.take());
            }
            items.retain(|item| !is_empty(item));
        }
        // Quantities may be numbers or text.
        Value::Number(number) => value = number.to_string().into(),
        _ => {}
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodeset(spec: Value) -> NodeSet {
        let mut spec = spec;
        spec["controllerRef"] = json!({ "name": "slurm" });
        NodeSet::new("pvc", serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn a_hash_is_the_one_upstream_computes() {
        let data = build_revision_data(&nodeset(json!({
            "logfile": { "image": "localhost/slurm:26.05" },
            "slurmd": { "image": "localhost/slurm:26.05" },
            "template": { "spec": { "nodeSelector": { "kubernetes.io/hostname": "kwok-7" } } },
        })));
        assert_eq!(hash(&data, 0), "5f6487fbd6");
        assert_ne!(hash(&data, 1), "5f6487fbd6");
    }

    #[test]
    fn a_change_that_affects_no_pod_makes_no_revision() {
        let plain = build_revision_data(&nodeset(json!({ "slurmd": { "image": "a" } })));
        for (field, value) in [
            ("replicas", json!(9)),
            ("partition", json!({ "config": "Default=YES" })),
            ("updateStrategy", json!({ "type": "OnDelete" })),
            ("minReadySeconds", json!(5)),
            ("scalingMode", json!("DaemonSet")),
            ("workloadDisruptionProtection", json!(false)),
        ] {
            let mut spec = json!({ "slurmd": { "image": "a" } });
            spec[field] = value;
            assert_eq!(build_revision_data(&nodeset(spec)), plain, "{field}");
        }
    }

    #[test]
    fn revisions_that_differ_in_empty_fields_only_say_the_same() {
        let makes_same_pods = |one: &Value, other: &Value| makes_same_pods(one, other, &Images::default());
        let one = json!({ "spec": { "slurmd": { "$patch": "replace", "image": "a", "env": [], "tty": false, "resources": { "limits": { "cpu": 2 } } } } });
        let other =
            json!({ "spec": { "slurmd": { "image": "a", "name": "", "resources": { "limits": { "cpu": "2" } } } } });
        assert!(makes_same_pods(&one, &other));
        let third = json!({ "spec": { "slurmd": { "image": "a", "securityContext": { "privileged": false } } } });
        assert!(!makes_same_pods(&other, &third));
    }
    /// Seed 003: a NodeSet made by hand, and what the chart makes of the same values.
    #[test]
    fn defaults_of_the_chart_replace_no_pods() {
        let images = Images::default();
        let data = |spec: &Value| build_revision_data(&nodeset(spec.clone()));
        let by_hand = json!({ "slurmd": { "image": "ghcr.io/slinkyproject/slurmd:25.05-rockylinux9" } });
        let mut by_chart = json!({
            "slurmd": {
                "image": "ghcr.io/slinkyproject/slurmd:25.05-rockylinux9", "imagePullPolicy": "IfNotPresent",
                "args": [], "env": [], "resources": {}, "volumeMounts": [],
            },
            "logfile": { "image": FORMER_LOGFILE_IMAGE, "imagePullPolicy": "IfNotPresent", "resources": {} },
            "template": {
                "metadata": { "labels": { "app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/part-of": "slurm", "helm.sh/chart": "slurm-1" } },
                "spec": { "nodeSelector": { "kubernetes.io/os": "linux" }, "affinity": {}, "tolerations": [] },
            },
        });
        assert!(makes_same_pods(&data(&by_hand), &data(&by_chart), &images));
        for (pointer, value) in [
            ("/slurmd/imagePullPolicy", json!("Always")),
            ("/slurmd/image", json!("other")),
            ("/logfile/image", json!("other")),
            ("/template/metadata/labels/team", json!("hpc")),
            ("/template/spec/nodeSelector/gpu", json!("yes")),
        ] {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            let before = by_chart.clone();
            by_chart.pointer_mut(parent).unwrap()[field] = value;
            assert!(
                !makes_same_pods(&data(&by_hand), &data(&by_chart), &images),
                "{pointer}"
            );
            by_chart = before;
        }
    }

    #[test]
    fn an_image_is_pulled_as_kubernetes_would() {
        for (image, policy) in [
            ("slurmd", "Always"),
            ("slurmd:latest", "Always"),
            ("host:5000/slurmd", "Always"),
            ("host:5000/slurmd:1", "IfNotPresent"),
            ("slurmd@sha256:1", "IfNotPresent"),
        ] {
            assert_eq!(kubernetes_pull_policy(image), policy, "{image}");
        }
    }
}
