//! LoginSet: pods that people log in to, with sshd, sssd and Slurm's commands.

mod build;
mod files;
mod host_keys;
mod observe;
mod plan;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use api::{Condition, Controller, LoginSet, LoginSetStatus, keys::apps};
use host::Host;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod, Secret, Service},
};
use kube::ResourceExt as _;
use tracing::info;

use self::{build::build_host_keys, observe::Observed, plan::Plan};
use crate::{
    finding::{Blocks, Finding},
    kind::{Kind, KindReconciler, Progress, Report},
    reason,
    references::{References, key_secrets},
    runtime::{Applied, Context, Error, Key, Writer},
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
        References::<Self>::new()
            .owns::<Deployment>()
            .owns::<Service>()
            .owns::<ConfigMap>()
            .owns::<Secret>()
            .runs(apps::LOGIN)
            .names::<Controller>(|login_set, _| vec![login_set.spec.controller_ref.name.clone()])
            .names::<Secret>(|login_set, caches| {
                let namespace = login_set.namespace().unwrap_or_default();
                let key = key_secrets(caches, &namespace, &login_set.spec.controller_ref.name);
                key.into_iter()
                    .chain([login_set.spec.sssd_conf_ref.name.clone()])
                    .chain([login_set.child_names().ssh_host_keys_secret()])
                    .collect()
            })
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
        let login_set = observed.login_set.as_ref();
        let Plan {
            makes_host_keys,
            service,
            ssh_config,
            deployment,
            notes,
        } = plan;
        let mut applied = Applied::default();
        if *makes_host_keys {
            applied.note(create_host_keys(context.clock.host(), writer, login_set).await);
        }
        applied.apply(writer, service.as_ref()).await;
        // New pods and the kubelets of annotated pods read the ConfigMap, so it is applied first.
        let is_configured = applied.apply(writer, ssh_config.as_ref()).await;
        applied
            .apply(writer, deployment.as_ref().filter(|_| is_configured))
            .await;
        let namespace = login_set.namespace().unwrap_or_default();
        for (pod, patch) in notes.iter().filter(|_| is_configured) {
            info!(loginset = %Key::of(login_set), %pod, "annotating a pod so that its kubelet updates the files");
            applied.note(writer.patch_if_there::<Pod>(&namespace, pod, patch.clone()).await);
        }
        applied
    }

    fn progress(observed: &Observed, _: &Plan) -> Progress {
        let wanted = observed.login_set.spec.replicas();
        let mut progress =
            Progress::of_deployment("login", observed.deployment.as_deref(), wanted).with_pods(&observed.pods);
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

    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    fn status(observed: &Observed, _: &Plan, report: Report) -> LoginSetStatus {
        let deployment = observed.deployment.as_ref();
        let deployed = deployment.and_then(|deployment| deployment.status.as_ref());
        LoginSetStatus {
            replicas: deployed.and_then(|status| status.replicas).unwrap_or_default(),
            selector: observed.login_set.child_names().selector(),
            conditions: report.conditions,
            observed_generation: report.observed_generation,
        }
    }

    fn requeue(observed: &Observed, _: &Plan) -> Option<Duration> {
        (!observed.pods.is_empty()).then_some(POLL_INTERVAL)
    }
}

async fn create_host_keys(host: &Host, writer: &Writer, login_set: &LoginSet) -> Result<(), Error> {
    info!(loginset = %Key::of(login_set), "generating host keys");
    let files = host
        .compute("host-keys", host_keys::generate)
        .await
        .map_err(Error::other)?
        .map_err(|_| Error::other("cannot generate host keys"))?;
    // If they already exist, the next reconcile finds them.
    writer.create(&build_host_keys(login_set, files)).await.map(drop)
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
