//! The kinds that the operator watches, each with the rules of its cache. This is the only list of them.
//!
//! A field that is trimmed here is empty for every reader: to read one more, do not trim it.

use api::{Accounting, Controller, GROUP, LoginSet, NodeSet, Partition, RestApi, Token, crds::SCHEMA_REVISION, keys};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, Deployment, StatefulSet},
    core::v1::{ConfigMap, Container, ContainerStatus, Namespace, Node, PersistentVolumeClaim, Pod, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{Resource, runtime::watcher::Config};
use runtime::{Cache, Definition, Object, Registry, Rules, in_group};

use crate::service_monitor::ServiceMonitor;

macro_rules! kinds {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $rules:expr,)+) => {
        /// The caches of all kinds. A clone shares them.
        #[derive(Debug, Clone)]
        pub struct Caches {
            $($(#[$doc])* pub $field: Cache<$type>,)+
            registry: Registry,
        }

        impl Default for Caches {
            fn default() -> Self {
                $(let $field = Cache::new($rules);)+
                let registry = Registry::default()$(.with($field.clone()))+;
                Self { $($field,)+ registry }
            }
        }
    };
}

kinds! {
    controllers: Controller = own(),
    node_sets: NodeSet = own(),
    login_sets: LoginSet = own(),
    rest_apis: RestApi = own(),
    accountings: Accounting = own(),
    tokens: Token = own(),
    partitions: Partition = own(),
    /// Only pods of Slurm's daemons, since a cluster has many others.
    pods: Pod = Rules {
        requested: Config::default().labels(&pod_labels()),
        trim: trim_pod,
        ..Rules::default()
    },
    /// Only ours.
    services: Service = ours(),
    /// Without the certificates that every namespace has a copy of. With content only ours and those that are referred to.
    config_maps: ConfigMap = Rules {
        requested: Config::default().fields("metadata.name!=kube-root-ca.crt,metadata.name!=openshift-service-ca.crt"),
        on_demand_unless: Some(is_ours),
        ..Rules::default()
    },
    /// Without Helm's releases, which hold whole charts, and without the tokens of service accounts. With content only ours
    /// and those that are referred to.
    secrets: Secret = Rules {
        requested: Config::default().fields("type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token"),
        on_demand_unless: Some(is_ours),
        ..Rules::default()
    },
    /// Only ours.
    stateful_sets: StatefulSet = ours(),
    /// Only ours.
    deployments: Deployment = ours(),
    /// Only those of NodeSets. Those of StatefulSets carry the same labels.
    revisions: ControllerRevision = Rules {
        is_relevant: has_owner_of_ours,
        ..Rules::default()
    },
    claims: PersistentVolumeClaim = Rules::default(),
    /// Only ours.
    budgets: PodDisruptionBudget = ours(),
    nodes: Node = Rules {
        trim: trim_node,
        ..Rules::default()
    },
    /// Only whether they are being deleted.
    namespaces: Namespace = Rules {
        trim: trim_namespace,
        ..Rules::default()
    },
    /// Only ours, and none while the cluster does not have the kind.
    service_monitors: ServiceMonitor = Rules {
        definition: Definition::Foreign,
        ..ours()
    },
}

impl Caches {
    /// Caches for tests that hold these objects, each a manifest with apiVersion and kind.
    #[allow(clippy::panic, reason = "an unusable manifest in a test must not pass unnoticed")]
    pub fn of(objects: Vec<serde_json::Value>) -> Self {
        let caches = Self::default();
        for object in objects {
            if let Err(error) = caches.registry.insert(&object) {
                panic!("{error:#}");
            }
        }
        caches
    }

    /// The same caches by type.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Whether this namespace is being deleted, and everything in it.
    pub fn is_ending(&self, namespace: &str) -> bool {
        let found = self.namespaces.get("", namespace);
        found.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some())
    }
}

/// The rules of our own kinds.
fn own<K>() -> Rules<K> {
    Rules {
        definition: Definition::Own {
            annotation: keys::annotations::SCHEMA_REVISION,
            revision: SCHEMA_REVISION,
        },
        ..Rules::default()
    }
}

/// The rules of kinds of which only our own children are cached.
fn ours<K: Object>() -> Rules<K> {
    Rules {
        is_relevant: is_ours,
        ..Rules::default()
    }
}

