//! A container with the user's overlay.

use api::overlay::ContainerOverlay;
use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Map, Value};

use super::tidy::tidy;
use crate::overlay::lay_over_container;

/// Merges `overlay` over `container`. Arguments are concatenated, ours first; a command is replaced.
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

/// The command that the user sets instead of ours. The charts write an empty one as a placeholder.
pub(crate) fn user_command(overlay: Option<&ContainerOverlay>) -> Option<&Vec<Value>> {
    overlay?.get("command")?.as_array().filter(|words| !words.is_empty())
}

pub(crate) fn user_image(overlay: Option<&ContainerOverlay>) -> Option<&str> {
    overlay?.text("image")
}

/// The image of a daemon for which the user sets none: the one that its pods run, so that a new operator restarts nothing.
pub(crate) fn image_to_run(
    overlay: Option<&ContainerOverlay>,
    running: Option<&PodSpec>,
    container: &str,
    default: &str,
) -> String {
    let running = running.filter(|_| user_image(overlay).is_none());
    let mut containers = running
        .into_iter()
        .flat_map(|pod| pod.init_containers.iter().flatten().chain(&pod.containers));
    let found = containers.find(|running| running.name == container);
    let image = found.and_then(|container| container.image.as_deref());
    image.unwrap_or(default).to_owned()
}

/// The image of a container that needs only a shell: the operator's flag, or else the image of the daemon beside it.
pub(crate) fn shell_image<'a>(flag: &'a str, daemon: Option<&'a ContainerOverlay>, default: &'a str) -> &'a str {
    let daemon = user_image(daemon).unwrap_or(default);
    if flag.is_empty() { daemon } else { flag }
}

/// The pull policy of the operator's default image, as in the charts. For a user's image Kubernetes chooses: it pulls the tag
/// `latest` at every start.
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
    fn a_users_false_wins_over_our_true() {
        assert_eq!(
            laid(
                json!({ "securityContext": { "runAsNonRoot": true, "runAsUser": 401 } }),
                json!({ "securityContext": { "runAsNonRoot": false, "runAsUser": 0 } })
            ),
            json!({ "securityContext": { "runAsNonRoot": false, "runAsUser": 0 } })
        );
    }
}
