//! slurm.conf and what goes with it: the files of a revision, and the two ConfigMaps they are kept in.

use std::collections::BTreeMap;

use api::{
    keys::{apps, components},
    wellknown::{CGROUP_CONF_FILE, SLURM_CONF_FILE},
};
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use slurm::{
    Revision,
    conf::{
        AccountingStorage, ExternalConf, NodeSetLines, SlurmConf, SlurmctldHost, render_cgroup_conf,
        render_external_slurm_conf, render_slurm_conf,
    },
    revision::{File, FileName, TooLarge},
};

use super::{Parent, layout};
use crate::{
    controller::inputs::{Inputs, Scripts},
    template::metadata::{Marks, component_labels},
};

/// As many dynamic nodes as upstream has room for.
const MAX_NODE_COUNT: u32 = 1024;

/// All files of a revision, by name.
pub(in crate::controller) type Files = BTreeMap<FileName, File>;

/// The files of the cluster: the user's, with ours beside them.
pub(in crate::controller) fn build_files(parent: &Parent, inputs: &Inputs) -> Files {
    let mut files = inputs.files.clone();
    for (name, content) in [
        (SLURM_CONF_FILE, render_conf(parent, inputs)),
        (CGROUP_CONF_FILE, render_cgroup_conf()),
    ] {
        if let Ok(name) = FileName::new(name) {
            files.entry(name).or_insert_with(|| File::config(content));
        }
    }
    files
}

fn render_conf(parent: &Parent, inputs: &Inputs) -> String {
    let Parent {
        controller,
        names,
        namespace,
    } = parent;
    let internal = names.internal_service();
    let host = |ordinal| {
        let name = names.pod(ordinal);
        let address = format!("{name}.{internal}.{namespace}");
        SlurmctldHost { name, address }
    };
    let Scripts {
        prolog,
        epilog,
        prolog_slurmctld,
        epilog_slurmctld,
    } = inputs.scripts.clone();
    render_slurm_conf(&SlurmConf {
        cluster_name: controller.cluster_name(),
        slurmctld_hosts: (0..controller.spec.replicas()).map(host).collect(),
        slurmctld_address: format!("{}.{namespace}", names.service()),
        max_node_count: MAX_NODE_COUNT,
        jwks: controller.spec.jwks_key_ref.is_some(),
        metrics: controller
            .spec
            .metrics
            .as_ref()
            .is_some_and(api::metrics::Metrics::is_enabled),
        accounting: inputs.accounting.clone(),
        prolog_slurmctld,
        epilog_slurmctld,
        prolog,
        epilog,
        node_sets: inputs
            .node_sets
            .iter()
            .map(|(name, partition)| NodeSetLines {
                name: name.clone(),
                partition: partition.clone(),
            })
            .collect(),
        extra: controller.spec.extra_conf.clone().unwrap_or_default(),
    })
}

/// slurm.conf and cgroup.conf for people, diagnostics and slurmrestd. A cgroup.conf of the user's is in their own ConfigMap.
pub(in crate::controller) fn build_config_map(parent: &Parent, files: &Files, inputs: &Inputs) -> ConfigMap {
    let text = |name: &str| {
        let (_, file) = files.iter().find(|(file, _)| file.as_str() == name)?;
        Some((name.to_owned(), String::from_utf8_lossy(&file.content).into_owned()))
    };
    let users_cgroup = inputs.files.keys().any(|file| file.as_str() == CGROUP_CONF_FILE);
    let cgroup = text(CGROUP_CONF_FILE).filter(|_| !users_cgroup);
    let data = text(SLURM_CONF_FILE).into_iter().chain(cgroup).collect();
    config_map(parent, parent.marks(), data)
}

/// The slurm.conf by which slurmrestd finds a slurmctld outside Kubernetes.
pub(in crate::controller) fn build_external_config_map(
    parent: &Parent,
    accounting: Option<AccountingStorage>,
) -> Option<ConfigMap> {
    let external = parent.controller.spec.external_config.as_ref()?;
    let conf = render_external_slurm_conf(&ExternalConf {
        cluster_name: parent.controller.cluster_name(),
        slurmctld_host: external.host.clone(),
        slurmctld_port: u16::try_from(external.port).ok()?,
        accounting,
    });
    let template = parent.controller.spec.template.as_ref();
    let marks = Marks::default()
        .and(template.and_then(|template| template.metadata.as_ref()))
        .label(&component_labels(
            apps::SLURMCTLD,
            parent.names.as_str(),
            components::CONTROLLER,
        ));
    let data = BTreeMap::from([(SLURM_CONF_FILE.to_owned(), conf)]);
    Some(config_map(parent, marks, data))
}

fn config_map(parent: &Parent, marks: Marks, data: BTreeMap<String, String>) -> ConfigMap {
    ConfigMap {
        metadata: marks.into_meta(&parent.namespace, parent.names.config_map(), parent.owner()),
        data: Some(data),
        immutable: Some(false),
        ..ConfigMap::default()
    }
}

/// The last accepted revision, which a pod without state starts from.
pub(in crate::controller) fn build_bundle(parent: &Parent, revision: &Revision) -> Result<ConfigMap, TooLarge> {
    let bundle = ByteString(revision.to_bundle()?);
    Ok(ConfigMap {
        metadata: parent
            .marks()
            .into_meta(&parent.namespace, parent.names.bundle_config_map(), parent.owner()),
        binary_data: Some(BTreeMap::from([(layout::BUNDLE_FILE.to_owned(), bundle)])),
        ..ConfigMap::default()
    })
}

/// The revision in a bundle's ConfigMap. One that cannot be read is none: it will be written again.
pub(in crate::controller) fn read_bundle(config_map: &ConfigMap) -> Option<Revision> {
    let ByteString(bundle) = config_map.binary_data.as_ref()?.get(layout::BUNDLE_FILE)?;
    Revision::from_bundle(bundle).ok()
}
