//! The state of a Slurm node as conditions of its pod, as upstream names them.

use api::keys::POD_CONDITION_PREFIX;
use k8s_openapi::api::core::v1::PodCondition;
use slurm::node::{BaseState, Node, NodeFlag};

/// Upstream has conditions for these flags only.
const FLAGS: &[(NodeFlag, &str)] = &[
    (NodeFlag::Completing, "Completing"),
    (NodeFlag::Drain, "Drain"),
    (NodeFlag::Fail, "Fail"),
    (NodeFlag::Invalid, "Invalid"),
    (NodeFlag::InvalidReg, "InvalidReg"),
    (NodeFlag::Maintenance, "Maintenance"),
    (NodeFlag::NotResponding, "NotResponding"),
    (NodeFlag::Undrain, "Undrain"),
];

/// Returns one condition for the base state of the node and one for each flag, all with Slurm's reason.
pub(super) fn of_node(node: &Node) -> Vec<PodCondition> {
    let base = node.state.base.map(base_name);
    let flags = FLAGS.iter().filter(|(flag, _)| node.state.has(*flag));
    base.into_iter()
        .chain(flags.map(|(_, name)| *name))
        .map(|name| PodCondition {
            type_: format!("{POD_CONDITION_PREFIX}{name}"),
            status: "True".to_owned(),
            message: Some(node.reason.clone()),
            ..PodCondition::default()
        })
        .collect()
}

const fn base_name(base: BaseState) -> &'static str {
    match base {
        BaseState::Unknown => "Unknown",
        BaseState::Down => "Down",
        BaseState::Idle => "Idle",
        BaseState::Allocated => "Allocated",
        BaseState::Error => "Error",
        BaseState::Mixed => "Mixed",
        BaseState::Future => "Future",
    }
}

/// Whether the pod has exactly these conditions of Slurm's prefix.
pub(super) fn are_equal(observed: &[PodCondition], wanted: &[PodCondition]) -> bool {
    let ours: Vec<&PodCondition> = observed
        .iter()
        .filter(|condition| condition.type_.starts_with(POD_CONDITION_PREFIX))
        .collect();
    let text = |condition: &PodCondition| condition.message.clone().unwrap_or_default();
    ours.len() == wanted.len()
        && wanted.iter().all(|wanted| {
            ours.iter().any(|found| {
                found.type_ == wanted.type_ && found.status == wanted.status && text(found) == text(wanted)
            })
        })
}
