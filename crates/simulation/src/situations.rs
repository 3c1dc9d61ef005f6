//! Situations that need several events in a row at the right moments, so that chance hardly brings them about.

mod steps;

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use self::steps::{has_partition, is_annotated, leaving, text};

use crate::{
    coverage::Effect,
    history::History,
    oracles::{DRAINED, PROTECTED},
    slurm::{NodeOrder, State},
    world::{
        World,
        api::ApiFault,
        elapsed,
        faults::{Client, Fault, Link},
        network::LinkFault,
        outages::Place,
    },
};

/// The operator takes a drain as saved after 15 s, and polls Slurm every 5 s. A person acts right after that poll, and the operator looks
/// right after the person.
const SAVED: Duration = Duration::from_millis(15_100);
const AT_ONCE: Duration = Duration::from_millis(100);

/// For faults to end, and workers to start.
const PATIENCE: Duration = Duration::from_mins(2);

/// What a history about situations brings about. `SIMULATION_SITUATION` chooses one, and the history has nothing else.
const SITUATIONS: [&str; 19] = [
    "evict-busy-worker",
    "resume-before-eviction",
    "resume-leaving",
    "replace-what-is-cut-off",
    "delete-late",
    "scale-in-busy-workers",
    "lead-with-old-pods",
    "forget-deleted-records",
    "delete-with-unreadable-controller",
    "delete-with-waiting-jobs",
    "drain-and-uncordon",
    "pause-slow-leader",
    "cut-off-slurmctld",
    "start-from-old-bundle",
    "deliver-order-late",
    "declare-dead",
    "slow-clock",
    "delete-partition-with-jobs",
    "scale-in-starting-workers",
];

/// The situation that a person wants to see.
pub(crate) fn chosen_situation() -> Option<String> {
    std::env::var("SIMULATION_SITUATION").ok()
}

impl History {
    /// Brings one of the situations about.
    pub(crate) async fn bring_about(&mut self) {
        let chosen = chosen_situation();
        let situation = chosen.as_deref().or(self.random.pick(&SITUATIONS).copied());
        match situation.unwrap_or_default() {
            "evict-busy-worker" => self.evict_busy_worker().await,
            "resume-before-eviction" => self.resume_before_eviction().await,
            "resume-leaving" => self.resume_leaving().await,
            "replace-what-is-cut-off" => self.replace_what_is_cut_off().await,
            "delete-late" => self.delete_late().await,
            "scale-in-busy-workers" => self.scale_in_busy_workers().await,
            "lead-with-old-pods" => self.lead_with_old_pods().await,
            "forget-deleted-records" => self.forget_deleted_records().await,
            "delete-with-unreadable-controller" => self.delete_with_unreadable_controller().await,
            "delete-with-waiting-jobs" => self.delete_with_waiting_jobs().await,
            "drain-and-uncordon" => self.drain_and_uncordon().await,
            "pause-slow-leader" => self.pause_slow_leader().await,
            "cut-off-slurmctld" => self.cut_off_slurmctld(),
            "start-from-old-bundle" => self.start_from_old_bundle().await,
            "deliver-order-late" => self.deliver_order_late().await,
            "declare-dead" => self.declare_dead().await,
            "slow-clock" => self.slow_clock().await,
            "delete-partition-with-jobs" => self.delete_partition_with_jobs().await,
            "scale-in-starting-workers" => self.scale_in_starting_workers().await,
            other => panic!("there is no situation {other:?}; there are {SITUATIONS:?}"),
        }
        self.judge.orders.note_objects(&self.world);
    }

    /// `kubectl drain` of machines on which jobs run.
    async fn evict_busy_worker(&mut self) {
        self.occupy("compute", 1, &[60, 90, 120]).await;
        self.suffer(Fault::DrainNode(Place::Worker));
    }

