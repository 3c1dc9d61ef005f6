//! What goes into the configuration beside the Controller's plain fields: its extraConf, files, scripts, Accounting and
//! NodeSets. What Partitions bring is added by [`super::partitions`]. Pure.

use std::collections::{BTreeMap, BTreeSet};

use api::{
    Accounting, NodeSet,
    references::ObjectRef,
    validate::{check_config_file, check_partition_config},
    wellknown::{JWKS_FILE, JWT_KEY_FILE, SLURM_CONF_FILE, SLURM_KEY_FILE, SLURMDBD_CONF_FILE, SLURMDBD_PORT},
};
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use slurm::{
    conf::AccountingStorage,
    revision::{File, FileName},
};

use super::{
    fault::{Blocks, Fault},
    kept::KeptStates,
    observe::Observed,
    reason,
    retained::RetainedLines,
};
use crate::partition::line::Line;

/// Names that Slurm takes for something else.
const RESERVED_NAMES: &[&str] = &["all", "default"];

/// Everything a person wrote that the files are rendered from, by where it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inputs {
    pub(super) extra_conf: String,
    pub(super) accounting: Option<AccountingStorage>,
    /// By their own names.
    pub(super) node_sets: BTreeMap<String, NodeSetInput>,
    /// By the names of the Partitions.
    pub(super) partitions: BTreeMap<String, Line>,
    /// What people closed in Slurm by hand.
    pub(super) kept: KeptStates,
    /// Partitions that people made in Slurm by hand, which have jobs: what stands after `PartitionName=`, by name.
    pub(super) adopted: BTreeMap<String, String>,
    /// Partitions whose lines nobody wants any more, for the jobs that are in them.
    pub(super) retained: RetainedLines,
    pub(super) files: BTreeMap<FileName, UserFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeSetInput {
    /// In Slurm.
    pub(super) name: String,
    /// The rest of the partition's line, if there is a partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) partition: Option<String>,
}

/// An entry of a ConfigMap that becomes a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UserFile {
    pub(super) file: File,
    pub(super) origin: Origin,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Origin {
    pub(super) config_map: String,
    pub(super) entry: String,
    /// What runs it, if it is a script.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) runs_as: BTreeSet<Script>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Script {
    Prolog,
    Epilog,
    PrologSlurmctld,
    EpilogSlurmctld,
}

impl Inputs {
    /// Names of the scripts that run as this.
    pub(super) fn scripts(&self, script: Script) -> Vec<String> {
        let runs = self
            .files
            .iter()
            .filter(|(_, file)| file.origin.runs_as.contains(&script));
        runs.map(|(name, _)| name.to_string()).collect()
    }
}

/// Something that cannot even be read, and what of the inputs it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) concerns: Concerns,
    pub(super) fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Concerns {
    ConfigMap(String),
    /// An entry of a ConfigMap, and the file it would be if its name is one.
    Entry {
        config_map: String,
        entry: String,
        file: Option<FileName>,
    },
    Accounting,
    /// Of the NodeSet of this name.
    Partition(String),
}

/// Collects the inputs, what cannot be read of them, and what is wrong beside. `before` is what was accepted last.
pub(super) fn gather(observed: &Observed, before: &Inputs) -> (Inputs, Vec<Trouble>, Vec<Fault>) {
    let mut troubles = Vec::new();
    let mut faults = Vec::new();
    let mut inputs = Inputs {
        extra_conf: observed.controller.spec.extra_conf.clone().unwrap_or_default(),
        ..Inputs::default()
    };
    gather_files(observed, &mut inputs, &mut troubles);
    match gather_accounting(observed) {
        Ok(accounting) => inputs.accounting = accounting,
        Err(fault) => troubles.push(Trouble {
            concerns: Concerns::Accounting,
            fault,
        }),
    }
    gather_node_sets(observed, before, &mut inputs, &mut troubles, &mut faults);
    (inputs, troubles, faults)
}

