//! What Kubernetes' Pod Security Standard `restricted` asks for, in pods that do not run as root.

use serde_json::{Map, Value, json};

/// Restricts a pod and the containers with these names, wherever the user said nothing: what a user sets in an overlay stays. A pod
/// or container that the user runs as root or privileged is left alone, because it needs what would be taken from it.
pub(crate) fn restrict(pod_spec: &mut Value, names: &[String]) {
    let pod = pod_spec.get_mut("securityContext").and_then(Value::as_object_mut);
    let Some(pod) = pod.filter(|pod| pod.contains_key("runAsNonRoot") && is_unprivileged(pod)) else {
        return;
    };
    pod.entry("seccompProfile")
        .or_insert_with(|| json!({ "type": "RuntimeDefault" }));
    for list in ["initContainers", "containers"] {
        let containers = pod_spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
            if names.iter().any(|ours| ours == name) {
                restrict_container(container);
            }
        }
    }
}

fn restrict_container(container: &mut Value) {
    let Some(container) = container.as_object_mut() else {
        return;
    };
    let context = container.entry("securityContext").or_insert_with(|| json!({}));
    let Some(context) = context.as_object_mut().filter(|context| is_unprivileged(context)) else {
        return;
    };
    // With capabilities of the user's choice, privilege escalation is the user's choice too: the API server rejects SYS_ADMIN
    // without it.
    if !context.contains_key("capabilities") {
        context.insert("capabilities".to_owned(), json!({ "drop": ["ALL"] }));
        let escalation = context.entry("allowPrivilegeEscalation");
        escalation.or_insert_with(|| false.into());
    }
}

/// Whether a security context asks neither for root nor for privileges.
fn is_unprivileged(context: &Map<String, Value>) -> bool {
    let is = |field: &str, value: Value| context.get(field) == Some(&value);
    !is("runAsUser", 0.into()) && !is("runAsNonRoot", false.into()) && !is("privileged", true.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restricted(pod: &Value, container: &Value) -> Value {
        let mut spec = json!({ "securityContext": pod, "containers": [
            { "name": "ours", "securityContext": container }, { "name": "theirs" },
        ] });
        restrict(&mut spec, &["ours".to_owned()]);
        assert_eq!(spec["containers"][1], json!({ "name": "theirs" }));
        spec
    }

    #[test]
    fn a_pod_without_root_is_restricted() {
        let spec = restricted(&json!({ "runAsNonRoot": true }), &json!({}));
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!(
            spec["containers"][0]["securityContext"],
            json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } })
        );
    }

    #[test]
    fn what_a_user_sets_stays() {
        let pod = json!({ "runAsNonRoot": true, "seccompProfile": { "type": "Unconfined" } });
        for container in [
            json!({ "privileged": true }),
            json!({ "runAsNonRoot": false, "runAsUser": 0 }),
            json!({ "capabilities": { "add": ["SYS_ADMIN"] } }),
        ] {
            let spec = restricted(&pod, &container);
            assert_eq!(spec["securityContext"], pod);
            assert_eq!(spec["containers"][0]["securityContext"], container);
        }
    }

    #[test]
    fn a_pod_that_runs_as_root_is_left_alone() {
        for pod in [json!({}), json!({ "runAsNonRoot": true, "runAsUser": 0 })] {
            let spec = restricted(&pod, &json!({}));
            assert_eq!(spec["securityContext"], pod);
            assert_eq!(spec["containers"][0]["securityContext"], json!({}));
        }
    }
}
