//! LoginSet: pods that people log in to, with sshd, sssd and Slurm's commands.

mod apply;
mod build;
mod files;
mod host_keys;
mod observe;
mod plan;
mod references;
mod status;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use api::{Condition, LoginSet, LoginSetStatus};

use self::{observe::Observed, plan::Plan};
use crate::{
    finding::Finding,
    kind::{Kind, KindReconciler, Progress, Report},
    references::References,
    runtime::{Applied, Context, Writer},
};

/// How often the logs of pods are read: no event reports that a directory is unreachable.
const POLL_INTERVAL: Duration = Duration::from_secs(15);

pub(crate) type LoginSetReconciler = KindReconciler<LoginSet>;

impl Kind for LoginSet {
    const NAME: &'static str = "loginset";
    type Observed = Observed;
    type Plan = Plan;
    type Status = LoginSetStatus;

    fn references() -> References<Self> {
        references::references()
    }

    async fn observe(login_set: Arc<Self>, context: &Context) -> Observed {
        observe::observe(login_set, context).await
    }

    fn object(observed: &Observed) -> &Arc<Self> {
        &observed.login_set
    }

    fn plan(observed: &Observed, findings: &mut Vec<Finding>) -> Plan {
        plan::plan(observed, findings)
    }

    async fn apply(context: &Context, writer: &Writer, observed: &Observed, plan: &Plan) -> Applied {
        apply::apply(context.clock.host(), writer, &observed.login_set, plan).await
    }

    fn progress(observed: &Observed, _: &Plan) -> Progress {
        status::progress(observed)
    }

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn status(observed: &Observed, _: &Plan, report: Report) -> LoginSetStatus {
        status::build_status(observed, report)
    }

    fn requeue(observed: &Observed, _: &Plan) -> Option<Duration> {
        (!observed.pods.is_empty()).then_some(POLL_INTERVAL)
    }
}

/// The children of the LoginSets among these objects, for the comparison with upstream's. Host keys are among the objects.
#[cfg(test)]
pub(crate) fn children_of(caches: &crate::runtime::Caches, images: &crate::defaults::Images) -> Vec<serde_json::Value> {
    let children = |login_set: Arc<LoginSet>| {
        let domain = "cluster.local".to_owned();
        let observed = observe::read(Arc::clone(&login_set), caches, images.clone(), domain);
        let mut findings = Vec::new();
        let plan = plan::plan(&observed, &mut findings);
        assert_eq!(findings, []);
        [
            serde_json::to_value(build::build_host_keys(&login_set, Vec::new())),
            serde_json::to_value(plan.service),
            serde_json::to_value(plan.ssh_config),
            serde_json::to_value(plan.deployment),
        ]
    };
    let all = caches.login_sets.all().into_iter().flat_map(children).flatten();
    all.filter(|child| !child.is_null()).collect()
}
