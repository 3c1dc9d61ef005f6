//! Collects the content of the next configuration from the objects that people wrote, and from their changes in Slurm.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{
    Accounting, NodeSet,
    references::ObjectRef,
    validate::{check_config_file, check_partition_config},
    wellknown::{JWKS_FILE, JWT_KEY_FILE, SLURM_CONF_FILE, SLURM_KEY_FILE, SLURMDBD_CONF_FILE, SLURMDBD_PORT},
};
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use kube::ResourceExt as _;
use slurm::{
    Revision,
    conf::{AccountingStorage, Document},
    revision::{ControllerUid, Digest, File, FileName},
};

use super::{
    Inputs,
    accepted::Accepted,
    content::{Content, NodeSetInput, Origin, Script, UserFile},
    delivery::Method,
    partitions::{find_adopted, gather_partitions, has_leaving, is_waiting_for_nodes, taken_by},
    render::{build_files, read_bundle, read_inputs},
    revise::{Held, StartingPoint, hold_unreadable},
};
use crate::{
    cluster::{Snapshot, deliver::Files, pods},
    finding::{Blocks, Finding},
    parent::Parent,
    partition::rules::{
        closing::{RetainedLines, find_retained},
        manual_state::{ManualStates, find_manual_states},
        names::created,
    },
    reason,
};

/// Names with a special meaning in Slurm.
const RESERVED_NAMES: &[&str] = &["all", "default"];

/// The content of the next configuration, and the problems of its inputs.
#[derive(Clone, Debug)]
pub(super) struct Gathered {
    pub(super) content: Content,
    pub(super) findings: Vec<Finding>,
    /// Inputs that are kept at their accepted version.
    pub(super) held: Vec<Held>,
    pub(super) manual_states: ManualStates,
    /// Slurm has other states than written, but they were read before the states were written.
    pub(super) is_unsure: bool,
    /// A decision depended on jobs or nodes in Slurm.
    pub(super) depends_on_slurm: bool,
}

/// The accepted revision, from Kubernetes' record or because slurmctld runs with it already.
pub(super) struct Former {
    pub(super) revision: Option<Revision>,
    pub(super) digest: Option<Digest>,
    /// Its slurm.conf, parsed.
    pub(super) slurm_conf: Option<Document>,
    pub(super) accepted: Option<Accepted>,
    /// Stands in for unknown content.
    nothing: Content,
}

impl Former {
    pub(super) fn of(inputs: &Inputs, snapshot: &Snapshot, uid: &ControllerUid) -> Self {
        let bundle = inputs.bundle.as_deref();
        let revision = bundle.and_then(read_bundle).filter(|bundle| bundle.controller == *uid);
        let written = revision.as_ref().map_or(0, |revision| revision.sequence);
        let (revision, accepted) = match &snapshot.served {
            Some((live, sent)) if live.sequence > written => {
                let revision = Revision {
                    sequence: live.sequence,
                    ..sent.revision.clone()
                };
                let accepted = Accepted::from_json(&sent.record, &revision);
                let accepted = accepted.map(|accepted| Accepted {
                    served: true,
                    ..accepted
                });
                (Some(revision), accepted)
            }
            _ => {
                let accepted = bundle
                    .zip(revision.as_ref())
                    .and_then(|(bundle, revision)| read_inputs(bundle, revision));
                (revision, accepted)
            }
        };
        Self {
            digest: revision.as_ref().map(Revision::digest),
            slurm_conf: revision.as_ref().and_then(|revision| slurm_conf(&revision.files)),
            revision,
            accepted,
            nothing: Content::default(),
        }
    }

    /// The content of the accepted revision; empty if it is not known.
    pub(super) fn content(&self) -> &Content {
        self.accepted
            .as_ref()
            .map_or(&self.nothing, |accepted| &accepted.content)
    }

    pub(super) fn before(&self, inputs: &Inputs) -> StartingPoint<'_> {
        match (&self.revision, &self.accepted) {
            (Some(revision), Some(accepted)) => StartingPoint::Accepted(revision, accepted),
            (None, _) if is_new(inputs) => StartingPoint::Nothing,
            (revision, _) => StartingPoint::Unrecorded(revision.as_ref()),
        }
    }
}

/// Whether no slurmctld ever ran, also not under another operator: its jobs could be lost.
fn is_new(inputs: &Inputs) -> bool {
    inputs.config.is_none() && !inputs.pods.iter().any(|pod| pods::has_started(pod))
}

