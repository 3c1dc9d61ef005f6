//! The progress of an Accounting. Pure.

use api::keys::apps;

use super::{observe::Observed, plan::Plan};
use crate::{
    finding::{Blocks, Finding},
    kind::Progress,
    reason,
};

pub(super) fn progress(observed: &Observed, plan: &Plan) -> Progress {
    if plan.external {
        return Progress {
            ready: true,
            message: "slurmdbd is external".to_owned(),
            trouble: external_trouble(observed),
        };
    }
    let status = observed.stateful_set.as_ref().and_then(|set| set.status.as_ref());
    let count = |number: Option<i32>| u32::try_from(number.unwrap_or_default()).unwrap_or_default();
    // A StatefulSet whose pod does not have the newest template names two revisions.
    let updated = status.is_some_and(|status| status.update_revision == status.current_revision);
    let available = count(status.and_then(|status| status.available_replicas));
    let mut progress = Progress::of_pods(
        apps::SLURMDBD,
        available,
        u32::from(updated),
        1,
        observed.stateful_set.is_some(),
    );
    if !progress.ready && !observed.log_errors.is_empty() {
        let errors = observed.log_errors.join(" | ");
        progress.trouble = Some(Finding::new(
            Blocks::Nothing,
            reason::SLURMDBD_FAILS,
            format!("slurmdbd says: {errors}; check spec.storageConfig, the password's Secret and the database"),
        ));
    }
    if let Some(reason) = observed.database_trouble.as_ref().filter(|_| progress.ready) {
        progress.trouble = Some(Finding::new(
            Blocks::Nothing,
            reason::DATABASE_AWAY,
            format!(
                "slurmdbd has no database: {reason}; jobs continue, and slurmctld queues their records; restore the server of spec.storageConfig"
            ),
        ));
    }
    if let Some(message) = &observed.key_mismatch {
        // slurmctld cannot use slurmdbd.
        progress.ready = false;
        progress.trouble = Some(Finding::new(Blocks::Nothing, reason::KEY_MISMATCH, message.clone()));
    }
    progress
}

fn external_trouble(observed: &Observed) -> Option<Finding> {
    let reason = observed.database_trouble.as_ref()?;
    let (host, port) = observed.accounting.spec.external_address()?;
    Some(Finding::new(
        Blocks::Nothing,
        reason::SLURMDBD_AWAY,
        format!(
            "slurmdbd at {host}:{port} does not respond: {reason}; correct spec.externalConfig, or make sure that it runs, has the cluster's keys and can be reached from pods"
        ),
    ))
}
