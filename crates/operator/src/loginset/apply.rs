//! Carries a plan out.

use api::{LoginSet, keys::annotations};
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

pub(super) async fn apply(writer: &Writer, login_set: &LoginSet, plan: &Plan) -> Applied {
    let Plan {
        faults: _,
        makes_host_keys,
        service,
        ssh_config,
        deployment,
        notes,
    } = plan;
    let mut applied = Applied::default();
    if *makes_host_keys {
        applied.note(create_host_keys(writer, login_set).await);
    }
    if let Some(service) = service {
        applied.note(writer.apply(service).await);
    }
    // Pods find it there, and so do kubelets that are told to look.
    let configured = match ssh_config {
        Some(config_map) => applied.note(writer.apply(config_map).await),
        None => true,
    };
    if let Some(deployment) = deployment.as_ref().filter(|_| configured) {
        applied.note(writer.apply(deployment).await);
    }
    for note in notes.iter().filter(|_| configured) {
        applied.note(write_note(writer, login_set, note).await);
    }
    applied
}

async fn create_host_keys(writer: &Writer, login_set: &LoginSet) -> Result<(), Error> {
    info!(login_set = %Key::of(login_set), "generating host keys");
    let files = tokio::task::spawn_blocking(host_keys::generate)
        .await
        .map_err(Error::other)?
        .map_err(|_| Error::other("host keys cannot be made"))?;
    // If they are there already people know them, and the next look finds them.
    writer.create(&build_host_keys(login_set, files)).await.map(drop)
}

/// A pod that is gone, or another by now, needs nothing.
async fn write_note(writer: &Writer, login_set: &LoginSet, note: &Note) -> Result<(), Error> {
    let key = Key::of(login_set);
    info!(login_set = %key, pod = %note.pod, "having the kubelet bring files to the pod");
    let noted = json!({
        annotations::SSHD_CONF_HASH: note.ssh_files.to_string(),
        annotations::SSSD_CONF_HASH: note.sssd_conf.to_string(),
    });
    let patch = json!({ "metadata": { "uid": note.uid, "annotations": noted } });
    let namespace = login_set.namespace().unwrap_or_default();
    writer.patch_if_there::<Pod>(&namespace, &note.pod, patch).await
}
