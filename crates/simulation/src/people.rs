//! What people do in a history.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use slurm::node::NodeFlag;

use crate::{
    coverage::Effect,
    history::{History, Topic},
    oracles::{self, LEAVING},
    script,
    slurm::{
        NodeOrder, NodeUpdate, PartitionUpdate, Request, State, Submission,
        state::{Job, JobPhase},
    },
    world::{BAD_LINES, NAMESPACE},
};

/// Reasons that people write.
pub(crate) const REASONS: [&str; 2] = ["disk check", "broken fan"];

/// The reason of people who let go a worker that they resumed while it was to leave.
const MAY_LEAVE: &str = "may leave";

/// The states by which people close a partition.
const CLOSED: [&str; 3] = ["DOWN", "DRAIN", "INACTIVE"];

impl History {
    /// A person does something.
    pub(crate) fn act(&mut self) {
        // What the history is about happens in half of the cases.
        let acts: std::ops::Range<u64> = match self.topic {
            Topic::Configuration => 16..21,
            Topic::Workers | Topic::Forgotten => 0..13,
            Topic::Everything | Topic::Leaders | Topic::Situations | Topic::Pairs => 0..28,
        };
        let acts = if self.random.one_in(2) { acts } else { 0..28 };
        match self.random.between(acts.start, acts.end - 1) {
            0 | 1 => self.scale_to(self.random.below(5)),
            2..=8 => self.submit(),
            9 => self.update(),
            11 | 12 => self.suspend(),
            13 => self.drain(),
            14 => self.resume(),
            15 => self.resume_one_of_ours(),
            16 => self.configure(),
            17 | 18 => self.partition(),
            19 => self.node_set(),
            20 | 21 => self.close_partition(),
            22 => self.down(),
            23 => self.write_reason(),
            24 => self.hold(),
            25 => self.release(),
            26 => self.end_job(),
            _ => self.cordon(),
        }
        self.judge.orders.note_objects(&self.world);
    }

    /// A person does what brings an effect about, where that is possible.
    pub(crate) fn provoke(&mut self, effect: Effect) {
        match effect {
            Effect::WorkerStarts | Effect::ScaleOut => self.scale_to(4),
            Effect::WorkerDrained | Effect::ProofAsked | Effect::ScaleIn | Effect::WorkerEnds => self.scale_to(1),
            Effect::Update => self.update(),
            Effect::Delivery | Effect::DryRun | Effect::Reconfigure => self.configure(),
            Effect::PartitionChanges => self.partition(),
            Effect::ObjectEnds => self.node_set(),
            Effect::JobStarts | Effect::JobRuns | Effect::JobCompletes => self.submit(),
            Effect::OrderStands => self.drain(),
            Effect::SlurmctldStarts | Effect::LeaderChanges => {}
        }
        self.judge.orders.note_objects(&self.world);
    }

    fn scale_to(&self, replicas: u64) {
        let sets = self.world.names("nodesets");
        if let Some(set) = self.random.pick(&sets) {
            self.scale(set, replicas);
        }
    }

    pub(crate) fn scale(&self, set: &str, replicas: u64) {
        self.world.tell(format!("a person scales {set} to {replicas}"));
        self.world
            .patch("nodesets", set, &json!({ "spec": { "replicas": replicas } }));
    }

    pub(crate) fn submit(&self) {
        // A backlog of whole nodes: each free one gets a job at once.
        let is_backlog = self.random.one_in(3);
        let (jobs, nodes, longest) = if is_backlog {
            (6, 1, 40)
        } else {
            (1, self.random.between(1, 3), 150)
        };
        let partitions = self.shown(|state| state.partitions.keys().cloned().collect());
        for _ in 0..jobs {
            let work = Duration::from_secs(self.random.between(1, longest));
            let other = self.random.pick(&partitions).filter(|_| nodes == 1);
            let partition = other.map_or("compute", String::as_str);
            let mut job = Submission::new(partition, work);
            job.nodes = usize::try_from(nodes).unwrap();
            job.exclusive = is_backlog;
            if self.random.one_in(5) {
                let of_partition = |node: &crate::slurm::state::Node| node.name.starts_with(&format!("{partition}-"));
                let names: Vec<String> = (0..2).filter_map(|_| self.pick_node(of_partition)).collect();
                job = job.on(names.iter().map(String::as_str));
            }
            let required = job.required.clone();
            let id = script::submit(&self.world, job);
            self.world.tell(format!(
                "a person submits job {id:?} to {partition} on {nodes} nodes for {work:?}, by name {required:?}"
            ));
        }
    }

