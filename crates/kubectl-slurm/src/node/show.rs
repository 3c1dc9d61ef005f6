//! Everything about one node, as text. Pure.

use std::fmt::Write as _;

use api::{ConditionStatus, NodeSet, conditions};
use serde::Serialize;

use super::view::NodeView;
use crate::access::{NodeDetails, NodeJob};
use crate::output::Listed;

/// One node with all that is known about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeReport {
    #[serde(flatten)]
    pub(super) view: NodeView,
    /// What slurmctld reports; absent if it did not respond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) slurm: Option<SlurmReport>,
    /// Whether its Kubernetes node is cordoned; absent if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kubernetes_node_cordoned: Option<bool>,
    /// The reason of the pod's cordon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cordon_reason: Option<String>,
    /// What the operator waits for, or cannot do, about this node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) operator: Vec<String>,
}

/// What slurmctld reports on a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SlurmReport {
    pub(super) partitions: Vec<String>,
    pub(super) features: Vec<String>,
    pub(super) active_features: Vec<String>,
    pub(super) address: String,
    pub(super) reservation: String,
    pub(super) cpus: u64,
    pub(super) allocated_cpus: u64,
    #[serde(flatten)]
    pub(super) details: NodeDetails,
    pub(super) jobs: Vec<NodeJob>,
}

impl SlurmReport {
    pub(super) fn new(node: &slurm::Node, details: NodeDetails, jobs: Vec<NodeJob>) -> Self {
        Self {
            partitions: node.partitions.clone(),
            features: node.features.clone(),
            active_features: node.active_features.clone(),
            address: node.address.clone(),
            reservation: node.reservation.clone(),
            cpus: node.cpus,
            allocated_cpus: node.alloc_cpus,
            details,
            jobs,
        }
    }
}

impl Listed for NodeReport {
    fn object(&self) -> String {
        self.view.object()
    }
}

/// Returns the sentences of the NodeSet's conditions about this node.
pub(super) fn about_node(set: &NodeSet, view: &NodeView) -> Vec<String> {
    let conditions = set.status.iter().flat_map(|status| &status.conditions);
    let is_active = |type_: &str| [conditions::PROGRESSING, conditions::DEGRADED].contains(&type_);
    let active = conditions.filter(|one| one.status == ConditionStatus::True && is_active(&one.type_));
    let sentences = active.flat_map(|condition| condition.message.split(['\n', ';']));
    let is_about = |sentence: &&str| {
        let mut words = sentence.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        words.any(|word| word == view.name || word == view.pod)
    };
    let mut found: Vec<String> = Vec::new();
    for sentence in sentences.map(str::trim).filter(is_about) {
        if !found.iter().any(|known| known == sentence) {
            found.push(sentence.to_owned());
        }
    }
    found
}

pub(super) fn describe(report: &NodeReport) -> String {
    let view = &report.view;
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "{key:<17}{}", value.replace('\n', " "));
        }
    };
    line("Name:", &view.name);
    line("Cluster:", &format!("{} (namespace {})", view.cluster, view.namespace));
    line("NodeSet:", &view.node_set);
    line("State:", &view.state_cell().text);
    line("Why:", &view.reason);
    line("Since:", view.since.as_deref().unwrap_or_default());
    line("By:", &view.author());
    if let Some(slurm) = &report.slurm {
        let details = &slurm.details;
        line("Partitions:", &slurm.partitions.join(","));
        line("Features:", &features(slurm));
        line("Address:", &slurm.address);
        line(
            "CPUs:",
            &format!("{} of {} allocated", slurm.allocated_cpus, slurm.cpus),
        );
        line(
            "Memory:",
            &format!("{} of {} MiB allocated", details.alloc_memory, details.real_memory),
        );
        line("Gres:", &details.gres);
        line("Gres in use:", &details.gres_used);
        line("Reservation:", &slurm.reservation);
        line("slurmd version:", &details.version);
    }
    if !view.pod.is_empty() {
        let ready = if view.pod_ready { "ready" } else { "not ready" };
        line("Pod:", &format!("{} ({}, {ready})", view.pod, view.pod_phase));
        if view.cordoned {
            line("Pod cordoned:", report.cordon_reason.as_deref().unwrap_or("yes"));
        }
        line("Leaving:", view.leaving.as_deref().unwrap_or_default());
        let host = view
            .kubernetes_node
            .as_deref()
            .unwrap_or("none: the pod is not scheduled");
        let cordoned = if report.kubernetes_node_cordoned == Some(true) {
            " (cordoned)"
        } else {
            ""
        };
        line("Kubernetes node:", &format!("{host}{cordoned}"));
    }
    for sentence in &report.operator {
        line("Operator:", sentence);
    }
    match report.slurm.as_ref().map(|slurm| slurm.jobs.as_slice()) {
        None => line("Jobs:", "unknown"),
        Some([]) => line("Jobs:", "none"),
        Some(jobs) => {
            let _ = writeln!(text, "Jobs:");
            for NodeJob {
                id,
                user,
                state,
                elapsed,
                partition,
                name,
            } in jobs
            {
                let _ = writeln!(text, "  {id} {name} of {user}: {state} for {elapsed} in {partition}");
            }
        }
    }
    text
}

