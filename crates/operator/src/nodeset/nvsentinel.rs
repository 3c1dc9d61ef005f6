//! What NVSentinel, a health monitor by NVIDIA, relies on, replayed with its rules (its ADR-029 and its drain plugin for Slinky). It
//! cordons a Kubernetes node with an annotation, waits until the conditions of the worker pods there show that their Slurm nodes
//! are drained, and then deletes the pods. A drain by someone else is a health event for it.

use serde_json::{Value, json};

use super::{
    fixture::{begun, controller, host, nodeset, observed, slurm_key, worker},
    mirror::{MirrorMemory, PodChange, mirror},
    plan::{Effect, plan},
};
use crate::cluster::{Knowledge, NodeOrder, Seen};

/// The reason that NVSentinel gives.
const ITS_REASON: &str = "[T] [NVSentinel] 79 PCI:0002:00:00 - SysLogsXIDError";

/// A Kubernetes node with a worker, and its node in Slurm.
struct World {
    host: Value,
    state: Vec<&'static str>,
    reason: String,
    pod: Value,
}

impl World {
    fn new(state: &'static str) -> Self {
        Self {
            host: host("k1"),
            state: vec![state, "DYNAMIC_NORM"],
            reason: String::new(),
            pod: worker(0),
        }
    }

    fn cordon(&mut self, reason: Option<&str>) {
        self.host["spec"] = json!({ "unschedulable": true });
        if let Some(reason) = reason {
            self.host["metadata"]["annotations"] = json!({ "nodeset.slinky.slurm.net/node-cordon-reason": reason });
        }
        self.settle();
    }

    fn uncordon(&mut self) {
        self.host["spec"] = json!({});
        self.settle();
    }

    fn set_condition(&mut self, status: &str) {
        let condition =
            json!({ "type": "GpuMemWatch", "status": status, "lastTransitionTime": "2026-01-01T00:50:00Z" });
        let conditions = self.host["status"]["conditions"].as_array_mut().unwrap();
        conditions.truncate(1);
        conditions.push(condition);
        self.settle();
    }

    fn drain_by_hand(&mut self, reason: &str) {
        self.state.push("DRAIN");
        reason.clone_into(&mut self.reason);
        self.settle();
    }

    /// Executes the orders of the plan, and shows the state on the pod.
    fn settle(&mut self) {
        for _ in 0..3 {
            let nodes = json!([{ "name": "compute-0", "state": self.state, "reason": self.reason }]);
            let seen = Seen::of_nodes(serde_json::from_value(nodes).unwrap(), super::fixture::now());
            let knowledge = begun(Knowledge::Known(seen.into()), "2026-01-01T00:10:00Z");
            let spec = json!({ "replicas": 1, "health": { "drainOn": [{ "condition": "GpuMemWatch" }] } });
            let objects = vec![
                controller(),
                slurm_key(),
                nodeset(&spec),
                self.host.clone(),
                self.pod.clone(),
            ];
            let observed = observed(objects, knowledge);
            for (_, change) in mirror(&observed, &MirrorMemory::default()).pod_writes {
                if let PodChange::Conditions(conditions) = change {
                    let list = self.pod["status"]["conditions"].as_array_mut().unwrap();
                    list.truncate(1);
                    list.extend(
                        conditions
                            .iter()
                            .map(|condition| serde_json::to_value(condition).unwrap()),
                    );
                }
            }
            for effect in plan(&observed).effects {
                if let Effect::OrderNode { order, .. } = effect {
                    self.obey(&order.order);
                }
            }
        }
    }

    fn obey(&mut self, order: &NodeOrder) {
        self.state.retain(|flag| *flag != "DRAIN");
        self.reason.clear();
        if let NodeOrder::Drain { reason } = order {
            self.state.push("DRAIN");
            let reason = reason.as_ref().map(|reason| reason.as_str().to_owned());
            self.reason = reason.unwrap_or_default();
            // The record of it on the pod.
            self.pod["metadata"]["annotations"] = json!({ "nodeset.slinky.slurm.net/drain-reason": self.reason });
        } else {
            assert_eq!(*order, NodeOrder::Undrain);
        }
    }

    fn has(&self, name: &str) -> bool {
        let conditions = self.pod["status"]["conditions"].as_array().unwrap();
        let mut conditions = conditions.iter();
        conditions.any(|one| one["type"] == format!("SlurmNodeState{name}") && one["status"] == "True")
    }

    /// The rule by which NVSentinel deletes pods.
    fn may_be_deleted(&self) -> bool {
        let is_busy = self.has("Allocated") || self.has("Mixed") || self.has("Completing");
        self.has("Drain") && !self.has("Undrain") && !is_busy
    }

    /// The rule by which NVSentinel takes a drain for one by someone else: the reason, without the operator's prefix.
    fn health_event(&self) -> Option<&str> {
        let conditions = self.pod["status"]["conditions"].as_array().unwrap();
        let drain = conditions
            .iter()
            .find(|one| one["type"] == "SlurmNodeStateDrain" && one["status"] == "True")?;
        let message = drain["message"].as_str()?;
        (!message.is_empty() && !message.starts_with("slurm-operator:")).then_some(message)
    }
}

#[test]
fn its_cordon_drains_with_its_reason_and_pods_go_after_their_jobs() {
    let mut world = World::new("MIXED");
    world.cordon(None);
    assert!(
        world.reason.starts_with("slurm-operator: Node (k1) was cordoned"),
        "{}",
        world.reason
    );
    // The annotation follows the cordon.
    world.cordon(Some(ITS_REASON));
    assert_eq!(world.reason, format!("slurm-operator: {ITS_REASON}"));
    assert_eq!((world.may_be_deleted(), world.health_event()), (false, None));
    world.state[0] = "IDLE";
    world.settle();
    assert_eq!((world.may_be_deleted(), world.health_event()), (true, None));
    world.uncordon();
    assert_eq!((world.reason.as_str(), world.may_be_deleted()), ("", false));
    assert!(!world.has("Drain"));
}

#[test]
fn a_drain_by_someone_else_is_an_event_whatever_it_cordons_afterwards() {
    let mut world = World::new("IDLE");
    world.drain_by_hand("[HC] GPU ECC");
    assert_eq!(world.health_event(), Some("[HC] GPU ECC"));
    // For such an event it sets no annotation.
    world.cordon(None);
    assert_eq!(
        (world.health_event(), world.may_be_deleted()),
        (Some("[HC] GPU ECC"), true)
    );
    world.uncordon();
    assert_eq!(world.health_event(), Some("[HC] GPU ECC"));
}

#[test]
fn a_drain_for_a_condition_is_not_by_someone_else() {
    let mut world = World::new("IDLE");
    world.set_condition("True");
    assert_eq!(world.reason, "slurm-operator: Node (k1) has condition GpuMemWatch=True");
    assert_eq!((world.health_event(), world.may_be_deleted()), (None, true));
    // Its own cordon goes first, and the condition goes on after it.
    world.cordon(Some(ITS_REASON));
    assert_eq!(world.reason, format!("slurm-operator: {ITS_REASON}"));
    world.uncordon();
    assert!(world.has("Drain"));
    world.set_condition("False");
    assert!(!world.has("Drain"));
}