    /// A person resumes a node that is cordoned, for a job, right before its worker would become evictable. Then it must not become so,
    /// or somebody evicts the worker with the job.
    async fn resume_before_eviction(&mut self) {
        if !self.is_calm("compute", 1).await {
            return;
        }
        let Some(pod) = self.pick_worker("compute") else { return };
        let (name, machine) = (text(&pod, "/metadata/name"), text(&pod, "/spec/nodeName"));
        let node = text(&pod, "/spec/hostname");
        self.set_cordon(&machine, true);
        let drained = {
            let name = name.clone();
            move |world: &World| is_annotated(world, &name, DRAINED)
        };
        if !self.wait_for(PATIENCE, drained).await {
            return;
        }
        self.pass(SAVED).await;
        let is_evictable = |world: &World| {
            let pod = world.get("pods", &name);
            pod.is_ok_and(|pod| {
                pod["metadata"]["labels"][PROTECTED].is_null() && pod["metadata"]["deletionTimestamp"].is_null()
            })
        };
        if !is_evictable(&self.world) && self.order(&node, Some(NodeOrder::Resume), None) {
            self.submit_to("compute", 60, Some(&node));
            sleep(AT_ONCE).await;
            // What the operator read before the order, it has written by now.
            if !is_evictable(&self.world) {
                self.touch(&machine);
                if self.wait_for(Duration::from_secs(2), is_evictable).await {
                    let failure = format!("a person resumed {node}, and then its worker may be evicted");
                    self.judge.fail(&self.world, failure);
                    self.world.evict_all(&machine);
                }
            }
        }
        self.pass(Duration::from_secs(10)).await;
        self.set_cordon(&machine, false);
    }

    /// A person resumes a node that we drained because its worker leaves, and its job ends.
    async fn resume_leaving(&mut self) {
        self.occupy("compute", 2, &[20, 30, 40]).await;
        self.scale("compute", 1);
        self.judge.orders.note_objects(&self.world);
        let leaves = |world: &World| leaving(world).is_some();
        if self.wait_for(PATIENCE, leaves).await
            && let Some(node) = leaving(&self.world)
        {
            self.resume_ours(&node);
            self.pass(Duration::from_mins(1)).await;
        }
    }

    /// A person deletes the pods of a machine that is cut off by force, and lets no others start there.
    async fn replace_what_is_cut_off(&mut self) {
        if !self.is_calm("compute", 2).await {
            return;
        }
        self.suffer_for(Fault::CutOffNode(Place::Worker, true), Duration::from_secs(90));
        sleep(Duration::from_millis(10)).await;
        let Some(machine) = self.world.lost_node() else { return };
        let taint = json!([{ "key": "example.com/broken", "effect": "NoSchedule" }]);
        self.world
            .patch("nodes", &machine, &json!({ "spec": { "taints": taint } }));
        self.pass(Duration::from_secs(95)).await;
        self.world
            .patch("nodes", &machine, &json!({ "spec": { "taints": [] } }));
    }

    /// Workers are updated while some writes are done late, and their successors have jobs.
    async fn delete_late(&mut self) {
        if !self.is_calm("compute", 2).await {
            return;
        }
        self.suffer_for(Fault::Api(Client::Leader, ApiFault::Late), Duration::from_secs(90));
        for _ in 0..2 {
            self.update();
            self.judge.orders.note_objects(&self.world);
            for _ in 0..6 {
                self.pass(Duration::from_secs(10)).await;
                self.submit_to("compute", 5, None);
                self.submit_to("compute", 30, None);
            }
        }
    }

    /// A scale-in waits for jobs, while those of workers that stay end earlier.
    async fn scale_in_busy_workers(&mut self) {
        if !self.occupy("compute", 3, &[100, 130, 160, 190]).await {
            return;
        }
        self.scale("compute", 2);
        self.judge.orders.note_objects(&self.world);
        self.pass(Duration::from_secs(200)).await;
    }

    /// An operator that has seen that a worker failed, and not that it was replaced, becomes the leader.
    async fn lead_with_old_pods(&mut self) {
        if !self.occupy("compute", 2, &[5]).await {
            return;
        }
        let failed = |world: &World| {
            let pods = world.all("pods");
            let failed = pods.iter().find(|pod| pod["status"]["phase"] == "Failed")?;
            Some((text(failed, "/metadata/name"), text(failed, "/metadata/uid")))
        };
        // The leader needs a while to replace it.
        let slow = ApiFault::Slow(Duration::from_secs(1));
        self.suffer_for(Fault::Api(Client::Leader, slow), Duration::from_secs(5));
        self.suffer_for(Fault::EvictWorker, Duration::from_mins(1));
        self.wait(|world| failed(world).is_some()).await;
        let Some((name, uid)) = failed(&self.world) else { return };
        self.suffer_for(
            Fault::Api(Client::Other, ApiFault::StallKind("pods")),
            Duration::from_secs(90),
        );
        for _ in 0..4 {
            self.submit_to("compute", 120, None);
        }
        let is_busy = |world: &World| {
            let pod = world.get("pods", &name).unwrap_or_default();
            let node = text(&pod, "/spec/hostname");
            let slurm = world.slurm();
            let state = world.active().and_then(|active| slurm.state(active).ok());
            text(&pod, "/metadata/uid") != uid && state.is_some_and(|state| state.jobs_on(&node).next().is_some())
        };
        if self.wait_for(Duration::from_secs(40), is_busy).await {
            self.suffer_for(Fault::PauseLeader, Duration::from_secs(40));
            self.pass(Duration::from_mins(1)).await;
        }
    }

