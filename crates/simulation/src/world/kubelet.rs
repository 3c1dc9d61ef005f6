//! The kubelets and the scheduler: pods get a node and an address, run, become ready, and end with their grace period.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use base64::Engine as _;
use host::Files as _;
use runtime::fake::Path;
use serde_json::{Value, json};

use super::{
    World,
    evictions::{self, TOLERATED},
    files::Disk,
    machine::{Clock, Life, Simulated},
    objects::{at, name_of, text, uid_of},
    slurmctld::ControllerPod,
    time::{elapsed, rfc3339},
};
use crate::slurm::{HostId, HostSpec};

/// The kubelet of a lost node is missed after this time (node-monitor-grace-period).
const LOST: Duration = Duration::from_secs(40);

/// How often mounted ConfigMaps and Secrets are looked at.
const REFRESH: Duration = Duration::from_secs(30);

/// A Kubernetes node.
#[derive(Debug, Clone, Default)]
pub struct KubeNode {
    pub clock: Clock,
    /// Since when its kubelet does not report.
    pub lost: Option<Duration>,
    /// Whether the node lifecycle controller has missed it.
    is_missed: bool,
}

/// A pod on a node.
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) node: String,
    begun: Duration,
    pub(super) content: Content,
    ending: Option<Duration>,
    pub(super) machine: Simulated,
    refreshed: Duration,
}

pub(super) enum Content {
    /// Its images are pulled until then.
    Waiting(Duration),
    Slurmctld(ControllerPod),
    Slurmd(HostId),
    Other,
    /// All containers have ended, and are not started again.
    Ended,
}

impl World {
    /// One look of the scheduler and of all kubelets.
    pub(super) fn run_kubelets(&self) {
        self.report_nodes();
        let pods: Vec<Arc<Value>> = self.access.server.store().all("pods").cloned().collect();
        for pod in &pods {
            if text(pod, "/spec/nodeName").is_empty() {
                self.schedule(pod);
            } else {
                self.run_pod(pod);
            }
        }
        self.end_unknown_pods(&pods);
    }

    /// Writes the conditions of nodes, as kubelets and the node lifecycle controller do.
    fn report_nodes(&self) {
        let nodes = self.nodes.lock().unwrap().clone();
        for (name, node) in nodes {
            let lost = node.lost.map(|since| elapsed().saturating_sub(since));
            let is_missed = lost.is_some_and(|lost| lost >= LOST);
            if is_missed != node.is_missed {
                self.nodes.lock().unwrap().get_mut(&name).unwrap().is_missed = is_missed;
                let effects: &[&str] = if is_missed { &["NoSchedule", "NoExecute"] } else { &[] };
                self.taint(&name, evictions::UNREACHABLE, effects);
            }
            let ready = if is_missed { "Unknown" } else { "True" };
            let Ok(object) = self.get("nodes", &name) else { continue };
            if text(&object, "/status/conditions/0/status") != ready {
                let conditions = json!([{ "type": "Ready", "status": ready, "lastTransitionTime": rfc3339() }]);
                self.set_status("nodes", &name, &json!({ "conditions": conditions }));
                self.tell(format!("node {name} has Ready={ready}"));
                if is_missed {
                    self.mark_pods_not_ready(&name);
                }
            }
            if lost.is_some_and(|lost| lost >= LOST + TOLERATED) {
                self.evict_by_taint(&name);
            }
        }
    }

    fn mark_pods_not_ready(&self, node: &str) {
        let pods: Vec<Arc<Value>> = self.access.server.store().all("pods").cloned().collect();
        for pod in pods.iter().filter(|pod| text(pod, "/spec/nodeName") == node) {
            self.set_ready(pod, false);
        }
    }

    fn schedule(&self, pod: &Value) {
        let pods: Vec<String> = self
            .access
            .server
            .store()
            .all("pods")
            .map(|pod| text(pod, "/spec/nodeName"))
            .collect();
        let nodes: Vec<Arc<Value>> = self.access.server.store().all("nodes").cloned().collect();
        let is_free = |node: &&Arc<Value>| {
            let cordoned = node.pointer("/spec/unschedulable") == Some(&json!(true));
            let taints = node.pointer("/spec/taints").and_then(Value::as_array);
            let is_tainted = taints.is_some_and(|taints| !taints.is_empty());
            !cordoned && !is_tainted && text(node, "/status/conditions/0/status") == "True"
        };
        let load = |node: &&Arc<Value>| (pods.iter().filter(|on| **on == name_of(node)).count(), name_of(node));
        if let Some(node) = nodes.iter().filter(is_free).min_by_key(load) {
            let binding = json!({ "spec": { "nodeName": name_of(node) } });
            let _ = self.edit(|store| store.merge(&at("pods", &name_of(pod)), &binding, "scheduler"));
        }
    }

