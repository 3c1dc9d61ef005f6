//! Evictions: `kubectl drain`, taints of nodes that nobody hears of, and kubelets that are short of memory.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    World,
    kubelet::Content,
    objects::{at, name_of, text, uid_of},
    time::{elapsed, rfc3339},
};

/// The toleration that every pod gets by default (`DefaultTolerationSeconds`).
pub(super) const TOLERATED: Duration = Duration::from_mins(5);

/// `kubectl drain` tries a refused eviction again after this time.
const AGAIN: Duration = Duration::from_secs(5);

/// The taint of a node whose kubelet is missed.
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The taint of a node that is short of memory.
const PRESSURE: &str = "node.kubernetes.io/memory-pressure";

impl World {
    /// `kubectl drain`, by a person who gives up after a time and takes the cordon back.
    pub(super) async fn drain_node(&self, node: &str, time: Duration) {
        self.tell(format!("a person runs kubectl drain {node}"));
        self.disturb();
        self.patch("nodes", node, &json!({ "spec": { "unschedulable": true } }));
        let end = elapsed() + time;
        while elapsed() < end {
            if self.evict_all(node) && self.pods_on(node).is_empty() {
                self.tell(format!("{node} is drained"));
                break;
            }
            sleep(AGAIN).await;
        }
        sleep(end.saturating_sub(elapsed())).await;
        self.tell(format!("a person runs kubectl uncordon {node}"));
        self.disturb();
        self.patch("nodes", node, &json!({ "spec": { "unschedulable": false } }));
    }

    /// Evicts the pods of a node. Returns whether the API server accepts that of all.
    pub fn evict_all(&self, node: &str) -> bool {
        let mut all = true;
        for pod in self.pods_on(node) {
            if pod.pointer("/metadata/deletionTimestamp").is_none() {
                all &= self.evict(&pod);
            }
        }
        all
    }

    /// The pods of a node that somebody would make again. `kubectl drain` refuses others.
    fn pods_on(&self, node: &str) -> Vec<Arc<Value>> {
        let mut pods = self.all("pods");
        pods.retain(|pod| text(pod, "/spec/nodeName") == node && pod.pointer("/metadata/ownerReferences").is_some());
        pods
    }

    /// Creates an Eviction of a pod. Returns whether the API server accepts it, or 429.
    fn evict(&self, pod: &Value) -> bool {
        let (name, phase) = (name_of(pod), text(pod, "/status/phase"));
        let has_begun = !matches!(phase.as_str(), "Pending" | "Succeeded" | "Failed");
        let budgets = self.all("poddisruptionbudgets");
        let mut of_pod = budgets.iter().filter(|budget| selects(budget, pod));
        if let Some(budget) = of_pod.next().filter(|_| has_begun) {
            let allowed = self.disruptions_allowed(budget);
            if allowed.is_none_or(|allowed| allowed < 1) {
                self.tell(format!("429: {} protects {name} from eviction", name_of(budget)));
                return false;
            }
        }
        self.tell(format!("{name} is evicted"));
        // The operator lets go only workers without jobs.
        self.access
            .note_deleted_pod("an eviction that no budget forbids", &name);
        self.mark_disrupted(&name, "EvictionByEvictionAPI");
        self.lose_worker(&name);
        self.delete("pods", &name, &json!({}));
        true
    }

    /// What the disruption controller computes. `None` if the budget has a form that nobody here uses.
    fn disruptions_allowed(&self, budget: &Value) -> Option<i64> {
        let wanted = budget.pointer("/spec/minAvailable").and_then(Value::as_i64)?;
        let is_healthy = |pod: &&Arc<Value>| {
            is_ready(pod) && pod.pointer("/metadata/deletionTimestamp").is_none() && selects(budget, pod)
        };
        let healthy = self.all("pods").iter().filter(is_healthy).count();
        Some(i64::try_from(healthy).unwrap() - wanted)
    }

