//! A worker pod.

use api::{
    Controller, NodeSet,
    keys::{self, annotations, apps, components, labels},
    nodeset::ScalingMode,
    overlay::Overlay,
    wellknown,
};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::ResourceExt;
use serde_json::{Map, Value, json};
use slurm::revision::Digest;

use super::{claims::claim_volumes, conf::render_conf, pre_stop, ssh};
use crate::{
    conf_server::conf_server,
    nodeset::observe::Observed,
    runtime::Quantity,
    slurm_release::{self, has_http, slurmd_probe},
    template::{
        LOGFILE_SCRIPT,
        container::{container, default_pull_policy, shell_image, user_image},
        fields,
        metadata::{Marks, Words, component_labels, owner},
        pod::PodTemplate,
        set,
    },
};

const ETC_VOLUME: &str = "slurm-etc";
const LOG_VOLUME: &str = "slurm-logfile";
const SSH_VOLUME: &str = "ssh-config";
const SSHD_CONFIG_PATH: &str = "/etc/ssh/sshd_config";
/// Readable by the owner only: Slurm refuses keys that others can read.
pub(super) const OWNER_ONLY: i64 = 0o600;

/// What a worker pod is built from, besides its place.
#[derive(Clone, Copy, Debug)]
pub struct Blueprint<'a> {
    pub observed: &'a Observed,
    pub controller: &'a Controller,
    pub revision: &'a str,
}

/// Which worker of the NodeSet it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub pod: String,
    pub hostname: String,
    /// Its zero-padded ordinal, in `StatefulSet` mode.
    pub index: Option<String>,
    /// The only Kubernetes node it may run on.
    pub node: Option<String>,
    /// Its topology in Slurm, if known.
    pub topology: Option<String>,
}

impl Place {
    pub fn of_ordinal(nodeset: &NodeSet, ordinal: u32, pinned_to: Option<&Node>) -> Self {
        let padding = nodeset.spec.ordinal_padding();
        let pod = nodeset.child_names().pod(ordinal, padding);
        let index = format!("{ordinal:0padding$}");
        let hostname = match nodeset.spec.hostname_prefix() {
            Some(prefix) => format!("{prefix}{index}"),
            None => pod.clone(),
        };
        Self {
            pod,
            hostname,
            index: Some(index),
            node: pinned_to.map(ResourceExt::name_any),
            topology: pinned_to.and_then(topology_of).map(str::to_owned),
        }
    }

    /// Returns the place of the worker on this Kubernetes node, in `DaemonSet` mode.
    ///
    /// The name is deterministic, so that a stale cache cannot create the pod twice; upstream's is random.
    pub fn of_node(nodeset: &NodeSet, node: &Node) -> Self {
        let name = node.name_any();
        let digest = Digest::of(name.as_bytes()).to_string();
        let suffix: String = digest.chars().take(10).collect();
        Self {
            pod: format!("{}{suffix}", nodeset.child_names().pod_prefix()),
            hostname: hostname_on(node),
            index: None,
            node: Some(name),
            topology: topology_of(node).map(str::to_owned),
        }
    }

    pub fn claim_suffix(&self) -> &str {
        self.index.as_deref().unwrap_or(&self.hostname)
    }
}

pub fn hostname_on(node: &Node) -> String {
    let given = node.annotations().get(annotations::HOSTNAME_OVERRIDE);
    let name = node.name_any();
    let (host, _) = name.split_once('.').unwrap_or((&name, ""));
    let given = given.filter(|name| !name.is_empty());
    given.map_or(host, String::as_str).to_owned()
}

pub fn topology_of(node: &Node) -> Option<&str> {
    let topology = node.annotations().get(annotations::TOPOLOGY)?;
    Some(topology.as_str()).filter(|topology| !topology.is_empty())
}

/// Returns the labels of everything that belongs to the workers of a NodeSet.
pub fn worker_labels(nodeset: &NodeSet) -> Words {
    let mut labels = component_labels(apps::SLURMD, &nodeset.name_any(), components::WORKER);
    labels.insert(labels::CLUSTER.to_owned(), nodeset.spec.controller_ref.name.clone());
    labels
}

