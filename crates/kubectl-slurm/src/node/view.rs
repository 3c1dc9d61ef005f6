//! The view of a worker in Kubernetes and Slurm. Pure.

use api::{
    keys::{self, annotations, labels},
    node_reason::{SetBy, author},
};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::ResourceExt as _;
use serde::Serialize;
use slurm::NodeState;

use crate::output::{Cell, Listed, Table, Tone};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeView {
    pub(crate) namespace: String,
    pub(crate) cluster: String,
    /// Slurm's name.
    pub(crate) name: String,
    /// Empty for a node that is not a pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) pod: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) node_set: String,
    /// The state in Slurm, such as `IDLE+DRAIN`; absent while Slurm does not know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<String>,
    /// Slurm's reason, or what is wrong with the pod if Slurm does not know the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    /// When the reason was set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    /// Who took it out of service; absent for a node in service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<SetBy>,
    /// The user in Slurm who did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
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

/// Returns the view of a pod with what the operator reported on it.
pub(crate) fn view_node(pod: &Pod) -> NodeView {
    let label = |key: &str| pod.labels().get(key).cloned();
    let note = |key: &str| pod.annotations().get(key);
    let status = pod.status.as_ref();
    let conditions = conditions(pod);
    let holding = || conditions.iter().filter(|condition| condition.status == "True");
    let slurms: Vec<(String, &PodCondition)> = holding()
        .filter_map(|condition| {
            let word = condition.type_.strip_prefix(keys::POD_CONDITION_PREFIX)?;
            Some((slurm_word(word), condition))
        })
        .collect();
    let state = NodeState::of_names(slurms.iter().map(|(word, _)| word));
    let message = slurms.iter().find_map(|(_, condition)| condition.message.clone());
    // The condition has the time at which the operator saw it.
    let since = slurms.iter().filter(|(word, _)| WHY_OUT.contains(&word.as_str()));
    let since = since.filter_map(|(_, condition)| condition.last_transition_time.as_ref());
    let cordoned = [annotations::POD_CORDON, annotations::POD_CORDON_OLD];
    let view = NodeView {
        namespace: pod.namespace().unwrap_or_default(),
        cluster: label(labels::CLUSTER).unwrap_or_default(),
        name: label(labels::POD_HOSTNAME).unwrap_or_else(|| pod.name_any()),
        pod: pod.name_any(),
        node_set: label(labels::INSTANCE).unwrap_or_default(),
        pod_phase: status.and_then(|status| status.phase.clone()).unwrap_or_default(),
        pod_ready: holding().any(|condition| condition.type_ == "Ready"),
        cordoned: cordoned.iter().any(|key| note(key).is_some_and(|on| on == keys::ON)),
        leaving: note(annotations::LEAVING).cloned(),
        kubernetes_node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        ..NodeView::default()
    };
    if slurms.is_empty() {
        return NodeView {
            reason: pod_problem(pod, view.pod_ready),
            ..view
        };
    }
    let since = since.map(|time| time.0.to_string()).min();
    view.in_slurm(&state, &message.unwrap_or_default(), since, "")
}

/// The words of states by which a node is out of service.
const WHY_OUT: [&str; 6] = ["DRAIN", "DOWN", "FAIL", "ERROR", "NOT_RESPONDING", "INVALID_REG"];

/// Converts `NotResponding`, as in the type of a condition, to Slurm's `NOT_RESPONDING`.
fn slurm_word(word: &str) -> String {
    let mut out = String::new();
    for c in word.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
    }
    out
}

fn conditions(pod: &Pod) -> &[PodCondition] {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default()
}

