//! The situations in which a reconcile is counted, with the real plan's own objects in them.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use api::{
    NodeSet, NodeSetStatus,
    keys::{annotations, labels},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    core::v1::{Node, Pod},
};
use operator::{
    cluster::{Knowledge, Seen},
    defaults::Images,
    nodeset::{
        build::Place,
        observe::{Environment, Observed, observe},
        plan::{Effect, Plan, plan},
        status::status,
    },
    runtime::Caches,
    worker::{Cause, Leaving},
};
use serde_json::{Value, json};
use slurm::rest::{Observation, Process};

const NAMESPACE: &str = "slurm";
const NAME: &str = "compute";

/// In which state a NodeSet is reconciled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
    AtRest,
    Pinned,
    ByNode,
    /// All workers are of an older revision, and none is chosen yet.
    Updating,
    /// All workers are to go. They are drained, and every second one has a job.
    Leaving,
}

impl Situation {
    pub(crate) const ALL: [Self; 5] = [Self::AtRest, Self::Pinned, Self::ByNode, Self::Updating, Self::Leaving];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AtRest => "at rest",
            Self::Pinned => "at rest, pinned to Kubernetes nodes",
            Self::ByNode => "at rest, one worker per Kubernetes node",
            Self::Updating => "an update begins, a quarter at a time",
            Self::Leaving => "scaled to zero, a job on every second node",
        }
    }
}

/// Everything a reconcile looks at.
#[derive(Debug)]
pub(crate) struct World {
    caches: Caches,
    knowledge: Knowledge,
}

impl Situation {
    pub(crate) fn world(self, size: u32) -> Result<World> {
        let mut world = World {
            caches: Caches::of(vec![controller(), slurm_key(), self.nodeset(size)]),
            knowledge: Knowledge::unknown("not polled"),
        };
        let nodes = (0..size).map(kubernetes_node).collect::<Result<Vec<Node>>>()?;
        for node in &nodes {
            world.caches.nodes.insert(node.clone());
        }
        self.add_workers(&world, &nodes)?;
        world.knowledge = self.slurm(&world)?;
        let (_, status) = world.reconcile()?;
        world.change_node_set(|set| {
            set.status = Some(status);
            set.spec.replicas = set
                .spec
                .replicas
                .map(|wanted| if self == Self::Leaving { 0 } else { wanted });
        })?;
        Ok(world)
    }

    fn nodeset(self, size: u32) -> Value {
        let mode = if self == Self::ByNode {
            "DaemonSet"
        } else {
            "StatefulSet"
        };
        json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
            "metadata": {
                "namespace": NAMESPACE, "name": NAME, "uid": NAME, "generation": 1, "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": [api::keys::NODESET_FINALIZER],
            },
            "spec": {
                "controllerRef": { "name": "slurm" }, "replicas": size,
                "scalingMode": mode, "pinToNode": self == Self::Pinned,
            },
        })
    }

    /// The first worker is what the plan makes; the others are copies of it in their own places, which is much faster.
    fn add_workers(self, world: &World, nodes: &[Node]) -> Result<()> {
        let observed = world.observe()?;
        let plan = plan(&observed);
        let revision = plan.revision.and_then(|revision| revision.create);
        let revision: ControllerRevision = serde_json::from_value(revision.context("no revision is planned")?)?;
        world.caches.revisions.insert(revision);
        let first = plan.effects.iter().find_map(|effect| match effect {
            Effect::CreatePod { pod, .. } => Some(pod.as_ref().clone()),
            _ => None,
        });
        let first: Pod = serde_json::from_value(first.context("no pod is planned")?)?;
        for (ordinal, node) in (0..).zip(nodes) {
            let place = if self == Self::ByNode {
                Place::of_node(&observed.nodeset, node)
            } else {
                Place::of_ordinal(&observed.nodeset, ordinal, None)
            };
            world.caches.pods.insert(self.worker(&first, &place, node)?);
        }
        Ok(())
    }

    fn worker(self, first: &Pod, place: &Place, node: &Node) -> Result<Pod> {
        let mut pod = first.clone();
        let meta = &mut pod.metadata;
        meta.name = Some(place.pod.clone());
        meta.uid = Some(format!("uid-{}", place.pod));
        let labels = meta.labels.get_or_insert_default();
        labels.insert(labels::POD_NAME.to_owned(), place.pod.clone());
        labels.insert(labels::POD_HOSTNAME.to_owned(), place.hostname.clone());
        if let Some(index) = &place.index {
            labels.insert(labels::POD_INDEX.to_owned(), index.clone());
        }
        if self == Self::Updating {
            labels.insert(labels::REVISION.to_owned(), "older".to_owned());
        }
        if self == Self::Leaving {
            let leaving = Leaving {
                cause: Cause::ScaleIn,
                since: now()?,
            };
            let annotations = meta.annotations.get_or_insert_default();
            annotations.insert(annotations::LEAVING.to_owned(), leaving.to_string());
        }
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = Some(place.hostname.clone());
        spec.node_name.clone_from(&node.metadata.name);
        pod.status = Some(serde_json::from_value(json!({
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z" }],
        }))?);
        Ok(pod)
    }

    fn slurm(self, world: &World) -> Result<Knowledge> {
        let mut nodes = Vec::new();
        let mut jobs = Vec::new();
        for (number, pod) in (0_u64..).zip(world.caches.pods.list(NAMESPACE)) {
            let name = pod.spec.as_ref().and_then(|spec| spec.hostname.as_deref());
            let leaving = self == Self::Leaving;
            let busy = leaving && number % 2 == 1;
            let state = match (leaving, busy) {
                (false, _) => json!(["IDLE", "DYNAMIC_NORM"]),
                (true, false) => json!(["IDLE", "DRAIN", "DYNAMIC_NORM"]),
                (true, true) => json!(["ALLOCATED", "DRAIN", "DYNAMIC_NORM"]),
            };
            nodes.push(serde_json::from_value(json!({ "name": name, "state": state }))?);
            if busy {
                let job = json!({ "job_id": number, "job_state": ["RUNNING"], "nodes": name });
                jobs.push(serde_json::from_value(job)?);
            }
        }
        let observation = Observation {
            nodes,
            jobs,
            process: Some(Process { boot_time: 1000 }),
        };
        Ok(Knowledge::Known(Arc::new(Seen::new(
            observation,
            now()?,
            operator::cluster::Source::Agent,
        ))))
    }
}

