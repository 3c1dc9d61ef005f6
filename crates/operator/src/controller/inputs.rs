//! What goes into the configuration from other objects: files, scripts, Accounting and NodeSets. Pure.

use std::collections::BTreeMap;

use api::{
    Accounting, NodeSet,
    references::ObjectRef,
    validate::check_config_file,
    wellknown::{JWKS_FILE, JWT_KEY_FILE, SLURM_CONF_FILE, SLURM_KEY_FILE, SLURMDBD_CONF_FILE, SLURMDBD_PORT},
};
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use kube::ResourceExt as _;
use slurm::{
    conf::{AccountingStorage, Document, RecordKind},
    revision::{File, FileName},
};

use super::{
    build::config::Files,
    fault::{Blocks, Fault},
    observe::Observed,
    reason,
};

/// Names that Slurm takes for something else.
const RESERVED_NAMES: &[&str] = &["all", "default"];

/// Everything slurm.conf is rendered from that is not in the Controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inputs {
    /// The user's, by name.
    pub(super) files: Files,
    pub(super) scripts: Scripts,
    pub(super) accounting: Option<AccountingStorage>,
    /// Slurm's name, and the rest of the partition's line if there is a partition; in the order of the NodeSets' own names.
    pub(super) node_sets: Vec<(String, Option<String>)>,
}

/// File names of scripts, by what runs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scripts {
    pub(super) prolog: Vec<String>,
    pub(super) epilog: Vec<String>,
    pub(super) prolog_slurmctld: Vec<String>,
    pub(super) epilog_slurmctld: Vec<String>,
}

/// Collects the inputs, and what is wrong with them.
pub(super) fn gather(observed: &Observed) -> (Inputs, Vec<Fault>) {
    let mut faults = Vec::new();
    let mut inputs = Inputs::default();
    gather_files(observed, &mut inputs, &mut faults);
    inputs.accounting = gather_accounting(observed, &mut faults);
    inputs.node_sets = gather_node_sets(observed, &mut faults);
    (inputs, faults)
}

fn gather_files(observed: &Observed, inputs: &mut Inputs, faults: &mut Vec<Fault>) {
    let spec = &observed.controller.spec;
    let mut sources: BTreeMap<FileName, String> = BTreeMap::new();
    for (field, references) in spec.file_refs() {
        for (index, ObjectRef { name, namespace: _ }) in references.iter().enumerate() {
            let Some(config_map) = observed.config_maps.get(name) else {
                faults.push(missing(&format!("spec.{field}[{index}].name"), "ConfigMap", name));
                continue;
            };
            let scripts = match field {
                "prologScriptRefs" => Some(&mut inputs.scripts.prolog),
                "epilogScriptRefs" => Some(&mut inputs.scripts.epilog),
                "prologSlurmctldScriptRefs" => Some(&mut inputs.scripts.prolog_slurmctld),
                "epilogSlurmctldScriptRefs" => Some(&mut inputs.scripts.epilog_slurmctld),
                _ => None,
            };
            let executable = scripts.is_some();
            if let Some(scripts) = scripts {
                scripts.extend(config_map.data.iter().flatten().map(|(file, _)| file.clone()));
            }
            for (file, content) in entries(config_map) {
                let file = match check_file(spec.jwks_key_ref.is_some(), name, &file) {
                    Ok(file) => file,
                    Err(message) => {
                        faults.push(Fault::new(
                            Blocks::Configuration,
                            reason::BAD_FILE,
                            format!("spec.{field}[{index}] {message}"),
                        ));
                        continue;
                    }
                };
                let added = inputs
                    .files
                    .entry(file.clone())
                    .or_insert_with(|| File::config(content.clone()));
                added.executable |= executable;
                if added.content != content {
                    let other = sources.get(&file).map(String::as_str).unwrap_or_default();
                    faults.push(Fault::new(
                        Blocks::Configuration,
                        reason::BAD_FILE,
                        format!(
                            "spec.{field}[{index}] names ConfigMap {name:?}, whose entry {:?} differs from that of ConfigMap {other:?}; rename one of the two, since both become a file in /etc/slurm",
                            file.as_str(),
                        ),
                    ));
                }
                sources.entry(file).or_insert_with(|| name.clone());
            }
        }
    }
    if let Some(reference) = &spec.jwks_key_ref {
        let config_map = observed.config_maps.get(&reference.name);
        let content = config_map.and_then(|config_map| entries(config_map).find(|(key, _)| *key == reference.key));
        match (config_map, content, FileName::new(JWKS_FILE)) {
            (_, Some((_, content)), Ok(file)) => {
                inputs.files.insert(file, File::config(content));
            }
            (Some(_), _, _) => faults.push(Fault::new(
                Blocks::Configuration,
                reason::CONFIG_MAP_MISSING,
                format!(
                    "spec.jwksKeyRef.key names entry {:?}, which ConfigMap {:?} does not have; add it, or name another",
                    reference.key, reference.name,
                ),
            )),
            (None, _, _) => faults.push(missing("spec.jwksKeyRef.name", "ConfigMap", &reference.name)),
        }
    }
}

fn missing(field: &str, kind: &str, name: &str) -> Fault {
    Fault::new(
        Blocks::Configuration,
        reason::CONFIG_MAP_MISSING,
        format!("{field} names {kind} {name:?}, which does not exist; make it, or remove the reference"),
    )
}

