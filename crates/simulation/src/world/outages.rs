//! Machines that lose their power, their network or their time, and pods that stop for a while.

use std::{sync::atomic::Ordering, time::Duration};

use serde_json::json;
use tokio::time::sleep;

use super::{
    World,
    kubelet::{Content, Pod},
    machine::Life,
    network::{ANY, LinkFault},
    objects::{name_of, text},
    time::elapsed,
};
use crate::slurm::HostId;

/// How often slurmctld and the workers are told which links there are. A new slurmctld opens its port later than this.
const SWEEP: Duration = Duration::from_millis(100);

/// slurmctld gives up a worker that it has not heard of for this time (`SlurmdTimeout`), and starts its jobs elsewhere.
const GIVEN_UP: Duration = Duration::from_mins(5);

/// Kubernetes misses a node after 40 s.
const MISSED: Duration = Duration::from_secs(50);

/// The taint by which a person declares that nothing runs on a node.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Which machine a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The one of slurmctld.
    Slurmctld,
    /// One that has a worker.
    Worker,
}

impl World {
    /// A machine that is well.
    pub(super) fn pick_node(&self, place: Place) -> Option<String> {
        let pods = self.pods.lock().unwrap();
        let is_wanted = |pod: &&Pod| match pod.content {
            Content::Slurmctld(_) => place == Place::Slurmctld,
            Content::Slurmd(_) => place == Place::Worker,
            _ => false,
        };
        let nodes = self.nodes.lock().unwrap();
        let wanted = pods.values().filter(is_wanted).map(|pod| pod.node.clone());
        let well: Vec<String> = wanted.filter(|node| nodes[node].lost.is_none()).collect();
        self.random.pick(&well).cloned()
    }

    /// A machine whose kubelet does not report.
    pub fn lost_node(&self) -> Option<String> {
        let nodes = self.nodes.lock().unwrap();
        let mut lost = nodes.iter().filter(|(_, node)| node.lost.is_some());
        lost.next().map(|(name, _)| name.clone())
    }

    /// The kubelet of a node stops or goes on to report.
    fn set_lost(&self, node: &str, is_lost: bool) {
        self.nodes.lock().unwrap().get_mut(node).unwrap().lost = is_lost.then(elapsed);
    }

    /// A machine loses its power, and what nobody synced; it comes back with its pods. A person may declare meanwhile that it is dead.
    pub(super) async fn lose_node(&self, place: Place, declared: bool, time: Duration) {
        let Some(node) = self.pick_node(place) else { return };
        self.tell(format!("node {node} loses its power"));
        self.set_lost(&node, true);
        let is_here = |pod: &Pod| pod.node == node;
        for pod in self.pods.lock().unwrap().values().filter(|pod| is_here(pod)) {
            self.kill_content(pod);
            self.lose_worker(&pod.name);
            if matches!(pod.content, Content::Slurmctld(_)) {
                self.state_disk().lose_unsynced();
            }
        }
        let patience = if declared { time.min(MISSED) } else { time };
        sleep(patience).await;
        if declared {
            self.tell(format!("a person declares {node} out of service"));
            self.taint(&node, OUT_OF_SERVICE, &["NoExecute"]);
        }
        sleep(time.saturating_sub(patience)).await;
        self.tell(format!("node {node} is back"));
        if declared {
            self.taint(&node, OUT_OF_SERVICE, &[]);
        }
        for pod in self.pods.lock().unwrap().values_mut().filter(|pod| is_here(pod)) {
            // Its sandbox is made again.
            pod.content = Content::Waiting(elapsed() + Duration::from_secs(3));
            pod.machine.life = Life::lasting();
            pod.machine.address = self.next_address();
            self.network.place(&pod.machine.address, &node);
        }
        self.set_lost(&node, false);
    }

    /// Kubelet and network of a machine are away, and its processes go on. A person may delete its pods by force meanwhile.
    pub(super) async fn cut_off(&self, place: Place, force: bool, time: Duration) {
        let Some(node) = self.pick_node(place) else { return };
        // A volume on another network stays.
        let has_volume = self.random.one_in(2);
        self.tell(format!(
            "node {node} is unreachable; its processes go on, with the state volume: {has_volume}"
        ));
        self.set_lost(&node, true);
        let links = self.network.set_faults(&node, ANY, LinkFault::Cut);
        self.sweep();
        if time >= GIVEN_UP {
            let severed = self.hosts_severed_by(&node);
            self.severed.lock().unwrap().extend(severed);
        }
        // Whoever touches a volume that is away hangs.
        let hanging =
            self.freeze_pods(|pod| !has_volume && pod.node == node && matches!(pod.content, Content::Slurmctld(_)));
        // Kubernetes misses the node after 40 s.
        let patience = Duration::from_secs(*self.random.pick(&[5, 50]).unwrap());
        let patience = if force { time.min(patience) } else { time };
        sleep(patience).await;
        if force {
            self.delete_by_force(&node);
        }
        sleep(time.saturating_sub(patience)).await;
        self.tell(format!("node {node} is reachable again"));
        self.network.lift(links);
        self.thaw_pods(&hanging);
        self.set_lost(&node, false);
    }

