//! Kubernetes nodes with workers are killed, or cut off and reconnected.

use std::time::{Duration, Instant};

use testbed::cluster::Cluster;
use testbed::harness::{Alone, Namespace, alone, eventually, expect};

use crate::common::clusters::{chart_workers, install_chart};
use crate::common::jobs::{restarts, start_job, wait_older, wait_undisturbed};
use crate::common::kills::kill_everyone;
use crate::common::operator::{install, move_operator};
use crate::common::slurm::{SOON, slurm, wait_idle};

const WORKER: &str = "pod/slurm-worker-slinky-0";
const SET: &str = "nodeset/slurm-worker-slinky";

/// The operator and slurmctld run on node1, and workers on the other nodes, one of which the test kills or cuts off. At
/// the end all nodes are restored.
pub(crate) struct Stage {
    pub(crate) cluster: &'static Cluster,
    pub(crate) namespace: Namespace,
    pub(crate) node: String,
    _alone: Alone,
}

impl Stage {
    /// With one worker.
    fn set(name: &str) -> Self {
        Self::with_workers(name, 1)
    }

    /// With this number of workers of `slinky`; the test kills or cuts off the node of the first one.
    pub(crate) fn with_workers(name: &str, count: usize) -> Self {
        let mut stage = Self::empty(name, &chart_workers(0), "");
        stage
            .namespace
            .ask(&["scale", SET, &format!("--replicas={count}")])
            .unwrap();
        wait_idle(&stage.namespace, count).unwrap();
        stage.node = stage.namespace.field(WORKER, ".spec.nodeName").unwrap();
        stage
    }

    /// With a cluster of these values, whose workers stay away from node1.
    pub(crate) fn empty(name: &str, values: &str, node: &str) -> Self {
        let alone = alone();
        let cluster = alone.cluster;
        install(cluster);
        cluster.ask(&["cordon", "node2", "node3"]).unwrap();
        move_operator(cluster, "!=node1").unwrap();
        let namespace = Namespace::create(cluster, name).unwrap();
        install_chart(&namespace, values).unwrap();
        namespace.wait_new("condition=Ready", "pod/slurm-controller-0").unwrap();
        namespace.rollout("deployment/slurm-restapi").unwrap();
        cluster.ask(&["uncordon", "node2", "node3"]).unwrap();
        cluster.ask(&["cordon", "node1"]).unwrap();
        Self {
            cluster,
            namespace,
            node: node.to_owned(),
            _alone: alone,
        }
    }

    /// Starts a job and waits until it runs on the node itself.
    fn start_job(&self, seconds: u32) -> String {
        let job = start_job(&self.namespace, seconds);
        self.wait_on_node(1);
        job
    }

    /// Waits until this number of jobs runs on the node itself. Slurm restarts a job that had not reached its node when
    /// the node was lost.
    pub(crate) fn wait_on_node(&self, jobs: usize) {
        eventually("the jobs run on the node", SOON, || {
            let worker = "slurm-worker-slinky-0 -c slurmd";
            let sleeps = self.namespace.exec(worker, "grep -lx sleep /proc/[0-9]*/comm")?;
            expect(sleeps.lines().count() == jobs, sleeps)
        })
        .unwrap();
    }

    pub(crate) fn slurm_node(&self) -> anyhow::Result<String> {
        slurm(&self.namespace, "scontrol --oneliner show node slinky-0")
    }

    /// Expects, once the node is known to be dead, that it is down in Slurm, the job is requeued, and another worker
    /// has its name.
    fn expect_replacement(&self, job: &str) {
        let start = Instant::now();
        eventually("the job is requeued", SOON, || {
            expect(restarts(&self.namespace, job)? == 1, self.slurm_node()?)
        })
        .unwrap();
        testbed::steps::keep("proof of death to job queued again", start.elapsed().as_secs_f64());
        wait_idle(&self.namespace, 1).unwrap();
        let node = self.namespace.field(WORKER, ".spec.nodeName").unwrap();
        assert_ne!(node, self.node);
    }

