//! The containers of a slurmctld pod, each with the user's overrides.

use api::{
    keys::{annotations, apps},
    wellknown::{LOG_DIR, SLURM_ETC_DIR, SLURM_UID, SLURMCTLD_PORT, STATE_VOLUME},
};
use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Map, Value, json};
use slurm::agent;

use super::Parent;
use crate::{
    defaults::Images,
    layout::{
        AGENT, AGENT_COMMAND, AGENT_DIR, AGENT_FILE, AGENT_VOLUME, AUTH_SOCKET_DIR, AUTH_SOCKET_VOLUME, BUNDLE_DIR,
        BUNDLE_FILE, BUNDLE_VOLUME, CANDIDATE_DIR, CANDIDATE_VOLUME, CONTROL_SOCKET, KEYS_DIR, KEYS_VOLUME,
        LIVE_VOLUME, LOG_FILE, LOG_VOLUME, RUN_DIR, RUN_VOLUME, name, state_dir, state_mount, variable,
    },
    overlay::lay_over,
    slurm_release::{self, Release, has_http, slurmctld_probe},
    template::{
        self, LOGFILE_SCRIPT,
        container::{container, default_pull_policy, image_to_run, shell_image, user_image},
        fields, set,
    },
};

type Container = Map<String, Value>;

/// slurmctld starts after this has ended: without a pipe at this path it would create a file there and fill the memory.
const LOGFILE_STARTED: &str =
    r#"tries=0; until [ -p "$SOCKET" ] || [ "$tries" -ge 100 ]; do tries=$((tries + 1)); sleep 0.05; done"#;

/// Handles options and arguments as the stock images' entrypoint does, and runs slurmctld under the agent.
const SUPERVISE: &str = r#"eval "set -- ${SLURMCTLD_OPTIONS:-} $*"; exec $AGENT supervise -- slurmctld --systemd "$@""#;

/// The init containers of the pod, in the order they start, and slurmctld.
pub(super) fn build_containers(parent: &Parent, images: &Images, by_http: bool) -> (Vec<Container>, Container) {
    let slurmctld = build_slurmctld(parent, &images.slurmctld, by_http);
    let init = vec![
        build_install(&images.operator),
        build_prepare(parent, &slurmctld),
        build_reconfigure(parent, &slurmctld),
        build_logfile(parent, &images.logfile),
    ];
    (init, slurmctld)
}

fn build_slurmctld(parent: &Parent, image: &str, by_http: bool) -> Container {
    let spec = &parent.controller.spec;
    let mut base = fields(json!({
        "name": name::SLURMCTLD,
        "image": image,
        "imagePullPolicy": default_pull_policy(spec.slurmctld.as_ref()),
        "ports": [{ "containerPort": SLURMCTLD_PORT, "name": apps::SLURMCTLD, "protocol": "TCP" }],
        // A standby never responds on /readyz.
        "readinessProbe": slurmctld_probe(by_http, if spec.replicas() > 1 { "/livez" } else { "/readyz" }),
        "securityContext": { "runAsNonRoot": true, "runAsUser": SLURM_UID, "runAsGroup": SLURM_UID },
        "volumeMounts": [
            { "mountPath": SLURM_ETC_DIR, "name": LIVE_VOLUME, "readOnly": true },
            { "mountPath": RUN_DIR, "name": RUN_VOLUME },
            { "mountPath": state_mount(parent.controller), "name": STATE_VOLUME },
            { "mountPath": AUTH_SOCKET_DIR, "name": AUTH_SOCKET_VOLUME },
            { "mountPath": LOG_DIR, "name": LOG_VOLUME },
            { "mountPath": KEYS_DIR, "name": KEYS_VOLUME, "readOnly": true },
            { "mountPath": AGENT_DIR, "name": AGENT_VOLUME, "readOnly": true },
            { "mountPath": AGENT_COMMAND, "name": AGENT_VOLUME, "readOnly": true, "subPath": AGENT_FILE },
        ],
    }));
    if parent.is_supervised() {
        let command = SUPERVISE.replace("$AGENT", AGENT);
        set(&mut base, "command", json!(["sh", "-c", command, name::SLURMCTLD]));
        let control = json!({ "name": variable::CONTROL, "value": CONTROL_SOCKET });
        set(&mut base, "env", json!([control, pod_uid()]));
    }
    // The supervisor restarts a slurmctld that dies. A kill of one that hangs or starts slowly would lose the last seconds of its
    // state, and a start that waits for a missing Include or for names takes minutes. A user's probe is merged over upstream's.
    for field in ["startupProbe", "livenessProbe"] {
        let given = spec.slurmctld.as_ref().and_then(|given| given.get(field)?.as_object());
        if !parent.is_supervised() || given.is_some_and(|probe| !probe.is_empty()) {
            let mut probe = template::fields(slurmctld_probe(by_http, "/livez"));
            probe.extend(template::fields(json!({ "failureThreshold": 6, "periodSeconds": 10 })));
            set(&mut base, field, probe);
        }
    }
    container(base.into(), spec.slurmctld.as_ref())
}