/// Collects the content of the next configuration.
pub(super) fn gather(
    inputs: &Inputs,
    snapshot: &Snapshot,
    parent: &Parent,
    former: &Former,
    method: Method,
    max_node_count: u32,
) -> Gathered {
    let before = former.content();
    let mut unreadable = Vec::new();
    let mut findings = Vec::new();
    let mut content = Content {
        extra_conf: inputs.controller.spec.extra_conf.clone().unwrap_or_default(),
        ..Content::default()
    };
    gather_files(inputs, &mut content, &mut unreadable);
    match gather_accounting(inputs) {
        Ok(accounting) => content.accounting = accounting,
        Err(finding) => unreadable.push(UnreadableInput {
            affects: AffectedInput::Accounting,
            finding,
        }),
    }
    gather_node_sets(inputs, before, &mut content, &mut unreadable, &mut findings);

    // Slurm's response while slurmctld ran with the accepted revision and nothing newer.
    let fresh = former.digest.and_then(|digest| snapshot.since(digest));
    let taken = taken_by(&content);
    let refused = gather_partitions(inputs, snapshot, &mut content, before, taken.clone(), fresh.is_some());
    content.adopted = find_adopted(snapshot, &before.adopted, &content, &taken, fresh);
    content.retained = gather_retained(snapshot, before, former.slurm_conf.as_ref(), &content);
    let seen = snapshot.knowledge.known();
    let (manual_states, is_unsure) = find_manual_states(
        &inputs.partitions,
        seen.and_then(|seen| Some((seen.partitions.as_deref()?, seen.at))),
        // A closed partition is not a reason to restart slurmctld.
        fresh.is_some() && method == Method::InPlace,
        former.slurm_conf.as_ref(),
        &before.manual_states,
        || slurm_conf(&build_files(parent, &content, max_node_count).files).unwrap_or_default(),
    );
    content.manual_states.clone_from(&manual_states);
    let depends_on_slurm = has_leaving(inputs, before)
        || is_waiting_for_nodes(&refused)
        || !content.retained.is_empty()
        || !before.retained.is_empty();

    findings.extend(refused.iter().map(Held::finding));
    let mut held = Vec::new();
    let mut blocks = Blocks::Configuration;
    if let Some(accepted) = &former.accepted {
        // The accepted revision has a last good version of every input.
        held = hold_unreadable(&mut content, &accepted.content, &unreadable);
        blocks = Blocks::Input;
    }
    held.extend(refused);
    // A cluster that has not started yet can start without a partition.
    let is_new = matches!(former.before(inputs), StartingPoint::Nothing);
    findings.extend(unreadable.into_iter().map(|input| Finding {
        blocks: match input.affects {
            AffectedInput::Partition(_) if is_new => Blocks::Input,
            _ => blocks,
        },
        ..input.finding
    }));
    Gathered {
        content,
        findings,
        held,
        manual_states,
        is_unsure,
        depends_on_slurm,
    }
}

fn gather_retained(
    snapshot: &Snapshot,
    before: &Content,
    written: Option<&Document>,
    content: &Content,
) -> RetainedLines {
    let Some(written) = written else {
        return RetainedLines::new();
    };
    let mut kept = content.partition_names();
    // Objects close by themselves, and manually created partitions stay until they are deleted in Slurm.
    kept.extend(before.partitions.values().map(|line| line.name.clone()));
    kept.extend(before.adopted.keys().cloned());
    let node_sets = before.node_sets.values().map(|node_set| node_set.name.as_str());
    let jobs = snapshot.knowledge.known().and_then(|seen| seen.jobs.as_deref());
    let in_use = &snapshot.report.in_use;
    find_retained(written, &kept, &node_sets.collect(), &before.retained, in_use, jobs)
}

fn slurm_conf(files: &Files) -> Option<Document> {
    let (_, conf) = files.iter().find(|(name, _)| name.as_str() == SLURM_CONF_FILE)?;
    Some(Document::parse(&String::from_utf8_lossy(&conf.content)))
}

/// An input that cannot be read, and its finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreadableInput {
    pub(crate) affects: AffectedInput,
    pub(crate) finding: Finding,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AffectedInput {
    ConfigMap(String),
    /// An entry of a ConfigMap, and its file if the name is a valid file name.
    Entry {
        config_map: String,
        entry: String,
        file: Option<FileName>,
    },
    Accounting,
    /// The partition of the NodeSet of this name.
    Partition(String),
}