fn gather_files(observed: &Observed, inputs: &mut Inputs, troubles: &mut Vec<Trouble>) {
    let spec = &observed.controller.spec;
    for (field, references) in spec.file_refs() {
        let script = match field {
            "prologScriptRefs" => Some(Script::Prolog),
            "epilogScriptRefs" => Some(Script::Epilog),
            "prologSlurmctldScriptRefs" => Some(Script::PrologSlurmctld),
            "epilogSlurmctldScriptRefs" => Some(Script::EpilogSlurmctld),
            _ => None,
        };
        for (index, ObjectRef { name, namespace: _ }) in references.iter().enumerate() {
            let Some(config_map) = observed.config_maps.get(name) else {
                troubles.push(missing(&format!("spec.{field}[{index}].name"), name));
                continue;
            };
            for (entry, content) in entries(config_map) {
                let runs_as = script.filter(|_| is_text(config_map, &entry));
                let file = File {
                    content,
                    executable: script.is_some(),
                };
                if let Err((file, message)) =
                    add_file(inputs, spec.jwks_key_ref.is_some(), name, &entry, &file, runs_as)
                {
                    troubles.push(Trouble {
                        concerns: Concerns::Entry {
                            config_map: name.clone(),
                            entry,
                            file,
                        },
                        fault: Fault::new(
                            Blocks::Configuration,
                            reason::BAD_FILE,
                            format!("spec.{field}[{index}] {message}"),
                        ),
                    });
                }
            }
        }
    }
    if let Some(reference) = &spec.jwks_key_ref {
        let config_map = observed.config_maps.get(&reference.name);
        let content = config_map.and_then(|config_map| entries(config_map).find(|(key, _)| *key == reference.key));
        match (config_map, content, FileName::new(JWKS_FILE)) {
            (_, Some((entry, content)), Ok(file)) => {
                let origin = Origin {
                    config_map: reference.name.clone(),
                    entry,
                    runs_as: BTreeSet::new(),
                };
                let file_of_it = File::config(content);
                inputs.files.insert(file, UserFile { file: file_of_it, origin });
            }
            (Some(_), _, file) => troubles.push(Trouble {
                concerns: Concerns::Entry {
                    config_map: reference.name.clone(),
                    entry: reference.key.clone(),
                    file: file.ok(),
                },
                fault: Fault::new(
                    Blocks::Configuration,
                    reason::CONFIG_MAP_MISSING,
                    format!(
                        "spec.jwksKeyRef.key names entry {:?}, which ConfigMap {:?} does not have; add it, or name another",
                        reference.key, reference.name,
                    ),
                ),
            }),
            (None, _, _) => troubles.push(missing("spec.jwksKeyRef.name", &reference.name)),
        }
    }
}

/// Adds one entry of a ConfigMap; or says what is wrong with it, after the words for the reference to the ConfigMap.
fn add_file(
    inputs: &mut Inputs,
    has_jwks: bool,
    config_map: &str,
    entry: &str,
    file: &File,
    runs_as: Option<Script>,
) -> Result<(), (Option<FileName>, String)> {
    let name = check_file(has_jwks, config_map, entry).map_err(|message| (None, message))?;
    let added = inputs.files.entry(name.clone()).or_insert_with(|| UserFile {
        file: file.clone(),
        origin: Origin {
            config_map: config_map.to_owned(),
            entry: entry.to_owned(),
            runs_as: BTreeSet::new(),
        },
    });
    if added.file.content != file.content {
        let message = format!(
            "names ConfigMap {config_map:?}, whose entry {entry:?} differs from that of ConfigMap {:?}; rename one of the two, since both become a file in /etc/slurm",
            added.origin.config_map,
        );
        return Err((Some(name), message));
    }
    added.file.executable |= file.executable;
    added.origin.runs_as.extend(runs_as);
    Ok(())
}