/// Copies the agent to the volume where the other containers find it.
fn build_install(image: &str) -> Container {
    let base = json!({
        "name": name::INSTALL,
        "image": image,
        "imagePullPolicy": default_pull_policy(None),
        "args": ["install-agent", AGENT_DIR],
        "volumeMounts": [{ "mountPath": AGENT_DIR, "name": AGENT_VOLUME }],
    });
    container(base, None)
}

/// Fills /etc/slurm before any other container reads it.
fn build_prepare(parent: &Parent, slurmctld: &Container) -> Container {
    let mut environment = places(parent);
    // A new pod with another key than the cluster's would lose all workers.
    let key_digest = format!("metadata.annotations['{}']", annotations::SLURM_KEY_HASH);
    environment.push(json!({ "name": variable::KEY_DIGEST, "valueFrom": { "fieldRef": { "fieldPath": key_digest } } }));
    environment.push(json!({ "name": variable::BUNDLE, "value": format!("{BUNDLE_DIR}/{BUNDLE_FILE}") }));
    let own = json!({
        "name": name::PREPARE,
        "command": [AGENT, "prepare"],
        "env": environment,
        "volumeMounts": [{ "mountPath": BUNDLE_DIR, "name": BUNDLE_VOLUME, "readOnly": true }],
    });
    container(beside_slurmctld(slurmctld, own), None)
}

/// Receives revisions from the operator and makes slurmctld run with them.
fn build_reconfigure(parent: &Parent, slurmctld: &Container) -> Container {
    let mut environment = places(parent);
    environment.push(pod_uid());
    environment.push(json!({ "name": variable::CANDIDATE, "value": CANDIDATE_DIR }));
    if !parent.is_supervised() {
        environment.push(json!({ "name": variable::CONTROL, "value": CONTROL_SOCKET }));
    }
    let own = json!({
        "name": name::RECONFIGURE,
        "command": [AGENT, "serve"],
        "restartPolicy": "Always",
        "ports": [{ "containerPort": agent::DEFAULT_PORT, "name": agent::PORT_NAME, "protocol": "TCP" }],
        "env": environment,
        "volumeMounts": [{ "mountPath": CANDIDATE_DIR, "name": CANDIDATE_VOLUME, "readOnly": true }],
    });
    container(
        beside_slurmctld(slurmctld, own),
        parent.controller.spec.reconfigure.as_ref(),
    )
}

/// Prints slurmctld's log, which slurmctld writes into a pipe.
fn build_logfile(parent: &Parent, image: &str) -> Container {
    let logfile = parent.controller.spec.logfile.as_ref();
    let base = json!({
        "name": name::LOGFILE,
        "image": image,
        "imagePullPolicy": default_pull_policy(logfile),
        "command": ["sh", "-c", LOGFILE_SCRIPT],
        "env": [{ "name": "SOCKET", "value": LOG_FILE }],
        "lifecycle": { "postStart": { "exec": { "command": ["sh", "-c", LOGFILE_STARTED] } } },
        "restartPolicy": "Always",
        "volumeMounts": [{ "mountPath": LOG_DIR, "name": LOG_VOLUME }],
    });
    container(base, logfile)
}

