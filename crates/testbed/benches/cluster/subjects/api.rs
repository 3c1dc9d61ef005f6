//! Access to the API server where kubectl is too slow.

use anyhow::Result;
use kube::api::{ApiResource, GroupVersionKind};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use testbed::cluster::Cluster;

/// A client with administrator's rights.
pub(crate) async fn client(cluster: &Cluster) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(cluster.layout.kubeconfig())?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

pub(crate) fn node_sets() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("slinky.slurm.net", "v1beta1", "NodeSet"))
}

pub(crate) fn controllers() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("slinky.slurm.net", "v1beta1", "Controller"))
}

pub(crate) fn partitions() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("slinky.slurm.net", "v1alpha1", "Partition"))
}

pub(crate) fn stateful_sets() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "StatefulSet"))
}
