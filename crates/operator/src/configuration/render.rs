//! Renders slurm.conf and the other files of a revision, and the two ConfigMaps that contain them.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    keys::{apps, components},
    wellknown::{CGROUP_CONF_FILE, JWKS_FILE, SLURM_CONF_FILE},
};
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use slurm::{
    Revision,
    agent::{AgentKey, BundleKey, Candidate, MAX_SIGNATURE, SIGNATURE_FILE, SignedBundle, candidate},
    conf::{
        AccountingStorage, Document, ExternalConf, NodeSetLines, RenderedSlurmConf, SlurmConf, SlurmctldHost,
        render_cgroup_conf, render_external_slurm_conf, render_slurm_conf,
    },
    revision::{File, FileName, MAX_BUNDLE, TooLarge},
};

use super::{
    accepted::Accepted,
    content::{Content, Script},
    explain::Places,
    source::Source,
};
use crate::{
    cluster::deliver::Files,
    layout,
    parent::Parent,
    partition::rules::{line::PartitionLine, manual_state::write_states},
    slurm_release::without_metrics,
    template::{
        container::user_image,
        metadata::{Marks, component_labels},
    },
};

/// The files, and the origin of the lines of slurm.conf.
#[derive(Clone, Debug, Default)]
pub(crate) struct Built {
    pub(crate) files: Files,
    pub(crate) places: Places,
}

/// Renders the files of the cluster: the user's and the operator's.
pub(crate) fn build_files(parent: &Parent, content: &Content, max_node_count: u32) -> Built {
    let RenderedSlurmConf {
        text,
        node_sets,
        partitions,
        extra,
        merged,
    } = render_conf(parent, content, max_node_count);
    let text = write_states(&text, &content.manual_states);
    let users = content.files.iter();
    let mut files: Files = users.map(|(name, user)| (name.clone(), user.file.clone())).collect();
    for (name, content) in [(SLURM_CONF_FILE, text), (CGROUP_CONF_FILE, render_cgroup_conf())] {
        if let Ok(name) = FileName::new(name) {
            files.entry(name).or_insert_with(|| File::config(content));
        }
    }
    let of_node_sets = content
        .node_sets
        .keys()
        .zip(node_sets)
        .flat_map(|(own, (node_set, partition))| {
            let partition = partition.map(|line| (line, Source::Partition(own.clone())));
            [(node_set, Source::NodeSet(own.clone()))].into_iter().chain(partition)
        });
    let owners = content.partitions.keys().cloned().map(Source::PartitionObject);
    Built {
        files,
        places: Places {
            objects: of_node_sets.chain(partitions.into_iter().zip(owners)).collect(),
            extra,
            merged,
        },
    }
}

/// The slurm.conf among these files, parsed.
pub(crate) fn slurm_conf(files: &Files) -> Option<Document> {
    let (_, conf) = files.iter().find(|(name, _)| name.as_str() == SLURM_CONF_FILE)?;
    Some(Document::parse(&String::from_utf8_lossy(&conf.content)))
}

fn render_conf(parent: &Parent, content: &Content, max_node_count: u32) -> RenderedSlurmConf {
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
    // After the lines of the NodeSets, which are counted.
    let marks = content
        .partitions
        .values()
        .filter_map(|line| Some(&line.mark.as_ref()?.name));
    let is_there = |name: &&String| content.node_sets.values().any(|node_set| node_set.name == **name);
    let retained: BTreeSet<&String> = content.retained.values().flat_map(|line| &line.node_sets).collect();
    let retained = retained.into_iter().filter(|name| !is_there(name));
    render_slurm_conf(&SlurmConf {
        cluster_name: controller.cluster_name(),
        slurmctld_hosts: (0..controller.spec.replicas()).map(host).collect(),
        slurmctld_address: format!("{}.{namespace}", names.service()),
        max_node_count,
        jwks: controller.spec.jwks_key_ref.is_some() && has_file(content, JWKS_FILE),
        metrics: controller
            .spec
            .metrics
            .as_ref()
            .is_some_and(api::metrics::Metrics::is_enabled)
            && without_metrics(user_image(controller.spec.slurmctld.as_ref())).is_none(),
        power_saving: content.power_saving,
        accounting: content.accounting.clone().map(storage),
        prolog_slurmctld: content.scripts(Script::PrologSlurmctld),
        epilog_slurmctld: content.scripts(Script::EpilogSlurmctld),
        prolog: content.scripts(Script::Prolog),
        epilog: content.scripts(Script::Epilog),
        node_sets: content
            .node_sets
            .values()
            .cloned()
            .chain(marks.chain(retained).map(|name| NodeSetLines {
                name: name.clone(),
                partition: None,
            }))
            .collect(),
        partitions: content
            .partitions
            .values()
            .map(PartitionLine::text)
            .chain(content.adopted.values().cloned())
            .chain(content.retained.values().map(|retained| retained.line.clone()))
            .collect(),
        extra: content.extra_conf.clone(),
    })
}

fn storage((host, port): (String, u16)) -> AccountingStorage {
    AccountingStorage { host, port }
}

fn has_file(content: &Content, name: &str) -> bool {
    content.files.keys().any(|file| file.as_str() == name)
}

