//! Two sets of objects beside each other.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Values by path; the steps of a path have blanks between them, and items of a list are named by what Kubernetes tells them apart by.
type Fields = BTreeMap<String, Value>;
/// By kind and name.
pub(crate) type Objects = BTreeMap<String, Fields>;

pub(crate) fn flatten_all(objects: impl IntoIterator<Item = Value>) -> Objects {
    objects
        .into_iter()
        .map(|object| {
            let mut fields = Fields::new();
            flatten("", &object, &mut fields);
            (title(&object), fields)
        })
        .collect()
}

/// Upstream's pods of DaemonSet mode have random names; their hosts tell them apart.
fn title(object: &Value) -> String {
    let word = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let kind = word("/kind");
    if word("/metadata/labels/nodeset.slinky.slurm.net~1scaling-mode") == "DaemonSet" {
        return format!("{kind} {}{}", word("/metadata/generateName"), word("/spec/hostname"));
    }
    format!("{kind} {}", word("/metadata/name"))
}

fn flatten(path: &str, value: &Value, fields: &mut Fields) {
    let below = |step: &str| {
        if path.is_empty() {
            step.to_owned()
        } else {
            format!("{path} {step}")
        }
    };
    match value {
        Value::Object(inner) if !inner.is_empty() => {
            for (step, value) in inner {
                flatten(&below(step), value, fields);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                let key = ["mountPath", "name"].iter().find_map(|key| item.get(*key)?.as_str());
                flatten(&below(&key.map_or(index.to_string(), str::to_owned)), item, fields);
            }
        }
        value => {
            fields.insert(path.to_owned(), value.clone());
        }
    }
}

/// Objects and paths at which the two differ; of something that one of them has not at all only the outermost path.
fn differences(theirs: &Objects, ours: &Objects) -> BTreeSet<(String, String)> {
    let none = Fields::new();
    let titles: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let mut found = BTreeSet::new();
    for title in titles {
        let (their, our) = (theirs.get(title).unwrap_or(&none), ours.get(title).unwrap_or(&none));
        let paths: BTreeSet<&String> = their.keys().chain(our.keys()).collect();
        for path in paths {
            if their.get(path) != our.get(path) {
                found.insert((title.clone(), outermost(path, their, our)));
            }
        }
    }
    found
}

fn outermost(path: &str, one: &Fields, other: &Fields) -> String {
    let has = |fields: &Fields, prefix: &str| {
        fields.keys().any(|key| {
            key.strip_prefix(prefix)
                .is_some_and(|rest| rest.is_empty() || prefix.is_empty() || rest.starts_with(' '))
        })
    };
    let cuts = std::iter::once(0).chain(path.match_indices(' ').map(|(at, _)| at));
    let cut = cuts
        .map(|at| &path[..at])
        .find(|prefix| has(one, prefix) != has(other, prefix));
    cut.unwrap_or(path).to_owned()
}

/// Differences that are not on the list, and what of the list is used.
pub(crate) fn judge(list: &[(&str, &str, &str)], theirs: &Objects, ours: &Objects) -> (Vec<String>, BTreeSet<usize>) {
    let (mut surprises, mut used) = (Vec::new(), BTreeSet::new());
    for (title, path) in differences(theirs, ours) {
        let (kind, _) = title.split_once(' ').unwrap();
        let entry = list.iter().position(|(object, pattern, _)| {
            (matches(object, &title) || matches(object, kind)) && matches(pattern, &path)
        });
        let at = |objects: &Objects| objects.get(&title).and_then(|fields| fields.get(&path).cloned());
        match entry {
            Some(entry) => drop(used.insert(entry)),
            None => surprises.push(format!(
                "{title}: {path}: upstream {:?}, ours {:?}",
                at(theirs),
                at(ours)
            )),
        }
    }
    (surprises, used)
}

/// `*` at the end of a step stands for any rest of it, a step `**` for any number of steps.
pub(crate) fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<&str>, Vec<&str>) = (pattern.split(' ').collect(), path.split(' ').collect());
    steps_match(&pattern, &path)
}

fn steps_match(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern.split_first(), path.split_first()) {
        (None, None) => true,
        (Some((&"**", rest)), _) => (0..=path.len()).any(|skipped| steps_match(rest, &path[skipped..])),
        (Some((wanted, pattern)), Some((step, path))) => {
            let same = match wanted.strip_suffix('*') {
                Some(start) => step.starts_with(start),
                None => wanted == step,
            };
            same && steps_match(pattern, path)
        }
        _ => false,
    }
}