    /// Suspends a job, or lets it go on.
    fn suspend(&self) {
        let is_suspended = |job: &Job| job.phase == JobPhase::Suspended;
        let Some(job) = self.pick_job(|job| is_suspended(job) || job.phase == JobPhase::Running) else {
            return;
        };
        self.set_suspended(&job, !is_suspended(&job));
    }

    fn set_suspended(&self, job: &Job, suspended: bool) -> bool {
        let request = if suspended {
            Request::Suspend(job.id)
        } else {
            Request::Continue(job.id)
        };
        let done = self.world.order(request.clone());
        self.world.tell(format!("a person orders {request:?}: {done:?}"));
        done.is_ok()
    }

    pub(crate) fn update(&mut self) {
        self.images += 1;
        let image = format!("slurmd:{}", self.images);
        self.world.tell(format!("a person updates compute to {image}"));
        self.world.patch(
            "nodesets",
            "compute",
            &json!({ "spec": { "slurmd": { "image": image } } }),
        );
    }

    fn cordon(&self) {
        let nodes = self.world.names("nodes");
        let Some(node) = self.random.pick(&nodes) else { return };
        let before = self.world.get("nodes", node).unwrap_or_default()["spec"]["unschedulable"] == true;
        self.world
            .tell(format!("a person sets cordon of {node} to {}", !before));
        self.world
            .patch("nodes", node, &json!({ "spec": { "unschedulable": !before } }));
    }

    /// What a slurmctld that answers shows.
    pub(crate) fn shown<T>(&self, read: impl FnOnce(&State) -> Vec<T>) -> Vec<T> {
        let slurm = self.world.slurm();
        let state = self.world.active().and_then(|active| slurm.state(active).ok());
        state.map(read).unwrap_or_default()
    }

    fn pick_node(&self, suits: impl Fn(&crate::slurm::state::Node) -> bool) -> Option<String> {
        let suitable = |state: &State| {
            let nodes = state.nodes.values().filter(|node| suits(node));
            nodes.map(|node| node.name.clone()).collect()
        };
        self.random.pick(&self.shown(suitable)).cloned()
    }

    fn pick_job(&self, suits: impl Fn(&Job) -> bool) -> Option<Job> {
        let suitable = |state: &State| state.jobs.values().filter(|job| suits(job)).cloned().collect();
        self.random.pick(&self.shown(suitable)).cloned()
    }

    /// Orders a state of a node, or writes its reason alone. Returns whether slurmctld did it.
    pub(crate) fn order(&self, node: &str, state: Option<NodeOrder>, reason: Option<&str>) -> bool {
        let update = NodeUpdate {
            state,
            reason: reason.map(str::to_owned),
            ..NodeUpdate::default()
        };
        let done = self.world.order(Request::UpdateNode {
            node: node.to_owned(),
            update,
        });
        self.world
            .tell(format!("a person orders {state:?} of {node} for {reason:?}: {done:?}"));
        done.is_ok()
    }

    fn drain(&mut self) {
        if let Some(name) = self.pick_node(|_| true) {
            self.drain_node(&name);
        }
    }

    pub(crate) fn drain_node(&mut self, name: &str) {
        let reason = *self.random.pick(&REASONS).unwrap();
        if self.order(name, Some(NodeOrder::Drain), Some(reason)) {
            self.judge.orders.drain(&self.world, name, reason);
        }
    }

    fn down(&mut self) {
        let Some(name) = self.pick_node(|_| true) else { return };
        let reason = *self.random.pick(&REASONS).unwrap();
        if self.order(&name, Some(NodeOrder::Down), Some(reason)) {
            self.judge.orders.down(&self.world, &name, reason);
        }
    }

    /// Makes a drain of ours a person's.
    fn write_reason(&mut self) {
        let ours = |node: &crate::slurm::state::Node| {
            node.has(NodeFlag::Drain) && !node.down && node.reason.starts_with("slurm-operator")
        };
        let Some(name) = self.pick_node(ours) else { return };
        let reason = *self.random.pick(&REASONS).unwrap();
        if self.order(&name, None, Some(reason)) {
            self.judge.orders.drain(&self.world, &name, reason);
        }
    }

    fn resume(&mut self) {
        let nodes = self.judge.orders.node_names();
        if let Some(name) = self.random.pick(&nodes) {
            self.lift(name);
        }
    }

