//! The world around the operators and agents: one thread, virtual time, and every random number from one seed.

pub mod api;
mod controllers;
pub mod crash;
mod evictions;
pub mod faults;
pub mod files;
mod kubelet;
pub mod machine;
pub mod network;
mod objects;
mod operators;
pub mod outages;
mod random;
mod slurmctld;
mod slurmd;
mod time;
mod views;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use runtime::fake::{Refusal, Store};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::slurm::{ControllerId, Failure, HostId, NodeOrder, NodeUpdate, Reply, Request, Slurm, VolumeId};

use self::{
    api::Access,
    files::Disk,
    kubelet::{Content, KubeNode, Pod},
    network::Network,
    objects::{at, uid_of},
    operators::Operator,
};

pub use self::{objects::NAMESPACE, random::Random, slurmctld::ControllerPod, time::elapsed};

/// How often kubelets and controllers look.
const TICK: Duration = Duration::from_secs(1);

/// Lines that only slurmctld knows to be bad: it does not start with them, or hangs.
pub const BAD_LINES: [&str; 7] = [
    "SelectTypeParameters=CR_Nonsense",
    "SelectType=select/nope",
    "PriorityType=priority/nope",
    "TopologyPlugin=topology/nope",
    "JobSubmitPlugins=nope",
    "SchedulerType=sched/nope",
    "NodeName=unresolvable.example",
];

/// The reason of a worker whose pod ends before it was drained.
const TERMINATING: &str = "slurm-operator: Pod is terminating";

/// The world. A clone is the same one.
#[derive(Clone)]
pub struct World(Arc<Inner>);

#[allow(missing_debug_implementations, reason = "the world has no short form")]
pub struct Inner {
    pub access: Access,
    pub network: Network,
    pub random: Random,
    slurm: Mutex<Slurm>,
    volume: VolumeId,
    state_disk: Disk,
    active: Mutex<Option<ControllerId>>,
    /// Whether pods of slurmctld know their UID.
    fenced: AtomicBool,
    pub nodes: Mutex<BTreeMap<String, KubeNode>>,
    pods: Mutex<BTreeMap<String, Pod>>,
    pub operators: Mutex<BTreeMap<String, Operator>>,
    story: Mutex<Vec<String>>,
    activities: views::Activities,
    addresses: AtomicU64,
    /// Whether the model of Slurm is kept true to bad links.
    sweeping: AtomicBool,
    /// Faults that have not healed yet.
    suffering: AtomicU64,
    /// Workers that ended otherwise than by the operator's will.
    pub lost_workers: Mutex<BTreeSet<String>>,
    /// Workers whose pods were deleted by force while Slurm did not respond: no record shows where they ran.
    pub untraceable: Mutex<BTreeSet<String>>,
    /// How often a fault changed what people had written.
    disturbed: AtomicU64,
    /// Workers that were out of slurmctld's sight for so long that it started their jobs elsewhere.
    pub severed: Mutex<BTreeSet<HostId>>,
    /// Copies of etcd, one each minute.
    backups: Mutex<VecDeque<(Duration, Store)>>,
    /// From when to when everything that was written to the API server is void.
    pub rewound: Mutex<Vec<(Duration, Duration)>>,
    /// Who led when etcd was restored, and when that was. The lease names an earlier leader since.
    pub unseated: Mutex<Vec<(String, Duration)>>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

impl std::ops::Deref for World {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl World {
    /// A cluster with so many nodes, without anything of Slurm yet. Must be called inside of [`run`].
    pub fn new(seed: u64, nodes: u32) -> Self {
        time::begin();
        let random = Random::new(seed);
        // kube draws the jitter of its retries from the thread's generator.
        fastrand::seed(seed);
        let mut slurm = Slurm::default();
        let volume = slurm.add_volume();
        let world = Self(Arc::new(Inner {
            access: Access::new(random.fork()),
            network: Network::new(random.fork()),
            random,
            slurm: Mutex::new(slurm),
            volume,
            state_disk: Disk::default(),
            active: Mutex::default(),
            fenced: AtomicBool::new(true),
            nodes: Mutex::default(),
            pods: Mutex::default(),
            operators: Mutex::default(),
            story: Mutex::default(),
            activities: views::Activities::default(),
            addresses: AtomicU64::new(1),
            sweeping: AtomicBool::default(),
            suffering: AtomicU64::default(),
            lost_workers: Mutex::default(),
            untraceable: Mutex::default(),
            disturbed: AtomicU64::default(),
            severed: Mutex::default(),
            backups: Mutex::default(),
            rewound: Mutex::default(),
            unseated: Mutex::default(),
        }));
        world.install(nodes);
        let ticking = world.clone();
        tokio::spawn(async move {
            for tick in 0_u64.. {
                ticking.run_controllers();
                ticking.run_kubelets();
                if tick % 5 == 0 {
                    ticking.collect_garbage();
                }
                if tick % 60 == 0 {
                    ticking.back_up();
                }
                sleep(TICK).await;
            }
        });
        for name in ["operator-a", "operator-b"] {
            world.start_operator(name);
        }
        world
    }

