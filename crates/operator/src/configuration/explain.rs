//! Describes a problem of a file in terms of the objects it was rendered from.

use slurm::conf::Problem;

use super::{content::Content, render::Places, source::entry_label};

/// The problem with its field instead of a line of a generated file.
pub(crate) fn describe(problem: &Problem, places: &Places, content: &Content) -> String {
    let Problem { reason, remedy, .. } = problem;
    match field_of(problem, places, content) {
        Some(field) => format!("{field}: {reason}; {remedy}"),
        None => problem.to_string(),
    }
}

/// Whether the problem is in a line rendered from the Controller's typed fields. Those are validated in the spec.
pub(crate) fn is_generated(problem: &Problem, places: &Places, content: &Content) -> bool {
    problem.line.is_some() && field_of(problem, places, content).is_none()
}

fn field_of(problem: &Problem, places: &Places, content: &Content) -> Option<String> {
    let line = problem.line;
    if let Some((_, file)) = content.files.iter().find(|(name, _)| name.as_str() == problem.file) {
        let entry = entry_label(&file.origin.config_map, &file.origin.entry);
        return Some(match line {
            Some(line) => format!("{entry} line {line}"),
            None => entry,
        });
    }
    if problem.file != api::wellknown::SLURM_CONF_FILE {
        return None;
    }
    field_at(line?, places)
}

/// The field that a line of slurm.conf comes from.
pub(crate) fn field_at(line: usize, places: &Places) -> Option<String> {
    if let Some(extra) = places.extra.as_ref().filter(|extra| extra.contains(&line)) {
        return Some(format!("spec.extraConf line {}", line - extra.start() + 1));
    }
    if places.merged.as_ref().is_some_and(|merged| merged.contains(&line)) {
        return Some("spec.extraConf".to_owned());
    }
    if let Some((own, _)) = places.partitions.iter().find(|(_, place)| *place == line) {
        return Some(format!("Partition {own:?}"));
    }
    places.node_sets.iter().find_map(|(own, node_set, partition)| {
        if *node_set == line {
            Some(format!("NodeSet {own:?}"))
        } else if *partition == Some(line) {
            Some(format!("NodeSet {own:?} spec.partition.config"))
        } else {
            None
        }
    })
}
