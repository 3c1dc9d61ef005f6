//! Revisions: the part of a spec that decides whether a pod is up to date.
//!
//! Data and hash equal upstream's, so that after a takeover the running pods are up to date. Upstream's data comes from Go
//! structs, which write some empty fields and omit others; where ours differs nevertheless, [`makes_same_pods`] finds the
//! revision that upstream created.

use api::{
    NodeSet,
    keys::labels,
    overlay::Overlay,
    templates::{Metadata, PodTemplate},
};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use crate::{
    defaults::Images,
    template::metadata::{is_release_label, owner},
};

/// The characters of hashes in Kubernetes: no vowels, so that no words appear.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Upstream truncates the name so that name, dash and hash fit into 253 characters.
const LONGEST_NAME: usize = 223;
/// The pull policy of the operator's images, and of most others.
const IF_NOT_PRESENT: &str = "IfNotPresent";

/// Builds the data of a ControllerRevision: the part of a spec that makes pods differ.
pub fn build_revision_data(nodeset: &NodeSet) -> Value {
    let spec = &nodeset.spec;
    let mut fields = Map::new();
    if let Some(extra_conf) = spec.extra_conf.as_ref().filter(|text| !text.is_empty()) {
        fields.insert("extraConf".to_owned(), extra_conf.clone().into());
    }
    if let Some(logfile) = spec.logfile.as_ref().filter(|logfile| !logfile.fields().is_empty()) {
        fields.insert("logfile".to_owned(), replace(container(logfile.fields())));
    }
    fields.insert("ordinalPadding".to_owned(), spec.ordinal_padding.unwrap_or(0).into());
    fields.insert("oversubscribeNode".to_owned(), spec.oversubscribes_node().into());
    let slurmd = spec
        .slurmd
        .as_ref()
        .map(|slurmd| slurmd.fields().clone())
        .unwrap_or_default();
    fields.insert("slurmd".to_owned(), replace(container(&slurmd)));
    if let Some(ssh) = &spec.ssh
        && let Ok(ssh) = serde_json::to_value(ssh)
    {
        fields.insert("ssh".to_owned(), replace(like_go(ssh)));
    }
    fields.insert("template".to_owned(), replace(template(spec.template.as_ref())));
    json!({ "spec": sorted(Value::Object(fields)) })
}

/// Returns the hash of a revision after this many collisions.
pub fn hash(data: &Value, collisions: i32) -> String {
    let text = format!("{}{collisions}", go_text(data));
    // FNV-1 of 32 bits.
    let sum = text.bytes().fold(0x811c_9dc5_u32, |sum, byte| {
        sum.wrapping_mul(0x0100_0193) ^ u32::from(byte)
    });
    let letters = sum.to_string().into_bytes();
    letters
        .iter()
        .filter_map(|letter| ALPHABET.get(usize::from(*letter) % ALPHABET.len()))
        .map(|byte| char::from(*byte))
        .collect()
}

/// Whether two revisions make the same pods, whatever empty fields and defaults they contain. So Helm can adopt a NodeSet
/// that was created by hand, and the chart version can change, without replacing pods.
pub fn makes_same_pods(one: &Value, other: &Value, images: &Images) -> bool {
    let essence = |data: &Value| essence("", &without_defaults(data.clone(), images));
    essence(one) == essence(other)
}

/// Removes what a pod has anyway: the defaults of the charts, and their release labels, which running pods get by a patch.
fn without_defaults(mut data: Value, images: &Images) -> Value {
    if let Some(labels) = data
        .pointer_mut("/spec/template/metadata/labels")
        .and_then(Value::as_object_mut)
    {
        labels.retain(|label, _| !is_release_label(label));
    }
    if let Some(selector) = data
        .pointer_mut("/spec/template/spec/nodeSelector")
        .and_then(Value::as_object_mut)
    {
        // Slurm's images run on Linux only.
        selector.retain(|label, value| label != "kubernetes.io/os" || value != "linux");
    }
    if let Some(logfile) = data.pointer_mut("/spec/logfile").and_then(Value::as_object_mut)
        && logfile.get("image").is_some_and(|image| *image == images.logfile)
        && logfile
            .get("imagePullPolicy")
            .is_some_and(|policy| policy == IF_NOT_PRESENT)
    {
        logfile.retain(|field, _| field != "image" && field != "imagePullPolicy");
    }
    for container in ["/spec/slurmd", "/spec/logfile"] {
        if let Some(container) = data.pointer_mut(container).and_then(Value::as_object_mut) {
            let image = container.get("image").and_then(Value::as_str);
            let default = image.map_or(IF_NOT_PRESENT, kubernetes_pull_policy);
            container.retain(|field, value| field != "imagePullPolicy" || value != default);
        }
    }
    data
}

/// Returns the pull policy that the API server sets by default.
fn kubernetes_pull_policy(image: &str) -> &'static str {
    let last = image.rsplit('/').next().unwrap_or_default();
    let is_latest = !image.contains('@') && (!last.contains(':') || last.ends_with(":latest"));
    if is_latest { "Always" } else { IF_NOT_PRESENT }
}

