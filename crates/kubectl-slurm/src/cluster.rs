//! A cluster in the API server: the Controller and the objects that refer to it. Pure.

use api::{Controller, NodeSet, Partition, configuration::ConfigurationAction};
use kube::ResourceExt as _;
use slurm::conf::Document;

#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) controller: Controller,
    pub(crate) node_sets: Vec<NodeSet>,
    /// The objects of kind Partition.
    pub(crate) partitions: Vec<Partition>,
    /// The slurm.conf that was last accepted.
    pub(crate) slurm_conf: Option<String>,
}

impl Cluster {
    pub(crate) fn name(&self) -> String {
        self.controller.name_any()
    }

    pub(crate) fn namespace(&self) -> String {
        self.controller.namespace().unwrap_or_default()
    }

    pub(crate) fn extra_conf(&self) -> &str {
        self.controller.spec.extra_conf.as_deref().unwrap_or_default()
    }

    pub(crate) fn accepted(&self) -> Document {
        Document::parse(self.slurm_conf.as_deref().unwrap_or_default())
    }

    /// Returns the NodeSet with this name, of the object or in Slurm.
    pub(crate) fn node_set(&self, name: &str) -> Option<&NodeSet> {
        let named = self.node_sets.iter().find(|set| set.name_any() == name);
        named.or_else(|| self.node_sets.iter().find(|set| set.slurm_name() == name))
    }
}

/// Groups the objects by Controller.
pub(crate) fn assemble(controllers: Vec<Controller>, node_sets: &[NodeSet], partitions: &[Partition]) -> Vec<Cluster> {
    controllers
        .into_iter()
        .map(|controller| {
            let name = controller.name_any();
            let namespace = controller.namespace();
            let own_set = |set: &&NodeSet| set.spec.controller_ref.name == name && set.namespace() == namespace;
            let own_partition = |partition: &&Partition| {
                partition.spec.controller_ref.name == name && partition.namespace() == namespace
            };
            Cluster {
                node_sets: node_sets.iter().filter(own_set).cloned().collect(),
                partitions: partitions.iter().filter(own_partition).cloned().collect(),
                controller,
                slurm_conf: None,
            }
        })
        .collect()
}

/// Describes the action that made a change live.
pub(crate) fn action_word(action: Option<&ConfigurationAction>) -> &str {
    match action {
        Some(ConfigurationAction::Nothing) => "nothing to do",
        Some(ConfigurationAction::PartitionRpc) => "partitions by RPC",
        Some(ConfigurationAction::Reconfigure) => "a reconfigure",
        Some(ConfigurationAction::Restart) => "a restart",
        Some(ConfigurationAction::Other(word)) => word,
        None => "an unknown action",
    }
}