pub fn build_pod(blueprint: &Blueprint<'_>, place: &Place) -> Value {
    let nodeset = blueprint.observed.nodeset.as_ref();
    let mut init_containers = vec![container(logfile(blueprint.observed), nodeset.spec.logfile.as_ref())];
    if nodeset.spec.wanted_sssd().is_some() {
        init_containers.push(container(
            ssh::init_container(nodeset, &blueprint.observed.environment.images.slurmd),
            None,
        ));
    }
    let template = PodTemplate {
        meta: metadata(blueprint, place),
        spec: base_spec(blueprint, place),
        init_containers,
        containers: vec![container(slurmd(blueprint, place), nodeset.spec.slurmd.as_ref())],
    };
    let mut pod = template.with(nodeset.spec.pod_spec());
    settle_spec(&mut pod, nodeset, place);
    let mut pod = fields(pod);
    set(&mut pod, "apiVersion", "v1");
    set(&mut pod, "kind", "Pod");
    pod.into()
}

fn metadata(blueprint: &Blueprint<'_>, place: &Place) -> ObjectMeta {
    let nodeset = blueprint.observed.nodeset.as_ref();
    let mode = match place.index {
        Some(_) => ScalingMode::StatefulSet,
        None => ScalingMode::DaemonSet,
    };
    let protection = nodeset.spec.protects_workload().then_some(keys::ON);
    let own = [
        // Upstream's older documents select workers by this label.
        (labels::SLINKY_COMPONENT, Some(apps::SLURMD)),
        (labels::POD_NAME, Some(&*place.pod)),
        (labels::POD_HOSTNAME, Some(&*place.hostname)),
        (labels::SCALING_MODE, Some(mode.as_str())),
        (labels::REVISION, Some(blueprint.revision)),
        (labels::POD_INDEX, place.index.as_deref()),
        (labels::POD_PROTECT, protection),
    ];
    let sshd_config = ssh::render_sshd_config(nodeset).unwrap_or_default();
    let sssd_conf = blueprint.observed.sssd_conf.as_deref().unwrap_or_default();
    let notes = [
        (annotations::TOPOLOGY, place.topology.as_deref()),
        // It shows with which key the worker started, and is no reason to replace it.
        (annotations::SLURM_KEY_HASH, blueprint.observed.slurm_key.as_deref()),
    ];
    let mut marks = Marks::of_for_pods(&nodeset.metadata)
        .and(nodeset.spec.pod_metadata())
        .label(&worker_labels(nodeset))
        .annotate(
            annotations::SSHD_CONF_HASH,
            Digest::of(sshd_config.as_bytes()).to_string(),
        )
        .annotate(annotations::SSSD_CONF_HASH, Digest::of(sssd_conf).to_string())
        .annotate(annotations::DEFAULT_CONTAINER, apps::SLURMD);
    let given = |(key, value): (&str, Option<&str>)| Some((key.to_owned(), value?.to_owned()));
    marks.labels.extend(own.into_iter().filter_map(given));
    marks.annotations.extend(notes.into_iter().filter_map(given));
    ObjectMeta {
        generate_name: Some(nodeset.child_names().pod_prefix()),
        ..marks.into_meta(&nodeset.namespace().unwrap_or_default(), &place.pod, owner(nodeset))
    }
}

fn base_spec(blueprint: &Blueprint<'_>, place: &Place) -> Map<String, Value> {
    let nodeset = blueprint.observed.nodeset.as_ref();
    let namespace = nodeset.namespace().unwrap_or_default();
    let service = blueprint.controller.child_names().workers_service();
    fields(json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "subdomain": service,
        "dnsConfig": { "searches": [format!("{service}.{namespace}.svc.{}", blueprint.observed.environment.cluster_domain)] },
        "tolerations": [{ "key": keys::WORKER_TAINT, "operator": "Equal", "effect": "NoExecute" }],
        "volumes": volumes(blueprint, place),
    }))
}

