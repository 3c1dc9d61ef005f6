//! Checks of a Partition. Names that refer to other objects are checked where the whole cluster is known.

use serde_json::{Value, json};

use super::{
    Problems, Validate,
    fields::{check_name, check_ref},
    lines::{check_line, is_word},
    names::{LABEL_LIMIT, is_reserved},
};
use crate::{
    items::items,
    partition::{Partition, PartitionSpec, Setting},
};

/// Keys that `config` must not have, and the fields to use instead.
const MEMBERS_AND_STATE: [(&str, &str); 3] = [
    ("PartitionName", "partitionName"),
    ("Nodes", "nodeSets, nodeSetSelector or nodes"),
    ("State", "state"),
];

/// Fields of which Slurm uses only one.
const EXCLUSIVE: [(&str, &str); 4] = [
    ("defMemPerNode", "defMemPerCPU"),
    ("maxMemPerNode", "maxMemPerCPU"),
    ("denyAccounts", "allowAccounts"),
    ("denyQos", "allowQos"),
];

impl Validate for Partition {
    fn find_problems(&self, problems: &mut Problems) {
        let PartitionSpec {
            controller_ref,
            partition_name,
            node_sets,
            node_set_selector,
            nodes,
            exclude_nodes,
            config,
            ..
        } = &self.spec;
        let own = self.metadata.namespace.as_deref();

        check_ref(problems, "spec.controllerRef", "Controller", controller_ref, own);
        let field = if partition_name.as_deref().is_some_and(|name| !name.is_empty()) {
            "spec.partitionName"
        } else {
            "metadata.name"
        };
        check_partition_name(problems, field, &self.slurm_name());
        for (index, name) in node_sets.iter().flatten().enumerate() {
            check_name(problems, &format!("spec.nodeSets[{index}]"), "NodeSet", name);
        }
        for (field, list) in [
            ("spec.nodes", nodes),
            ("spec.excludeNodes", exclude_nodes),
            ("spec.allowAllocNodes", &self.spec.allow_alloc_nodes),
        ] {
            for (index, entry) in list.iter().flatten().enumerate() {
                check_word(
                    problems,
                    &format!("{field}[{index}]"),
                    entry,
                    "a hostlist such as ext[001-004]",
                );
            }
        }
        let none = |list: &Option<Vec<String>>| list.as_ref().is_none_or(Vec::is_empty);
        if none(node_sets) && none(nodes) && node_set_selector.is_none() {
            problems.missing(
                "spec.nodeSets",
                "is absent or empty, and so are spec.nodeSetSelector and spec.nodes",
                "name NodeSets, select them by labels, or list nodes",
            );
        }
        let settings = self.spec.settings();
        for setting in &settings {
            check_word(
                problems,
                &format!("spec.{}", setting.field),
                &setting.value,
                "one word as in slurm.conf",
            );
        }
        let is_given = |field: &str| settings.iter().any(|setting| setting.field == field);
        for (field, other) in EXCLUSIVE {
            if is_given(field) && is_given(other) {
                problems.bad_value(
                    format!("spec.{field}"),
                    format!("is set beside spec.{other}, but Slurm uses only one of them"),
                    "remove one of them",
                );
            }
        }
        check_config(problems, &settings, config.as_deref().unwrap_or_default());
    }

    fn immutable(&self) -> Vec<(&'static str, Value, &'static str)> {
        let remedy = "create another Partition and delete this one";
        let controller = &self.spec.controller_ref.name;
        vec![
            ("spec.controllerRef.name", json!(controller), remedy),
            ("spec.partitionName", json!(self.slurm_name()), remedy),
        ]
    }
}

fn check_partition_name(problems: &mut Problems, field: &str, name: &str) {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if is_reserved(name) {
        problems.bad_name(
            field,
            format!("is {name:?}, which is reserved in Slurm"),
            "set another partitionName",
        );
    } else if !name.chars().all(allowed) || name.len() > LABEL_LIMIT {
        problems.bad_name(
            field,
            format!("is {name:?}, which is not a valid name of a partition"),
            "use letters, digits, dashes, underscores and dots, at most 63 of them",
        );
    }
}

/// Checks a value that becomes one word of a line in slurm.conf.
fn check_word(problems: &mut Problems, field: &str, value: &str, wanted: &str) {
    if !is_word(value) {
        problems.bad_value(field, format!("is {value:?}"), format!("set {wanted}"));
    }
}