    fn run_pod(&self, pod: &Value) {
        let (uid, node) = (uid_of(pod), text(pod, "/spec/nodeName"));
        let is_lost = self
            .nodes
            .lock()
            .unwrap()
            .get(&node)
            .is_none_or(|node| node.lost.is_some());
        if is_lost {
            return;
        }
        let mut pods = self.pods.lock().unwrap();
        if !pods.contains_key(&uid) {
            let phase = text(pod, "/status/phase");
            if matches!(phase.as_str(), "Failed" | "Succeeded") {
                return;
            }
            if phase == "Running" {
                // A restored object, whose processes have ended: the kubelet makes its containers again.
                let status = json!({ "phase": "Pending", "podIP": null, "podIPs": null, "containerStatuses": null, "initContainerStatuses": null });
                self.set_status("pods", &name_of(pod), &status);
                self.set_ready(pod, false);
            }
            let pulled = elapsed() + Duration::from_millis(self.random.between(1000, 4000));
            pods.insert(uid.clone(), self.new_pod(pod, &node, pulled));
        }
        let running = pods.get_mut(&uid).unwrap();
        if pod.pointer("/metadata/deletionTimestamp").is_some() {
            if self.end_pod(pod, running) {
                pods.remove(&uid);
                drop(pods);
                let _ =
                    self.edit(|store| store.delete(&at("pods", &name_of(pod)), &json!({ "gracePeriodSeconds": 0 })));
            }
            return;
        }
        if elapsed().saturating_sub(running.refreshed) >= REFRESH {
            running.refreshed = elapsed();
            self.mount(pod, &running.machine);
        }
        let runs = matches!(
            running.content,
            Content::Slurmctld(_) | Content::Slurmd(_) | Content::Other
        );
        if runs && text(pod, "/status/podIP") != running.machine.address {
            // etcd was restored from a time before the containers started.
            self.report_running(pod, &running.machine.address);
        }
        match &running.content {
            Content::Waiting(until) if elapsed() >= *until => {
                self.mount(pod, &running.machine);
                running.content = self.start(pod, &running.machine);
                running.begun = elapsed();
                let address = running.machine.address.clone();
                drop(pods);
                self.report_running(pod, &address);
                self.set_ready(pod, false);
            }
            Content::Waiting(_) => {
                drop(pods);
                self.set_ready(pod, false);
            }
            Content::Ended => {
                drop(pods);
                // etcd was restored from a time before the pod failed.
                if !matches!(text(pod, "/status/phase").as_str(), "Failed" | "Succeeded") {
                    self.report_eviction(&name_of(pod));
                }
            }
            Content::Slurmctld(slurmctld) => {
                let ready = slurmctld.is_ready();
                drop(pods);
                self.set_ready(pod, ready);
            }
            Content::Slurmd(host) => {
                let ready = self.slurm().host(*host).slurmd_responds();
                drop(pods);
                self.set_ready(pod, ready);
            }
            Content::Other => {
                drop(pods);
                self.set_ready(pod, true);
            }
        }
    }

    fn report_running(&self, pod: &Value, address: &str) {
        let status = json!({
            "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }], "startTime": rfc3339(),
            "containerStatuses": containers(pod, "containers"), "initContainerStatuses": containers(pod, "initContainers"),
        });
        self.set_status("pods", &name_of(pod), &status);
    }

    fn new_pod(&self, pod: &Value, node: &str, pulled: Duration) -> Pod {
        let clock = self.nodes.lock().unwrap()[node].clock.clone();
        let mut machine = Simulated {
            name: name_of(pod),
            address: self.next_address(),
            clock,
            random: self.random.fork(),
            files: super::files::FileSystem::default(),
            network: self.network.clone(),
            life: Life::lasting(),
            programs: None,
            change: "file of a pod",
        };
        machine.files.mount("/", Disk::default());
        self.network.place(&machine.address, node);
        Pod {
            name: name_of(pod),
            node: node.to_owned(),
            begun: elapsed(),
            content: Content::Waiting(pulled),
            ending: None,
            machine,
            refreshed: elapsed(),
        }
    }

