//! The view of a worker in Kubernetes and Slurm. Pure.

use api::keys::{self, annotations, labels};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::output::{Cell, Listed, Table, Tone};

/// Base states, of which a node has one.
const BASE: [&str; 7] = ["IDLE", "MIXED", "ALLOCATED", "DOWN", "ERROR", "FUTURE", "UNKNOWN"];

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeView {
    pub(crate) namespace: String,
    pub(crate) cluster: String,
    /// Slurm's name.
    pub(crate) name: String,
    pub(crate) pod: String,
    pub(crate) node_set: String,
    /// The state in Slurm, such as `IDLE+DRAIN`; absent while Slurm does not know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<String>,
    /// Slurm's reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    pub(crate) pod_phase: String,
    pub(crate) pod_ready: bool,
    /// Whether the pod is cordoned.
    pub(crate) cordoned: bool,
    /// Why it is to be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) leaving: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kubernetes_node: Option<String>,
}

impl Listed for NodeView {
    fn object(&self) -> String {
        format!("pod/{}", self.pod)
    }
}

pub(crate) fn view_nodes(pods: &[Pod]) -> Vec<NodeView> {
    let mut views: Vec<NodeView> = pods.iter().map(view_node).collect();
    views.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    views
}

pub(crate) fn view_node(pod: &Pod) -> NodeView {
    let label = |key: &str| pod.labels().get(key).cloned();
    let note = |key: &str| pod.annotations().get(key);
    let status = pod.status.as_ref();
    let conditions = status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let holding = || conditions.iter().filter(|condition| condition.status == "True");
    let slurms = || {
        holding().filter_map(|condition| Some((condition.type_.strip_prefix(keys::POD_CONDITION_PREFIX)?, condition)))
    };
    let mut words: Vec<String> = slurms().map(|(name, _)| name.to_ascii_uppercase()).collect();
    words.sort_by_key(|word| (!BASE.contains(&word.as_str()), word.clone()));
    let cordoned = [annotations::POD_CORDON, annotations::POD_CORDON_OLD];
    NodeView {
        namespace: pod.namespace().unwrap_or_default(),
        cluster: label(labels::CLUSTER).unwrap_or_default(),
        name: label(labels::POD_HOSTNAME).unwrap_or_else(|| pod.name_any()),
        pod: pod.name_any(),
        node_set: label(labels::INSTANCE).unwrap_or_default(),
        state: (!words.is_empty()).then(|| words.join("+")),
        reason: slurms()
            .find_map(|(_, condition)| condition.message.clone())
            .unwrap_or_default(),
        pod_phase: status.and_then(|status| status.phase.clone()).unwrap_or_default(),
        pod_ready: holding().any(|condition| condition.type_ == "Ready"),
        cordoned: cordoned.iter().any(|key| note(key).is_some_and(|on| on == keys::ON)),
        leaving: note(annotations::LEAVING).cloned(),
        kubernetes_node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
    }
}

impl NodeView {
    pub(crate) fn is_drained(&self) -> bool {
        self.has("DRAIN")
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.state.iter().any(|state| state.split('+').any(|one| one == word))
    }

    /// Whether the operator drained it, and will lift the drain.
    pub(crate) fn is_drained_by_operator(&self) -> bool {
        self.is_drained() && self.reason.starts_with(keys::NODE_REASON_PREFIX)
    }

    fn state_cell(&self) -> Cell {
        let Some(state) = &self.state else {
            return Cell::toned("?", Tone::Doubtful);
        };
        let tone = if self.has("DOWN") || self.has("ERROR") {
            Tone::Bad
        } else if state.contains('+') {
            Tone::Doubtful
        } else {
            Tone::Good
        };
        Cell::toned(state.as_str(), tone)
    }
}

pub(crate) fn node_table(views: &[NodeView], all_namespaces: bool) -> Table {
    const COLUMNS: [&str; 7] = ["NAMESPACE", "NODE", "NODESET", "STATE", "POD", "READY", "REASON"];
    let shown = usize::from(!all_namespaces);
    let mut table = Table::new(
        COLUMNS.get(shown..).unwrap_or_default(),
        &["CLUSTER", "KUBERNETES-NODE", "PHASE", "CORDONED", "LEAVING"],
    );
    for view in views {
        let mut cells: Vec<Cell> = vec![
            view.namespace.as_str().into(),
            view.name.as_str().into(),
            view.node_set.as_str().into(),
            view.state_cell(),
            view.pod.as_str().into(),
            Cell::ready(view.pod_ready, Tone::Doubtful),
            view.reason.as_str().into(),
            view.cluster.as_str().into(),
            view.kubernetes_node.as_deref().unwrap_or_default().into(),
            view.pod_phase.as_str().into(),
            if view.cordoned { "yes" } else { "no" }.into(),
            view.leaving.as_deref().unwrap_or_default().into(),
        ];
        cells.drain(..shown);
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, conditions: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "hpc", "annotations": { annotations::POD_CORDON: "true" },
                "labels": { labels::CLUSTER: "slurm", labels::INSTANCE: "compute", labels::POD_HOSTNAME: format!("n-{name}") },
            },
            "spec": { "nodeName": "node1", "containers": [] },
            "status": { "phase": "Running", "conditions": conditions },
        }))
        .unwrap()
    }

    #[test]
    fn the_state_in_slurm_and_the_pod_are_in_one_table() {
        let conditions = json!([
            { "type": "Ready", "status": "True" },
            { "type": "SlurmNodeStateDrain", "status": "True", "message": "disk" },
            { "type": "SlurmNodeStateIdle", "status": "True", "message": "disk" },
            { "type": "SlurmNodeStateDown", "status": "False" },
        ]);
        let views = view_nodes(&[pod("b", &json!([])), pod("a", &conditions)]);
        assert_eq!(
            node_table(&views, false).render(false, false),
            "NODE   NODESET   STATE        POD   READY   REASON\n\
             n-a    compute   IDLE+DRAIN   a     True    disk\n\
             n-b    compute   ?            b     False   -\n"
        );
        assert!(
            node_table(&views, true)
                .render(true, false)
                .starts_with("NAMESPACE   NODE")
        );
        assert!(views[0].is_drained() && views[0].cordoned && !views[0].is_drained_by_operator());
        assert!(!views[1].is_drained());
    }
}