/// A container of the operator with the image, user, environment and mounts of slurmctld, and a writable configuration.
/// If the user overrode a variable or mount of the operator for slurmctld, the operator's value is used here: the agent
/// depends on it.
fn beside_slurmctld(slurmctld: &Container, own: Value) -> Value {
    const TAKEN: [&str; 7] = [
        "image",
        "imagePullPolicy",
        "securityContext",
        "env",
        "envFrom",
        "volumeMounts",
        "volumeDevices",
    ];
    let of_slurmctld = |field: &str| Some((field.to_owned(), slurmctld.get(field)?.clone()));
    let mut fields: Container = TAKEN.into_iter().filter_map(of_slurmctld).collect();
    if let Some(Value::Array(mounts)) = fields.get_mut("volumeMounts") {
        for mount in mounts.iter_mut().filter_map(Value::as_object_mut) {
            if mount.get("name").and_then(Value::as_str) == Some(LIVE_VOLUME) {
                mount.remove("readOnly");
            }
        }
    }
    let mut beside = Value::from(fields);
    lay_over(&mut beside, &template::fields(own));
    beside
}

fn pod_uid() -> Value {
    json!({ "name": variable::POD_UID, "valueFrom": { "fieldRef": { "fieldPath": "metadata.uid" } } })
}

/// The sources and destinations of a revision.
fn places(parent: &Parent) -> Vec<Value> {
    let controller = parent.controller;
    let mut places = vec![
        json!({ "name": variable::CONTROLLER_UID, "value": controller.metadata.uid.clone().unwrap_or_default() }),
        json!({ "name": variable::KEYS_DIR, "value": KEYS_DIR }),
        json!({ "name": variable::STATE_DIR, "value": state_dir(&controller.cluster_name()) }),
    ];
    // Standbys share a volume, and each needs its own files.
    if controller.spec.replicas() > 1 {
        places
            .push(json!({ "name": variable::POD_NAME, "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }));
    }
    places
}

/// Whether slurmctld is probed by HTTP. `running` are the pods, unless a user's change replaces them, and `release` is the one of the
/// slurmctld that responded last. Probes that work with every release stay until then: a change of probes is a restart.
pub(super) fn is_probed_by_http(
    parent: &Parent,
    images: &Images,
    running: Option<&PodSpec>,
    release: Option<Release>,
) -> bool {
    let mut containers = running.into_iter().flat_map(|pod| &pod.containers);
    let slurmctld = containers.find(|container| container.name == name::SLURMCTLD);
    let probe = slurmctld.and_then(|container| container.readiness_probe.as_ref());
    if probe.is_some_and(|probe| probe.tcp_socket.is_some()) {
        return false;
    }
    let image = user_image(parent.controller.spec.slurmctld.as_ref()).unwrap_or(&images.slurmctld);
    let release = release
        .filter(|_| running.is_some())
        .or_else(|| slurm_release::of_image(image));
    release.is_none() || has_http(release)
}

/// Returns the images of the containers without a user's image: those that the pods run, or else the defaults.
pub(super) fn images_to_run(parent: &Parent, running: Option<&PodSpec>, defaults: &Images) -> Images {
    let spec = &parent.controller.spec;
    let (slurmctld, logfile) = (spec.slurmctld.as_ref(), spec.logfile.as_ref());
    let slurmctld_image = image_to_run(slurmctld, running, name::SLURMCTLD, &defaults.slurmctld);
    let logfile_image = shell_image(&defaults.logfile, slurmctld, &slurmctld_image);
    Images {
        operator: image_to_run(None, running, name::INSTALL, &defaults.operator),
        logfile: image_to_run(logfile, running, name::LOGFILE, logfile_image),
        slurmctld: slurmctld_image,
        ..defaults.clone()
    }
}