    fn install(&self, nodes: u32) {
        let create = |plural: &str, object: Value| {
            self.edit(|store| store.create(&at(plural, ""), object, "helm"))
                .unwrap();
        };
        create(
            "namespaces",
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        );
        for definition in api_definitions() {
            create("customresourcedefinitions", definition);
        }
        for number in 1..=nodes {
            let name = format!("k{number}");
            let conditions = json!([{ "type": "Ready", "status": "True", "lastTransitionTime": time::rfc3339() }]);
            create(
                "nodes",
                json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name }, "spec": {}, "status": { "conditions": conditions } }),
            );
            self.nodes.lock().unwrap().insert(name, KubeNode::default());
        }
        for (name, key, value) in [
            ("slurm-auth-slurm", "slurm.key", "c2x1cm1zbHVybXNsdXJtc2x1cm0="),
            (
                "slurm-auth-jwt",
                "jwt.key",
                "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
            ),
        ] {
            let meta = json!({ "name": name, "namespace": NAMESPACE });
            create(
                "secrets",
                json!({ "apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": { key: value } }),
            );
        }
    }

    /// Writes to the story.
    pub fn tell(&self, what: impl AsRef<str>) {
        let line = format!("{:>9.3} {}", elapsed().as_secs_f64(), what.as_ref());
        if std::env::var_os("SIMULATION_ECHO").is_some() {
            eprintln!("{line}");
        }
        self.story.lock().unwrap().push(line);
    }

    pub fn story(&self) -> Vec<String> {
        self.story.lock().unwrap().clone()
    }

    /// The model of Slurm, at the present time.
    pub fn slurm(&self) -> MutexGuard<'_, Slurm> {
        let mut slurm = self.slurm.lock().unwrap();
        slurm.advance(elapsed());
        slurm
    }

    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    pub fn state_disk(&self) -> Disk {
        self.state_disk.clone()
    }

    fn next_address(&self) -> String {
        let number = self.addresses.fetch_add(1, Ordering::Relaxed);
        format!("10.0.{}.{}", number / 250, number % 250 + 1)
    }

    /// Changes objects, as people and controllers do.
    pub fn edit<T>(&self, edit: impl FnOnce(&mut Store) -> T) -> T {
        self.access.server.edit(|store| {
            store.set_now(time::timestamp());
            edit(store)
        })
    }

    pub fn get(&self, plural: &str, name: &str) -> Result<Arc<Value>, Refusal> {
        self.access.server.store().find(&at(plural, name))
    }

    /// `kubectl apply` of a new object.
    pub fn create(&self, plural: &str, object: Value) {
        if let Err(refusal) = self.edit(|store| store.create(&at(plural, ""), object, "kubectl")) {
            self.tell(format!("the API server refuses: {}", refusal.status()["message"]));
        }
    }

    /// `kubectl patch`. The object may be gone.
    pub fn patch(&self, plural: &str, name: &str, patch: &Value) -> bool {
        self.edit(|store| store.merge(&at(plural, name), patch, "kubectl"))
            .is_ok()
    }

    /// A worker ends otherwise than by the operator's will.
    fn lose_worker(&self, pod: &str) {
        self.lost_workers.lock().unwrap().insert(pod.to_owned());
    }

    /// `kubectl delete`.
    pub fn delete(&self, plural: &str, name: &str, options: &Value) -> bool {
        self.edit(|store| store.delete(&at(plural, name), options)).is_ok()
    }

    /// A person's command to Slurm.
    pub fn order(&self, request: Request) -> Result<Reply, Failure> {
        let to = self.active.lock().unwrap().ok_or(Failure::Unreachable)?;
        self.slurm().request(to, "person", request)
    }

    pub fn active(&self) -> Option<ControllerId> {
        *self.active.lock().unwrap()
    }

    /// The hosts of slurmd by the name of their pod. Of two with one name, the one that Kubernetes knows.
    pub fn workers(&self) -> BTreeMap<String, HostId> {
        let known = self.known_pods();
        let pods = self.pods.lock().unwrap();
        let mut workers = BTreeMap::new();
        for (uid, pod) in pods.iter() {
            if let Content::Slurmd(host) = pod.content
                && (known.contains(uid) || !workers.contains_key(&pod.name))
            {
                workers.insert(pod.name.clone(), host);
            }
        }
        workers
    }

    /// The names of workers that run twice.
    pub fn twins(&self) -> BTreeSet<String> {
        let pods = self.pods.lock().unwrap();
        let slurm = self.slurm();
        // A machine without power has pods, too.
        let runs = pods
            .values()
            .filter(|pod| matches!(pod.content, Content::Slurmd(host) if !slurm.host(host).removed));
        let mut seen = BTreeSet::new();
        runs.filter(|pod| !seen.insert(pod.name.clone()))
            .map(|pod| pod.name.clone())
            .collect()
    }

    fn known_pods(&self) -> BTreeSet<String> {
        self.access.server.store().all("pods").map(|pod| uid_of(pod)).collect()
    }

    /// The one that the API server knows.
    pub fn controller_pod(&self) -> Option<ControllerPod> {
        let known = self.get("pods", "slurm-controller-0").ok()?;
        let uid = uid_of(&known);
        match &self.pods.lock().unwrap().get(&uid)?.content {
            Content::Slurmctld(slurmctld) => Some(slurmctld.clone()),
            _ => None,
        }
    }

    /// Without their UID pods of slurmctld do not arbitrate, as with agents of long ago.
    pub fn set_fenced(&self, fenced: bool) {
        self.fenced.store(fenced, Ordering::Relaxed);
    }

    /// Workers and people reach the slurmctld of the pod that the API server knows.
    fn reach(&self, pod: &str, id: ControllerId) {
        let known = self.get("pods", "slurm-controller-0").unwrap_or_default();
        if uid_of(&known) == pod {
            self.slurm().set_service(Some(id));
            *self.active.lock().unwrap() = Some(id);
        }
    }

    /// The preStop hook of a worker. Returns whether it still waits.
    fn pre_stop(&self, host: HostId) -> bool {
        let active = self.active();
        let mut slurm = self.slurm();
        let (name, address) = {
            let spec = &slurm.host(host).spec;
            (spec.name.clone(), spec.address.clone())
        };
        let has_processes = !slurm.host(host).processes.is_empty();
        let Some((to, state)) = active.and_then(|to| Some((to, slurm.state(to).ok()?))) else {
            return has_processes;
        };
        let Some(node) = state.nodes.get(&name).filter(|node| node.address == address) else {
            return has_processes;
        };
        let names = state.node_state_names(node, slurm.now());
        let is_closed = names.iter().any(|name| name.contains("DRAIN") || name.contains("DOWN"));
        let busy = has_processes || state.jobs_on(&name).next().is_some();
        let order = match (is_closed, busy) {
            (false, _) => NodeOrder::Drain,
            (true, false) if node.reason.starts_with("slurm-operator: ") => NodeOrder::Down,
            (true, _) => return busy,
        };
        let reason = if is_closed {
            node.reason.clone()
        } else {
            TERMINATING.to_owned()
        };
        let update = NodeUpdate {
            state: Some(order),
            reason: Some(reason),
            ..NodeUpdate::default()
        };
        let _ = slurm.request(to, "preStop", Request::UpdateNode { node: name, update });
        busy
    }
}

fn api_definitions() -> Vec<Value> {
    let definitions = ::api::crds().into_iter();
    definitions
        .map(|definition| serde_json::to_value(definition).unwrap())
        .collect()
}

/// Runs a world on a thread of its own time.
pub fn run<T>(history: impl AsyncFnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.unwrap().block_on(history())
}