    /// slurmctld dies before it has saved that the records of a deleted NodeSet are gone.
    async fn forget_deleted_records(&mut self) {
        let set = format!("brief{}", elapsed().as_secs());
        self.create_node_set(&set);
        if !self.is_calm(&set, 1).await {
            return;
        }
        // slurmctld saves whose records they are.
        self.pass(Duration::from_secs(8)).await;
        self.world.tell(format!("a person deletes NodeSet {set}"));
        self.world.delete("nodesets", &set, &json!({}));
        let has_record = |state: &State| state.nodes.keys().any(|name| name.starts_with(&set));
        let is_unsaved = |world: &World| {
            let slurm = world.slurm();
            let state = world.active().and_then(|active| slurm.state(active).ok());
            state.is_some_and(|state| !has_record(state)) && has_record(slurm.saved(world.volume()))
        };
        if self.wait_for(PATIENCE, is_unsaved).await {
            // Whoever takes the records for gone lets the NodeSet go meanwhile.
            let latest = Duration::from_millis(self.random.between(300, 4000));
            self.wait_for(latest, |world| world.get("nodesets", &set).is_err())
                .await;
            if is_unsaved(&self.world) {
                self.suffer(Fault::KillSlurmctld);
                // An agent that lives deletes them again.
                if self.random.one_in(2) {
                    self.suffer(Fault::KillAgent);
                }
            }
        }
    }

    /// A NodeSet with jobs is deleted while operators cannot read its Controller.
    async fn delete_with_unreadable_controller(&mut self) {
        self.want_node_set("burst");
        if self.occupy("burst", 1, &[60, 120]).await {
            self.suffer_for(Fault::UnreadableController, Duration::from_mins(1));
            // New processes have no Controller in their caches.
            self.suffer(Fault::KillOperators);
            self.pass(Duration::from_mins(1)).await;
        }
    }

    /// A NodeSet is deleted while jobs wait in its partition.
    async fn delete_with_waiting_jobs(&mut self) {
        self.want_node_set("burst");
        if self.occupy("burst", 1, &[20, 30]).await {
            self.submit_to("burst", 20, None);
            self.world.tell("a person deletes NodeSet burst");
            self.world.delete("nodesets", "burst", &json!({}));
            self.judge.orders.note_objects(&self.world);
            self.pass(Duration::from_mins(1)).await;
        }
    }

    /// A person drains a node that we drained for a cordon, and then lifts the cordon.
    async fn drain_and_uncordon(&mut self) {
        if !self.is_calm("compute", 1).await {
            return;
        }
        let Some(pod) = self.pick_worker("compute") else { return };
        let (name, machine) = (text(&pod, "/metadata/name"), text(&pod, "/spec/nodeName"));
        self.set_cordon(&machine, true);
        if self
            .wait_for(PATIENCE, |world| is_annotated(world, &name, DRAINED))
            .await
        {
            self.pass(Duration::from_millis(self.random.between(6000, 12_000)))
                .await;
            self.drain_node(&text(&pod, "/spec/hostname"));
        }
        self.set_cordon(&machine, false);
        self.pass(Duration::from_secs(5)).await;
    }

    /// The leader stops while it writes, and goes on when another one leads.
    async fn pause_slow_leader(&mut self) {
        let slow = ApiFault::Slow(Duration::from_secs(3));
        self.suffer_for(Fault::Api(Client::Leader, slow), Duration::from_secs(4));
        self.update();
        self.scale("compute", self.random.between(1, 4));
        self.judge.orders.note_objects(&self.world);
        self.pass(Duration::from_millis(self.random.between(500, 3500))).await;
        self.suffer_for(Fault::PauseLeader, Duration::from_secs(30));
    }

    fn cut_off_slurmctld(&mut self) {
        self.suffer(Fault::CutOffNode(Place::Slurmctld, true));
    }