fn features(slurm: &SlurmReport) -> String {
    let all = slurm.features.join(",");
    if slurm.active_features == slurm.features {
        all
    } else {
        format!("{all} (active: {})", slurm.active_features.join(","))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view() -> NodeView {
        NodeView {
            namespace: "hpc".into(),
            cluster: "slurm".into(),
            name: "gpu-1".into(),
            pod: "slurm-gpu-1".into(),
            node_set: "slurm-gpu".into(),
            pod_phase: "Running".into(),
            pod_ready: true,
            kubernetes_node: Some("k1".into()),
            ..NodeView::default()
        }
    }

    #[test]
    fn all_facts_are_on_one_screen() {
        let at = json!({ "set": true, "number": 1_767_225_600 });
        let node: slurm::Node = serde_json::from_value(json!({
            "name": "gpu-1", "state": ["MIXED", "DRAIN"], "reason": "NHC: disk", "reason_changed_at": at,
            "reason_set_by_user": "root", "partitions": ["gpu", "all"], "features": ["gpu", "x"], "active_features": ["gpu"],
            "address": "10.0.0.7", "cpus": 8, "alloc_cpus": 2,
        }))
        .unwrap();
        let details = NodeDetails {
            real_memory: 1000,
            gres: "gpu:2".into(),
            version: "26.05.5".into(),
            ..NodeDetails::default()
        };
        let jobs = vec![NodeJob {
            id: "7".into(),
            user: "alice".into(),
            state: "RUNNING".into(),
            elapsed: "1:02".into(),
            partition: "gpu".into(),
            name: "train".into(),
        }];
        let report = NodeReport {
            view: view().with_live(&node),
            slurm: Some(SlurmReport::new(&node, details, jobs)),
            kubernetes_node_cordoned: Some(true),
            operator: vec!["node gpu-1 is drained and kept".into()],
            ..NodeReport::default()
        };
        assert_eq!(
            describe(&report),
            "\
Name:            gpu-1
Cluster:         slurm (namespace hpc)
NodeSet:         slurm-gpu
State:           MIXED+DRAIN
Why:             NHC: disk
Since:           2026-01-01T00:00:00Z
By:              Check (root)
Partitions:      gpu,all
Features:        gpu,x (active: gpu)
Address:         10.0.0.7
CPUs:            2 of 8 allocated
Memory:          0 of 1000 MiB allocated
Gres:            gpu:2
slurmd version:  26.05.5
Pod:             slurm-gpu-1 (Running, ready)
Kubernetes node: k1 (cordoned)
Operator:        node gpu-1 is drained and kept
Jobs:
  7 train of alice: RUNNING for 1:02 in gpu
"
        );
    }

    #[test]
    fn without_slurmctld_jobs_are_unknown_and_not_none() {
        let report = NodeReport {
            view: view(),
            ..NodeReport::default()
        };
        let text = describe(&report);
        assert!(
            text.contains("State:           ?\n") && text.ends_with("Jobs:            unknown\n"),
            "{text}"
        );
    }

    #[test]
    fn the_operators_sentences_about_this_node_are_found() {
        let condition = |type_: &str, status: &str, message: &str| json!({ "type": type_, "status": status, "reason": "R", "message": message, "lastTransitionTime": "" });
        let spec = serde_json::from_value(json!({ "controllerRef": { "name": "slurm" } })).unwrap();
        let mut set = NodeSet::new("slurm-gpu", spec);
        set.status = Some(
            serde_json::from_value(json!({ "conditions": [
                condition("Progressing", "True", "node gpu-1 is drained and kept: job 7 is there; node gpu-10 waits; and 3 more"),
                condition("Degraded", "True", "pod slurm-gpu-1: ImagePullBackOff\npod slurm-gpu-2: ImagePullBackOff"),
                condition("Ready", "False", "node gpu-1 is not ready"),
            ] }))
            .unwrap(),
        );
        assert_eq!(
            about_node(&set, &view()),
            [
                "node gpu-1 is drained and kept: job 7 is there",
                "pod slurm-gpu-1: ImagePullBackOff"
            ]
        );
    }
}