    fn mark_disrupted(&self, pod: &str, reason: &str) {
        let Ok(object) = self.get("pods", pod) else { return };
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        let mut conditions = conditions.cloned().unwrap_or_default();
        conditions.push(
            json!({ "type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": rfc3339() }),
        );
        self.set_status("pods", pod, &json!({ "conditions": conditions }));
    }

    /// Adds and removes a taint of a node.
    pub(super) fn taint(&self, node: &str, key: &str, effects: &[&str]) {
        let Ok(object) = self.get("nodes", node) else { return };
        let taints = object.pointer("/spec/taints").and_then(Value::as_array);
        let mut taints = taints.cloned().unwrap_or_default();
        taints.retain(|taint| taint["key"] != key);
        taints.extend(
            effects
                .iter()
                .map(|effect| json!({ "key": key, "effect": effect, "timeAdded": rfc3339() })),
        );
        let _ = self.edit(|store| store.merge(&at("nodes", node), &json!({ "spec": { "taints": taints } }), "kcm"));
    }

    /// The taint eviction controller, for a node whose kubelet has been missed for longer than pods tolerate. No budget counts.
    pub(super) fn evict_by_taint(&self, node: &str) {
        for pod in self.pods_on(node) {
            let is_ending = pod.pointer("/metadata/deletionTimestamp").is_some();
            if !is_ending && !tolerates_for_ever(&pod) {
                self.tell(format!("the taint of {node} evicts {}", name_of(&pod)));
                self.mark_disrupted(&name_of(&pod), "DeletionByTaintManager");
                self.lose_worker(&name_of(&pod));
                self.delete("pods", &name_of(&pod), &json!({}));
            }
        }
    }

    /// A kubelet is short of memory: it ends a pod at once, without a hook, and takes no new ones for a time.
    pub(super) async fn evict_by_pressure(&self, only_workers: bool, time: Duration) {
        let uids: Vec<String> = {
            let (pods, nodes) = (self.pods.lock().unwrap(), self.nodes.lock().unwrap());
            let runs = |content: &Content| match content {
                Content::Slurmctld(_) => !only_workers,
                Content::Slurmd(_) => true,
                _ => false,
            };
            let here = pods
                .iter()
                .filter(|(_, pod)| runs(&pod.content) && nodes[&pod.node].lost.is_none());
            here.map(|(uid, _)| uid.clone()).collect()
        };
        let known: BTreeSet<String> = self.all("pods").iter().map(|pod| uid_of(pod)).collect();
        let uids: Vec<String> = uids.into_iter().filter(|uid| known.contains(uid)).collect();
        let Some(uid) = self.random.pick(&uids) else { return };
        let (name, node) = {
            let mut pods = self.pods.lock().unwrap();
            let pod = pods.get_mut(uid).unwrap();
            self.kill_content(pod);
            pod.content = Content::Ended;
            (pod.name.clone(), pod.node.clone())
        };
        self.tell(format!("{node} is short of memory: its kubelet evicts {name}"));
        self.lose_worker(&name);
        self.taint(&node, PRESSURE, &["NoSchedule"]);
        self.report_eviction(&name);
        sleep(time).await;
        self.taint(&node, PRESSURE, &[]);
    }
}

/// Whether the selector of a budget selects a pod.
fn selects(budget: &Value, pod: &Value) -> bool {
    let wanted = budget.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
    let labels = &pod["metadata"]["labels"];
    wanted.is_some_and(|wanted| wanted.iter().all(|(key, value)| labels[key] == *value))
}

pub(super) fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// A toleration without a time, for everything or for unreachable nodes.
fn tolerates_for_ever(pod: &Value) -> bool {
    let tolerations = pod.pointer("/spec/tolerations").and_then(Value::as_array);
    tolerations.into_iter().flatten().any(|toleration| {
        let key = toleration["key"].as_str().unwrap_or_default();
        (key.is_empty() || key == UNREACHABLE) && toleration.get("tolerationSeconds").is_none()
    })
}