    /// Resumes a node that we drained.
    fn resume_one_of_ours(&mut self) {
        let ours =
            |node: &crate::slurm::state::Node| node.has(NodeFlag::Drain) && node.reason.starts_with("slurm-operator");
        if let Some(name) = self.pick_node(ours) {
            self.resume_ours(&name);
        }
    }

    pub(crate) fn resume_ours(&mut self, name: &str) {
        if self.order(name, Some(NodeOrder::Resume), None) {
            self.judge.orders.resume_ours(&self.world, name);
        }
    }

    pub(crate) fn lift(&mut self, name: &str) {
        self.order(name, Some(NodeOrder::Resume), None);
        self.judge.orders.resume(name);
    }

    fn hold(&mut self) {
        let Some(job) = self.pick_job(|job| job.phase == JobPhase::Pending && !job.held) else {
            return;
        };
        let done = self.set_hold(job.id, true);
        if done {
            self.judge.orders.hold(job.key, job.id);
        }
    }

    pub(crate) fn release(&mut self) {
        if let Some(job) = self.pick_job(|job| job.held && job.is_active()) {
            self.set_hold(job.id, false);
            self.judge.orders.release(job.key);
        }
    }

    fn set_hold(&self, job: u32, hold: bool) -> bool {
        let done = self.world.order(Request::UpdateJob {
            job,
            hold: Some(hold),
            admin_comment: None,
        });
        self.world
            .tell(format!("a person sets hold of job {job} to {hold}: {done:?}"));
        done.is_ok()
    }

    fn end_job(&self) {
        let Some(job) = self.pick_job(Job::is_active) else {
            return;
        };
        let request = if self.random.one_in(2) {
            Request::Cancel(job.id)
        } else {
            Request::Requeue(job.id)
        };
        let done = self.world.order(request.clone());
        self.world.tell(format!("a person orders {request:?}: {done:?}"));
    }

    /// Closes a partition in Slurm, or opens it again.
    fn close_partition(&mut self) {
        let all = self.shown(|state| state.partitions.values().cloned().collect());
        let Some(partition) = self.random.pick(&all) else {
            return;
        };
        if partition.state != "UP" {
            return self.open_partition(&partition.name);
        }
        let state = *self.random.pick(&CLOSED).unwrap();
        self.set_partition(&partition.name, state);
    }

    pub(crate) fn open_partition(&mut self, name: &str) {
        self.set_partition(name, "UP");
    }

    pub(crate) fn set_partition(&mut self, name: &str, state: &str) {
        let update = PartitionUpdate {
            state: Some(state.to_owned()),
            ..PartitionUpdate::default()
        };
        let name = name.to_owned();
        let done = self.world.order(Request::UpdatePartition {
            name: name.clone(),
            update,
        });
        self.world
            .tell(format!("a person sets partition {name} to {state}: {done:?}"));
        if done.is_ok() {
            self.judge.orders.set_partition(&name, state);
        }
    }

