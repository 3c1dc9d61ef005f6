//! Reverts a change that the operator or slurmctld rejected, so that the next change does not fail for it.

use std::time::Duration;

use api::{Controller, NodeSet, Partition, configuration::HeldInput};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Preconditions},
};

use super::Target;
use crate::access::{Access, Undo};
use crate::cli::Wait;
use crate::failure::{Failure, Outcome};
use crate::partition::expect::judge_object;
use crate::partition::place::Kind;
use crate::wait::{Progress, until};

/// How long to wait for the operator to handle the former value. It takes well under a second.
const SETTLE: Wait = Wait {
    wait: true,
    timeout: Duration::from_secs(10),
};

/// Reverts the change of a partition if it was rejected, and says so in the failure.
pub(super) async fn undo_rejected<T>(
    access: &Access,
    target: &Target,
    undo: Option<&Undo>,
    outcome: Outcome<T>,
) -> Outcome<T> {
    let (Err(Failure::Rejected(why)), Some(undo)) = (&outcome, undo) else {
        return outcome;
    };
    let reverted = revert(access, target, undo).await;
    if let Ok(true) = reverted {
        // The failure to report is the rejection.
        let _ = settle(access, target).await;
    }
    Err(Failure::refused(format!(
        "{why}\n{}",
        result(&target.object, &reverted)
    )))
}

pub(super) async fn revert(access: &Access, target: &Target, undo: &Undo) -> Outcome<bool> {
    let (namespace, name) = (target.cluster.namespace(), &target.object);
    Ok(match target.kind {
        Kind::Partition => Access::revert(&access.api::<Partition>(&namespace), name, undo)
            .await?
            .is_some(),
        Kind::NodeSet => Access::revert(&access.api::<NodeSet>(&namespace), name, undo)
            .await?
            .is_some(),
        _ => Access::revert(&access.api::<Controller>(&namespace), name, undo)
            .await?
            .is_some(),
    })
}

/// Returns what became of the change, for people.
fn result(object: &str, reverted: &Outcome<bool>) -> String {
    match reverted {
        Ok(true) => format!("the change of {object} was undone; slurmctld runs as before"),
        Ok(false) => format!("{object} was changed again by another client, so the change was not undone"),
        Err(why) => format!("the change of {object} could not be undone: {why}; set it back with `kubectl edit`"),
    }
}

/// Waits until the operator no longer reports on the rejected value.
async fn settle(access: &Access, target: &Target) -> Outcome {
    let what = format!("the former value of {} is not handled", target.object);
    let waits = || Progress::Waits("the operator has not handled the former value yet".to_owned());
    let namespace = target.cluster.namespace();
    if target.kind == Kind::Partition {
        let api = access.api::<Partition>(&namespace);
        return until(&SETTLE, &what, async |_| {
            let is_done = matches!(judge_object(&api.get(&target.object).await?), Progress::Done(_));
            Ok(if is_done { Progress::Done(()) } else { waits() })
        })
        .await;
    }
    let api = access.api::<Controller>(&namespace);
    let before = held(&target.cluster.controller, &target.source);
    until(&SETTLE, &what, async |_| {
        let now = api.get(&target.cluster.name()).await?;
        let is_done = held(&now, &target.source) == before;
        Ok(if is_done { Progress::Done(()) } else { waits() })
    })
    .await
}

fn held(controller: &Controller, source: &str) -> Option<HeldInput> {
    let inputs = controller
        .configuration()
        .map(|configuration| &configuration.held_inputs);
    inputs.into_iter().flatten().find(|held| held.source == source).cloned()
}

/// Deletes a new Partition that was rejected, unless another client has changed it since.
pub(super) async fn delete_rejected<T>(api: &Api<Partition>, created: &Partition, outcome: Outcome<T>) -> Outcome<T> {
    let Err(Failure::Rejected(why)) = &outcome else {
        return outcome;
    };
    let name = created.name_any();
    let said = match delete(api, created).await {
        Ok(true) => format!("partition/{name} was deleted again; slurmctld runs as before"),
        Ok(false) => format!("partition/{name} was changed by another client, so it was not deleted"),
        Err(why) => format!("partition/{name} could not be deleted: {why}; `kubectl slurm partition delete {name}`"),
    };
    Err(Failure::refused(format!("{why}\n{said}")))
}

async fn delete(api: &Api<Partition>, created: &Partition) -> Outcome<bool> {
    let name = created.name_any();
    let now = api.get(&name).await?;
    if now.metadata.generation != created.metadata.generation || now.uid() != created.uid() {
        return Ok(false);
    }
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: created.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    api.delete(&name, &parameters).await?;
    let what = format!("partition/{name} is not deleted");
    let gone = until(&SETTLE, &what, async |_| {
        Ok(match api.get_opt(&name).await? {
            None => Progress::Done(()),
            Some(_) => Progress::Waits("the operator has not released it yet".to_owned()),
        })
    });
    // It is on its way; the operator releases it when it runs.
    let _ = gone.await;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failure_tells_what_became_of_the_change() {
        for (reverted, words) in [
            (Ok(true), "was undone"),
            (Ok(false), "changed again by another client"),
            (
                Err(Failure::refused("no right")),
                "no right; set it back with `kubectl edit`",
            ),
        ] {
            let said = result("gpu", &reverted);
            assert!(said.contains(words), "{said}");
        }
    }
}
