//! The programs of the control plane, all in the machine's own namespaces.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use crate::kubernetes::Binaries;
use crate::network::{API_PORT, CONTROL_PLANE, SERVICES};
use crate::paths::{self, Layout};
use crate::rights;

/// A program with its arguments. They are the same at every start, so that a fault can stop it and start it again.
#[derive(Clone, Debug)]
pub struct Component {
    pub name: &'static str,
    pub program: String,
    pub arguments: Vec<String>,
}

pub const PLACE: &str = "control-plane";
pub const ETCD: &str = "etcd";
pub const API_SERVER: &str = "kube-apiserver";

/// Writes the configuration and returns the components in their start order.
pub fn components(layout: &Layout, binaries: &Binaries) -> Result<Vec<Component>> {
    let kubernetes = binaries.path("kubernetes");
    let part = |name: &'static str, arguments: Vec<String>| Component {
        name,
        program: kubernetes.clone(),
        arguments: std::iter::once(name.to_owned()).chain(arguments).collect(),
    };
    Ok(vec![
        part(ETCD, etcd(layout)),
        part(API_SERVER, api_server(layout)?),
        part("kube-controller-manager", controller_manager(&layout.pki())),
        part("kube-scheduler", scheduler(&layout.pki())),
        part("coredns", coredns(layout)?),
        Component {
            name: "volumes",
            program: crate::own_binary()?,
            arguments: volumes(layout),
        },
    ])
}

fn etcd(layout: &Layout) -> Vec<String> {
    flags(&[
        ("data-dir", layout.etcd().display().to_string()),
        ("unsafe-no-fsync", "true".to_owned()),
    ])
}

fn api_server(layout: &Layout) -> Result<Vec<String>> {
    let audit_policy = layout.config(PLACE).join("audit-policy.json");
    paths::write(&audit_policy, rights::policy().to_string())?;
    let pki = layout.pki();
    let file = |name: &str| pki.join(name).display().to_string();
    Ok(flags(&[
        ("etcd-servers", "http://127.0.0.1:2379".to_owned()),
        ("secure-port", API_PORT.to_string()),
        ("advertise-address", CONTROL_PLANE.to_owned()),
        ("service-cluster-ip-range", SERVICES.to_owned()),
        ("client-ca-file", file("ca.crt")),
        ("tls-cert-file", file("apiserver.crt")),
        ("tls-private-key-file", file("apiserver.key")),
        ("service-account-key-file", file("sa.pub")),
        ("service-account-signing-key-file", file("sa.key")),
        (
            "service-account-issuer",
            "https://kubernetes.default.svc.cluster.local".to_owned(),
        ),
        ("kubelet-client-certificate", file("kubelet-client.crt")),
        ("kubelet-client-key", file("kubelet-client.key")),
        ("kubelet-preferred-address-types", "InternalIP".to_owned()),
        ("requestheader-client-ca-file", file("ca.crt")),
        ("requestheader-allowed-names", "front-proxy-client".to_owned()),
        ("requestheader-username-headers", "X-Remote-User".to_owned()),
        ("requestheader-group-headers", "X-Remote-Group".to_owned()),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".to_owned()),
        ("proxy-client-cert-file", file("front-proxy-client.crt")),
        ("proxy-client-key-file", file("front-proxy-client.key")),
        // Webhooks and aggregated APIs are called at their pods' addresses: no kube-proxy runs in the machine.
        ("enable-aggregator-routing", "true".to_owned()),
        ("authorization-mode", "Node,RBAC".to_owned()),
        ("enable-admission-plugins", "NodeRestriction".to_owned()),
        ("allow-privileged", "true".to_owned()),
        ("audit-policy-file", audit_policy.display().to_string()),
        ("audit-log-path", layout.audit_log().display().to_string()),
        // A whole suite fits into a few such files.
        ("audit-log-maxsize", "100".to_owned()),
        ("audit-log-maxbackup", "5".to_owned()),
    ]))
}

fn controller_manager(pki: &Path) -> Vec<String> {
    let file = |name: &str| pki.join(name).display().to_string();
    let mut arguments = own_kubeconfig(pki, "kube-controller-manager");
    arguments.extend(flags(&[
        ("service-account-private-key-file", file("sa.key")),
        ("root-ca-file", file("ca.crt")),
        ("cluster-signing-cert-file", file("ca.crt")),
        ("cluster-signing-key-file", file("ca.key")),
        ("use-service-account-credentials", "true".to_owned()),
        // Half of the default 50 s, because tests kill nodes. Leases are renewed every 5 s (see node.rs).
        ("node-monitor-grace-period", "25s".to_owned()),
        ("node-monitor-period", "2s".to_owned()),
        ("horizontal-pod-autoscaler-sync-period", "2s".to_owned()),
        ("kube-api-qps", "300".to_owned()),
        ("kube-api-burst", "600".to_owned()),
    ]));
    arguments
}

