//! Why pods do not start: the words of the kubelet or the scheduler, and what to do about it. Pure.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use kube::ResourceExt as _;

/// So many pods with the same problem are named.
const NAMED: usize = 3;

/// Reasons for which a container waits and which waiting does not remove.
const LASTING: &[&str] = &[
    CRASHES,
    "CreateContainerConfigError",
    "CreateContainerError",
    NEVER_PULLED,
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    BAD_NAME,
    "RegistryUnavailable",
    "RunContainerError",
    "SignatureValidationFailed",
];
const CRASHES: &str = "CrashLoopBackOff";
const NEVER_PULLED: &str = "ErrImageNeverPull";
const BAD_NAME: &str = "InvalidImageName";

/// Words of containerd and CRI-O about an image that cannot be pulled, in lower case, and the remedy. The first match counts.
const REMEDIES: &[(&[&str], &str)] = &[
    (
        &[
            "no match for platform",
            "no matching manifest",
            "no image found in",
            "exec format error",
        ],
        "the image is not made for the processor of the node: use an image that is, or select other nodes by their label kubernetes.io/arch",
    ),
    (
        &["signature"],
        "the node's policy requires a signature that the image does not have: use a signed image, or change the policy",
    ),
    (
        &["toomanyrequests", "too many requests"],
        "the registry limits pulls: name a Secret with a login in spec.template.spec.imagePullSecrets, or use a mirror",
    ),
    (
        &[
            "unauthorized",
            "authoriz",
            "authentication",
            "forbidden",
            "denied",
            "no basic auth",
        ],
        "the registry wants a login, or has no such repository: create a Secret with `kubectl create secret docker-registry` in the \
         namespace of the pod and name it in spec.template.spec.imagePullSecrets, or correct the image",
    ),
    (
        &["x509", "certificate", "http response to https"],
        "the node does not trust the registry: give its container runtime the registry's CA",
    ),
    (
        &[
            "no such host",
            "connection refused",
            "i/o timeout",
            "timed out",
            "no route to host",
            "unreachable",
            "server misbehaving",
        ],
        "the node cannot reach the registry: correct the image's registry, or the node's network and DNS",
    ),
    (
        &["not found", "manifest unknown", "name unknown"],
        "the registry does not have this image: correct its name and its tag or digest, or push it",
    ),
];

/// Describes what keeps these pods from starting, if waiting does not help: each problem once, with the pods that have it.
pub(crate) fn describe_startup<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Option<String> {
    let mut problems: Vec<(String, Vec<String>)> = Vec::new();
    for pod in pods {
        let Some(problem) = startup_problem(pod) else { continue };
        match problems.iter_mut().find(|(known, _)| *known == problem) {
            Some((_, pods)) => pods.push(pod.name_any()),
            None => problems.push((problem, vec![pod.name_any()])),
        }
    }
    let more = problems.len().saturating_sub(NAMED);
    let named = problems
        .iter()
        .take(NAMED)
        .map(|(problem, pods)| match pods.as_slice() {
            [pod] => format!("pod {pod} does not start: {problem}"),
            pods => format!("{} do not start: {problem}", enumerate(pods)),
        });
    let mut sentences: Vec<String> = named.collect();
    if more > 0 {
        sentences.push(format!("and {more} more problems"));
    }
    (!sentences.is_empty()).then(|| sentences.join("\n"))
}

fn enumerate(pods: &[String]) -> String {
    match pods.split_at_checked(NAMED) {
        Some((named, more)) if !more.is_empty() => format!("pods {} and {} more", named.join(", "), more.len()),
        _ => format!("pods {}", pods.join(", ")),
    }
}

/// The problem that the kubelet or the scheduler reports about a pod, if waiting does not fix it, and the remedy. The text
/// stays the same while the kubelet tries again.
pub(crate) fn startup_problem(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let containers = [&status.init_container_statuses, &status.container_statuses];
    let stuck = containers.into_iter().flatten().flatten().find_map(describe_container);
    let unschedulable = || {
        let conditions = status.conditions.as_ref()?;
        let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
        (scheduled.status == "False").then(|| scheduled.message.clone().unwrap_or_default())
    };
    stuck.or_else(unschedulable).map(|text| text.trim().to_owned())
}