/// Returns why a pod is not a node of Slurm yet.
fn pod_problem(pod: &Pod, is_ready: bool) -> String {
    if pod.metadata.deletion_timestamp.is_some() {
        return "the pod is terminating".to_owned();
    }
    let scheduled = conditions(pod)
        .iter()
        .find(|condition| condition.type_ == "PodScheduled");
    if let Some(why) = scheduled.filter(|condition| condition.status == "False") {
        return format!(
            "the pod is not scheduled: {}",
            why.message.as_deref().unwrap_or_default()
        );
    }
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_deref());
    let main = status.and_then(|status| status.container_statuses.as_deref());
    let containers = init.unwrap_or_default().iter().chain(main.unwrap_or_default());
    let mut waiting = containers.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        let is_usual = ["PodInitializing", "ContainerCreating"].contains(&reason);
        let message = waiting.message.as_deref().unwrap_or_default();
        (!is_usual).then(|| format!("container {}: {reason} {message}", container.name))
    });
    match waiting.next() {
        Some(why) => why.trim_end().to_owned(),
        None if is_ready => "the pod is ready, and Slurm does not know it or does not respond".to_owned(),
        None => "the pod is starting".to_owned(),
    }
}

impl NodeView {
    /// Returns the view of a node that is not a pod.
    pub(crate) fn without_pod(namespace: &str, cluster: &str, node: &slurm::Node) -> Self {
        let view = Self {
            namespace: namespace.to_owned(),
            cluster: cluster.to_owned(),
            name: node.name.clone(),
            ..Self::default()
        };
        view.with_live(node)
    }

    /// Returns the view with what slurmctld itself reports.
    pub(crate) fn with_live(self, node: &slurm::Node) -> Self {
        let since = i64::try_from(node.admin_state().reason_since)
            .ok()
            .filter(|since| *since > 0);
        let since = since.and_then(|since| jiff::Timestamp::from_second(since).ok());
        let since = since.map(|since| since.to_string());
        self.in_slurm(&node.state, &node.reason, since, &node.reason_set_by_user)
    }

    fn in_slurm(self, state: &NodeState, reason: &str, since: Option<String>, user: &str) -> Self {
        let is_out = state.is_out_of_service();
        Self {
            state: Some(state.summary()),
            reason: reason.to_owned(),
            since: since.filter(|_| is_out || !reason.is_empty()),
            by: is_out.then(|| SetBy::of_node(reason, state.is_drain())),
            user: author(reason, user).filter(|_| is_out).map(str::to_owned),
            ..self
        }
    }

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

    /// Who took it out of service, for people.
    pub(crate) fn author(&self) -> String {
        match (&self.by, &self.user) {
            (Some(by), Some(user)) => format!("{by} ({user})"),
            (Some(by), None) => by.to_string(),
            (None, _) => String::new(),
        }
    }