/// Builds the ControllerRevision of this hash.
pub fn build_revision(nodeset: &NodeSet, data: &Value, hash: &str, number: i64) -> Value {
    let template = nodeset.spec.pod_metadata();
    let mut labels = template
        .and_then(|metadata| metadata.labels.clone())
        .unwrap_or_default();
    labels.insert(labels::REVISION.to_owned(), hash.to_owned());
    // These labels select it: upstream omits them, and then never finds a revision again.
    labels.extend(crate::template::metadata::selector_labels(
        api::keys::apps::SLURMD,
        &nodeset.name_any(),
    ));
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

/// Returns the name of the ControllerRevision of this hash.
pub fn revision_name(nodeset: &NodeSet, hash: &str) -> String {
    let name: String = nodeset.name_any().chars().take(LONGEST_NAME).collect();
    api::names::NodeSetName::new(name).revision(hash)
}

/// Returns the hash of a ControllerRevision.
pub fn hash_of(revision: &ControllerRevision) -> Option<&str> {
    revision.labels().get(labels::REVISION).map(String::as_str)
}

fn replace(mut fields: Value) -> Value {
    if let Value::Object(fields) = &mut fields {
        fields.insert("$patch".to_owned(), "replace".into());
    }
    fields
}

/// Serializes a container like Go: name and resources also when they are empty.
fn container(fields: &Map<String, Value>) -> Value {
    let mut container = like_go(Value::Object(fields.clone()));
    if let Value::Object(container) = &mut container {
        container.entry("name").or_insert_with(|| "".into());
        container.entry("resources").or_insert_with(|| json!({}));
    }
    container
}

fn template(template: Option<&PodTemplate>) -> Value {
    let metadata = template
        .and_then(|template| template.metadata.clone())
        .unwrap_or_default();
    let Metadata { labels, annotations } = metadata;
    let mut marks = Map::new();
    for (field, words) in [("labels", labels), ("annotations", annotations)] {
        if let Some(words) = words.filter(|words| !words.is_empty()) {
            marks.insert(field.to_owned(), json!(words));
        }
    }
    let spec = template
        .and_then(|template| template.spec.as_ref())
        .map(Overlay::fields);
    let mut spec = like_go(Value::Object(spec.cloned().unwrap_or_default()));
    if let Value::Object(spec) = &mut spec {
        for list in ["containers", "initContainers"] {
            if let Some(Value::Array(containers)) = spec.get_mut(list) {
                for item in containers {
                    if let Value::Object(fields) = item {
                        *item = container(fields);
                    }
                }
            }
        }
        spec.entry("containers").or_insert(Value::Null);
    }
    json!({ "metadata": marks, "spec": spec })
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

/// Fields that are plain numbers and booleans in Go: `0` and `false` are omitted.
const PLAIN: &[&str] = &[
    "failureThreshold",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPort",
    "initialDelaySeconds",
    "optional",
    "periodSeconds",
    "readOnly",
    "stdin",
    "stdinOnce",
    "successThreshold",
    "timeoutSeconds",
    "tty",
];

fn is_left_out(field: &str, value: &Value) -> bool {
    let is_zero = *value == Value::Bool(false) || value.as_f64() == Some(0.0);
    is_zero && PLAIN.contains(&field)
}

/// Removes what Go's `omitempty` omits.
fn like_go(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .map(|(field, value)| {
                    let value = match value {
                        Value::Object(amounts) if field == "limits" || field == "requests" => amounts_as_text(amounts),
                        value => like_go(value),
                    };
                    (field, value)
                })
                .filter(|(field, value)| match value {
                    Value::Null => false,
                    Value::String(text) => !text.is_empty(),
                    Value::Array(items) => !items.is_empty(),
                    Value::Object(fields) => !fields.is_empty() || !MAPS.contains(&field.as_str()),
                    Value::Bool(_) | Value::Number(_) => !is_left_out(field, value),
                })
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(like_go).collect()),
        value => value,
    }
}

fn amounts_as_text(amounts: Map<String, Value>) -> Value {
    let as_text = |amount: Value| match amount {
        Value::Number(number) => Value::String(number.to_string()),
        amount => amount,
    };
    Value::Object(
        amounts
            .into_iter()
            .map(|(name, amount)| (name, as_text(amount)))
            .collect(),
    )
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: std::collections::BTreeMap<_, _> = fields
                .into_iter()
                .map(|(field, value)| (field, sorted(value)))
                .collect();
            Value::Object(fields.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        value => value,
    }
}

/// Serializes like Go's encoder, which escapes the special characters of HTML.
fn go_text(data: &Value) -> String {
    sorted(data.clone())
        .to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// Returns the value without empty parts.
fn essence(field: &str, value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) => (!text.is_empty()).then(|| value.clone()),
        _ if is_left_out(field, value) => None,
        Value::Bool(_) => Some(value.clone()),
        // Quantities may be numbers or text.
        Value::Number(number) => Some(Value::String(number.to_string())),
        Value::Array(items) => {
            let items: Vec<Value> = items.iter().filter_map(|item| essence("", item)).collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Value::Object(fields) => {
            let fields: Map<String, Value> = fields
                .iter()
                .filter(|(field, _)| *field != "$patch")
                .filter_map(|(field, value)| Some((field.clone(), essence(field, value)?)))
                .collect();
            (!fields.is_empty()).then(|| sorted(Value::Object(fields)))
        }
    }
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
            "logfile": { "image": images.logfile, "imagePullPolicy": "IfNotPresent", "resources": {} },
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