fn entries(config_map: &ConfigMap) -> impl Iterator<Item = (String, Vec<u8>)> {
    let text = config_map.data.iter().flatten();
    let binary = config_map.binary_data.iter().flatten();
    text.map(|(key, text)| (key.clone(), text.clone().into_bytes()))
        .chain(binary.map(|(key, ByteString(bytes))| (key.clone(), bytes.clone())))
}

fn check_file(has_jwks: bool, config_map: &str, file: &str) -> Result<FileName, String> {
    let reserved = match file {
        SLURM_CONF_FILE | SLURMDBD_CONF_FILE => {
            let problems = check_config_file(config_map, file);
            let said = problems
                .errors()
                .map(|problem| format!("{}; {}", problem.fault, problem.remedy));
            return Err(said.collect::<Vec<_>>().join("; "));
        }
        SLURM_KEY_FILE => Some("spec.slurmKeyRef"),
        JWT_KEY_FILE => Some("spec.jwtKeyRef"),
        JWKS_FILE if has_jwks => Some("spec.jwksKeyRef"),
        _ => None,
    };
    if let Some(field) = reserved {
        return Err(format!(
            "names ConfigMap {config_map:?}, whose entry {file:?} is what {field} is for; remove the entry"
        ));
    }
    FileName::new(file).map_err(|error| format!("names ConfigMap {config_map:?}: {error}; rename the entry"))
}

/// Where slurmdbd is. While an Accounting that is named does not exist, the configuration stays as it is: a cluster that
/// loses its accounting for a moment loses records.
pub(super) fn gather_accounting(observed: &Observed, faults: &mut Vec<Fault>) -> Option<AccountingStorage> {
    let name = observed.controller.spec.accounting_name()?;
    let Some(accounting) = &observed.accounting else {
        faults.push(Fault::new(
            Blocks::Configuration,
            reason::ACCOUNTING_MISSING,
            format!("spec.accountingRef.name names Accounting {name:?}, which does not exist; make it, or remove the reference"),
        ));
        return None;
    };
    Some(storage_of(accounting))
}

/// The address of an Accounting's slurmdbd.
fn storage_of(accounting: &Accounting) -> AccountingStorage {
    let external = accounting
        .spec
        .external_config
        .as_ref()
        .filter(|_| accounting.spec.is_external());
    match external {
        // Upstream leaves this out and names a Service that nobody makes.
        Some(external) => AccountingStorage {
            host: external.host.clone(),
            port: u16::try_from(external.port).unwrap_or(SLURMDBD_PORT),
        },
        None => AccountingStorage {
            host: accounting.child_names().service(),
            port: SLURMDBD_PORT,
        },
    }
}

fn gather_node_sets(observed: &Observed, faults: &mut Vec<Fault>) -> Vec<(String, Option<String>)> {
    let owners = name_owners(&observed.node_sets);
    let extra = Document::parse(observed.controller.spec.extra_conf.as_deref().unwrap_or_default());
    let mut lines = Vec::new();
    for node_set in &observed.node_sets {
        let own = node_set.name_any();
        let name = node_set.slurm_name();
        if RESERVED_NAMES.iter().any(|word| name.eq_ignore_ascii_case(word)) {
            faults.push(Fault::new(
                Blocks::Nothing,
                reason::NODE_SET_NAME_TAKEN,
                format!("NodeSet {own:?} is left out of slurm.conf: {name:?} means something else to Slurm; set another spec.template.spec.hostname on it"),
            ));
            continue;
        }
        if let Some(owner) = owners.get(&name).filter(|owner| **owner != own) {
            faults.push(Fault::new(
                Blocks::Nothing,
                reason::NODE_SET_NAME_TAKEN,
                format!("NodeSet {own:?} is left out of slurm.conf: NodeSet {owner:?} is older and has the name {name:?} in Slurm; set another spec.template.spec.hostname on {own:?}"),
            ));
            continue;
        }
        let partition = node_set.spec.wanted_partition();
        if partition.is_some_and(|config| config.contains(['\n', '\r'])) {
            faults.push(Fault::new(
                Blocks::Configuration,
                reason::BAD_PARTITION,
                format!("spec.partition.config of NodeSet {own:?} has more than one line; write it in one"),
            ));
        }
        if partition.is_some() && extra.record(RecordKind::Partition, &name).is_some() {
            faults.push(Fault::new(
                Blocks::Configuration,
                reason::BAD_PARTITION,
                format!("spec.extraConf defines partition {name:?}, which NodeSet {own:?} has too, and Slurm refuses a second one; remove it from spec.extraConf, or set spec.partition.enabled to false on the NodeSet"),
            ));
        }
        lines.push((name, partition.map(str::to_owned)));
    }
    lines
}

/// Which NodeSet has each name in Slurm: the oldest that asks for it.
fn name_owners(node_sets: &[std::sync::Arc<NodeSet>]) -> BTreeMap<String, String> {
    let mut by_age: Vec<_> = node_sets.iter().collect();
    by_age.sort_by_key(|node_set| (created(node_set.as_ref()), node_set.name_any()));
    let mut owners = BTreeMap::new();
    for node_set in by_age {
        owners
            .entry(node_set.slurm_name())
            .or_insert_with(|| node_set.name_any());
    }
    owners
}

/// When an object was made; one that has not been is the youngest.
pub(super) fn created(object: &impl kube::Resource) -> Timestamp {
    object
        .meta()
        .creation_timestamp
        .as_ref()
        .map_or(Timestamp::MAX, |time| time.0)
}