fn volumes(blueprint: &Blueprint<'_>, place: &Place) -> Vec<Value> {
    let nodeset = blueprint.observed.nodeset.as_ref();
    let mut volumes = claim_volumes(nodeset, place.claim_suffix());
    let key = blueprint.controller.slurm_key().unwrap_or_default();
    let item = json!({ "key": key.key, "path": wellknown::SLURM_KEY_FILE });
    volumes.push(projected(ETC_VOLUME, "secret", &key.name, &item));
    volumes.push(json!({ "name": LOG_VOLUME, "emptyDir": { "medium": "Memory" } }));
    if nodeset.spec.wanted_ssh().is_some() {
        let (names, file) = (nodeset.child_names(), wellknown::SSHD_CONFIG_FILE);
        let item = json!({ "key": file, "path": file, "mode": OWNER_ONLY });
        volumes.push(projected(SSH_VOLUME, "configMap", &names.ssh_config_map(), &item));
    }
    if let Some(reference) = nodeset.spec.wanted_sssd() {
        volumes.extend(ssh::sssd_volumes(reference));
    }
    volumes
}

/// A volume with one entry of a Secret or a ConfigMap.
pub(super) fn projected(volume: &str, kind: &str, name: &str, item: &Value) -> Value {
    let sources = json!([{ (kind): { "name": name, "items": [item] } }]);
    json!({ "name": volume, "projected": { "defaultMode": OWNER_ONLY, "sources": sources } })
}

fn slurmd(blueprint: &Blueprint<'_>, place: &Place) -> Value {
    let nodeset = blueprint.observed.nodeset.as_ref();
    let extra_conf = nodeset.spec.extra_conf.as_deref().unwrap_or_default();
    let conf = render_conf(&nodeset.slurm_name(), extra_conf, place.topology.as_deref());
    let mut ports = vec![json!({ "name": apps::SLURMD, "containerPort": wellknown::SLURMD_PORT, "protocol": "TCP" })];
    let mut mounts = vec![
        json!({ "name": ETC_VOLUME, "mountPath": wellknown::SLURM_ETC_DIR, "readOnly": true }),
        json!({ "name": LOG_VOLUME, "mountPath": wellknown::LOG_DIR }),
    ];
    if nodeset.spec.wanted_ssh().is_some() {
        ports.push(json!({ "name": "ssh", "containerPort": wellknown::SSH_PORT, "protocol": "TCP" }));
        mounts.push(json!({
            "name": SSH_VOLUME, "mountPath": SSHD_CONFIG_PATH, "subPath": wellknown::SSHD_CONFIG_FILE, "readOnly": true,
        }));
    }
    let mut post_start = None;
    if nodeset.spec.wanted_sssd().is_some() {
        mounts.extend(ssh::sssd_mounts());
        post_start = Some(ssh::post_start());
    }
    let mut args = vec!["-Z".to_owned()];
    // Slurm ignores a worker that started before its node did, and would take the machine's start for it.
    args.extend(nodeset.spec.autoscaling().map(|_| "-b".to_owned()));
    let conf_server = conf_server(blueprint.controller);
    args.extend(["--conf-server".to_owned(), conf_server, "--conf".to_owned(), conf]);
    let (cpus, memory) = limits(nodeset);
    let by_http = by_http(blueprint.observed);
    let mut startup_probe = fields(slurmd_probe(by_http, "/livez"));
    startup_probe.extend(fields(json!({ "failureThreshold": 6, "periodSeconds": 10 })));
    // No liveness probe: a slurmd that is slow for a minute must not end its jobs.
    json!({
        "name": apps::SLURMD,
        "image": blueprint.observed.environment.images.slurmd,
        "imagePullPolicy": default_pull_policy(nodeset.spec.slurmd.as_ref()),
        "args": args,
        "env": [
            { "name": "SLINKY_TOPOLOGY", "valueFrom": {
                "fieldRef": { "fieldPath": format!("metadata.annotations['{}']", annotations::TOPOLOGY) },
            } },
            { "name": "POD_CPUS", "value": cpus.to_string() },
            { "name": "POD_MEMORY", "value": memory.to_string() },
        ],
        "ports": ports,
        "startupProbe": startup_probe,
        "readinessProbe": slurmd_probe(by_http, "/readyz"),
        "securityContext": {
            "privileged": true,
            "capabilities": { "add": ["BPF", "NET_ADMIN", "SYS_ADMIN", "SYS_NICE"] },
        },
        "lifecycle": {
            "postStart": post_start,
            "preStop": { "exec": { "command": ["/usr/bin/sh", "-c", pre_stop::render(nodeset)] } },
        },
        "volumeMounts": mounts,
    })
}

