//! Applies the plan of a LoginSet.

use api::{LoginSet, keys::annotations};
use host::Host;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::json;
use tracing::info;

use super::{
    build::build_host_keys,
    host_keys,
    plan::{Note, Plan},
};
use crate::runtime::{Applied, Error, Key, Writer};

pub(super) async fn apply(host: &Host, writer: &Writer, login_set: &LoginSet, plan: &Plan) -> Applied {
    let Plan {
        makes_host_keys,
        service,
        ssh_config,
        deployment,
        notes,
    } = plan;
    let mut applied = Applied::default();
    if *makes_host_keys {
        applied.note(create_host_keys(host, writer, login_set).await);
    }
    applied.apply(writer, service.as_ref()).await;
    // New pods and the kubelets of annotated pods read the ConfigMap, so it is applied first.
    let is_configured = applied.apply(writer, ssh_config.as_ref()).await;
    applied
        .apply(writer, deployment.as_ref().filter(|_| is_configured))
        .await;
    for note in notes.iter().filter(|_| is_configured) {
        applied.note(write_note(writer, login_set, note).await);
    }
    applied
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

/// Annotates a pod, unless it is gone or was replaced.
async fn write_note(writer: &Writer, login_set: &LoginSet, note: &Note) -> Result<(), Error> {
    let key = Key::of(login_set);
    info!(loginset = %key, pod = %note.pod, "annotating a pod so that its kubelet updates the files");
    let noted = json!({
        annotations::SSHD_CONF_HASH: note.ssh_files.to_string(),
        annotations::SSSD_CONF_HASH: note.sssd_conf.to_string(),
    });
    let patch = json!({ "metadata": { "uid": note.uid, "annotations": noted } });
    let namespace = login_set.namespace().unwrap_or_default();
    writer.patch_if_there::<Pod>(&namespace, &note.pod, patch).await
}