    /// Everything that people ordered in Slurm is lifted, also where a new worker inherited it.
    pub(crate) fn lift_orders(&mut self) {
        let leaving = self.leaving();
        let theirs = |state: &State| {
            let nodes = state.nodes.values();
            let of_people = nodes.filter(|node| {
                // The successor of an updated worker inherits the drain; a worker may also stay after all.
                let has_left = node.reason.contains(MAY_LEAVE) && !leaving.contains(&node.name);
                // Slurm itself drains a node whose processes have the number of a job that it forgot.
                let has_duplicate = node.reason.contains("Duplicate jobid");
                has_left || has_duplicate || REASONS.iter().any(|reason| node.reason.contains(reason))
            });
            of_people.map(|node| node.name.clone()).collect()
        };
        for name in self.shown(theirs) {
            self.lift(&name);
        }
        // An operator does not drain again what a person resumed: it asks for that.
        for name in oracles::resumed(&self.world) {
            self.judge.orders.let_go(&name);
            self.order(&name, Some(NodeOrder::Drain), Some(MAY_LEAVE));
        }
        // Jobs that request more nodes than the NodeSet has replicas, or a node without a worker, never start.
        let workers: Vec<String> = self
            .world
            .all("pods")
            .iter()
            .filter_map(|pod| Some(pod["spec"]["hostname"].as_str()?.to_owned()))
            .collect();
        let set = self.world.get("nodesets", "compute").unwrap_or_default();
        let most = set["spec"]["replicas"].as_u64().unwrap_or(1);
        let never_starts = |job: &Job| {
            let has_named = job.spec.required.iter().all(|name| workers.contains(name));
            job.phase == JobPhase::Pending && (!has_named || job.spec.nodes as u64 > most)
        };
        while let Some(job) = self.pick_job(never_starts)
            && self.world.order(Request::Cancel(job.id)).is_ok()
        {
            self.world.tell(format!(
                "a person cancels job {}, which has no worker to wait for",
                job.id
            ));
        }
        // A slurmctld that was killed has forgotten the order, and the processes are stopped.
        let stopped = self.world.slurm().stopped_jobs();
        let forgotten = |job: &Job| job.phase == JobPhase::Running && stopped.contains(&job.id);
        while let Some(job) = self.pick_job(forgotten)
            && self.set_suspended(&job, true)
        {}
        while let Some(job) = self.pick_job(|job| job.phase == JobPhase::Suspended)
            && self.set_suspended(&job, false)
        {}
        while self.pick_job(|job| job.held && job.is_active()).is_some() {
            self.release();
        }
        // A partition that people deleted is closed, and stays as long as jobs wait for it.
        let objects = [self.world.all("nodesets"), self.world.all("partitions")].concat();
        let stay = objects
            .iter()
            .filter(|object| object["metadata"]["deletionTimestamp"].is_null());
        let live: Vec<&str> = stay.filter_map(|object| object["metadata"]["name"].as_str()).collect();
        let waits = |job: &Job| {
            let mut partitions = job.spec.partition.split(',');
            job.phase == JobPhase::Pending && !partitions.any(|name| live.contains(&name))
        };
        while let Some(job) = self.pick_job(waits)
            && self.world.order(Request::Cancel(job.id)).is_ok()
        {
            self.world.tell(format!("a person cancels job {}", job.id));
        }
        let closed = self.shown(|state| {
            let closed = state.partitions.values().filter(|partition| partition.state != "UP");
            closed.map(|partition| partition.name.clone()).collect()
        });
        for name in closed {
            if self.judge.orders.closed_once.contains(&name) {
                self.open_partition(&name);
            }
        }
    }

    /// Nodes whose workers an operator has chosen to leave.
    fn leaving(&self) -> Vec<String> {
        let pods = self.world.all("pods");
        let leave = |pod: &&Arc<Value>| {
            let meta = &pod["metadata"];
            meta["annotations"][LEAVING].is_string() || meta["deletionTimestamp"].is_string()
        };
        let names = pods
            .iter()
            .filter(leave)
            .filter_map(|pod| pod["spec"]["hostname"].as_str());
        names.map(str::to_owned).collect()
    }

    fn partition(&self) {
        let name = format!("p{}", self.random.below(3));
        if self.world.delete("partitions", &name, &json!({})) {
            self.world.tell(format!("a person deletes Partition {name}"));
            return;
        }
        self.create_partition(&name);
    }

    pub(crate) fn create_partition(&self, name: &str) {
        self.world.tell(format!("a person creates Partition {name}"));
        let spec = json!({ "controllerRef": { "name": "slurm" }, "nodeSets": ["compute"] });
        let meta = json!({ "name": name, "namespace": NAMESPACE });
        let object =
            json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Partition", "metadata": meta, "spec": spec });
        self.world.create("partitions", object);
    }

    fn node_set(&self) {
        if self.world.delete("nodesets", "burst", &json!({})) {
            self.world.tell("a person deletes NodeSet burst");
            return;
        }
        self.create_node_set("burst");
    }

    pub(crate) fn create_node_set(&self, name: &str) {
        self.world.tell(format!("a person creates NodeSet {name}"));
        let spec = json!({ "controllerRef": { "name": "slurm" }, "replicas": 1, "partition": { "enabled": true } });
        let meta = json!({ "name": name, "namespace": NAMESPACE });
        let object =
            json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": meta, "spec": spec });
        self.world.create("nodesets", object);
    }

    fn configure(&self) {
        // Without memory among what is allocated, Slurm shows the node of a suspended job as idle.
        let select = *self.random.pick(&["", "SelectTypeParameters=CR_CORE\n"]).unwrap();
        let good = format!("{select}BatchStartTimeout={}\n", self.random.between(20, 99));
        let text = if self.random.one_in(3) {
            format!("{}\n", self.random.pick(&BAD_LINES).unwrap())
        } else {
            good
        };
        self.world.tell(format!("a person sets extraConf to {text:?}"));
        self.world
            .patch("controllers", "slurm", &json!({ "spec": { "extraConf": text } }));
    }
}
