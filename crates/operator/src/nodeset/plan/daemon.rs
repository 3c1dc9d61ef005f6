//! `DaemonSet` mode: which Kubernetes nodes get a worker.

use std::cmp::Ordering;

use api::{NodeSet, keys};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use serde_json::Value;

/// Whether a Kubernetes node matches the NodeSet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fit {
    /// A worker is created there.
    pub run: bool,
    /// An existing worker stays there.
    pub stay: bool,
}

/// Taints of a node that is temporarily unreachable. They do not drain the worker there.
const AWAY: &[&str] = &["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Whether workers may run on this node: selector and required affinity match it, and its taints are tolerated.
pub fn fit(nodeset: &NodeSet, node: &Node) -> Fit {
    let overlay = nodeset.spec.pod_spec();
    let field = |name: &str| overlay.and_then(|spec| spec.get(name)).unwrap_or(&Value::Null);
    let mut selector = field("nodeSelector").as_object().into_iter().flatten();
    let is_selected = selector.all(|(key, value)| label(node, key) == value.as_str());
    if !is_selected || !has_affinity(field("affinity"), node) {
        return Fit::default();
    }
    let given = field("tolerations").as_array().filter(|given| !given.is_empty());
    let tolerated = |taint: &Taint| match given {
        Some(given) => given.iter().any(|toleration| tolerates(toleration, taint)),
        None => {
            taint.key == keys::WORKER_TAINT
                && taint.effect == "NoExecute"
                && taint.value.as_deref().is_none_or(str::is_empty)
        }
    };
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut open = taints
        .filter(|taint| taint.effect != "PreferNoSchedule" && !tolerated(taint))
        .peekable();
    let run = open.peek().is_none();
    let stay = !open.any(|taint| taint.effect == "NoExecute" && !AWAY.contains(&taint.key.as_str()));
    Fit { run, stay }
}

fn label<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    node.labels().get(key).map(String::as_str)
}

fn has_affinity(affinity: &Value, node: &Node) -> bool {
    let path = "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let Some(terms) = affinity.pointer(path).and_then(Value::as_array) else {
        return true;
    };
    let name = |key: &str| node.metadata.name.as_deref().filter(|_| key == "metadata.name");
    terms.iter().any(|term| {
        let (labels, fields) = (entries(term, "matchExpressions"), entries(term, "matchFields"));
        // An empty term matches nothing.
        (!labels.is_empty() || !fields.is_empty())
            && labels.iter().all(|rule| holds(rule, |key| label(node, key)))
            && fields.iter().all(|rule| holds(rule, name))
    })
}

fn entries<'v>(value: &'v Value, field: &str) -> &'v [Value] {
    let entries = value.get(field).and_then(Value::as_array);
    entries.map(Vec::as_slice).unwrap_or_default()
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn holds<'n>(rule: &Value, value_of: impl Fn(&str) -> Option<&'n str>) -> bool {
    let value = value_of(text(rule, "key"));
    let values: Vec<&str> = entries(rule, "values").iter().filter_map(Value::as_str).collect();
    let number = |text: &str| text.parse::<i64>().ok();
    let compares = |order: Ordering| {
        let (value, limit) = (value.and_then(number), values.first().copied().and_then(number));
        value
            .zip(limit)
            .is_some_and(|(value, limit)| value.cmp(&limit) == order)
    };
    match text(rule, "operator") {
        "In" => value.is_some_and(|value| values.contains(&value)),
        "NotIn" => value.is_none_or(|value| !values.contains(&value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compares(Ordering::Greater),
        "Lt" => compares(Ordering::Less),
        _ => false,
    }
}

fn tolerates(toleration: &Value, taint: &Taint) -> bool {
    let (effect, key) = (text(toleration, "effect"), text(toleration, "key"));
    let is_same_effect = effect.is_empty() || effect == taint.effect;
    let value = taint.value.as_deref().unwrap_or_default();
    is_same_effect
        && match text(toleration, "operator") {
            "Exists" => key.is_empty() || key == taint.key,
            "" | "Equal" => key == taint.key && text(toleration, "value") == value,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nodeset(template: &Value) -> NodeSet {
        let spec = json!({ "controllerRef": { "name": "slurm" }, "scalingMode": "DaemonSet", "template": { "spec": template } });
        NodeSet::new("daemon", serde_json::from_value(spec).unwrap())
    }

    fn node(taints: &Value) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": "k1", "labels": { "disk": "ssd", "cores": "64" } },
            "spec": { "taints": taints },
        }))
        .unwrap()
    }

    const HERE: Fit = Fit { run: true, stay: true };
    const NOT_HERE: Fit = Fit {
        run: false,
        stay: false,
    };
    const STAYS: Fit = Fit { run: false, stay: true };

    #[test]
    fn selector_and_required_affinity_decide() {
        let required = |rules: Value| {
            json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": rules,
            } } } })
        };
        let rule = |key: &str, operator: &str, values: Value| json!([{ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] }]);
        for (template, expected) in [
            (json!({}), HERE),
            (json!({ "nodeSelector": { "disk": "ssd" } }), HERE),
            (json!({ "nodeSelector": { "disk": "hdd" } }), NOT_HERE),
            (required(rule("disk", "In", json!(["ssd", "nvme"]))), HERE),
            (required(rule("disk", "NotIn", json!(["ssd"]))), NOT_HERE),
            (required(rule("gpu", "DoesNotExist", json!([]))), HERE),
            (required(rule("cores", "Gt", json!(["32"]))), HERE),
            (required(rule("cores", "Lt", json!(["32"]))), NOT_HERE),
            (required(json!([{}])), NOT_HERE),
            (
                required(json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["k1"] }] }])),
                HERE,
            ),
        ] {
            assert_eq!(fit(&nodeset(&template), &node(&json!([]))), expected, "{template}");
        }
    }

    #[test]
    fn taints_keep_new_workers_away_and_few_send_old_ones_off() {
        let taint = |key: &str, effect: &str| json!([{ "key": key, "effect": effect }]);
        for (taints, expected) in [
            (taint("node.kubernetes.io/unschedulable", "NoSchedule"), STAYS),
            (taint("x", "PreferNoSchedule"), HERE),
            (taint("x", "NoExecute"), NOT_HERE),
            (taint("node.kubernetes.io/not-ready", "NoExecute"), STAYS),
            (taint(keys::WORKER_TAINT, "NoExecute"), HERE),
        ] {
            assert_eq!(fit(&nodeset(&json!({})), &node(&taints)), expected, "{taints}");
        }
        let tolerant = nodeset(&json!({ "tolerations": [{ "operator": "Exists" }] }));
        assert_eq!(fit(&tolerant, &node(&taint("x", "NoExecute"))), HERE);
    }
}