fn describe_container(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| LASTING.contains(reason))?;
    let message = waiting.message.as_deref().unwrap_or_default();
    let ContainerStatus { name, image, .. } = container;
    let problem = match reason {
        CRASHES => describe_crash(container),
        BAD_NAME => format!("{image:?} is not the name of an image ({message}); correct it"),
        NEVER_PULLED => format!(
            "the node does not have image {image:?}, and imagePullPolicy is Never: load it on every node, or set IfNotPresent"
        ),
        _ if reason.contains("Image") || reason.contains("Registry") || reason.contains("Signature") => {
            let words = innermost(message);
            format!("image {image:?} cannot be pulled: {words}; {}", remedy(reason, words))
        }
        _ => format!("{reason} {message}"),
    };
    Some(format!("container {name}: {problem}"))
}

/// What a container said when it last ended. The kubelet's own words have the growing back-off.
fn describe_crash(container: &ContainerStatus) -> String {
    let name = &container.name;
    let ended = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let log = format!("see `kubectl logs --previous --container {name}` of the pod");
    let Some(ContainerStateTerminated {
        exit_code,
        message,
        reason,
        ..
    }) = ended
    else {
        return format!("it ends again and again; {log}");
    };
    let reason = reason.as_deref().filter(|reason| *reason != "Error");
    let reason = reason.map(|reason| format!(", {reason}")).unwrap_or_default();
    let words = message.as_deref().unwrap_or_default().trim();
    let said = if words.is_empty() {
        String::new()
    } else {
        format!(": {words}")
    };
    match known_remedy(words) {
        Some(remedy) => format!("it ends again and again (exit code {exit_code}{reason}){said}; {remedy}"),
        None => format!("it ends again and again (exit code {exit_code}{reason}){said}; {log}"),
    }
}

/// The container runtime's words, without what the kubelet puts before them while it backs off.
fn innermost(message: &str) -> &str {
    let words = message.split_once("ErrImagePull: ").map_or(message, |(_, words)| words);
    words.trim()
}

fn remedy(reason: &str, words: &str) -> &'static str {
    let general = "check the image's name, and that the node can pull it";
    known_remedy(words).or_else(|| known_remedy(reason)).unwrap_or(general)
}

