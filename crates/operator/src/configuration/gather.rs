//! Collects the content of the next configuration from the objects that people wrote, and from their changes in Slurm.
//! An input that cannot be read is kept at its accepted version.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::{
    NodeSet,
    autoscaling::Autoscaling,
    references::ObjectRef,
    validate::{check_config_file, check_partition_config},
    wellknown::{JWKS_FILE, JWT_KEY_FILE, SLURM_CONF_FILE, SLURM_KEY_FILE, SLURMDBD_CONF_FILE, SLURMDBD_PORT},
};
use jiff::SignedDuration;
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};
use kube::ResourceExt as _;
use slurm::{
    conf::{NodeSetLines, PowerSaving},
    revision::{File, FileName},
};

use super::{
    Facts, Inputs,
    content::{Content, Script, UserFile, entry_label},
    delivery::Method,
    partitions::{find_adopted, find_leaving, gather_partitions, taken_by},
    render::{build_files, slurm_conf},
    revise::Held,
    source::Source,
};
use crate::{
    finding::{Blocks, Finding},
    partition::rules::{
        closing::{RetainedLines, find_retained},
        line::is_self_contained,
        manual_state::{FoundStates, ManualState, ManualStates, find_manual_states},
        names::age,
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
    /// Slurm has other states than written, but they were read before the states were written.
    pub(super) is_unsure: bool,
    /// Slurm was polled while slurmctld ran with the accepted revision, so that the manual states are all there are.
    pub(super) knows_states: bool,
    /// See [`super::Outcome::remembered_states`].
    pub(super) remembered_states: Option<ManualStates>,
    /// A decision depended on jobs or nodes in Slurm.
    pub(super) depends_on_slurm: bool,
}

/// Collects the content of the next configuration.
pub(super) fn gather(facts: &Facts) -> Gathered {
    let Facts {
        inputs,
        snapshot,
        former,
        ..
    } = facts;
    let before = former.content();
    let (files, mut unreadable) = gather_files(inputs, before);
    let accounting = gather_accounting(inputs).unwrap_or_else(|finding| {
        let source = "spec.accountingRef".to_owned();
        unreadable.push(Held::unreadable(source, finding.reason, finding.message));
        before.accounting.clone()
    });
    let (node_sets, bad_partitions, mut findings) = gather_node_sets(inputs, before);
    unreadable.extend(bad_partitions);
    let content = Content {
        extra_conf: inputs.controller.spec.extra_conf.clone().unwrap_or_default(),
        accounting,
        power_saving: gather_power_saving(&inputs.node_sets),
        node_sets,
        files,
        ..Content::default()
    };

    // Slurm's response while slurmctld ran with the accepted revision and nothing newer.
    let fresh = former.digest.and_then(|digest| snapshot.since(digest));
    let taken = taken_by(&content);
    let (partitions, refused) = gather_partitions(inputs, snapshot, &content, before, taken.clone(), fresh.is_some());
    let content = Content { partitions, ..content };
    let adopted = find_adopted(snapshot, &before.adopted, &content, &taken, fresh);
    let content = Content { adopted, ..content };
    let retained = gather_retained(facts, &content);
    let content = Content { retained, ..content };
    // Whatever slurmctld ran with at that time: each state that is stricter than wanted counts as manual.
    let is_unrecorded = facts.is_live_unrecorded();
    let seen = if is_unrecorded {
        snapshot.knowledge.known()
    } else {
        fresh
    };
    let is_in_place = facts.method == Method::InPlace;
    let knows_states = seen.is_some_and(|seen| seen.partitions.is_some()) && is_in_place;
    let found = gather_manual_states(facts, &content, knows_states);
    let is_not_lifted = |(name, _): &(String, ManualState)| !found.lifted.contains(name);
    let remembered_states = if knows_states {
        Some(found.states.clone())
    } else {
        let remembered = snapshot.manual_states.clone();
        remembered.map(|states| states.into_iter().filter(is_not_lifted).collect())
    };

    // Jobs decide when a Partition is removed, and nodes decide when one is accepted.
    let depends_on_slurm = is_unrecorded
        || !find_leaving(inputs, before, &taken).is_empty()
        || refused.iter().any(|held| held.reason == reason::WAITS_FOR_NODES)
        || !content.retained.is_empty()
        || !before.retained.is_empty();

    findings.extend(refused.iter().map(Held::finding));
    findings.extend(unreadable.iter().map(|input| {
        // The accepted revision has a last good version of every input, and a cluster that has not started yet can
        // start without a partition.
        let is_partition = input.reason == reason::BAD_PARTITION;
        let blocks = if former.accepted.is_some() || former.is_new && is_partition {
            Blocks::Input
        } else {
            Blocks::Configuration
        };
        Finding::new(blocks, input.reason, input.why.clone())
    }));
    let unreadable = unreadable.into_iter().filter(|_| former.accepted.is_some());
    Gathered {
        held: unreadable.chain(refused).collect(),
        content: Content {
            manual_states: found.states,
            ..content
        },
        findings,
        is_unsure: found.is_unsure,
        knows_states,
        remembered_states,
        depends_on_slurm,
    }
}

fn gather_retained(facts: &Facts, content: &Content) -> RetainedLines {
    let Some(written) = &facts.former.slurm_conf else {
        return RetainedLines::new();
    };
    let before = facts.former.content();
    let mut kept = content.partition_names();
    // Objects close by themselves, and manually created partitions stay until they are deleted in Slurm.
    kept.extend(before.partitions.values().map(|line| line.name.clone()));
    kept.extend(before.adopted.keys().cloned());
    let node_sets = before.node_sets.values().map(|node_set| node_set.name.as_str());
    let seen = facts.snapshot.knowledge.known();
    let jobs = seen.and_then(|seen| seen.jobs.as_deref());
    let in_use = &facts.snapshot.report.in_use;
    find_retained(written, &kept, &node_sets.collect(), &before.retained, in_use, jobs)
}

fn gather_manual_states(facts: &Facts, content: &Content, knows_states: bool) -> FoundStates {
    let seen = facts.snapshot.knowledge.known();
    // What was found may not be in an accepted revision yet. It is kept while Slurm does not respond.
    let found = facts.snapshot.manual_states.as_ref().filter(|_| !knows_states);
    find_manual_states(
        &facts.inputs.partitions,
        seen.and_then(|seen| Some((seen.partitions.as_deref()?, seen.at))),
        // A closed partition is not a reason to restart slurmctld.
        knows_states,
        facts.former.slurm_conf.as_ref().filter(|_| !facts.is_live_unrecorded()),
        found.unwrap_or(&facts.former.content().manual_states),
        || {
            let built = build_files(&facts.parent, content, facts.max_node_count);
            slurm_conf(&built.files).unwrap_or_default()
        },
    )
}

/// Returns the files, and the references that cannot be read.
fn gather_files(inputs: &Inputs, before: &Content) -> (BTreeMap<FileName, UserFile>, Vec<Held>) {
    let spec = &inputs.controller.spec;
    let mut files: BTreeMap<FileName, UserFile> = BTreeMap::new();
    let mut held = Vec::new();
    // Files that keep their accepted version: two entries of a name differ, or an entry is missing.
    let mut kept: Vec<FileName> = Vec::new();
    let mut missing_maps: Vec<&String> = Vec::new();
    for (field, references) in spec.file_refs() {
        let script = match field {
            "prologScriptRefs" => Some(Script::Prolog),
            "epilogScriptRefs" => Some(Script::Epilog),
            "prologSlurmctldScriptRefs" => Some(Script::PrologSlurmctld),
            "epilogSlurmctldScriptRefs" => Some(Script::EpilogSlurmctld),
            _ => None,
        };
        for (index, ObjectRef { name, namespace: _ }) in references.iter().enumerate() {
            let field = format!("spec.{field}[{index}]");
            let Some(config_map) = inputs.config_maps.get(name) else {
                held.push(missing(&format!("{field}.name"), name));
                missing_maps.push(name);
                continue;
            };
            for (entry, content) in entries(config_map) {
                let executable = script.is_some();
                let file = UserFile {
                    runs_as: script.into_iter().filter(|_| is_text(config_map, &entry)).collect(),
                    file: File { content, executable },
                    config_map: name.clone(),
                    entry,
                };
                let Finding { reason, message, .. } = match check_file(&field, spec.jwks_key_ref.is_some(), &file) {
                    Err(fault) => fault,
                    Ok(file_name) => {
                        let added = files.entry(file_name.clone()).or_insert_with(|| file.clone());
                        if added.file.content == file.file.content {
                            added.file.executable |= executable;
                            added.runs_as.extend(file.runs_as);
                            continue;
                        }
                        kept.push(file_name);
                        Finding::blocking(
                            reason::BAD_FILE,
                            format!(
                                "{field} names ConfigMap {name:?}, whose entry {:?} differs from that of ConfigMap {:?}; rename one of the two, since both become a file in /etc/slurm",
                                file.entry, added.config_map,
                            ),
                        )
                    }
                };
                held.push(Held::unreadable(file.label(), reason, message));
            }
        }
    }
    if let (Some(reference), Ok(file_name)) = (&spec.jwks_key_ref, FileName::new(JWKS_FILE)) {
        let (name, key) = (&reference.name, &reference.key);
        let config_map = inputs.config_maps.get(name);
        if let Some((entry, bytes)) = config_map.and_then(|map| entries(map).find(|(entry, _)| entry == key)) {
            let file = UserFile {
                file: File::config(bytes),
                config_map: name.clone(),
                entry,
                runs_as: BTreeSet::new(),
            };
            files.insert(file_name, file);
        } else if config_map.is_some() {
            let message = format!(
                "spec.jwksKeyRef.key names entry {key:?}, which ConfigMap {name:?} does not have; add it, or name another"
            );
            held.push(Held::unreadable(
                entry_label(name, key),
                reason::CONFIG_MAP_MISSING,
                message,
            ));
            kept.push(file_name);
        } else {
            held.push(missing("spec.jwksKeyRef.name", name));
            missing_maps.push(name);
        }
    }
    files.retain(|name, _| !kept.contains(name));
    for (name, file) in &before.files {
        if kept.contains(name) || missing_maps.contains(&&file.config_map) {
            files.entry(name.clone()).or_insert_with(|| file.clone());
        }
    }
    (files, held)
}

/// Upstream lists only text entries as scripts.
fn is_text(config_map: &ConfigMap, entry: &str) -> bool {
    config_map.data.as_ref().is_some_and(|data| data.contains_key(entry))
}

fn missing(field: &str, config_map: &str) -> Held {
    Held::unreadable(
        format!("ConfigMap {config_map:?}"),
        reason::CONFIG_MAP_MISSING,
        format!("{field} names ConfigMap {config_map:?}, which does not exist; create it, or remove the reference"),
    )
}

fn entries(config_map: &ConfigMap) -> impl Iterator<Item = (String, Vec<u8>)> {
    let text = config_map.data.iter().flatten();
    let binary = config_map.binary_data.iter().flatten();
    text.map(|(key, text)| (key.clone(), text.clone().into_bytes()))
        .chain(binary.map(|(key, ByteString(bytes))| (key.clone(), bytes.clone())))
}

/// Returns the name of the file. `field` is the reference to its ConfigMap.
fn check_file(field: &str, has_jwks: bool, file: &UserFile) -> Result<FileName, Finding> {
    let UserFile { config_map, entry, .. } = file;
    let bad = |message: String| Finding::blocking(reason::BAD_FILE, format!("{field} {message}"));
    let reserved = match entry.as_str() {
        SLURM_CONF_FILE | SLURMDBD_CONF_FILE => {
            let problems = check_config_file(config_map, entry);
            let messages = problems
                .errors()
                .map(|problem| format!("{}; {}", problem.fault, problem.remedy));
            return Err(bad(messages.collect::<Vec<_>>().join("; ")));
        }
        SLURM_KEY_FILE => Some("spec.slurmKeyRef"),
        JWT_KEY_FILE => Some("spec.jwtKeyRef"),
        JWKS_FILE if has_jwks => Some("spec.jwksKeyRef"),
        _ => None,
    };
    match reserved {
        Some(field) => Err(bad(format!(
            "names ConfigMap {config_map:?}, whose entry {entry:?} belongs in {field}; remove the entry"
        ))),
        None => FileName::new(entry.as_str())
            .map_err(|error| bad(format!("names ConfigMap {config_map:?}: {error}; rename the entry"))),
    }
}

/// Returns the host and port of slurmdbd. While a referenced Accounting does not exist, the configuration is not changed:
/// a cluster that loses its accounting for a moment loses records.
pub(crate) fn gather_accounting(inputs: &Inputs) -> Result<Option<(String, u16)>, Finding> {
    let Some(name) = inputs.controller.spec.accounting_name() else {
        return Ok(None);
    };
    match &inputs.accounting {
        Some(accounting) => Ok(Some(match accounting.spec.external_address() {
            // Upstream ignores this and uses a Service that does not exist.
            Some((host, port)) => (host.to_owned(), u16::try_from(port).unwrap_or(SLURMDBD_PORT)),
            None => (accounting.child_names().service(), SLURMDBD_PORT),
        })),
        None => Err(Finding::new(
            Blocks::Configuration,
            reason::ACCOUNTING_MISSING,
            format!(
                "spec.accountingRef.name names Accounting {name:?}, which does not exist; create it, or remove the reference"
            ),
        )),
    }
}

/// Returns the lines of the NodeSets by their own names, the partitions that cannot be read, and the NodeSets that are
/// left out.
fn gather_node_sets(inputs: &Inputs, before: &Content) -> (BTreeMap<String, NodeSetLines>, Vec<Held>, Vec<Finding>) {
    let owners = name_owners(&inputs.node_sets);
    let (mut lines, mut held, mut left_out) = (BTreeMap::new(), Vec::new(), Vec::new());
    for node_set in &inputs.node_sets {
        let own = node_set.name_any();
        let name = node_set.slurm_name();
        let known = before.node_sets.get(&own);
        if let Err(Finding { reason, message, .. }) = check_name(&owners, before, &own, &name) {
            let message = format!("NodeSet {own:?} is left out of slurm.conf: {message}");
            left_out.push(Finding::new(Blocks::Nothing, reason, message));
            // The nodes of one whose name is not valid any more still have the former feature.
            if let Some(known) = known.filter(|known| !is_plain(&name) && is_plain(&known.name)) {
                lines.insert(own, known.clone());
            }
            continue;
        }
        let mut partition = node_set.spec.wanted_partition().map(str::to_owned);
        let problems = partition.as_deref().map(check_partition_config).unwrap_or_default();
        if let Some(problem) = problems.errors().next() {
            let source = Source::Partition(own.clone()).to_string();
            let message = format!("NodeSet {own:?}: {problem}");
            held.push(Held::unreadable(source, reason::BAD_PARTITION, message));
            // An older operator may have accepted one that continues into the next line.
            partition = known
                .and_then(|known| known.partition.clone())
                .filter(|settings| is_self_contained(&format!("PartitionName={own} {settings}")));
        }
        lines.insert(own, NodeSetLines { name, partition });
    }
    (lines, held, left_out)
}

/// Returns the power saving that the NodeSets with autoscaling need. The operator itself gives up on a worker that does not
/// start; Slurm does so later, in case the operator is away.
fn gather_power_saving(node_sets: &[Arc<NodeSet>]) -> Option<PowerSaving> {
    const RESERVE: SignedDuration = SignedDuration::from_mins(5);
    let elastic = node_sets.iter().filter_map(|node_set| node_set.spec.autoscaling());
    let longest = elastic.map(Autoscaling::boot_timeout).max()?;
    Some(PowerSaving {
        resume_timeout: u16::try_from((longest + RESERVE).as_secs()).unwrap_or(u16::MAX - 1),
    })
}

/// Checks that a NodeSet can have this name in slurm.conf.
fn check_name(owners: &BTreeMap<String, String>, before: &Content, own: &str, name: &str) -> Result<(), Finding> {
    if RESERVED_NAMES.iter().any(|word| name.eq_ignore_ascii_case(word)) {
        return Err(Finding::blocking(
            reason::NODE_SET_NAME_TAKEN,
            format!("{name:?} has a special meaning in Slurm; set another spec.template.spec.hostname on it"),
        ));
    }
    if !is_plain(name) {
        return Err(Finding::invalid(format!(
            "its spec.template.spec.hostname makes {name:?} its name there, which is not valid in slurm.conf; use lower-case letters, digits and dashes"
        )));
    }
    if let Some(owner) = owners.get(name).filter(|owner| **owner != own) {
        return Err(Finding::blocking(
            reason::NODE_SET_NAME_TAKEN,
            format!(
                "NodeSet {owner:?} is older and has the name {name:?} in Slurm; set another spec.template.spec.hostname on {own:?}"
            ),
        ));
    }
    // A name that slurmctld has already stays.
    let is_known = before.node_sets.get(own).is_some_and(|known| known.name == name);
    let mut partitions = before.partitions.iter();
    match partitions.find(|(_, line)| !is_known && line.name == name) {
        Some((owner, _)) => Err(Finding::blocking(
            reason::NODE_SET_NAME_TAKEN,
            format!(
                "Partition {owner:?} existed before it and has the name {name:?} in Slurm; set another spec.template.spec.hostname on {own:?}, or delete the Partition"
            ),
        )),
        None => Ok(()),
    }
}

/// Whether a name is safe in a line of slurm.conf.
fn is_plain(name: &str) -> bool {
    name.chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// Returns the NodeSet of each name in Slurm: the oldest that uses it.
fn name_owners(node_sets: &[Arc<NodeSet>]) -> BTreeMap<String, String> {
    let mut youngest_first: Vec<&NodeSet> = node_sets.iter().map(AsRef::as_ref).collect();
    youngest_first.sort_by_key(|node_set| Reverse(age(*node_set)));
    let named = youngest_first.into_iter();
    named
        .map(|node_set| (node_set.slurm_name(), node_set.name_any()))
        .collect()
}