    /// Expects that the operator does nothing about a node that does not respond.
    fn expect_patience(&self, uid: &str) {
        self.cluster.wait_node(&self.node, "Unknown").unwrap();
        eventually("the status lists it", SOON, || {
            let noted = self.namespace.field(SET, ".status.cutOff.slinky-0")?;
            expect(noted == self.node, noted)
        })
        .unwrap();
        let node = self.slurm_node().unwrap();
        assert!(!node.contains("DOWN"), "{node}");
        assert_eq!(self.namespace.uid(WORKER).unwrap(), uid);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let runs = self.cluster.node_namespaces(&self.node);
        let ready = runs.and_then(|_| self.cluster.wait_node(&self.node, "True"));
        let healed = ready.or_else(|_| self.cluster.restart_node(&self.node));
        let taint = "node.kubernetes.io/out-of-service-";
        let _ = self.cluster.ask(&["taint", "node", &self.node, taint]);
        let _ = self.cluster.ask(&["uncordon", "node1", "node2", "node3"]);
        if let Err(error) = healed {
            eprintln!("{} does not come back: {error:#}", self.node);
        }
    }
}

#[test]
fn jobs_of_a_killed_node_are_requeued_once_it_is_known_to_be_dead() {
    let stage = Stage::set("killed");
    let (cluster, namespace) = (stage.cluster, &stage.namespace);
    let uid = namespace.uid(WORKER).unwrap();
    let job = stage.start_job(20);
    cluster.kill_node(&stage.node).unwrap();
    stage.expect_patience(&uid);
    cluster.ask(&["delete", "node", &stage.node]).unwrap();
    stage.expect_replacement(&job);
    let lost = "--field-selector=type=Warning,reason=NodeLost";
    let events = namespace.ask(&["get", "events", lost, "-o", "jsonpath={.items[*].message}"]);
    let gone = format!("Node slinky-0 is down in Slurm: Kubernetes node {} is gone", stage.node);
    assert_eq!(events.unwrap(), gone);
    cluster.restart_node(&stage.node).unwrap();
    wait_undisturbed(namespace, &job, 1);
}

#[test]
fn a_node_with_the_out_of_service_taint_counts_as_dead() {
    let stage = Stage::set("declared");
    let (cluster, namespace) = (stage.cluster, &stage.namespace);
    let uid = namespace.uid(WORKER).unwrap();
    let job = stage.start_job(20);
    cluster.kill_node(&stage.node).unwrap();
    stage.expect_patience(&uid);
    let taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
    wait_older(namespace, &job, 20);
    cluster.ask(&["taint", "node", &stage.node, taint]).unwrap();
    // Slurm may have received the order by then, and may have saved it.
    kill_everyone(namespace).unwrap();
    stage.expect_replacement(&job);
    assert_eq!(restarts(namespace, &job).unwrap(), 1);
    cluster.restart_node(&stage.node).unwrap();
}

#[test]
fn a_node_that_is_cut_off_keeps_its_name_and_its_job() {
    let stage = Stage::set("cut");
    let (cluster, namespace) = (stage.cluster, &stage.namespace);
    let uid = namespace.uid(WORKER).unwrap();
    let job = stage.start_job(90);
    let unplugged = cluster.unplug(&stage.node).unwrap();
    stage.expect_patience(&uid);
    unplugged.heal().unwrap();
    cluster.wait_node(&stage.node, "True").unwrap();
    wait_undisturbed(namespace, &job, 0);
    wait_idle(namespace, 1).unwrap();
    assert_eq!(namespace.uid(WORKER).unwrap(), uid);

    // A forced deletion of the pod does not prove that the node is dead.
    let unplugged = cluster.unplug(&stage.node).unwrap();
    stage.expect_patience(&uid);
    namespace
        .ask(&["delete", WORKER, "--force", "--grace-period=0"])
        .unwrap();
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_secs(20) {
        let pods = namespace
            .ask(&["get", "pods", "-l", "app.kubernetes.io/name=slurmd", "-o", "name"])
            .unwrap();
        assert_eq!(pods, "");
        std::thread::sleep(Duration::from_secs(1));
    }
    let why = namespace
        .field(SET, ".status.conditions[?(@.type==\"Progressing\")].message")
        .unwrap();
    assert!(why.contains(&stage.node) && why.contains("out-of-service"), "{why}");
    unplugged.heal().unwrap();
    cluster.wait_node(&stage.node, "True").unwrap();
    namespace.wait_new("condition=Ready", WORKER).unwrap();
    wait_idle(namespace, 1).unwrap();
}
