//! What is said about an Accounting. Pure.

use api::{AccountingStatus, Validate, keys::apps};
use jiff::Timestamp;

use super::{observe::Observed, plan::Plan};
use crate::{
    fault::{self, Fault, Progress},
    key_mismatch::KEY_MISMATCH,
    runtime::{Failure, State, Wanted, remarks, settle},
};

/// slurmdbd does not come up, and says why.
const SLURMDBD_FAILS: &str = "SlurmdbdFails";
/// A slurmdbd outside Kubernetes gives no answer.
const SLURMDBD_AWAY: &str = "SlurmdbdAway";
/// slurmdbd is up and has no database.
const DATABASE_AWAY: &str = "DatabaseAway";

/// The status to write.
pub(super) fn build_status(
    observed: &Observed,
    plan: &Plan,
    failure: Option<&Failure>,
    now: Timestamp,
) -> AccountingStatus {
    let accounting = observed.accounting.as_ref();
    let generation = accounting.metadata.generation.unwrap_or_default();
    let previous = accounting
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    AccountingStatus {
        conditions: settle(previous, &conditions(observed, plan, failure), generation, now),
        // Upstream's definitions, which may be the installed ones, drop it: it would be written again and again.
        observed_generation: observed.outdated.is_empty().then_some(generation),
    }
}

/// How things stand, for the queue.
pub(super) fn state(observed: &Observed, plan: &Plan) -> State {
    fault::state(&plan.faults, &progress(observed, plan))
}

fn conditions(observed: &Observed, plan: &Plan, failure: Option<&Failure>) -> Vec<Wanted> {
    let mut wanted = fault::conditions(&plan.faults, failure, &progress(observed, plan));
    wanted.extend(remarks(&observed.outdated, observed.accounting.check().warnings()));
    wanted
}

fn progress(observed: &Observed, plan: &Plan) -> Progress {
    if plan.external {
        return Progress {
            ready: true,
            message: "slurmdbd is not ours to look after".to_owned(),
            trouble: external_trouble(observed),
        };
    }
    let status = observed.stateful_set.as_ref().and_then(|set| set.status.as_ref());
    let count = |number: Option<i32>| u32::try_from(number.unwrap_or_default()).unwrap_or_default();
    // A StatefulSet whose newest template is not its pod's names two revisions.
    let updated = status.is_some_and(|status| status.update_revision == status.current_revision);
    let available = count(status.and_then(|status| status.available_replicas));
    let mut progress = Progress::of_pods(
        apps::SLURMDBD,
        available,
        u32::from(updated),
        1,
        observed.stateful_set.is_some(),
    );
    if !progress.ready && !observed.complaints.is_empty() {
        let words = observed.complaints.join(" | ");
        progress.trouble = Some(Fault::new(
            SLURMDBD_FAILS,
            format!("slurmdbd says: {words}; look at spec.storageConfig, the password's Secret and the database"),
        ));
    }
    if let Some(words) = observed.database_trouble.as_ref().filter(|_| progress.ready) {
        progress.trouble = Some(Fault::new(
            DATABASE_AWAY,
            format!(
                "slurmdbd has no database: {words}; jobs run on, and slurmctld keeps what is to be recorded; bring the server of spec.storageConfig back"
            ),
        ));
    }
    if let Some(message) = &observed.key_mismatch {
        // slurmctld cannot use it.
        progress.ready = false;
        progress.trouble = Some(Fault::new(KEY_MISMATCH, message.clone()));
    }
    progress
}

/// Told by slurmrestd, which asks it in our place.
fn external_trouble(observed: &Observed) -> Option<Fault> {
    let words = observed.database_trouble.as_ref()?;
    let (host, port) = observed.accounting.spec.external_address()?;
    Some(Fault::new(
        SLURMDBD_AWAY,
        format!(
            "slurmdbd at {host}:{port} gives no answer: {words}; correct spec.externalConfig, or see that it runs, has the cluster's keys and can be reached from pods"
        ),
    ))
}
