//! What of an object is kept in memory, and which objects are.
//!
//! Kinds that read a field which is trimmed here find it empty: whoever needs one more takes it off the list.

use api::{Accounting, Controller, GROUP, LoginSet, NodeSet, Partition, RestApi, Token, keys};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, Deployment, StatefulSet},
    core::v1::{ConfigMap, Container, ContainerStatus, Namespace, Node, PersistentVolumeClaim, Pod, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::Resource;

use super::{ServiceMonitor, change::in_group, watch::Selectors};

/// Holds a copy of the whole object, and nothing here reads it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// How a kind is kept.
pub trait Trim: Resource {
    /// What the API server is asked for.
    fn selectors() -> Selectors {
        Selectors::default()
    }

    /// Whether the object is kept at all.
    fn concerns_us(&self) -> bool {
        true
    }

    /// Takes out what nobody reads.
    fn trim(&mut self) {
        trim_meta(self);
    }
}

fn trim_meta<K: Resource + ?Sized>(object: &mut K) {
    let meta = object.meta_mut();
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

impl Trim for Controller {}
impl Trim for NodeSet {}
impl Trim for LoginSet {}
impl Trim for RestApi {}
impl Trim for Accounting {}
impl Trim for Partition {}
impl Trim for Token {}

impl Trim for ConfigMap {
    /// Without the certificates that every namespace is given a copy of.
    fn selectors() -> Selectors {
        Selectors {
            fields: Some("metadata.name!=kube-root-ca.crt,metadata.name!=openshift-service-ca.crt".to_owned()),
            labels: None,
        }
    }
}

impl Trim for Secret {
    /// Helm keeps whole charts in Secrets; the tokens of service accounts are not ours to hold.
    fn selectors() -> Selectors {
        Selectors {
            fields: Some("type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token".to_owned()),
            labels: None,
        }
    }
}

impl Trim for PersistentVolumeClaim {}

impl Trim for Service {
    fn concerns_us(&self) -> bool {
        is_ours(self)
    }
}

impl Trim for StatefulSet {
    fn concerns_us(&self) -> bool {
        is_ours(self)
    }
}

impl Trim for Deployment {
    fn concerns_us(&self) -> bool {
        is_ours(self)
    }
}

impl Trim for PodDisruptionBudget {
    fn concerns_us(&self) -> bool {
        is_ours(self)
    }
}

impl Trim for ServiceMonitor {
    fn concerns_us(&self) -> bool {
        is_ours(self)
    }
}

impl Trim for ControllerRevision {
    /// Those of StatefulSets are their controller's business, and carry the same labels as ours.
    fn concerns_us(&self) -> bool {
        has_owner_of_ours(self)
    }
}

impl Trim for Pod {
    /// A cluster has many more pods than Slurm's.
    fn selectors() -> Selectors {
        Selectors {
            labels: Some(format!("{} in ({})", keys::labels::NAME, APPS.join(","))),
            fields: None,
        }
    }

    fn trim(&mut self) {
        trim_meta(self);
        if let Some(spec) = &mut self.spec {
            spec.affinity = None;
            spec.tolerations = None;
            spec.topology_spread_constraints = None;
            spec.dns_config = None;
            spec.security_context = None;
            for container in spec
                .containers
                .iter_mut()
                .chain(spec.init_containers.iter_mut().flatten())
            {
                trim_container(container);
            }
        }
        if let Some(status) = &mut self.status {
            let own = status.container_statuses.iter_mut().flatten();
            for container in own.chain(status.init_container_statuses.iter_mut().flatten()) {
                trim_container_status(container);
            }
        }
    }
}

fn trim_container(container: &mut Container) {
    *container = Container {
        name: std::mem::take(&mut container.name),
        image: container.image.take(),
        ports: container.ports.take(),
        resources: container.resources.take(),
        restart_policy: container.restart_policy.take(),
        ..Container::default()
    };
}

fn trim_container_status(status: &mut ContainerStatus) {
    status.allocated_resources = None;
    status.allocated_resources_status = None;
    status.resources = None;
    status.user = None;
    status.volume_mounts = None;
}

impl Trim for Node {
    fn trim(&mut self) {
        trim_meta(self);
        if let Some(status) = &mut self.status {
            status.images = None;
            status.volumes_attached = None;
            status.volumes_in_use = None;
            status.config = None;
            status.features = None;
            status.runtime_handlers = None;
            status.daemon_endpoints = None;
        }
    }
}

impl Trim for Namespace {
    fn trim(&mut self) {
        trim_meta(self);
        self.metadata.labels = None;
        self.metadata.annotations = None;
        self.spec = None;
        if let Some(status) = &mut self.status {
            status.conditions = None;
        }
    }
}

fn is_ours(object: &impl Resource) -> bool {
    has_owner_of_ours(object) || has_label_of_ours(object)
}

fn has_owner_of_ours(object: &impl Resource) -> bool {
    let mut owners = object.meta().owner_references.iter().flatten();
    owners.any(|owner| in_group(&owner.api_version, GROUP))
}

fn has_label_of_ours(object: &impl Resource) -> bool {
    let labels = object.meta().labels.as_ref();
    labels
        .and_then(|labels| labels.get(keys::labels::NAME))
        .is_some_and(|app| APPS.contains(&app.as_str()))
}

/// The daemons' names: the values of `app.kubernetes.io/name` on everything made for them.
pub(super) const APPS: [&str; 5] = [
    keys::apps::SLURMCTLD,
    keys::apps::SLURMD,
    keys::apps::SLURMRESTD,
    keys::apps::SLURMDBD,
    keys::apps::LOGIN,
];

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn of_a_pod_stays_what_the_kinds_read() {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": "p", "labels": {"a": "b"},
                "annotations": {"x": "y", LAST_APPLIED: "{}"},
                "managedFields": [{"manager": "m"}],
            },
            "spec": {
                "nodeName": "node", "hostname": "h", "tolerations": [{}], "affinity": {},
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
                "containers": [{"name": "slurmd", "image": "i", "env": [{"name": "A"}], "volumeMounts": [{"name": "v", "mountPath": "/"}],
                    "ports": [{"containerPort": 1}], "args": ["x"]}],
                "initContainers": [{"name": "logfile", "restartPolicy": "Always", "command": ["sh"]}],
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "slurmd", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                    "state": {"running": {}}, "volumeMounts": [{"name": "v", "mountPath": "/"}]}],
            },
        }))
        .unwrap();
        pod.trim();
        let kept: Value = serde_json::to_value(&pod).unwrap();
        insta::assert_yaml_snapshot!(kept, @r#"
        apiVersion: v1
        kind: Pod
        metadata:
          annotations:
            x: y
          labels:
            a: b
          name: p
        spec:
          containers:
            - image: i
              name: slurmd
              ports:
                - containerPort: 1
          hostname: h
          initContainers:
            - name: logfile
              restartPolicy: Always
          nodeName: node
          volumes:
            - name: v
              persistentVolumeClaim:
                claimName: c
        status:
          conditions:
            - status: "True"
              type: Ready
          containerStatuses:
            - image: i
              imageID: ""
              name: slurmd
              ready: true
              restartCount: 0
              state:
                running: {}
          phase: Running
          podIP: 10.0.0.1
        "#);
    }

    #[test]
    fn of_a_namespace_stays_whether_it_ends() {
        let mut namespace: Namespace = serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"a": "b"}, "annotations": {"a": "b"}, "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Terminating", "conditions": [{"type": "x", "status": "True"}]},
        }))
        .unwrap();
        namespace.trim();
        assert_eq!(
            serde_json::to_value(&namespace).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"},
                "status": {"phase": "Terminating"},
            })
        );
    }

    #[test]
    fn the_pods_that_are_watched_are_slurms() {
        assert_eq!(
            Pod::selectors().labels.as_deref(),
            Some("app.kubernetes.io/name in (slurmctld,slurmd,slurmrestd,slurmdbd,login)")
        );
    }

    #[test]
    fn of_revisions_only_those_of_node_sets_are_ours() {
        let revision = |api_version: &str| -> ControllerRevision {
            let owner = json!({"apiVersion": api_version, "kind": "K", "name": "n", "uid": "u"});
            serde_json::from_value(json!({
                "metadata": {"name": "r", "labels": {keys::labels::NAME: "slurmctld"}, "ownerReferences": [owner]}, "revision": 1,
            }))
            .unwrap()
        };
        assert!(revision("slinky.slurm.net/v1beta1").concerns_us());
        assert!(!revision("apps/v1").concerns_us());
    }
}