    fn delete_by_force(&self, node: &str) {
        let active = self.active();
        // The record in Slurm says where its worker runs, once the operator has seen that.
        let is_described = |name: &str| {
            let slurm = self.slurm();
            let state = active.and_then(|active| slurm.state(active).ok());
            state.is_some_and(|state| state.nodes.get(name).is_some_and(|node| !node.comment.is_empty()))
        };
        for pod in self.all("pods") {
            if text(&pod, "/spec/nodeName") == node && pod.pointer("/metadata/ownerReferences").is_some() {
                self.tell(format!("a person deletes {} by force", name_of(&pod)));
                self.lose_worker(&name_of(&pod));
                if !is_described(&name_of(&pod)) {
                    self.untraceable.lock().unwrap().insert(name_of(&pod));
                }
                self.delete("pods", &name_of(&pod), &json!({ "gracePeriodSeconds": 0 }));
            }
        }
    }

    /// Workers that do not reach slurmctld while a node is cut off.
    fn hosts_severed_by(&self, node: &str) -> Vec<HostId> {
        let pods = self.pods.lock().unwrap();
        let at = pods.values().find(|pod| matches!(pod.content, Content::Slurmctld(_)));
        let has_slurmctld = at.is_some_and(|pod| pod.node == node);
        let hosts = pods.values().filter(|pod| (pod.node == node) != has_slurmctld);
        hosts
            .filter_map(|pod| match pod.content {
                Content::Slurmd(host) => Some(host),
                _ => None,
            })
            .collect()
    }

    /// A machine stops and goes on, as a virtual one that is moved.
    pub(super) async fn freeze_node(&self, place: Place, time: Duration) {
        let Some(node) = self.pick_node(place) else { return };
        self.tell(format!("node {node} stops"));
        self.set_lost(&node, true);
        let links = self.network.set_faults(&node, ANY, LinkFault::Freeze);
        if time >= GIVEN_UP {
            let severed = self.hosts_severed_by(&node);
            self.severed.lock().unwrap().extend(severed);
        }
        let frozen = self.freeze_pods(|pod| pod.node == node);
        sleep(time).await;
        self.tell(format!("node {node} goes on"));
        self.thaw_pods(&frozen);
        self.network.lift(links);
        self.set_lost(&node, false);
    }

    /// All processes of a pod stop and go on.
    pub(super) async fn freeze_pod(&self, place: Place, time: Duration) {
        let name = {
            let pods = self.pods.lock().unwrap();
            let is_wanted = |pod: &&Pod| match pod.content {
                Content::Slurmctld(_) => place == Place::Slurmctld,
                Content::Slurmd(_) => place == Place::Worker,
                _ => false,
            };
            let names: Vec<String> = pods.values().filter(is_wanted).map(|pod| pod.name.clone()).collect();
            self.random.pick(&names).cloned()
        };
        let Some(name) = name else { return };
        self.tell(format!("all processes of {name} stop"));
        let frozen = self.freeze_pods(|pod| pod.name == name);
        sleep(time).await;
        self.tell(format!("all processes of {name} go on"));
        self.thaw_pods(&frozen);
    }

    fn freeze_pods(&self, is_one: impl Fn(&Pod) -> bool) -> Vec<Frozen> {
        let pods = self.pods.lock().unwrap();
        let one = pods.values().filter(|pod| is_one(pod));
        let frozen = one.filter_map(|pod| match &pod.content {
            Content::Slurmctld(slurmctld) => Some(Frozen::Slurmctld(slurmctld.clone())),
            Content::Slurmd(host) => Some(Frozen::Slurmd(*host)),
            _ => None,
        });
        let frozen: Vec<Frozen> = frozen.collect();
        for pod in &frozen {
            match pod {
                Frozen::Slurmctld(slurmctld) => slurmctld.freeze(true),
                Frozen::Slurmd(host) => self.slurm().freeze_host(*host),
            }
        }
        frozen
    }

    fn thaw_pods(&self, frozen: &[Frozen]) {
        for pod in frozen {
            match pod {
                Frozen::Slurmctld(slurmctld) => slurmctld.freeze(false),
                Frozen::Slurmd(host) => self.slurm().thaw_host(*host),
            }
        }
    }

    /// Keeps the model of Slurm true to the network until all its links are good.
    pub(super) fn sweep(&self) {
        if self.sweeping.swap(true, Ordering::Relaxed) {
            return;
        }
        let world = self.clone();
        tokio::spawn(async move {
            while world.network.has_faults() {
                world.apply_links();
                sleep(SWEEP).await;
            }
            world.sweeping.store(false, Ordering::Relaxed);
            world.apply_links();
        });
        self.apply_links();
    }

    fn apply_links(&self) {
        let pods = self.pods.lock().unwrap();
        let mut slurm = self.slurm();
        for at in pods.values() {
            let Content::Slurmctld(slurmctld) = &at.content else {
                continue;
            };
            let Some(id) = slurmctld.daemon() else { continue };
            for worker in pods.values() {
                if let Content::Slurmd(host) = worker.content {
                    let loses = || self.network.loses(&at.node, &worker.node) && self.random.one_in(2);
                    slurm.set_cut(id, host, self.network.is_cut(&at.node, &worker.node) || loses());
                }
            }
        }
    }
}

/// What stopped.
enum Frozen {
    Slurmctld(super::ControllerPod),
    Slurmd(HostId),
}