fn known_remedy(words: &str) -> Option<&'static str> {
    let words = words.to_lowercase();
    let found = REMEDIES
        .iter()
        .find(|(signs, _)| signs.iter().any(|sign| words.contains(sign)));
    found.map(|(_, remedy)| *remedy)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, container: &Value) -> Pod {
        let mut status = json!({ "name": "slurmd", "image": "registry.example.com/slurmd:1", "imageID": "", "ready": false,
                                 "restartCount": 0 });
        status
            .as_object_mut()
            .unwrap()
            .extend(container.as_object().unwrap().clone());
        serde_json::from_value(json!({ "metadata": { "name": name }, "status": { "containerStatuses": [status] } }))
            .unwrap()
    }

    fn waiting(reason: &str, message: &str) -> Value {
        json!({ "state": { "waiting": { "reason": reason, "message": message } } })
    }

    fn problem(reason: &str, message: &str) -> String {
        startup_problem(&pod("a", &waiting(reason, message))).unwrap_or_default()
    }

    /// What containerd 1.6 and 2.0, and CRI-O, say.
    #[test]
    fn an_image_that_cannot_be_pulled_has_its_remedy() {
        let not_found = "rpc error: code = NotFound desc = failed to pull and unpack image \"registry.example.com/slurmd:1\": \
                         failed to resolve reference \"registry.example.com/slurmd:1\": registry.example.com/slurmd:1: not found";
        let platform = "failed to pull and unpack image \"x\": no match for platform in manifest sha256:abc: not found";
        let login = "failed to resolve reference \"x\": pull access denied, repository does not exist or may require \
                     authorization: authorization failed: no basic auth credentials";
        let anonymous = "failed to authorize: failed to fetch anonymous token: unexpected status: 401 Unauthorized";
        let unknown_host = "failed to do request: Head \"https://x/v2/\": dial tcp: lookup x: no such host";
        let untrusted = "failed to verify certificate: x509: certificate signed by unknown authority";
        for (message, expected) in [
            (not_found, "does not have this image"),
            ("reading manifest 1 in x: manifest unknown", "does not have this image"),
            (platform, "processor of the node"),
            (
                "no image found in image index for architecture \"arm64\"",
                "processor of the node",
            ),
            (login, "imagePullSecrets"),
            (anonymous, "imagePullSecrets"),
            (
                "toomanyrequests: You have reached your pull rate limit",
                "the registry limits pulls",
            ),
            (unknown_host, "cannot reach the registry"),
            (untrusted, "the registry's CA"),
            ("something new", "check the image's name"),
        ] {
            let found = problem("ErrImagePull", message);
            assert!(
                found.starts_with("container slurmd: image \"registry.example.com/slurmd:1\""),
                "{found}"
            );
            assert!(
                found.contains(message) && found.contains(expected),
                "{expected}: {found}"
            );
        }
        assert!(problem("SignatureValidationFailed", "policy").contains("requires a signature"));
    }

    /// Otherwise the status would be written at each attempt.
    #[test]
    fn the_text_is_the_same_while_the_kubelet_tries_again() {
        let words = "rpc error: code = NotFound desc = x: not found";
        let back_off = format!("Back-off pulling image \"x\": ErrImagePull: {words}");
        assert_eq!(problem("ImagePullBackOff", &back_off), problem("ErrImagePull", words));

        let crash = |seconds: u32| {
            let mut container = waiting(CRASHES, &format!("back-off {seconds}s restarting failed container"));
            container["lastState"] = json!({ "terminated": { "exitCode": 1, "reason": "Error" } });
            startup_problem(&pod("a", &container)).unwrap()
        };
        assert_eq!(crash(10), crash(20));
        assert!(
            crash(10).contains("exit code 1") && crash(10).contains("kubectl logs"),
            "{}",
            crash(10)
        );
    }

    #[test]
    fn a_program_for_another_processor_and_bad_names_are_explained() {
        let mut container = waiting(CRASHES, "back-off");
        let message = "exec /usr/sbin/slurmd: exec format error";
        container["lastState"] =
            json!({ "terminated": { "exitCode": 128, "reason": "StartError", "message": message } });
        let found = startup_problem(&pod("a", &container)).unwrap();
        assert!(
            found.contains("StartError") && found.contains("processor of the node"),
            "{found}"
        );
        assert!(problem(BAD_NAME, "invalid reference format").contains("is not the name of an image"));
        assert!(problem(NEVER_PULLED, "").contains("imagePullPolicy is Never"));
    }

    #[test]
    fn pods_that_start_have_no_problem() {
        for reason in ["ContainerCreating", "PodInitializing"] {
            assert_eq!(problem(reason, ""), "");
        }
        assert_eq!(describe_startup(&[pod("a", &json!({}))]), None);
    }

    #[test]
    fn a_problem_of_many_pods_is_told_once() {
        let stuck = |name: &str, words: &str| pod(name, &waiting("RunContainerError", words));
        let pods: Vec<Pod> = ["a", "b", "c", "d", "e"].map(|name| stuck(name, "x")).into();
        let told = describe_startup(&pods).unwrap();
        assert_eq!(
            told,
            "pods a, b, c and 2 more do not start: container slurmd: RunContainerError x"
        );
        let told = describe_startup(&[stuck("a", "x"), stuck("b", "y")]).unwrap();
        assert_eq!(told.lines().count(), 2, "{told}");
        let many: Vec<Pod> = ["a", "b", "c", "d"].map(|name| stuck(name, name)).into();
        assert!(describe_startup(&many).unwrap().ends_with("\nand 1 more problems"));
    }
}
