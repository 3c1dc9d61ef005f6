//! A volume provisioner: every claim of our StorageClasses gets a directory on all nodes, so that any access mode
//! works.
//!
//! `standard` is a plain directory. `limited` is a filesystem of the requested size, for tests that fill a volume.
//! `freezable` is a FUSE filesystem, for tests that stop its process so that the volume hangs. Runs in the machine's
//! mount namespace, from which mounts reach the nodes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config, ResourceExt};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;

use crate::command;

pub const PROVISIONER: &str = "testbed/directory";
pub const STANDARD: &str = "standard";
pub const LIMITED: &str = "limited";
pub const FREEZABLE: &str = "freezable";

/// Mounts a directory at another path, and exits when it is unmounted.
pub const MIRROR: &str = "bindfs";

const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

enum Event {
    Claim(Box<PersistentVolumeClaim>),
    Volume(Box<PersistentVolume>),
}

pub async fn run(kubeconfig: &Path, folder: &Path) -> Result<()> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let claims = watcher(
        Api::<PersistentVolumeClaim>::all(client.clone()),
        watcher::Config::default(),
    )
    .default_backoff()
    .applied_objects()
    .map_ok(|claim| Event::Claim(Box::new(claim)));
    let volumes = watcher(Api::<PersistentVolume>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .map_ok(|volume| Event::Volume(Box::new(volume)));
    let mut events = pin!(stream::select(claims, volumes));
    while let Some(event) = events.next().await {
        let handled = match event {
            Ok(Event::Claim(claim)) => provision(&client, folder, &claim).await,
            Ok(Event::Volume(volume)) => reclaim(&client, folder, &volume).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = handled {
            eprintln!("{error:#}");
        }
    }
    Ok(())
}

async fn provision(client: &Client, folder: &Path, claim: &PersistentVolumeClaim) -> Result<()> {
    let Some(spec) = &claim.spec else { return Ok(()) };
    let class = spec.storage_class_name.as_deref().unwrap_or_default();
    if spec.volume_name.is_some()
        || claim.metadata.deletion_timestamp.is_some()
        || ![STANDARD, LIMITED, FREEZABLE].contains(&class)
    {
        return Ok(());
    }
    let uid = claim.uid().context("a claim without uid")?;
    let name = format!("pvc-{uid}");
    let requested = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref()?.get("storage"));
    let size = requested.map_or("1Gi", |quantity| quantity.0.as_str());
    let path = create_directory(folder, &name, class, size)?;
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": spec.access_modes,
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": class,
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "uid": uid,
                "name": claim.name_any(), "namespace": claim.namespace(),
            },
            // `local` rather than hostPath: the kubelet applies fsGroup to it, as on real storage.
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
            ]}]}},
        },
    }))?;
    println!(
        "{name}: {size} for {}/{}",
        claim.namespace().unwrap_or_default(),
        claim.name_any()
    );
    match Api::<PersistentVolume>::all(client.clone())
        .create(&PostParams::default(), &volume)
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        done => done.map(drop).with_context(|| format!("cannot create {name}")),
    }
}

fn create_directory(folder: &Path, name: &str, class: &str, size: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    let fresh = !path.exists();
    fs::create_dir_all(&path)?;
    match class {
        LIMITED if fresh => {
            let size = bytes(size).with_context(|| format!("storage request {size} is not a plain number of bytes"))?;
            mount(
                Some("tmpfs"),
                &path,
                Some("tmpfs"),
                MsFlags::empty(),
                Some(format!("size={size}").as_str()),
            )?;
        }
        FREEZABLE if fresh => {
            let source = source_of(folder, name);
            fs::create_dir_all(&source)?;
            // Returns when it is mounted, and continues in the background.
            command::output(Command::new(MIRROR).args([&source, &path]))?;
        }
        _ => {}
    }
    // As in a new filesystem: pods that do not run as root get access through fsGroup.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Directory of the files of a freezable volume.
fn source_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!(".{name}"))
}

async fn reclaim(client: &Client, folder: &Path, volume: &PersistentVolume) -> Result<()> {
    let ours = volume
        .annotations()
        .get(PROVISIONED_BY)
        .is_some_and(|by| by == PROVISIONER);
    let status = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let policy = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    if !ours || status != Some("Released") || policy != Some("Delete") {
        return Ok(());
    }
    let name = volume.name_any();
    let path = folder.join(&name);
    // A standard volume is not mounted.
    let _ = umount2(&path, MntFlags::MNT_DETACH);
    for directory in [path, source_of(folder, &name)] {
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    match Api::<PersistentVolume>::all(client.clone())
        .delete(&name, &DeleteParams::default())
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => done.map(drop).with_context(|| format!("cannot delete {name}")),
    }
}

/// The bytes a Kubernetes quantity stands for; only whole numbers with a binary or decimal suffix.
fn bytes(quantity: &str) -> Option<u64> {
    let digits = quantity.trim_end_matches(char::is_alphabetic);
    let factor: u64 = match quantity.strip_prefix(digits)? {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn quantities_become_bytes() {
        assert_eq!(bytes("16Mi"), Some(16 * 1024 * 1024));
        assert_eq!(bytes("5G"), Some(5_000_000_000));
        assert_eq!(bytes("7"), Some(7));
        assert_eq!(bytes("0.5Gi"), None);
        assert_eq!(bytes("Gi"), None);
    }
}
