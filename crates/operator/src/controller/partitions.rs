//! What Partitions bring into the configuration, and how they stand. Pure.
//!
//! A Partition that cannot be taken as it is keeps its last good line, and nothing else waits for it.

use std::{collections::BTreeMap, sync::Arc};

use api::{NodeSet, Partition, Validate, partition::PartitionWay};
use kube::ResourceExt as _;
use slurm::{
    Hostlist,
    agent::{Action, Way},
    conf::{Document, RecordKind},
};

use super::{
    inputs::{Inputs, created},
    joining::first_joining,
    observe::Observed,
    plan::ConfigState,
    push::Ended,
    reason,
    revise::Held,
};
use crate::access::{Knowledge, Seen};
use crate::partition::{
    board::{self, Standing, Standings},
    line::{Line, is_default, render_settings},
    members::resolve_members,
};

/// Takes the Partitions in. The result is those that stay as they were, each with why. `is_fresh`: Slurm was heard since slurmctld has
/// what was accepted last.
pub(super) fn gather_partitions(
    observed: &Observed,
    inputs: &mut Inputs,
    before: &Inputs,
    is_fresh: bool,
) -> Vec<Held> {
    let mut refused = Vec::new();
    let mut taken = Taken::of(inputs);
    // An older operator may have accepted a line that takes the next one along. That is not kept.
    let accepted = |own: &str| before.partitions.get(own).filter(|line| line.stands_alone());
    let (leaving_ones, staying): (Vec<&Partition>, Vec<&Partition>) = in_order(&observed.partitions, before)
        .into_iter()
        .partition(|partition| partition.metadata.deletion_timestamp.is_some());
    // Whoever leaves keeps its name to the end, but not its being the default.
    for partition in &leaving_ones {
        if let Some(line) = accepted(&partition.name_any()) {
            taken.add(&partition.name_any(), &line.without_default());
        }
    }
    // One that is left out of slurm.conf has no name there.
    let known: Vec<Arc<NodeSet>> = observed
        .node_sets
        .iter()
        .filter(|node_set| inputs.node_sets.contains_key(&node_set.name_any()))
        .cloned()
        .collect();
    for partition in staying {
        let own = partition.name_any();
        let line = line(observed, &known, &taken, partition).and_then(|line| {
            let known_line = before.partitions.get(&own);
            wait_for_marks(observed, line, known_line)
        });
        match line {
            Ok(line) => {
                taken.add(&own, &line);
                inputs.partitions.insert(own, line);
            }
            Err((reason, why)) => {
                if let Some(line) = accepted(&own) {
                    taken.add(&own, line);
                    inputs.partitions.insert(own.clone(), line.clone());
                }
                refused.push(Held::partition(&own, reason, why));
            }
        }
    }
    for partition in leaving_ones {
        let own = partition.name_any();
        let Some(line) = accepted(&own) else {
            continue;
        };
        if line.is_default() && taken.default_place.is_none() {
            inputs.partitions.insert(own.clone(), line.clone());
            let why = "it is the default partition, and jobs that name none would have no place; make another partition the default";
            refused.push(Held::partition(&own, reason::LAST_DEFAULT, why.to_owned()));
        } else if let Some(line) = leaving(before, line, is_fresh) {
            inputs.partitions.insert(own, line);
        }
    }
    refused
}

/// Whether what Slurm says of its nodes decides when a Partition comes.
pub(super) fn is_waiting_for_nodes(held: &[Held]) -> bool {
    held.iter().any(|held| held.reason == reason::WAITS_FOR_NODES)
}

/// Whether jobs decide when a Partition goes.
pub(super) fn has_leaving(observed: &Observed, before: &Inputs) -> bool {
    let mut leaving = observed
        .partitions
        .iter()
        .filter(|partition| partition.metadata.deletion_timestamp.is_some());
    leaving.any(|partition| before.partitions.contains_key(&partition.name_any()))
}

/// Those that slurmctld has already, then by age: whoever comes later gives way.
fn in_order<'a>(partitions: &'a [Arc<Partition>], before: &Inputs) -> Vec<&'a Partition> {
    let mut ordered: Vec<&Partition> = partitions.iter().map(AsRef::as_ref).collect();
    ordered.sort_by_key(|partition| {
        let own = partition.name_any();
        (!before.partitions.contains_key(&own), created(*partition), own)
    });
    ordered
}

/// The line of a Partition that was deleted: first it is closed, then it goes. That it goes is held up by its jobs as with any
/// other line of a partition; they must have been read since it was closed.
fn leaving(before: &Inputs, line: &Line, is_fresh: bool) -> Option<Line> {
    let by_hand = before.kept.get(&line.name);
    let state = match by_hand {
        // What was stopped by hand is not started to be emptied.
        Some(kept) if kept.state != "DRAIN" => "INACTIVE",
        _ => "DRAIN",
    };
    let is_closed = line.is_closed() && by_hand.is_none();
    if is_closed && is_fresh {
        return None;
    }
    let line = line.without_default();
    Some(if is_closed { line } else { line.with_state(state) })
}

