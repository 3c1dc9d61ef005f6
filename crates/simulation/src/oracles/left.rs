//! What is left when people have deleted everything.

use serde_json::Value;

use crate::world::World;

/// Objects that operators wrote and that still exist. Their lease and their events are not of a cluster.
pub fn left(world: &World) -> Vec<String> {
    let plurals = world.plurals();
    let kept = ["leases", "events", "customresourcedefinitions"];
    let plurals = plurals.iter().filter(|plural| !kept.contains(&plural.as_str()));
    let objects = plurals.flat_map(|plural| world.all(plural).into_iter().map(move |object| (plural, object)));
    let left = objects.filter(|(_, object)| is_ours(object));
    left.map(|(plural, object)| format!("{plural} {}", object["metadata"]["name"]))
        .collect()
}

fn is_ours(object: &Value) -> bool {
    let managers = object["metadata"]["managedFields"].as_array();
    let wrote = |entry: &Value| {
        entry["manager"]
            .as_str()
            .unwrap_or_default()
            .starts_with("slurm-operator")
    };
    let is_kind = object["apiVersion"]
        .as_str()
        .unwrap_or_default()
        .starts_with("slinky.slurm.net");
    is_kind || managers.is_some_and(|managers| managers.iter().any(wrote))
}

/// Memories of operators that still know objects.
pub fn remembered(world: &World) -> Vec<String> {
    let operators = world.operators.lock().unwrap();
    let counts = operators.iter().flat_map(|(name, operator)| {
        let counts = operator.memories.counts().into_iter();
        counts.map(move |(memory, count)| (name.clone(), memory, count))
    });
    counts
        .filter(|(_, _, count)| *count > 0)
        .map(|(name, memory, count)| format!("{name} remembers {count} deleted objects in its memory {memory:?}"))
        .collect()
}
