//! Access to the API server, and through it to the pod of slurmctld.

mod live;
mod live_nodes;
mod write;

use api::{Controller, NodeSet, Partition, wellknown::SLURM_CONF_FILE};
use futures::future::try_join_all;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::ConfigMap};
use kube::{
    Api, Client, Config,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::de::DeserializeOwned;

pub(crate) use self::live::{Live, SlurmError};
pub(crate) use self::live_nodes::{NodeDetails, NodeJob};
pub(crate) use self::write::{Changed, Undo};
use crate::cli::Common;
use crate::cluster::{Cluster, assemble};
use crate::failure::{Failure, Outcome, with_causes};

#[derive(Clone)]
pub(crate) struct Access {
    client: Client,
    /// `None` means all namespaces.
    namespace: Option<String>,
    /// The Controller given by `--cluster`.
    cluster: Option<String>,
}

impl Access {
    pub(crate) async fn new(common: &Common) -> Outcome<Self> {
        let config = config(common).await?;
        let namespace = common
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config)
            .map_err(|error| Failure::refused(format!("cannot use the kubeconfig: {}", with_causes(&error))))?;
        Ok(Self {
            client,
            namespace: (!common.all_namespaces).then_some(namespace),
            cluster: common.cluster.clone(),
        })
    }

    /// Returns the selected clusters, at least one.
    pub(crate) async fn clusters(&self) -> Outcome<Vec<Cluster>> {
        let mut clusters = self.objects().await?;
        let confs = try_join_all(clusters.iter().map(|cluster| self.slurm_conf(&cluster.controller))).await?;
        for (cluster, conf) in clusters.iter_mut().zip(confs) {
            cluster.slurm_conf = conf;
        }
        Ok(clusters)
    }

    /// Returns the objects of the selected clusters, without the accepted slurm.conf.
    pub(crate) async fn objects(&self) -> Outcome<Vec<Cluster>> {
        let all = ListParams::default();
        let (controllers, node_sets, partitions) = futures::try_join!(
            self.list::<Controller>(&all),
            self.list::<NodeSet>(&all),
            self.list::<Partition>(&all)
        )?;
        let Some(controllers) = controllers else {
            return Err(Failure::not_found(
                "the API server does not know the kind Controller; install the chart slurm-operator-crds",
            ));
        };
        let mut clusters = assemble(
            controllers,
            &node_sets.unwrap_or_default(),
            &partitions.unwrap_or_default(),
        );
        let known: Vec<String> = clusters.iter().map(Cluster::name).collect();
        clusters.retain(|cluster| self.cluster.as_ref().is_none_or(|name| *name == cluster.name()));
        if clusters.is_empty() {
            return Err(self.no_cluster(&known));
        }
        Ok(clusters)
    }

    /// Returns the selected cluster, which has to be the only one.
    pub(crate) async fn one_cluster(&self) -> Outcome<Cluster> {
        let mut clusters = self.clusters().await?;
        match (clusters.pop(), clusters.as_slice()) {
            (Some(only), []) => Ok(only),
            (last, others) => {
                let names: Vec<String> = others.iter().chain(&last).map(Cluster::name).collect();
                Err(Failure::usage(format!(
                    "there are several clusters ({}); select one by --cluster",
                    names.join(", ")
                )))
            }
        }
    }

    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) fn nodes(&self) -> Api<k8s_openapi::api::core::v1::Node> {
        Api::all(self.client.clone())
    }

    pub(crate) async fn config_map(&self, namespace: &str, name: &str) -> Outcome<Option<ConfigMap>> {
        Ok(self.api::<ConfigMap>(namespace).get_opt(name).await?)
    }

    /// Returns the slurm.conf that was last accepted.
    pub(crate) async fn slurm_conf(&self, controller: &Controller) -> Outcome<Option<String>> {
        let namespace = controller.metadata.namespace.clone().unwrap_or_default();
        let name = controller.child_names().config_map();
        let config_map = self.config_map(&namespace, &name).await?;
        Ok(config_map.and_then(|mut config_map| config_map.data.as_mut()?.remove(SLURM_CONF_FILE)))
    }

    /// Returns the objects of the selected namespaces; `None` if the kind is not installed.
    pub(crate) async fn list<K>(&self, parameters: &ListParams) -> Outcome<Option<Vec<K>>>
    where
        K: kube::Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
        K::DynamicType: Default,
    {
        let api: Api<K> = match &self.namespace {
            Some(namespace) => self.api(namespace),
            None => Api::all(self.client.clone()),
        };
        match api.list(parameters).await {
            Ok(list) => Ok(Some(list.items)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn no_cluster(&self, known: &[String]) -> Failure {
        let place = match &self.namespace {
            Some(namespace) => format!("namespace {namespace:?}"),
            None => "the cluster".to_owned(),
        };
        match &self.cluster {
            Some(name) if !known.is_empty() => Failure::not_found(format!(
                "{place} has no Controller {name:?}; it has: {}",
                known.join(", ")
            )),
            _ => Failure::not_found(format!(
                "{place} has no Slurm cluster (no Controller); select another namespace by -n, or all by -A"
            )),
        }
    }
}

async fn config(common: &Common) -> Outcome<Config> {
    let unusable = |error: &dyn std::error::Error| {
        Failure::refused(format!(
            "no API server is configured: {}; set KUBECONFIG or give --kubeconfig and --context",
            with_causes(error)
        ))
    };
    if common.context.is_none() && common.kubeconfig.is_none() {
        return Config::infer().await.map_err(|error| unusable(&error));
    }
    let kubeconfig = match &common.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let options = KubeConfigOptions {
        context: common.context.clone(),
        ..KubeConfigOptions::default()
    };
    let kubeconfig = kubeconfig.map_err(|error| unusable(&error))?;
    Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(|error| unusable(&error))
}