/// Whether slurmd is probed by HTTP. slurmd is never newer than slurmctld. It is decided when a pod is created, and a worker is not
/// replaced for it.
fn by_http(observed: &Observed) -> bool {
    let slurmctld = observed.knowledge.known().and_then(|seen| seen.release);
    if slurmctld.is_some() && !has_http(slurmctld) {
        return false;
    }
    let image = user_image(observed.nodeset.spec.slurmd.as_ref());
    let image = image.unwrap_or(&observed.environment.images.slurmd);
    has_http(slurm_release::of_image(image).or(slurmctld))
}

fn logfile(observed: &Observed) -> Value {
    let images = &observed.environment.images;
    json!({
        "name": "logfile",
        "image": shell_image(&images.logfile, observed.nodeset.spec.slurmd.as_ref(), &images.slurmd),
        "imagePullPolicy": default_pull_policy(observed.nodeset.spec.logfile.as_ref()),
        "command": ["sh", "-c", LOGFILE_SCRIPT],
        "env": [{ "name": "SOCKET", "value": format!("{}/slurmd.log", wellknown::LOG_DIR) }],
        "restartPolicy": "Always",
        "volumeMounts": [{ "name": LOG_VOLUME, "mountPath": wellknown::LOG_DIR }],
    })
}

/// Returns the CPUs and MiB the pod is limited to, 0 for no limit. The container's limits take precedence over the pod's.
fn limits(nodeset: &NodeSet) -> (i128, i128) {
    let pod = nodeset.spec.pod_spec();
    let own = nodeset.spec.slurmd.as_ref().map(Overlay::fields);
    let limit = |name: &str, read: fn(Quantity) -> i128| {
        let limits = [own, pod.map(Overlay::fields)].into_iter().flatten();
        let limits = limits.filter_map(|fields| fields.get("resources")?.get("limits")?.get(name));
        let mut amounts = limits.filter_map(Quantity::of).map(read);
        amounts.find(|amount| *amount != 0).unwrap_or(0)
    };
    (limit("cpu", Quantity::rounded_up), limit("memory", Quantity::mebibytes))
}

/// Sets what overlays cannot change: the host name, and where the pod may run.
fn settle_spec(pod: &mut Value, nodeset: &NodeSet, place: &Place) {
    let Some(spec) = pod.get_mut("spec") else { return };
    if let Value::Object(spec) = spec {
        // A pod with `nodeName` would bypass the scheduler and the rules below.
        spec.remove("nodeName");
        spec.insert("hostname".to_owned(), place.hostname.clone().into());
    }
    // Two workers on the network of one machine would share a name in Slurm and a port.
    if !nodeset.spec.oversubscribes_node() || nodeset.spec.uses_host_network() {
        let one_per_node = json!({
            "labelSelector": { "matchExpressions": [{
                "key": labels::NAME, "operator": "In", "values": [apps::SLURMD],
            }] },
            "topologyKey": "kubernetes.io/hostname",
        });
        let path = "affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        change_list(spec, path, |terms| terms.push(one_per_node));
    }
    if let Some(node) = &place.node {
        let only_there = json!({
            "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node] }],
        });
        let path = "affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        change_list(spec, path, |terms| *terms = vec![only_there]);
    }
}

/// Applies `change` to the list at this path, creating it if it is missing.
fn change_list(value: &mut Value, path: &str, change: impl FnOnce(&mut Vec<Value>)) {
    let list = path.split('/').fold(value, |value, field| {
        if !value.is_object() {
            *value = json!({});
        }
        &mut value[field]
    });
    if !list.is_array() {
        *list = json!([]);
    }
    if let Value::Array(list) = list {
        change(list);
    }
}
