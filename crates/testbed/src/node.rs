//! A node: namespaces with containerd, the kubelet and kube-proxy.

use anyhow::Result;
use serde_json::json;

use crate::cgroups;
use crate::containerd;
use crate::control_plane::Component;
use crate::kubernetes::Binaries;
use crate::network::{self, CONTROL_PLANE, PODS};
use crate::paths::{self, Layout};

pub const CONTAINERD: &str = "containerd";
pub const KUBELET: &str = "kubelet";
pub const KUBE_PROXY: &str = "kube-proxy";

pub fn name(index: u8) -> String {
    format!("node{index}")
}

/// Writes the node's configuration and returns its components in the order they are started.
pub fn components(layout: &Layout, binaries: &Binaries, index: u8) -> Result<Vec<Component>> {
    let node = name(index);
    let config = layout.config(&node);
    let kubernetes = binaries.path("kubernetes");
    let file = |name: &str, content: String| -> Result<String> {
        let path = config.join(name);
        paths::write(&path, content)?;
        Ok(path.display().to_string())
    };
    file("cni/10-bridge.conflist", cni(index).to_string())?;
    let kubeconfig = |user: &str| layout.pki().join(format!("{user}.kubeconfig")).display().to_string();
    Ok(vec![
        Component {
            name: CONTAINERD,
            program: "containerd".to_owned(),
            arguments: vec![
                "--config".to_owned(),
                file("containerd.toml", containerd_config(layout, &node))?,
            ],
        },
        Component {
            name: KUBELET,
            program: kubernetes.clone(),
            arguments: vec![
                KUBELET.to_owned(),
                format!("--config={}", file("kubelet.json", kubelet(layout, index).to_string())?),
                format!("--kubeconfig={}", kubeconfig(&node)),
                format!("--hostname-override={node}"),
                format!("--node-ip={}", network::node_address(index)),
                "--root-dir=/var/lib/kubelet".to_owned(),
                "--cert-dir=/var/lib/kubelet/pki".to_owned(),
            ],
        },
        Component {
            name: KUBE_PROXY,
            program: kubernetes,
            arguments: vec![
                KUBE_PROXY.to_owned(),
                format!(
                    "--config={}",
                    file(
                        "kube-proxy.json",
                        kube_proxy(&kubeconfig("kube-proxy"), index).to_string()
                    )?
                ),
            ],
        },
    ])
}

fn containerd_config(layout: &Layout, node: &str) -> String {
    containerd::config(containerd::ROOT).replace(
        containerd::CNI_CONFIG,
        &layout.config(node).join("cni").display().to_string(),
    )
}

fn cni(index: u8) -> serde_json::Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "testbed",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "ipMasq": false,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni/ipam",
                    "ranges": [[{"subnet": network::pod_network(index)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

fn kubelet(layout: &Layout, index: u8) -> serde_json::Value {
    let node = name(index);
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups::root(&layout.cluster, &node),
        "containerRuntimeEndpoint": format!("unix://{}", containerd::SOCKET),
        "address": network::node_address(index),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": layout.pki().join("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDomain": "cluster.local",
        "clusterDNS": [CONTROL_PLANE],
        // An empty file: pods do not get the resolver of the host.
        "resolvConf": "/dev/null",
        "failSwapOn": false,
        // The disk is that of the host. A full disk should fail a test, not evict its pods.
        "evictionHard": {
            "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": false,
        "maxPods": 110,
        "nodeLeaseDurationSeconds": 20,
        "oomScoreAdj": 0,
        "podLogsDir": "/var/log/pods",
        "serializeImagePulls": false,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    })
}

fn kube_proxy(kubeconfig: &str, index: u8) -> serde_json::Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": kubeconfig},
        "clusterCIDR": PODS,
        "hostnameOverride": name(index),
        "bindAddress": network::node_address(index),
        "metricsBindAddress": "127.0.0.1:10249",
        // Zero leaves those sysctls alone: they cannot be written in a network namespace.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"},
    })
}