    fn start(&self, pod: &Value, machine: &Simulated) -> Content {
        match text(pod, "/metadata/labels/app.kubernetes.io~1name").as_str() {
            "slurmctld" => Content::Slurmctld(ControllerPod::start(self, pod, machine.clone())),
            "slurmd" => {
                let arguments = pod.pointer("/spec/containers/0/args").cloned().unwrap_or_default();
                let arguments = arguments.as_array().cloned().unwrap_or_default();
                let conf = arguments
                    .iter()
                    .filter_map(Value::as_str)
                    .find(|word| word.contains("Features="));
                let conf = conf.unwrap_or_default().trim_matches('\'').to_owned();
                let features = conf.split_whitespace().find_map(|word| word.strip_prefix("Features="));
                let features = features.unwrap_or_default().split(',').map(str::to_owned).collect();
                let mut slurm = self.slurm();
                let host = slurm.add_host(HostSpec {
                    name: text(pod, "/spec/hostname"),
                    address: machine.address.clone(),
                    cpus: 4,
                    features,
                    // By the clock of its node.
                    boot_time: machine.clock.since_start(),
                });
                slurm.start_slurmd(host);
                drop(slurm);
                self.listen_slurmd(machine, host);
                Content::Slurmd(host)
            }
            _ => Content::Other,
        }
    }

    /// Ends the processes of a pod. Returns whether all have ended.
    fn end_pod(&self, pod: &Value, running: &mut Pod) -> bool {
        let grace = pod
            .pointer("/metadata/deletionGracePeriodSeconds")
            .and_then(Value::as_u64);
        let begun = *running.ending.get_or_insert_with(elapsed);
        let is_late = elapsed().saturating_sub(begun) >= Duration::from_secs(grace.unwrap_or(30));
        match &running.content {
            Content::Slurmctld(slurmctld) => {
                if !slurmctld.stop() && !is_late {
                    return false;
                }
                slurmctld.kill();
                true
            }
            Content::Slurmd(host) => {
                if !is_late && self.pre_stop(*host) {
                    return false;
                }
                self.slurm().remove_host(*host);
                true
            }
            Content::Waiting(_) | Content::Other | Content::Ended => true,
        }
    }