    /// A Partition is deleted while jobs are in it.
    async fn delete_partition_with_jobs(&mut self) {
        let name = format!("p{}", self.random.below(3));
        if self.world.get("partitions", &name).is_err() {
            self.create_partition(&name);
        }
        if !self.wait_for(PATIENCE, |world| has_partition(world, &name)).await {
            return;
        }
        for _ in 0..6 {
            self.submit_to(&name, 30, None);
        }
        self.world.tell(format!("a person deletes Partition {name}"));
        self.world.delete("partitions", &name, &json!({}));
        self.judge.orders.note_objects(&self.world);
        if self.random.one_in(2) {
            self.pass(Duration::from_secs(5)).await;
            self.suffer_for(Fault::FreezeAgent, Duration::from_mins(1));
            self.suffer(Fault::KillOperators);
        }
        self.pass(Duration::from_secs(30)).await;
    }

    /// slurmctld starts anew after it has accepted a configuration, and before operators have written that to the bundle.
    async fn start_from_old_bundle(&mut self) {
        let name = format!("q{}", elapsed().as_secs());
        if !self.is_calm("compute", 1).await {
            return;
        }
        let slow = ApiFault::Slow(Duration::from_secs(2));
        self.suffer_for(Fault::Api(Client::Leader, slow), Duration::from_secs(20));
        self.create_partition(&name);
        self.judge.orders.note_objects(&self.world);
        if !self.wait_for(PATIENCE, |world| has_partition(world, &name)).await {
            return;
        }
        self.suffer(Fault::KillOperators);
        self.suffer_for(Fault::Api(Client::Both, ApiFault::Refuse(503)), Duration::from_secs(90));
        for _ in 0..6 {
            self.submit_to(&name, 60, None);
        }
        // slurmctld saves the jobs.
        self.pass(Duration::from_secs(8)).await;
        if self.random.one_in(2) {
            self.suffer(Fault::DeleteController);
        } else {
            self.suffer_for(Fault::LoseNode(Place::Slurmctld), Duration::from_secs(20));
        }
        self.pass(Duration::from_secs(90)).await;
    }

    /// What the leader ordered about a failed worker arrives when another leader has replaced the worker.
    async fn deliver_order_late(&mut self) {
        if !self.occupy("compute", 2, &[5]).await {
            return;
        }
        self.suffer_for(Fault::Link(Link::Leader, LinkFault::Freeze), Duration::from_secs(48));
        self.suffer_for(Fault::EvictWorker, Duration::from_mins(1));
        self.pass(Duration::from_millis(self.random.between(500, 3000))).await;
        self.suffer_for(Fault::PauseLeader, Duration::from_secs(70));
        for _ in 0..4 {
            self.submit_to("compute", 120, None);
        }
        self.pass(Duration::from_mins(1)).await;
    }

    /// A machine with jobs loses its power, and a person declares it dead.
    async fn declare_dead(&mut self) {
        self.occupy("compute", 2, &[60, 120]).await;
        self.suffer_for(Fault::DeclareDead, Duration::from_mins(2));
        self.pass(Duration::from_mins(1)).await;
    }

    /// New workers get jobs at once, which seem to be older than the workers by slurmctld's clock.
    async fn slow_clock(&mut self) {
        if !self.is_calm("compute", 1).await {
            return;
        }
        self.suffer_for(Fault::SlowSlurmctldClock, Duration::from_secs(90));
        for _ in 0..5 {
            self.submit_to("compute", 60, None);
        }
        self.scale("compute", 4);
        self.judge.orders.note_objects(&self.world);
        self.pass(Duration::from_mins(1)).await;
    }

    /// People change their minds while workers start, and these register and get jobs while the leader removes them.
    async fn scale_in_starting_workers(&mut self) {
        if !self.is_calm("compute", 1).await {
            return;
        }
        for _ in 0..6 {
            self.submit_to("compute", 60, None);
        }
        self.scale("compute", 4);
        self.judge.orders.note_objects(&self.world);
        self.wait(|world| Effect::WorkerStarts.is_under_way(world)).await;
        let slow = ApiFault::Slow(Duration::from_millis(self.random.between(500, 2000)));
        self.suffer_for(Fault::Api(Client::Leader, slow), Duration::from_secs(10));
        self.scale("compute", 1);
        self.judge.orders.note_objects(&self.world);
        self.pass(Duration::from_mins(1)).await;
    }
}