fn gather_files(inputs: &Inputs, content: &mut Content, unreadable: &mut Vec<UnreadableInput>) {
    let spec = &inputs.controller.spec;
    for (field, references) in spec.file_refs() {
        let script = match field {
            "prologScriptRefs" => Some(Script::Prolog),
            "epilogScriptRefs" => Some(Script::Epilog),
            "prologSlurmctldScriptRefs" => Some(Script::PrologSlurmctld),
            "epilogSlurmctldScriptRefs" => Some(Script::EpilogSlurmctld),
            _ => None,
        };
        for (index, ObjectRef { name, namespace: _ }) in references.iter().enumerate() {
            let Some(config_map) = inputs.config_maps.get(name) else {
                unreadable.push(missing(&format!("spec.{field}[{index}].name"), name));
                continue;
            };
            for (entry, bytes) in entries(config_map) {
                let runs_as = script.filter(|_| is_text(config_map, &entry));
                let file = File {
                    content: bytes,
                    executable: script.is_some(),
                };
                if let Err((file, message)) =
                    add_file(content, spec.jwks_key_ref.is_some(), name, &entry, &file, runs_as)
                {
                    unreadable.push(UnreadableInput {
                        affects: AffectedInput::Entry {
                            config_map: name.clone(),
                            entry,
                            file,
                        },
                        finding: Finding::new(
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
        let config_map = inputs.config_maps.get(&reference.name);
        let found = config_map.and_then(|config_map| entries(config_map).find(|(key, _)| *key == reference.key));
        match (config_map, found, FileName::new(JWKS_FILE)) {
            (_, Some((entry, bytes)), Ok(file)) => {
                let origin = Origin {
                    config_map: reference.name.clone(),
                    entry,
                    runs_as: BTreeSet::new(),
                };
                let file_of_it = File::config(bytes);
                content.files.insert(file, UserFile { file: file_of_it, origin });
            }
            (Some(_), _, file) => unreadable.push(UnreadableInput {
                affects: AffectedInput::Entry {
                    config_map: reference.name.clone(),
                    entry: reference.key.clone(),
                    file: file.ok(),
                },
                finding: Finding::new(
                    Blocks::Configuration,
                    reason::CONFIG_MAP_MISSING,
                    format!(
                        "spec.jwksKeyRef.key names entry {:?}, which ConfigMap {:?} does not have; add it, or name another",
                        reference.key, reference.name,
                    ),
                ),
            }),
            (None, _, _) => unreadable.push(missing("spec.jwksKeyRef.name", &reference.name)),
        }
    }
}

/// Adds one entry of a ConfigMap. Returns an error message that follows the name of the reference.
fn add_file(
    content: &mut Content,
    has_jwks: bool,
    config_map: &str,
    entry: &str,
    file: &File,
    runs_as: Option<Script>,
) -> Result<(), (Option<FileName>, String)> {
    let name = check_file(has_jwks, config_map, entry).map_err(|message| (None, message))?;
    let added = content.files.entry(name.clone()).or_insert_with(|| UserFile {
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

/// Upstream lists only text entries as scripts.
fn is_text(config_map: &ConfigMap, entry: &str) -> bool {
    config_map.data.as_ref().is_some_and(|data| data.contains_key(entry))
}

fn missing(field: &str, config_map: &str) -> UnreadableInput {
    UnreadableInput {
        affects: AffectedInput::ConfigMap(config_map.to_owned()),
        finding: Finding::new(
            Blocks::Configuration,
            reason::CONFIG_MAP_MISSING,
            format!("{field} names ConfigMap {config_map:?}, which does not exist; create it, or remove the reference"),
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
            let messages = problems
                .errors()
                .map(|problem| format!("{}; {}", problem.fault, problem.remedy));
            return Err(messages.collect::<Vec<_>>().join("; "));
        }
        SLURM_KEY_FILE => Some("spec.slurmKeyRef"),
        JWT_KEY_FILE => Some("spec.jwtKeyRef"),
        JWKS_FILE if has_jwks => Some("spec.jwksKeyRef"),
        _ => None,
    };
    if let Some(field) = reserved {
        return Err(format!(
            "names ConfigMap {config_map:?}, whose entry {file:?} belongs in {field}; remove the entry"
        ));
    }
    FileName::new(file).map_err(|error| format!("names ConfigMap {config_map:?}: {error}; rename the entry"))
}

/// Returns the address of slurmdbd. While a referenced Accounting does not exist, the configuration is not changed: a
/// cluster that loses its accounting for a moment loses records.
pub(crate) fn gather_accounting(inputs: &Inputs) -> Result<Option<AccountingStorage>, Finding> {
    let Some(name) = inputs.controller.spec.accounting_name() else {
        return Ok(None);
    };
    match &inputs.accounting {
        Some(accounting) => Ok(Some(storage_of(accounting))),
        None => Err(Finding::new(
            Blocks::Configuration,
            reason::ACCOUNTING_MISSING,
            format!(
                "spec.accountingRef.name names Accounting {name:?}, which does not exist; create it, or remove the reference"
            ),
        )),
    }
}

/// The address of an Accounting's slurmdbd.
fn storage_of(accounting: &Accounting) -> AccountingStorage {
    match accounting.spec.external_address() {
        // Upstream ignores this and uses a Service that does not exist.
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
    inputs: &Inputs,
    before: &Content,
    content: &mut Content,
    unreadable: &mut Vec<UnreadableInput>,
    findings: &mut Vec<Finding>,
) {
    let owners = name_owners(&inputs.node_sets);
    for node_set in &inputs.node_sets {
        let own = node_set.name_any();
        let name = node_set.slurm_name();
        if RESERVED_NAMES.iter().any(|word| name.eq_ignore_ascii_case(word)) {
            findings.push(Finding::new(
                Blocks::Nothing,
                reason::NODE_SET_NAME_TAKEN,
                format!("NodeSet {own:?} is left out of slurm.conf: {name:?} has a special meaning in Slurm; set another spec.template.spec.hostname on it"),
            ));
            continue;
        }
        if !is_plain(&name) {
            findings.push(Finding::new(
                Blocks::Nothing,
                reason::INVALID_SPEC,
                format!("NodeSet {own:?} is left out of slurm.conf: its spec.template.spec.hostname makes {name:?} its name there, which is not valid in slurm.conf; use lower-case letters, digits and dashes"),
            ));
            // Its nodes still have the former feature.
            if let Some(known) = before.node_sets.get(&own).filter(|known| is_plain(&known.name)) {
                content.node_sets.insert(own, known.clone());
            }
            continue;
        }
        if let Some(owner) = owners.get(&name).filter(|owner| **owner != own) {
            findings.push(Finding::new(
                Blocks::Nothing,
                reason::NODE_SET_NAME_TAKEN,
                format!("NodeSet {own:?} is left out of slurm.conf: NodeSet {owner:?} is older and has the name {name:?} in Slurm; set another spec.template.spec.hostname on {own:?}"),
            ));
            continue;
        }
        if let Some(owner) = older_partition(before, &own, &name) {
            findings.push(Finding::new(
                Blocks::Nothing,
                reason::NODE_SET_NAME_TAKEN,
                format!("NodeSet {own:?} is left out of slurm.conf: Partition {owner:?} existed before it and has the name {name:?} in Slurm; set another spec.template.spec.hostname on {own:?}, or delete the Partition"),
            ));
            continue;
        }
        let mut partition = node_set.spec.wanted_partition();
        let problems = partition.map(check_partition_config).unwrap_or_default();
        if let Some(problem) = problems.errors().next() {
            unreadable.push(UnreadableInput {
                affects: AffectedInput::Partition(own.clone()),
                finding: Finding::new(
                    Blocks::Configuration,
                    reason::BAD_PARTITION,
                    format!("NodeSet {own:?}: {problem}"),
                ),
            });
            partition = None;
        }
        let partition = partition.map(str::to_owned);
        content.node_sets.insert(own, NodeSetInput { name, partition });
    }
}

/// Whether a name is safe in a line of slurm.conf.
fn is_plain(name: &str) -> bool {
    name.chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// The Partition that has the name of a NodeSet which slurmctld does not have yet.
fn older_partition<'a>(before: &'a Content, own: &str, name: &str) -> Option<&'a String> {
    if before.node_sets.get(own).is_some_and(|known| known.name == name) {
        return None;
    }
    let mut partitions = before.partitions.iter();
    partitions.find(|(_, line)| line.name == name).map(|(owner, _)| owner)
}

/// Returns the NodeSet of each name in Slurm: the oldest that uses it.
fn name_owners(node_sets: &[Arc<NodeSet>]) -> BTreeMap<String, String> {
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
