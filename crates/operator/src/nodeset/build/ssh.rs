//! sshd_config of workers with SSH.

use api::{NodeSet, wellknown};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::worker_labels;
use crate::template::metadata::owner;

/// Renders the file as upstream does: its digest is on every pod.
pub fn render_sshd_config(extra: &str) -> String {
    [
        "#",
        "### GENERAL ###",
        "Include /etc/ssh/sshd_config.d/*.conf",
        "UsePAM yes",
        "Subsystem sftp internal-sftp",
        "AuthenticationMethods publickey password",
        "#",
        "### EXTRA CONFIG ###",
        extra,
        "",
    ]
    .join("\n")
}

/// Builds the ConfigMap with sshd_config.
pub fn build_ssh_config_map(nodeset: &NodeSet, sshd_config: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "namespace": nodeset.namespace(),
            "name": nodeset.child_names().ssh_config_map(),
            "labels": worker_labels(nodeset),
            "ownerReferences": [owner(nodeset)],
        },
        "immutable": false,
        "data": { (wellknown::SSHD_CONFIG_FILE): sshd_config },
    })
}
