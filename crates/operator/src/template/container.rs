//! A container with what its user lays over it.

use api::overlay::ContainerOverlay;
use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Map, Value};

use super::tidy::tidy;
use crate::overlay::lay_over_container;

/// Lays `overlay` over `container`. Arguments are joined, ours first; a command is replaced.
pub(crate) fn container(mut container: Value, overlay: Option<&ContainerOverlay>) -> Map<String, Value> {
    if let Some(overlay) = overlay {
        lay_over_container(&mut container, overlay.fields());
    }
    let Value::Object(mut fields) = container else {
        return Map::new();
    };
    tidy(&mut fields);
    fields
}

/// The command the user wants to run instead of ours. An empty one is none: the charts write one where a user may put
/// theirs.
pub(crate) fn user_command(overlay: Option<&ContainerOverlay>) -> Option<&Vec<Value>> {
    overlay?.get("command")?.as_array().filter(|words| !words.is_empty())
}

/// The image the user wants.
pub(crate) fn user_image(overlay: Option<&ContainerOverlay>) -> Option<&str> {
    overlay?.text("image")
}

/// The image for a daemon whose user names none: the one its pods have, so that a new operator restarts nothing.
pub(crate) fn image_to_run(
    overlay: Option<&ContainerOverlay>,
    running: Option<&PodSpec>,
    container: &str,
    default: &str,
) -> String {
    let running = running.filter(|_| user_image(overlay).is_none());
    let found = running.and_then(|pod| pod.containers.iter().find(|running| running.name == container));
    let image = found.and_then(|container| container.image.as_deref());
    image.unwrap_or(default).to_owned()
}

/// How an image is pulled that is the operator's default, as the charts have it. A user's own image is left to Kubernetes,
/// which pulls a tag `latest` at every start.
pub(crate) fn default_pull_policy(overlay: Option<&ContainerOverlay>) -> Option<&'static str> {
    user_image(overlay).is_none().then_some("IfNotPresent")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn overlay(fields: Value) -> ContainerOverlay {
        serde_json::from_value(fields).unwrap()
    }

    fn laid(base: Value, fields: Value) -> Value {
        Value::Object(container(base, Some(&overlay(fields))))
    }

    #[test]
    fn arguments_are_joined_and_the_command_replaced() {
        let base = json!({ "command": ["a"], "args": ["-1"] });
        assert_eq!(
            laid(base.clone(), json!({ "args": ["-2"] })),
            json!({ "command": ["a"], "args": ["-1", "-2"] })
        );
        assert_eq!(
            laid(base.clone(), json!({ "command": ["b"] })),
            json!({ "command": ["b"], "args": ["-1"] })
        );
        assert_eq!(
            laid(base.clone(), json!({ "command": [], "args": [], "resources": {} })),
            base
        );
    }

    #[test]
    fn a_users_no_wins_over_our_yes() {
        assert_eq!(
            laid(
                json!({ "securityContext": { "runAsNonRoot": true, "runAsUser": 401 } }),
                json!({ "securityContext": { "runAsNonRoot": false, "runAsUser": 0 } })
            ),
            json!({ "securityContext": { "runAsNonRoot": false, "runAsUser": 0 } })
        );
    }
}
