//! Accounting: slurmdbd, by which clusters keep their records in a database.

mod apply;
mod build;
mod external;
mod observe;
mod plan;
mod references;
mod status;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use api::{Accounting, AccountingStatus, Condition};

use self::{observe::Observed, plan::Plan};
use crate::{
    finding::Finding,
    kind::{Kind, KindReconciler, Progress, Report},
    references::References,
    runtime::{Applied, Context, Writer},
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
        references::references()
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
        apply::apply(context, writer, &observed.accounting, plan).await
    }

    fn progress(observed: &Observed, plan: &Plan) -> Progress {
        status::progress(observed, plan)
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