fn is_ours(object: &impl Resource) -> bool {
    has_owner_of_ours(object) || has_label_of_ours(object)
}

/// The labels of pods of Slurm's daemons.
fn pod_labels() -> String {
    format!("{} in ({})", keys::labels::NAME, APPS.join(","))
}

fn trim_pod(pod: &mut Pod) {
    if let Some(spec) = &mut pod.spec {
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
    if let Some(status) = &mut pod.status {
        let own = status.container_statuses.iter_mut().flatten();
        for container in own.chain(status.init_container_statuses.iter_mut().flatten()) {
            trim_container_status(container);
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

fn trim_node(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.images = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
        status.config = None;
        status.features = None;
        status.runtime_handlers = None;
        status.daemon_endpoints = None;
    }
}

fn trim_namespace(namespace: &mut Namespace) {
    namespace.metadata.labels = None;
    namespace.metadata.annotations = None;
    namespace.spec = None;
    if let Some(status) = &mut namespace.status {
        status.conditions = None;
    }
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

/// The daemons' names: the values of `app.kubernetes.io/name` on all their objects.
const APPS: [&str; 5] = [
    keys::apps::SLURMCTLD,
    keys::apps::SLURMD,
    keys::apps::SLURMRESTD,
    keys::apps::SLURMDBD,
    keys::apps::LOGIN,
];

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use serde_json::{Value, json};

    use super::*;

    /// The object as its cache holds it.
    fn cached<K: Object>(cache: &Cache<K>, object: Value) -> Value {
        cache.insert(serde_json::from_value(object).unwrap());
        serde_json::to_value(cache.all().remove(0).as_ref()).unwrap()
    }

    #[test]
    fn a_cached_pod_holds_what_the_kinds_read() {
        let pod = json!({
            "metadata": {
                "name": "p", "labels": {"a": "b"},
                "annotations": {"x": "y", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
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
        });
        let kept = cached(&Caches::default().pods, pod);
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
    fn a_cached_namespace_holds_whether_it_ends() {
        let namespace = json!({
            "metadata": {"name": "n", "labels": {"a": "b"}, "annotations": {"a": "b"}, "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Terminating", "conditions": [{"type": "x", "status": "True"}]},
        });
        assert_eq!(
            cached(&Caches::default().namespaces, namespace),
            json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"},
                "status": {"phase": "Terminating"},
            })
        );
    }

    #[test]
    fn only_pods_of_slurms_daemons_are_watched() {
        assert_eq!(
            pod_labels(),
            "app.kubernetes.io/name in (slurmctld,slurmd,slurmrestd,slurmdbd,login)"
        );
    }

    #[test]
    fn only_revisions_of_node_sets_are_ours() {
        let revision = |api_version: &str| -> ControllerRevision {
            let owner = json!({"apiVersion": api_version, "kind": "K", "name": "n", "uid": "u"});
            serde_json::from_value(json!({
                "metadata": {"name": "r", "labels": {keys::labels::NAME: "slurmctld"}, "ownerReferences": [owner]}, "revision": 1,
            }))
            .unwrap()
        };
        let revisions = Caches::default().revisions;
        revisions.insert(revision("apps/v1"));
        assert!(revisions.all().is_empty());
        revisions.insert(revision("slinky.slurm.net/v1beta1"));
        assert_eq!(revisions.all().len(), 1);
    }

    #[test]
    fn a_foreign_service_is_not_cached_and_one_that_becomes_foreign_is_removed() {
        let caches = Caches::default();
        let service = |app: &str| {
            serde_json::from_value(
                json!({"metadata": {"namespace": "n", "name": "a", "labels": {"app.kubernetes.io/name": app}}}),
            )
            .unwrap()
        };
        caches.services.insert(service("nginx"));
        assert!(caches.services.all().is_empty());
        caches.services.insert(service("slurmctld"));
        assert_eq!(caches.services.all().len(), 1);
        caches.services.insert(service("nginx"));
        assert!(caches.services.all().is_empty());
    }

    #[test]
    fn every_kind_of_ours_has_a_definition_that_is_followed() {
        let mut expected: Vec<String> = api::crds().iter().map(ResourceExt::name_any).collect();
        expected.push("servicemonitors.monitoring.coreos.com".to_owned());
        expected.sort();
        let followed: Vec<String> = Caches::default().registry.definitions().into_keys().collect();
        assert_eq!(followed, expected);
    }
}