/// Checks that `config` is part of one line and sets nothing that has a field.
fn check_config(problems: &mut Problems, settings: &[Setting], config: &str) {
    if !check_line(problems, "spec.config", config) {
        return;
    }
    for item in items(config) {
        let Some((key, value)) = item.split_once('=') else {
            problems.bad_value(
                "spec.config",
                format!("has {item:?}, which is not Key=Value"),
                "write Key=Value items separated by blanks, and a value with blanks in double quotes",
            );
            continue;
        };
        let in_quotes = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        if in_quotes.unwrap_or(value).contains('"') {
            problems.bad_value(
                "spec.config",
                format!("has {item:?}, with a double quote inside the value"),
                "quote the whole value, without quotes inside it",
            );
        }
        let own_place = MEMBERS_AND_STATE
            .iter()
            .find(|(reserved, _)| key.eq_ignore_ascii_case(reserved));
        if let Some((_, field)) = own_place {
            problems.bad_value(
                "spec.config",
                format!("has {key}, which has its own field"),
                format!("set {field}"),
            );
        } else if let Some(setting) = settings.iter().find(|setting| key.eq_ignore_ascii_case(setting.key)) {
            problems.bad_value(
                "spec.config",
                format!("has {key}, which spec.{} sets too", setting.field),
                "remove one of them",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields with errors of a Partition with this spec.
    fn refused(spec: serde_json::Value) -> Vec<String> {
        let partition = Partition::new("gpu", serde_json::from_value(spec).unwrap());
        partition
            .check()
            .errors()
            .map(|problem| problem.field.clone())
            .collect()
    }

    fn spec(more: serde_json::Value) -> serde_json::Value {
        let mut spec = serde_json::json!({ "controllerRef": { "name": "slurm" }, "nodeSets": ["a"] });
        let serde_json::Value::Object(more) = more else {
            panic!("{more}")
        };
        spec.as_object_mut().unwrap().extend(more);
        spec
    }

    #[test]
    fn settings_that_slurm_would_misread_are_rejected() {
        for (more, field) in [
            (serde_json::json!({ "partitionName": "DEFAULT" }), "spec.partitionName"),
            (serde_json::json!({ "partitionName": "all" }), "spec.partitionName"),
            (serde_json::json!({ "partitionName": "a b" }), "spec.partitionName"),
            (serde_json::json!({ "nodeSets": [] }), "spec.nodeSets"),
            (serde_json::json!({ "nodes": ["a b"] }), "spec.nodes[0]"),
            (serde_json::json!({ "qos": "x Nodes=ALL" }), "spec.qos"),
            (serde_json::json!({ "config": "State=UP" }), "spec.config"),
            (serde_json::json!({ "config": "words" }), "spec.config"),
            (serde_json::json!({ "config": "AllowGroups=x,\\" }), "spec.config"),
            (serde_json::json!({ "config": "SuspendTime=5 # why" }), "spec.config"),
            (
                serde_json::json!({ "config": "SuspendTime=5\nNodes=ALL" }),
                "spec.config",
            ),
            (serde_json::json!({ "config": "Topology=\"a b" }), "spec.config"),
            (serde_json::json!({ "config": "Topology=a\"b c\"" }), "spec.config"),
            (serde_json::json!({ "qos": "x\\" }), "spec.qos"),
            (serde_json::json!({ "allowGroups": ["x", "\\"] }), "spec.allowGroups"),
            (serde_json::json!({ "nodes": ["a\\"] }), "spec.nodes[0]"),
            (serde_json::json!({ "excludeNodes": ["a#"] }), "spec.excludeNodes[0]"),
            (serde_json::json!({ "maxTime": "5\\" }), "spec.maxTime"),
            (
                serde_json::json!({ "config": "maxtime=5", "maxTime": 6 }),
                "spec.config",
            ),
            (
                serde_json::json!({ "defMemPerCPU": 5, "defMemPerNode": 6 }),
                "spec.defMemPerNode",
            ),
            (
                serde_json::json!({ "allowQos": ["a"], "denyQos": ["b"] }),
                "spec.denyQos",
            ),
        ] {
            assert_eq!(refused(spec(more.clone())), [field], "{more}");
        }
        assert!(
            refused(spec(
                serde_json::json!({ "config": "SuspendTime=5", "state": "Drain", "qos": "high" })
            ))
            .is_empty()
        );
        assert!(
            refused(spec(
                serde_json::json!({ "config": "Topology=\"a b\" SuspendTime=5 AllowGroups=\"x,y\"" })
            ))
            .is_empty()
        );
        let only_nodes = serde_json::json!({ "controllerRef": { "name": "slurm" }, "nodes": ["ext[1-4]"] });
        assert!(refused(only_nodes).is_empty());
        let all_sets = serde_json::json!({ "controllerRef": { "name": "slurm" }, "nodeSetSelector": {} });
        assert!(refused(all_sets).is_empty());
    }

    #[test]
    fn name_and_cluster_are_immutable() {
        let old = Partition::new("gpu", serde_json::from_value(spec(serde_json::json!({}))).unwrap());
        let renamed = Partition::new(
            "gpu",
            serde_json::from_value(spec(serde_json::json!({ "partitionName": "x" }))).unwrap(),
        );
        assert!(!renamed.admit_update(&old).is_ok());
        // The same name, said.
        let said = Partition::new(
            "gpu",
            serde_json::from_value(spec(serde_json::json!({ "partitionName": "gpu" }))).unwrap(),
        );
        assert!(said.admit_update(&old).is_ok());
    }
}
