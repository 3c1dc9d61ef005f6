//! What of Slurm's view stands on a pod: the node's state as conditions, and when its last job must have ended.

use api::{conditions::ConditionStatus, keys::annotations::POD_DEADLINE};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::PodCondition;

use super::{Look, Mirror, PodChange, PodWrite, conditions, describe};
use crate::nodeset::{plan::Marks, status::SLURM_REACHABLE};

/// A pod is written at most this often. Short jobs change a node's state several times a second.
const EVERY: SignedDuration = SignedDuration::from_secs(5);

/// How long conditions stay that Slurm cannot confirm. A slurmrestd that restarts is away for seconds, and to write all pods
/// twice for that would be worse than what they say; after this time it is the other way round.
const STALE: SignedDuration = SignedDuration::from_mins(2);

/// The conditions first; the annotations, which nobody waits for, when it is their turn.
pub(super) fn plan(look: Look<'_>, mirror: &mut Mirror) {
    let conditions = wanted_conditions(look, mirror).filter(|wanted| {
        let status = look.worker.0.status.as_ref();
        let observed = status.and_then(|status| status.conditions.as_deref());
        !conditions::say_the_same(observed.unwrap_or_default(), wanted)
    });
    let annotations = wanted_annotations(look);
    let change = match conditions {
        Some(wanted) => PodChange::Conditions(wanted),
        None if annotations.is_empty() => return,
        None => PodChange::Annotations(annotations.clone()),
    };
    let written = look.memory.and_then(|memory| memory.written);
    let left = written.map(|at| EVERY - look.observed.now.duration_since(at));
    if let Some(left) = left.filter(SignedDuration::is_positive) {
        mirror.look_again_in(left);
        return;
    }
    if matches!(change, PodChange::Conditions(_)) && !annotations.is_empty() {
        mirror.look_again_in(EVERY);
    }
    mirror.writes.push(PodWrite {
        pod: look.worker.id(),
        change,
    });
}

/// `None` if they are to stay as they are.
fn wanted_conditions(look: Look<'_>, mirror: &mut Mirror) -> Option<Vec<PodCondition>> {
    if look.seen.is_some() {
        return Some(look.node.map(conditions::of_node).unwrap_or_default());
    }
    let status = look.observed.nodeset.status.as_ref()?;
    let unreachable = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == SLURM_REACHABLE && condition.status == ConditionStatus::False)?;
    let left = STALE
        - look
            .observed
            .now
            .duration_since(unreachable.last_transition_time.instant()?);
    if left.is_positive() {
        mirror.look_again_in(left);
        return None;
    }
    Some(Vec::new())
}

/// Those that are not as they should be.
fn wanted_annotations(look: Look<'_>) -> Marks {
    let mut wanted = Marks::new();
    if look.worker.is_terminating() {
        return wanted;
    }
    mark_deadline(look, &mut wanted);
    describe::mark_topology(look, &mut wanted);
    wanted.retain(|key, value| look.worker.annotation(key) != value.as_deref());
    wanted
}

/// When the last job there must have ended, if one runs and that is known.
fn mark_deadline(look: Look<'_>, wanted: &mut Marks) {
    let Some(seen) = look.seen else { return };
    let deadline = match look.node.filter(|node| node.state.is_busy()) {
        Some(node) => match &seen.deadlines {
            Some(deadlines) => deadlines.get(&node.name).copied(),
            None => return,
        },
        None => None,
    };
    wanted.insert(POD_DEADLINE.to_owned(), deadline.map(|at| format!("{at:.0}")));
}