fn scheduler(pki: &Path) -> Vec<String> {
    let mut arguments = own_kubeconfig(pki, "kube-scheduler");
    arguments.extend(flags(&[
        ("kube-api-qps", "300".to_owned()),
        ("kube-api-burst", "600".to_owned()),
    ]));
    arguments
}

fn own_kubeconfig(pki: &Path, user: &str) -> Vec<String> {
    let kubeconfig = pki.join(format!("{user}.kubeconfig")).display().to_string();
    flags(&[
        ("kubeconfig", kubeconfig.clone()),
        ("authentication-kubeconfig", kubeconfig.clone()),
        ("authorization-kubeconfig", kubeconfig),
        ("bind-address", "127.0.0.1".to_owned()),
        ("leader-elect", "false".to_owned()),
    ])
}

fn coredns(layout: &Layout) -> Result<Vec<String>> {
    let corefile = layout.config(PLACE).join("Corefile");
    let kubeconfig = layout.pki().join("admin.kubeconfig");
    // Names outside the cluster do not exist. Without the second block CoreDNS would refuse the query, which resolvers
    // take for a temporary failure and retry: Slurm waits ten seconds for each such name.
    let text = format!(
        "cluster.local:53 in-addr.arpa:53 {{
    bind {CONTROL_PLANE}
    errors
    cache 5
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {} testbed
        pods insecure
        ttl 5
    }}
}}
.:53 {{
    bind {CONTROL_PLANE}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
",
        kubeconfig.display()
    );
    paths::write(&corefile, text)?;
    Ok(vec!["-conf".to_owned(), corefile.display().to_string()])
}

fn volumes(layout: &Layout) -> Vec<String> {
    let kubeconfig = layout.pki().join("admin.kubeconfig").display().to_string();
    vec![
        "provision-volumes".to_owned(),
        kubeconfig,
        layout.volumes().display().to_string(),
    ]
}

pub const KWOK: &str = "kwok";

/// kwok simulates the kubelet of every node with its annotation.
pub fn kwok(layout: &Layout, binaries: &Binaries) -> Result<Component> {
    let stages = layout.config(PLACE).join("kwok.yaml");
    paths::write(&stages, include_str!("kwok.yaml"))?;
    let arguments = flags(&[
        (
            "kubeconfig",
            layout.pki().join("admin.kubeconfig").display().to_string(),
        ),
        ("config", stages.display().to_string()),
        ("manage-all-nodes", "false".to_owned()),
        (
            "manage-nodes-with-annotation-selector",
            "kwok.x-k8s.io/node=fake".to_owned(),
        ),
        ("node-lease-duration-seconds", "40".to_owned()),
        ("cidr", "10.245.0.0/16".to_owned()),
    ]);
    Ok(Component {
        name: KWOK,
        program: binaries.path("kwok"),
        arguments,
    })
}

/// Manifests of simulated nodes. A pod must tolerate their taint.
pub fn fake_nodes(count: u32) -> serde_json::Value {
    let node = |index: u32| {
        let name = format!("fake-{index:05}");
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {"kwok.x-k8s.io/node": "fake"},
                "labels": {
                    "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                    "type": "kwok",
                },
            },
            "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "250"},
                "capacity": {"cpu": "64", "memory": "256Gi", "pods": "250"},
            },
        })
    };
    json!({"apiVersion": "v1", "kind": "List", "items": (0..count).map(node).collect::<Vec<_>>()})
}

/// Objects of every new cluster: its StorageClasses.
pub fn first_objects() -> serde_json::Value {
    let class = |name: &str, default: bool| {
        json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": name,
                "annotations": {"storageclass.kubernetes.io/is-default-class": default.to_string()},
            },
            "provisioner": crate::volumes::PROVISIONER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "Immediate",
        })
    };
    json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            class(crate::volumes::STANDARD, true),
            class(crate::volumes::LIMITED, false),
            class(crate::volumes::FREEZABLE, false),
        ],
    })
}

fn flags(pairs: &[(&str, String)]) -> Vec<String> {
    pairs.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}