/// slurm.conf and cgroup.conf for people, diagnostics and slurmrestd. A user's cgroup.conf is in their own ConfigMap.
pub(crate) fn build_config_map(parent: &Parent, files: &Files, content: Option<&Content>) -> ConfigMap {
    let text = |name: &str| {
        let (_, file) = files.iter().find(|(file, _)| file.as_str() == name)?;
        Some((name.to_owned(), String::from_utf8_lossy(&file.content).into_owned()))
    };
    let users_cgroup = content.is_some_and(|content| has_file(content, CGROUP_CONF_FILE));
    let cgroup = text(CGROUP_CONF_FILE).filter(|_| !users_cgroup);
    let data = text(SLURM_CONF_FILE).into_iter().chain(cgroup).collect();
    config_map(parent, parent.marks(), data)
}

/// The slurm.conf by which slurmrestd finds an external slurmctld.
pub(crate) fn build_external_config_map(parent: &Parent, accounting: Option<(String, u16)>) -> Option<ConfigMap> {
    let (host, port) = parent.controller.spec.external_address()?;
    let conf = render_external_slurm_conf(&ExternalConf {
        cluster_name: parent.controller.cluster_name(),
        slurmctld_host: host.to_owned(),
        slurmctld_port: u16::try_from(port).ok()?,
        accounting: accounting.map(storage),
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

/// A ConfigMap of the operator's own with these entries.
fn binary_config_map<'a>(
    parent: &Parent,
    name: String,
    entries: impl IntoIterator<Item = (&'a str, Vec<u8>)>,
) -> ConfigMap {
    let entries = entries.into_iter();
    let entries = entries.map(|(name, bytes)| (name.to_owned(), ByteString(bytes)));
    ConfigMap {
        metadata: parent.marks().into_meta(&parent.namespace, name, parent.owner()),
        binary_data: Some(entries.collect()),
        ..ConfigMap::default()
    }
}

/// The last accepted revision, which a pod without state starts with, and its content.
pub(crate) fn build_bundle(
    parent: &Parent,
    revision: &Revision,
    accepted: Option<&Accepted>,
    key: &BundleKey,
) -> Result<ConfigMap, TooLarge> {
    let bundle = revision.to_bundle()?;
    // The size limit applies to all entries together. Without the record the revision is still complete.
    let room = MAX_BUNDLE.saturating_sub(bundle.len() + MAX_SIGNATURE);
    let record = accepted
        .map(|accepted| accepted.to_json(revision.digest()))
        .filter(|json| json.len() <= room);
    let signature = key.sign(&bundle, record.as_deref().map(str::as_bytes));
    Ok(ConfigMap {
        data: record.map(|json| BTreeMap::from([(layout::INPUTS_FILE.to_owned(), json)])),
        ..binary_config_map(
            parent,
            parent.names.bundle_config_map(),
            [(layout::BUNDLE_FILE, bundle), (SIGNATURE_FILE, signature.into_bytes())],
        )
    })
}

/// The revision in a bundle's ConfigMap. An unreadable one counts as missing: it will be written again.
pub(crate) fn read_bundle(config_map: &ConfigMap) -> Option<Revision> {
    read_revision(config_map, layout::BUNDLE_FILE)
}

fn read_revision(config_map: &ConfigMap, entry: &str) -> Option<Revision> {
    let ByteString(bundle) = config_map.binary_data.as_ref()?.get(entry)?;
    Revision::from_bundle(bundle).ok()
}

/// What the signature in a bundle's ConfigMap covers, if it is of this key and covers the revision.
pub(crate) fn read_signature(config_map: &ConfigMap, key: &BundleKey) -> Option<SignedBundle> {
    let entries = config_map.binary_data.as_ref()?;
    let (ByteString(bundle), ByteString(signature)) = (entries.get(layout::BUNDLE_FILE)?, entries.get(SIGNATURE_FILE)?);
    key.read(signature).filter(|signed| signed.covers(bundle))
}

pub(crate) fn has_signature(config_map: &ConfigMap) -> bool {
    let entries = config_map.binary_data.as_ref();
    entries.is_some_and(|entries| entries.contains_key(SIGNATURE_FILE))
}

/// The record of that revision's content, if it was written.
pub(crate) fn read_record(config_map: &ConfigMap) -> Option<&String> {
    config_map.data.as_ref()?.get(layout::INPUTS_FILE)
}

/// The ConfigMap of a revision for an agent that cannot be reached.
pub(crate) fn build_candidate(parent: &Parent, candidate: &Candidate) -> ConfigMap {
    let Candidate { bundle, token } = candidate;
    let entries = [
        (candidate::BUNDLE_FILE, bundle.clone()),
        (candidate::TOKEN_FILE, token.as_bytes().to_vec()),
    ];
    binary_config_map(parent, parent.names.candidate_config_map(), entries)
}

/// The sequence of the revision in it, if this key signed it.
pub(crate) fn read_candidate(config_map: &ConfigMap, key: &AgentKey) -> Option<u64> {
    let entry = |name: &str| Some(config_map.binary_data.as_ref()?.get(name)?.0.clone());
    let candidate = Candidate {
        bundle: entry(candidate::BUNDLE_FILE)?,
        token: String::from_utf8(entry(candidate::TOKEN_FILE)?).ok()?,
    };
    let revision = read_revision(config_map, candidate::BUNDLE_FILE)?;
    candidate.is_signed(key).then_some(revision.sequence)
}
