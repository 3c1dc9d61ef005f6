//! The owner of a Slurm node: its pod, NodeSet and Kubernetes node. It is in the comment of the node, as upstream writes
//! it, and outlives the pod.

use api::{keys, node_reason::LEAVING};
use serde::{Deserialize, Serialize};
use slurm::revision::Digest;

/// The owner of a Slurm node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Identity {
    pub namespace: String,
    pub pod_name: String,
    /// The Kubernetes node.
    pub node: String,
    // Upstream's releases up to 1.1 do not write the last two.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_set_name: String,
    #[serde(rename = "nodeSetUID", skip_serializing_if = "String::is_empty")]
    pub node_set_uid: String,
    /// Digest of the settings of a record that the operator created, for autoscaling.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub settings: String,
}

impl Identity {
    /// Parses the comment of a node. `None` if the comment is a user's.
    pub fn parse(comment: &str) -> Option<Self> {
        let identity: Self = serde_json::from_str(comment).ok()?;
        (!identity.namespace.is_empty() && !identity.pod_name.is_empty()).then_some(identity)
    }

    /// Parses the operator's reason for draining a worker that leaves, as far as it says whose node that is. A slurmctld that is
    /// killed may remember the drain and neither the comment, nor that the record was deleted.
    pub fn of_leaving(reason: &str) -> Option<Self> {
        let words = reason.strip_prefix(keys::NODE_REASON_PREFIX)?.strip_prefix("Pod (")?;
        let (pod, _) = words.split_once(LEAVING)?;
        let (namespace, pod_name) = pod.split_once('/')?;
        Some(Self {
            namespace: namespace.to_owned(),
            pod_name: pod_name.to_owned(),
            ..Self::default()
        })
    }

    /// Returns a short digest of a record's settings.
    pub fn digest_of(settings: &str) -> String {
        let digest = Digest::of(settings.as_bytes()).to_string();
        digest.chars().take(10).collect()
    }

    /// Returns the comment with upstream's order of fields.
    pub fn to_comment(&self) -> String {
        // Serializing strings does not fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_comments_are_parsed_and_others_are_ignored() {
        let comment =
            r#"{"namespace":"slurm","podName":"compute-0","node":"k1","nodeSetName":"compute","nodeSetUID":"u"}"#;
        let identity = Identity::parse(comment).unwrap();
        assert_eq!((identity.node.as_str(), identity.node_set_uid.as_str()), ("k1", "u"));
        assert_eq!(identity.to_comment(), comment);
        let old = r#"{"namespace":"slurm","podName":"compute-0","node":"k1"}"#;
        assert_eq!(Identity::parse(old).unwrap().node_set_uid, "");
        assert_eq!(Identity::parse(old).unwrap().to_comment(), old);
        for comment in ["", "broken fan", "{}", "[]", "7", r#"{"node":"k1"}"#] {
            assert_eq!(Identity::parse(comment), None, "{comment}");
        }
    }
}
