//! Accounting: slurmdbd, by which clusters keep their records in a database.

mod observe;
mod plan;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use api::{Accounting, AccountingStatus, Condition, Controller, keys::apps};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Secret, Service},
};
use kube::ResourceExt as _;

use self::{
    observe::{Observed, referenced_secrets, referring},
    plan::Plan,
};
use crate::{
    finding::{Blocks, Finding},
    kind::{Kind, KindReconciler, Progress, Report},
    reason,
    references::References,
    runtime::{Applied, Context, Error, Writer},
};

/// How often slurmdbd is asked about its database: no event reports that it is lost or back.
const POLL_INTERVAL: Duration = Duration::from_secs(15);

pub(crate) type AccountingReconciler = KindReconciler<Accounting>;

impl Kind for Accounting {
    const NAME: &'static str = "accounting";
    type Observed = Observed;
    type Plan = Plan;
    type Status = AccountingStatus;

    fn references() -> References<Self> {
        References::<Self>::new()
            .owns::<StatefulSet>()
            .owns::<Service>()
            .owns::<Secret>()
            .runs(apps::SLURMDBD)
            // An Accounting without keys of its own has those of its Controller.
            .named_by::<Controller>(|controller| controller.spec.accounting_name())
            .names::<Secret>(|accounting, caches| {
                let controller = referring(accounting, caches);
                referenced_secrets(accounting, controller.as_deref()).collect()
            })
            .names::<ConfigMap>(|accounting, _| {
                let jwks = accounting.spec.jwks_key_ref.as_ref();
                jwks.map(|jwks| jwks.name.clone()).into_iter().collect()
            })
    }

    async fn observe(accounting: Arc<Self>, context: &Context) -> Observed {
        observe::observe(accounting, context).await
    }

    fn object(observed: &Observed) -> &Arc<Self> {
        &observed.accounting
    }

    fn plan(observed: &Observed, findings: &mut Vec<Finding>) -> Plan {
        plan::plan(observed, findings)
    }

    async fn apply(context: &Context, writer: &Writer, observed: &Observed, plan: &Plan) -> Applied {
        let Plan {
            service,
            config,
            stateful_set,
            external,
        } = plan;
        let mut applied = Applied::default();
        applied.apply(writer, service.as_ref()).await;
        // The pod reads the configuration when it starts, so the configuration is applied first.
        let is_configured = applied.apply(writer, config.as_ref()).await;
        applied
            .apply(writer, stateful_set.as_ref().filter(|_| is_configured))
            .await;
        if *external {
            applied.note(prune(context, writer, &observed.accounting).await);
        }
        applied
    }

    fn progress(observed: &Observed, plan: &Plan) -> Progress {
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
        )
        .with_pods(&observed.pod);
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

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn status(_: &Observed, _: &Plan, report: Report) -> AccountingStatus {
        AccountingStatus {
            conditions: report.conditions,
            observed_generation: report.observed_generation,
        }
    }

    fn requeue(observed: &Observed, _: &Plan) -> Option<Duration> {
        observed.is_polled.then_some(POLL_INTERVAL)
    }
}

/// Deletes the daemon of an Accounting that has become external.
async fn prune(context: &Context, writer: &Writer, accounting: &Accounting) -> Result<(), Error> {
    let Some(uid) = accounting.uid() else { return Ok(()) };
    let none = BTreeSet::new();
    writer.prune(&context.caches.stateful_sets, &uid, &none).await?;
    writer.prune(&context.caches.services, &uid, &none).await?;
    Ok(())
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

/// The children of the first Accounting among these objects, for the comparison with upstream's.
#[cfg(test)]
pub(crate) fn children_of(caches: &crate::runtime::Caches, images: &crate::defaults::Images) -> Vec<serde_json::Value> {
    let Some(accounting) = caches.accountings.all().into_iter().next() else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let plan = plan::plan(&observe::read(accounting, caches, images.clone()), &mut findings);
    assert_eq!(findings, []);
    let mut config = serde_json::to_value(&plan.config).unwrap_or_default();
    // Secrets are recorded as text.
    for (file, bytes) in plan.config.iter().flat_map(|config| config.data.iter().flatten()) {
        config["data"][file] = String::from_utf8_lossy(&bytes.0).into();
    }
    let others = [
        serde_json::to_value(plan.service),
        serde_json::to_value(plan.stateful_set),
    ];
    let children = others.into_iter().flatten().chain([config]);
    children.filter(|child| !child.is_null()).collect()
}