    /// Processes of pods that nobody knows any more end, as after a deletion by force.
    fn end_unknown_pods(&self, known: &[Arc<Value>]) {
        let known: Vec<String> = known.iter().map(|pod| uid_of(pod)).collect();
        let mut pods = self.pods.lock().unwrap();
        let nodes = self.nodes.lock().unwrap().clone();
        let gone: Vec<String> = pods
            .iter()
            .filter(|(uid, pod)| !known.contains(uid) && nodes.get(&pod.node).is_some_and(|node| node.lost.is_none()))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            let pod = pods.remove(&uid).unwrap();
            self.kill_content(&pod);
        }
    }

    pub(super) fn kill_content(&self, pod: &Pod) {
        match &pod.content {
            Content::Slurmctld(slurmctld) => slurmctld.kill(),
            Content::Slurmd(host) => self.slurm().remove_host(*host),
            Content::Waiting(_) | Content::Other | Content::Ended => {}
        }
    }

    fn set_ready(&self, pod: &Value, ready: bool) {
        let Ok(pod) = self.get("pods", &name_of(pod)) else {
            return;
        };
        let ready = if ready { "True" } else { "False" };
        let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
        let mut conditions = conditions.cloned().unwrap_or_default();
        let old = conditions.iter().position(|condition| condition["type"] == "Ready");
        if old.is_some_and(|at| conditions[at]["status"] == ready) {
            return;
        }
        let new = json!({ "type": "Ready", "status": ready, "lastTransitionTime": rfc3339() });
        match old {
            Some(at) => conditions[at] = new,
            None => conditions.push(new),
        }
        self.set_status("pods", &name_of(&pod), &json!({ "conditions": conditions }));
    }

    /// The kubelet reports that it has evicted a pod, whose containers have ended, because the node is short of memory.
    pub(super) fn report_eviction(&self, name: &str) {
        let Ok(pod) = self.get("pods", name) else { return };
        let mut statuses = pod["status"]["containerStatuses"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for status in &mut statuses {
            status["ready"] = false.into();
            status["state"] = json!({ "terminated": { "exitCode": 137, "reason": "Error", "finishedAt": rfc3339() } });
        }
        let message = "The node was low on resource: memory.";
        let status =
            json!({ "phase": "Failed", "reason": "Evicted", "message": message, "containerStatuses": statuses });
        self.set_status("pods", name, &status);
        self.set_ready(&pod, false);
    }

    /// Writes the mounted ConfigMaps and Secrets of a pod.
    fn mount(&self, pod: &Value, machine: &Simulated) {
        let list = |pointer: &str| {
            pod.pointer(pointer)
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        };
        let containers = [list("/spec/initContainers"), list("/spec/containers")].concat();
        for volume in list("/spec/volumes") {
            let name = text(&volume, "/name");
            let mounts = containers
                .iter()
                .flat_map(|container| container["volumeMounts"].as_array().cloned().unwrap_or_default());
            let Some(mount) = mounts.into_iter().find(|mount| mount["name"] == name.as_str()) else {
                continue;
            };
            let directory = text(&mount, "/mountPath");
            let projected = volume.pointer("/projected/sources").and_then(Value::as_array).cloned();
            for source in projected.unwrap_or_else(|| vec![volume.clone()]) {
                for (file, bytes) in self.files_of(&source) {
                    let path = format!("{directory}/{file}");
                    if machine.files.read(std::path::Path::new(&path)).ok().as_ref() != Some(&bytes) {
                        machine.files.put(&path, &bytes);
                    }
                }
            }
        }
    }

    fn files_of(&self, source: &Value) -> Vec<(String, Vec<u8>)> {
        let reference = |pointers: [&str; 2]| {
            pointers
                .iter()
                .map(|pointer| text(source, pointer))
                .find(|name| !name.is_empty())
        };
        let decode =
            |value: &Value| base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap_or_default());
        let entries = |object: &Value, field: &str| object[field].as_object().cloned().unwrap_or_default();
        let mut files = Vec::new();
        if let Some(name) = reference(["/secret/name", "/secret/secretName"])
            && let Ok(secret) = self.get("secrets", &name)
        {
            for (key, value) in entries(&secret, "data") {
                files.push((key, decode(&value).unwrap_or_default()));
            }
        }
        if let Some(name) = reference(["/configMap/name", "/configMap/name"])
            && let Ok(map) = self.get("configmaps", &name)
        {
            for (key, value) in entries(&map, "data") {
                files.push((key, value.as_str().unwrap_or_default().as_bytes().to_vec()));
            }
            for (key, value) in entries(&map, "binaryData") {
                files.push((key, decode(&value).unwrap_or_default()));
            }
        }
        files
    }

    pub(super) fn set_status(&self, plural: &str, name: &str, status: &Value) {
        let path = Path {
            status: true,
            ..at(plural, name)
        };
        // It may be gone.
        let _ = self.edit(|store| store.merge(&path, &json!({ "status": status }), "kubelet"));
    }
}

/// Init containers have ended, unless they are sidecars.
fn containers(pod: &Value, field: &str) -> Value {
    let named = pod["spec"][field].as_array().cloned().unwrap_or_default();
    let status = |container: &Value| {
        let runs = field == "containers" || container["restartPolicy"] == "Always";
        let state = if runs {
            json!({ "running": { "startedAt": rfc3339() } })
        } else {
            json!({ "terminated": { "exitCode": 0, "reason": "Completed", "finishedAt": rfc3339() } })
        };
        json!({
            "name": container["name"], "image": container["image"], "imageID": "", "ready": true, "started": runs,
            "restartCount": 0, "state": state,
        })
    };
    Value::from(named.iter().map(status).collect::<Vec<_>>())
}

/// The environment of a container.
pub(super) fn environment(pod: &Value, container: &str) -> BTreeMap<String, String> {
    let list = |pointer: &str| {
        pod.pointer(pointer)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let all = [list("/spec/initContainers"), list("/spec/containers")].concat();
    let found = all
        .into_iter()
        .find(|found| found["name"] == container)
        .unwrap_or_default();
    let variables = found["env"].as_array().cloned().unwrap_or_default();
    let value = |variable: &Value| {
        let field = text(variable, "/valueFrom/fieldRef/fieldPath");
        match field.as_str() {
            "" => text(variable, "/value"),
            "metadata.uid" => uid_of(pod),
            "metadata.name" => name_of(pod),
            annotation => {
                let key = annotation.split('\'').nth(1).unwrap_or_default().replace('/', "~1");
                text(pod, &format!("/metadata/annotations/{key}"))
            }
        }
    };
    let pairs = variables
        .iter()
        .map(|variable| (text(variable, "/name"), value(variable)));
    pairs.collect()
}