/// Upstream lists no others as scripts.
fn is_text(config_map: &ConfigMap, entry: &str) -> bool {
    config_map.data.as_ref().is_some_and(|data| data.contains_key(entry))
}

fn missing(field: &str, config_map: &str) -> Trouble {
    Trouble {
        concerns: Concerns::ConfigMap(config_map.to_owned()),
        fault: Fault::new(
            Blocks::Configuration,
            reason::CONFIG_MAP_MISSING,
            format!("{field} names ConfigMap {config_map:?}, which does not exist; make it, or remove the reference"),
        ),
    }
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
pub(super) fn gather_accounting(observed: &Observed) -> Result<Option<AccountingStorage>, Fault> {
    let Some(name) = observed.controller.spec.accounting_name() else {
        return Ok(None);
    };
    match &observed.accounting {
        Some(accounting) => Ok(Some(storage_of(accounting))),
        None => Err(Fault::new(
            Blocks::Configuration,
            reason::ACCOUNTING_MISSING,
            format!(
                "spec.accountingRef.name names Accounting {name:?}, which does not exist; make it, or remove the reference"
            ),
        )),
    }
}

/// The address of an Accounting's slurmdbd.
fn storage_of(accounting: &Accounting) -> AccountingStorage {
    match accounting.spec.external_address() {
        // Upstream leaves this out and names a Service that nobody makes.
        Some((host, port)) => AccountingStorage {
            host: host.to_owned(),
            port: u16::try_from(port).unwrap_or(SLURMDBD_PORT),
        },
        None => AccountingStorage {
            host: accounting.child_names().service(),
            port: SLURMDBD_PORT,
        },
    }
}

fn gather_node_sets(
    observed: &Observed,
    before: &Inputs,
    inputs: &mut Inputs,
    troubles: &mut Vec<Trouble>,
    faults: &mut Vec<Fault>,
) {
    let owners = name_owners(&observed.node_sets);
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
        if !is_plain(&name) {
            faults.push(Fault::new(
                Blocks::Nothing,
                reason::INVALID_SPEC,
                format!("NodeSet {own:?} is not taken into slurm.conf: its spec.template.spec.hostname makes {name:?} its name there, which no line can hold; use lower-case letters, digits and dashes"),
            ));
            // Its nodes have the feature of before.
            if let Some(known) = before.node_sets.get(&own).filter(|known| is_plain(&known.name)) {
                inputs.node_sets.insert(own, known.clone());
            }
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
        if let Some(owner) = older_partition(before, &own, &name) {
            faults.push(Fault::new(
                Blocks::Nothing,
                reason::NODE_SET_NAME_TAKEN,
                format!("NodeSet {own:?} is left out of slurm.conf: Partition {owner:?} was there before it and has the name {name:?} in Slurm; set another spec.template.spec.hostname on {own:?}, or delete the Partition"),
            ));
            continue;
        }
        let mut partition = node_set.spec.wanted_partition();
        let problems = partition.map(check_partition_config).unwrap_or_default();
        if let Some(problem) = problems.errors().next() {
            troubles.push(Trouble {
                concerns: Concerns::Partition(own.clone()),
                fault: Fault::new(
                    Blocks::Configuration,
                    reason::BAD_PARTITION,
                    format!("NodeSet {own:?}: {problem}"),
                ),
            });
            partition = None;
        }
        let partition = partition.map(str::to_owned);
        inputs.node_sets.insert(own, NodeSetInput { name, partition });
    }
}

/// Whether a name changes nothing around it in a line of slurm.conf.
fn is_plain(name: &str) -> bool {
    name.chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// The Partition that slurmctld has under the name of a NodeSet it does not have yet.
fn older_partition<'a>(before: &'a Inputs, own: &str, name: &str) -> Option<&'a String> {
    if before.node_sets.get(own).is_some_and(|known| known.name == name) {
        return None;
    }
    let mut partitions = before.partitions.iter();
    partitions.find(|(_, line)| line.name == name).map(|(owner, _)| owner)
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
