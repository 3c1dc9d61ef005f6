//! The status of a LoginSet. Pure.

use api::LoginSetStatus;

use super::observe::Observed;
use crate::{
    finding::{Blocks, Finding},
    kind::{Progress, Report},
    reason,
};

/// The status to write.
pub(super) fn build_status(observed: &Observed, report: Report) -> LoginSetStatus {
    let deployment = observed.deployment.as_ref();
    let deployed = deployment.and_then(|deployment| deployment.status.as_ref());
    LoginSetStatus {
        replicas: deployed.and_then(|status| status.replicas).unwrap_or_default(),
        selector: observed.login_set.child_names().selector(),
        conditions: report.conditions,
        observed_generation: report.observed_generation,
    }
}

pub(super) fn progress(observed: &Observed) -> Progress {
    let wanted = observed.login_set.spec.replicas();
    let mut progress = Progress::of_deployment("login", observed.deployment.as_deref(), wanted);
    if !observed.complaints.is_empty() {
        let complaints = observed.complaints.join(" | ");
        progress.trouble = Some(Finding::new(
            Blocks::Nothing,
            reason::LOGIN_IMPAIRED,
            format!(
                "login pods report: {complaints}; check spec.extraSshdConfig, sssd.conf and the servers that it names"
            ),
        ));
    }
    if let Some(message) = &observed.key_mismatch {
        progress.trouble = Some(Finding::new(Blocks::Nothing, reason::KEY_MISMATCH, message.clone()));
    }
    progress
}