    pub(crate) fn state_cell(&self) -> Cell {
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
    const COLUMNS: [&str; 9] = [
        "NAMESPACE",
        "NODE",
        "NODESET",
        "STATE",
        "POD",
        "READY",
        "WHY",
        "SINCE",
        "BY",
    ];
    let shown = usize::from(!all_namespaces);
    let mut table = Table::new(
        COLUMNS.get(shown..).unwrap_or_default(),
        &["CLUSTER", "KUBERNETES-NODE", "PHASE", "CORDONED", "LEAVING"],
    );
    for view in views {
        let ready = if view.pod.is_empty() {
            Cell::default()
        } else {
            Cell::ready(view.pod_ready, Tone::Doubtful)
        };
        let mut cells: Vec<Cell> = vec![
            view.namespace.as_str().into(),
            view.name.as_str().into(),
            view.node_set.as_str().into(),
            view.state_cell(),
            view.pod.as_str().into(),
            ready,
            view.reason.as_str().into(),
            view.since.as_deref().unwrap_or_default().into(),
            view.author().into(),
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
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, status: Value) -> Pod {
        let mut status = status;
        status["phase"] = "Running".into();
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "hpc", "annotations": { annotations::POD_CORDON: "true" },
                "labels": { labels::CLUSTER: "slurm", labels::INSTANCE: "compute", labels::POD_HOSTNAME: format!("n-{name}") },
            },
            "spec": { "nodeName": "node1", "containers": [] },
            "status": status,
        }))
        .unwrap()
    }

    fn drained() -> Pod {
        let at = "2026-11-18T15:00:00Z";
        pod(
            "a",
            json!({ "conditions": [
                { "type": "Ready", "status": "True" },
                { "type": "SlurmNodeStateDrain", "status": "True", "message": "disk", "lastTransitionTime": at },
                { "type": "SlurmNodeStateIdle", "status": "True", "message": "disk" },
                { "type": "SlurmNodeStateDown", "status": "False" },
            ] }),
        )
    }

    fn live(reason: &str) -> slurm::Node {
        let at = json!({ "set": true, "infinite": false, "number": 1_767_225_600 });
        serde_json::from_value(json!({
            "name": "n-a", "state": ["MIXED", "DRAIN", "DYNAMIC_NORM"], "reason": reason, "reason_changed_at": at,
            "reason_set_by_user": "root",
        }))
        .unwrap()
    }

    #[test]
    fn the_state_in_slurm_and_the_pod_are_in_one_table() {
        let views = view_nodes(&[pod("b", json!({})), drained()]);
        assert_eq!(
            node_table(&views, false).render(false, false),
            "NODE   NODESET   STATE        POD   READY   WHY                   SINCE                  BY\n\
             n-a    compute   IDLE+DRAIN   a     True    disk                  2026-11-18T15:00:00Z   Person\n\
             n-b    compute   ?            b     False   the pod is starting   -                      -\n"
        );
        assert!(
            node_table(&views, true)
                .render(true, false)
                .starts_with("NAMESPACE   NODE")
        );
        assert!(views[0].is_drained() && views[0].cordoned && !views[0].is_drained_by_operator());
        assert!(!views[1].is_drained());
    }

    #[test]
    fn slurmctld_knows_better_than_the_pod() {
        let view = view_node(&drained()).with_live(&live("broken fan"));
        assert_eq!(view.state.as_deref(), Some("MIXED+DRAIN"));
        assert_eq!(view.since.as_deref(), Some("2026-01-01T00:00:00Z"));
        assert_eq!(view.author(), "Person (root)");
        assert_eq!(
            view_node(&drained()).with_live(&live("Kill task failed")).author(),
            "Slurm"
        );
        let in_service: slurm::Node = serde_json::from_value(json!({ "name": "n-a", "state": ["IDLE"] })).unwrap();
        let view = view_node(&drained()).with_live(&in_service);
        assert_eq!(
            (view.reason.as_str(), view.since.as_deref(), view.author().as_str()),
            ("", None, "")
        );
    }

    #[test]
    fn a_node_that_is_not_a_pod_is_shown_too() {
        let view = NodeView::without_pod("hpc", "slurm", &live("broken fan"));
        assert_eq!(
            node_table(&[view], false).render(false, false),
            "NODE   NODESET   STATE         POD   READY   WHY          SINCE                  BY\n\
             n-a    -         MIXED+DRAIN   -     -       broken fan   2026-01-01T00:00:00Z   Person (root)\n"
        );
    }

    #[test]
    fn a_pod_that_slurm_does_not_know_has_its_problem() {
        for (status, expected) in [
            (
                json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" }] }),
                "the pod is not scheduled: 0/3 nodes are available",
            ),
            (
                json!({ "containerStatuses": [{ "name": "slurmd", "ready": false, "image": "", "imageID": "", "restartCount": 0,
                    "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } } }] }),
                "container slurmd: ImagePullBackOff no such image",
            ),
            (
                json!({ "conditions": [{ "type": "Ready", "status": "True" }] }),
                "the pod is ready, and Slurm does not know it or does not respond",
            ),
        ] {
            assert_eq!(view_node(&pod("a", status)).reason, expected);
        }
    }

    #[test]
    fn conditions_have_slurms_words() {
        for (type_, word) in [
            ("Idle", "IDLE"),
            ("NotResponding", "NOT_RESPONDING"),
            ("InvalidReg", "INVALID_REG"),
        ] {
            assert_eq!(slurm_word(type_), word);
        }
    }
}
