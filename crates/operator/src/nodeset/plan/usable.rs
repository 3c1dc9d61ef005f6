//! Whether Slurm can use a worker: it is ready in Kubernetes, and registered and open for jobs in Slurm.

use slurm::node::{BaseState, Node, NodeFlag};

use crate::{cluster::Seen, nodeset::observe::Observed, worker::Worker};

/// Flags that keep jobs away from a node, whatever its base state.
const CLOSED: &[NodeFlag] = &[
    NodeFlag::Drain,
    NodeFlag::Fail,
    NodeFlag::InvalidReg,
    NodeFlag::NotResponding,
    NodeFlag::PoweredDown,
];

/// Returns why Slurm cannot use a worker. `None` if it can.
pub(super) fn unusable(observed: &Observed, seen: &Seen, worker: Worker<'_>) -> Option<String> {
    let pod = worker.name();
    if !worker.is_active() {
        return Some(format!("pod {pod} is terminating"));
    }
    if !worker.is_available(observed.min_ready(), observed.now) {
        return Some(match startup_problem(worker) {
            Some(startup_problem) => format!("pod {pod} does not start: {startup_problem}"),
            None => format!("pod {pod} is not ready"),
        });
    }
    let Some(name) = worker.slurm_name() else {
        return Some(format!("pod {pod} has no Kubernetes node"));
    };
    match seen.nodes.get(name) {
        None => Some(format!("node {name} has not registered with Slurm")),
        Some(node) if !takes_jobs(node) => {
            let reason = if node.reason.is_empty() {
                String::new()
            } else {
                format!(" ({})", node.reason)
            };
            Some(format!("node {name} is {} in Slurm{reason}", node.state))
        }
        // A snapshot from before the pod was created shows its predecessor.
        Some(_) if worker.created().is_some_and(|created| seen.at < created) => {
            Some(format!("node {name} has not been seen in Slurm yet"))
        }
        Some(_) => None,
    }
}

fn takes_jobs(node: &Node) -> bool {
    let state = &node.state;
    let open = matches!(
        state.base,
        Some(BaseState::Idle | BaseState::Allocated | BaseState::Mixed)
    );
    open && !CLOSED.iter().any(|flag| state.has(*flag))
}

/// Returns the problem that the kubelet or the scheduler reports about a pod, if waiting does not fix it.
pub fn startup_problem(worker: Worker<'_>) -> Option<String> {
    const LASTING: &[&str] = &[
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    ];
    let status = worker.0.status.as_ref()?;
    let containers = status
        .init_container_statuses
        .iter()
        .flatten()
        .chain(status.container_statuses.iter().flatten());
    let mut waiting = containers.filter_map(|container| Some((container, container.state.as_ref()?.waiting.as_ref()?)));
    let stuck = waiting.find_map(|(container, waiting)| {
        let reason = waiting.reason.as_deref().filter(|reason| LASTING.contains(reason))?;
        let message = waiting.message.as_deref().unwrap_or_default();
        Some(format!("container {}: {reason} {message}", container.name))
    });
    let unschedulable = || {
        let conditions = status.conditions.as_ref()?;
        let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
        (scheduled.status == "False").then(|| scheduled.message.clone().unwrap_or_default())
    };
    stuck.or_else(unschedulable).map(|text| text.trim().to_owned())
}