type Refusal = (&'static str, String);

fn line(observed: &Observed, known: &[Arc<NodeSet>], taken: &Taken, partition: &Partition) -> Result<Line, Refusal> {
    let problems = partition.check();
    let problems: Vec<String> = problems.errors().map(ToString::to_string).collect();
    if !problems.is_empty() {
        return Err((reason::INVALID_SPEC, problems.join("\n")));
    }
    let name = partition.slurm_name();
    let of_node = || node_of_name(observed, known, taken, &name);
    if let Some(place) = taken.names.get(&name).cloned().or_else(of_node) {
        return Err((
            reason::PARTITION_NAME_TAKEN,
            format!(
                "{name:?} is the name of {place} in Slurm already; give this one another spec.partitionName in a new Partition, or remove the other"
            ),
        ));
    }
    if let Some(place) = taken
        .default_place
        .as_ref()
        .filter(|_| partition.spec.default == Some(true))
    {
        return Err((
            reason::TWO_DEFAULTS,
            format!("spec.default is true, and {place} is the default partition already; take it from one of the two"),
        ));
    }
    let members = resolve_members(partition, known).map_err(|why| (reason::BAD_MEMBERS, why))?;
    Ok(Line {
        name,
        nodes: members.nodes,
        state: partition.spec.state().slurm_word(),
        settings: render_settings(&partition.spec),
        generation: partition.metadata.generation.unwrap_or_default(),
        mark: members.mark,
    })
}

/// Where a node of this name is from. Partitions, NodeSets and nodes are named in the same places.
fn node_of_name(observed: &Observed, known: &[Arc<NodeSet>], taken: &Taken, name: &str) -> Option<String> {
    let numbered = |node_set: &&Arc<NodeSet>| {
        let of_object = format!("{}-", node_set.name_any());
        let prefix = node_set.spec.hostname_prefix().filter(|prefix| !prefix.is_empty());
        let number = name.strip_prefix(prefix.unwrap_or(&of_object));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let seen = observed.knowledge.known();
    if let Some(node_set) = known.iter().find(numbered) {
        Some(format!("a node of NodeSet {:?}", node_set.name_any()))
    } else if taken.nodes.iter().any(|nodes| nodes.contains(name)) {
        Some("a NodeName= line in spec.extraConf of the Controller".to_owned())
    } else {
        let is_node = seen.is_some_and(|seen| seen.nodes.contains_key(name));
        is_node.then(|| "a node".to_owned())
    }
}

/// A partition whose members are known by a mark is one without members until they have it.
fn wait_for_marks(observed: &Observed, line: Line, before: Option<&Line>) -> Result<Line, Refusal> {
    let Some(mark) = &line.mark else { return Ok(line) };
    if before.is_some_and(|before| before.mark.as_ref() == Some(mark)) {
        return Ok(line);
    }
    let why = match &observed.knowledge {
        Knowledge::Unknown { why } => Some(format!("its nodes are not known: {why}")),
        Knowledge::Known(seen) => mark
            .first_without(seen.nodes.values())
            .or_else(|| first_joining(&observed.joining, mark, seen))
            .map(|node| format!("node {node} has not been given feature {:?} yet", mark.name)),
    };
    why.map_or(Ok(line), |why| Err((reason::WAITS_FOR_NODES, why)))
}

/// What others have already.
struct Taken {
    /// By the name, where it is from.
    names: BTreeMap<String, String>,
    default_place: Option<String>,
    /// Of the NodeName= lines.
    nodes: Vec<Hostlist>,
}

impl Taken {
    fn of(inputs: &Inputs) -> Self {
        let mut taken = Self {
            names: BTreeMap::new(),
            default_place: None,
            nodes: Vec::new(),
        };
        for (own, node_set) in &inputs.node_sets {
            let place = format!("NodeSet {own:?}");
            if node_set.partition.as_deref().is_some_and(is_default) {
                taken.default_place = Some(place.clone());
            }
            taken.names.insert(node_set.name.clone(), place);
        }
        let extra = Document::parse(&inputs.extra_conf);
        for kind in [RecordKind::Partition, RecordKind::NodeSet] {
            for record in extra.records(kind).filter(|record| !record.is_default()) {
                let place = format!("a {}= line in spec.extraConf of the Controller", kind.key());
                if kind == RecordKind::Partition
                    && record
                        .get("Default")
                        .is_some_and(|value| value.eq_ignore_ascii_case("YES"))
                {
                    taken.default_place = Some(format!(
                        "PartitionName={} in spec.extraConf of the Controller",
                        record.name
                    ));
                }
                taken.names.insert(record.name.to_owned(), place);
            }
        }
        let nodes = extra.records(RecordKind::Node).filter(|record| !record.is_default());
        taken
            .nodes
            .extend(nodes.filter_map(|record| Hostlist::parse(record.name).ok()));
        taken
    }

    fn add(&mut self, own: &str, line: &Line) {
        let place = format!("Partition {own:?}");
        if line.is_default() {
            self.default_place = Some(place.clone());
        }
        self.names.insert(line.name.clone(), place);
    }
}

/// Partitions that people made in Slurm and that have jobs, which a reconfigure would end. They stay until they are deleted in Slurm,
/// or made in another way.
pub(super) fn find_adopted(
    observed: &Observed,
    before: &BTreeMap<String, String>,
    wanted: &Inputs,
    fresh: Option<&Seen>,
) -> BTreeMap<String, String> {
    let taken = Taken::of(wanted);
    let is_taken = |name: &str| {
        let mut objects = wanted.partitions.values();
        taken.names.contains_key(name) || objects.any(|line| line.name == name)
    };
    let shown = fresh.and_then(|seen| seen.partitions.as_ref());
    let is_gone = |name: &str| shown.is_some_and(|shown| !shown.contains_key(name));
    let stay = before.iter().filter(|(name, _)| !is_gone(name));
    let stay = stay.map(|(name, line)| (name.clone(), line.clone()));
    let made = observed.report.in_use.iter().filter(|partition| partition.made_by_hand);
    let made = made.filter_map(|partition| {
        let line = partition.line.strip_prefix("PartitionName=")?;
        Some((partition.name.clone(), line.to_owned()))
    });
    let all = stay.chain(made);
    all.filter(|(name, _)| !is_taken(name)).collect()
}

/// How all Partitions of the Controller stand. `accepted` is what the accepted revision was made from.
pub(super) fn standings(
    observed: &Observed,
    accepted: Option<&Inputs>,
    held: &[Held],
    config: &ConfigState,
) -> Standings {
    let runs = !matches!(
        config,
        ConfigState::Written { .. } | ConfigState::Restarting { .. } | ConfigState::Unknown | ConfigState::External
    );
    let change = observed
        .report
        .ended
        .iter()
        .rev()
        .find(|ended| ended.rejection.is_none());
    let stand = |partition: &Arc<Partition>| {
        let own = partition.name_any();
        let line = accepted.and_then(|inputs| inputs.partitions.get(&own)).cloned();
        let is_newest = line
            .as_ref()
            .is_some_and(|line| Some(line.generation) == partition.metadata.generation);
        let of_it = held.iter().find(|held| held.partition.as_deref() == Some(&own));
        let (waits_for_nodes, trouble) = match of_it {
            Some(held) if held.reason == reason::WAITS_FOR_NODES => (Some(held), None),
            other => (None, other),
        };
        let standing = Standing {
            runs,
            live_since: observed
                .lives
                .last()
                .map(|(_, at)| *at)
                .filter(|_| runs && line.is_some()),
            trouble: trouble.map(|held| crate::fault::Fault::new(held.reason, held.why.clone())),
            waits: waits_for_nodes
                .map(|held| held.why.clone())
                .or_else(|| waits(config).filter(|_| !(runs && is_newest))),
            change: change.filter(|_| line.is_some()).map(|ended| of_push(ended)),
            kept: line.as_ref().and_then(|line| accepted?.kept.get(&line.name)).cloned(),
            line,
            not_persistent: None,
        };
        (own, standing)
    };
    observed.partitions.iter().map(stand).collect()
}

/// What the newest configuration waits for. One that goes out at this moment waits for nothing.
fn waits(config: &ConfigState) -> Option<String> {
    match config {
        ConfigState::Applied { .. } | ConfigState::Pushing { .. } | ConfigState::Restarting { .. } => None,
        ConfigState::Written { .. } => Some("slurmctld has not started yet".to_owned()),
        ConfigState::Waiting { why, .. } => Some(format!(
            "slurmctld does not run with the newest configuration yet: {why}"
        )),
        ConfigState::Away { why, .. } => Some(format!("slurmctld's agent cannot be reached: {why}")),
        ConfigState::Retrying { why, .. } => Some(format!("the configuration is tried again: {why}")),
        ConfigState::Rejected { rejection, .. } => Some(format!("the configuration was refused: {}", rejection.why)),
        ConfigState::Unknown => {
            Some("the configuration cannot be made; look at the Controller's conditions".to_owned())
        }
        ConfigState::External => Some("the Controller is external".to_owned()),
    }
}

fn of_push(ended: &Ended) -> board::Change {
    board::Change {
        sequence: Some(ended.sequence),
        at: ended.at,
        way: match ended.action {
            Action::PartitionRpc if ended.way == Way::Scontrol => Some(PartitionWay::Scontrol),
            // What an agent of before does not tell is this.
            Action::PartitionRpc => Some(PartitionWay::Rpc),
            Action::Reconfigure => Some(PartitionWay::Reconfigure),
            Action::Restart => Some(PartitionWay::Restart),
            Action::Nothing | Action::Unknown => None,
        },
        milliseconds: ended.milliseconds,
    }
}