impl World {
    /// All of a reconcile but its requests.
    pub(crate) fn reconcile(&self) -> Result<(Plan, NodeSetStatus)> {
        let observed = self.observe()?;
        let plan = plan(&observed);
        let status = status(&observed, &plan, None);
        Ok((plan, status))
    }

    /// Whether the plan is the one that the situation calls for.
    pub(crate) fn check(&self, situation: Situation) -> Result<()> {
        let (plan, status) = self.reconcile()?;
        let workers = self.caches.pods.list(NAMESPACE).len();
        let count = |wanted: fn(&Effect) -> bool| plan.effects.iter().filter(|effect| wanted(effect)).count();
        let others = plan.revision.as_ref().is_some_and(|revision| revision.create.is_some());
        let holds = match situation {
            Situation::AtRest | Situation::Pinned | Situation::ByNode => {
                plan.effects.is_empty() && plan.waits.is_empty() && usize::try_from(status.ready_replicas)? == workers
            }
            Situation::Updating => {
                let marked = count(|effect| matches!(effect, Effect::MarkLeaving { .. }));
                marked == workers.div_ceil(4) && plan.effects.len() == marked
            }
            Situation::Leaving => {
                let removed = count(|effect| matches!(effect, Effect::RemoveWorker(_)));
                removed == workers.div_ceil(2) && plan.waits.len() == workers / 2
            }
        };
        let Plan {
            rejection,
            effects,
            waits,
            ..
        } = &plan;
        ensure!(
            holds && rejection.is_none() && !others,
            "{}: of {workers} workers: {rejection:?} {effects:?} {waits:?}",
            situation.name()
        );
        Ok(())
    }

    fn observe(&self) -> Result<Observed> {
        let environment = Environment {
            images: Images::default(),
            cluster_domain: "cluster.local".to_owned(),
            propagated_conditions: Vec::new(),
            crds_outdated: false,
            empty_since: None,
            last_seen: std::collections::BTreeMap::new(),
        };
        let set = self.caches.node_sets.get(NAMESPACE, NAME);
        let set = set.context("the NodeSet is not there")?;
        Ok(observe(&self.caches, set, self.knowledge.clone(), environment, now()?))
    }

    fn change_node_set(&self, change: impl FnOnce(&mut NodeSet)) -> Result<()> {
        let set = self.caches.node_sets.get(NAMESPACE, NAME);
        let mut set = set.context("the NodeSet is not there")?.as_ref().clone();
        change(&mut set);
        set.metadata.resource_version = Some("2".to_owned());
        self.caches.node_sets.insert(set);
        Ok(())
    }
}

fn now() -> Result<Timestamp> {
    Ok("2026-01-01T01:00:00Z".parse()?)
}

fn controller() -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
        "metadata": { "namespace": NAMESPACE, "name": "slurm", "uid": "controller" },
        "spec": {},
    })
}

fn slurm_key() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "namespace": NAMESPACE, "name": "slurm-auth-slurm" },
        "data": { "slurm.key": "a2V5" },
    })
}

fn kubernetes_node(number: u32) -> Result<Node> {
    let name = format!("machine-{number:05}");
    Ok(serde_json::from_value(
        json!({ "metadata": { "name": name, "uid": name, "labels": { "kubernetes.io/os": "linux" } } }),
    )?)
}
