//! containerd on a node: its configuration, and importing images.

use std::path::Path;

use anyhow::Result;

use crate::command;
use crate::namespaces::Namespaces;

pub const SOCKET: &str = "/run/containerd/containerd.sock";
pub const PAUSE_IMAGE: &str = "localhost/pause:1";
/// Directory of a node's images and containers, below the node's own /var/lib.
pub const ROOT: &str = "/var/lib/containerd";
pub const CNI_CONFIG: &str = "/run/cni/net.d";

/// Configuration for Debian 12's containerd 1.6 (format 2).
pub fn config(root: &str) -> String {
    format!(
        r#"version = 2
root = "{root}"
state = "/run/containerd"
[grpc]
  address = "{SOCKET}"
# The default would be a folder in the host's /opt.
[plugins."io.containerd.internal.v1.opt"]
  path = "/run/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  disable_apparmor = true
  # Root here may lack CAP_SYS_RESOURCE and cannot lower oom_score_adj as the kubelet asks.
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{CNI_CONFIG}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"#
    )
}

/// Loads every image of an OCI archive into the containerd of `place`.
pub fn import(place: Namespaces, archive: &Path) -> Result<()> {
    let mut import = place.command("ctr");
    import
        .args([
            "--address",
            SOCKET,
            "--namespace",
            "k8s.io",
            "images",
            "import",
            "--digests=false",
        ])
        .arg(archive);
    command::output(&mut import).map(drop)
}

pub fn answers(place: Namespaces) -> bool {
    command::output(place.command("ctr").args(["--address", SOCKET, "version"])).is_ok()
}
