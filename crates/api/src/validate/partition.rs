//! Rules for a Partition. Names that refer to other objects are checked where the whole cluster is known.

use super::{
    Cel, Check, Problems, Reason, Rule, Validate,
    cel::is_name,
    fields::check_name,
    lines::{ONE_LINE, check_line, is_word},
    names::{LABEL_LIMIT, is_reserved},
    shared::{Fields, controller_immutable, controller_name, controller_namespace},
};
use crate::{
    items::items,
    overlay::ContainerOverlay,
    partition::{MAX_PRIORITY, Partition, SETTING_FIELDS, Setting, SettingField, SettingForm},
    references::ObjectRef,
    templates::PodTemplate,
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

/// One word of a line, and each item of a list one word.
macro_rules! are_words {
    (text $($text:literal)* list $($list:literal)*) => {
        concat!(
            "true",
            $(" && (!has(self.spec.", $text, r") || self.spec.", $text, r".matches(r'^[^\s\pZ\p{Cc}#\x22\\]+$'))",)*
            $(" && (!has(self.spec.", $list, r") || self.spec.", $list,
              r".all(item, item.matches(r'^[^\s\pZ\p{Cc}#\x22\\]+$')))",)*
        )
    };
}

const REMEDY: &str = "create another Partition and delete this one";

impl Fields for Partition {
    fn controller_ref(&self) -> &ObjectRef {
        &self.spec.controller_ref
    }

    fn containers(&self) -> Vec<(&'static str, &Option<ContainerOverlay>)> {
        Vec::new()
    }

    fn template(&self) -> Option<&PodTemplate> {
        None
    }
}

impl Validate for Partition {
    const SMALLEST: &'static str = "spec: {controllerRef: {name: slurm}, nodeSets: [a]}";

    const FREE: &'static [&'static str] = &[
        "default",
        "deletionPolicy",
        "disableRootJobs",
        "driftPolicy",
        "exclusiveUser",
        "hidden",
        "lln",
        "nodeSetSelector",
        "reqResv",
        "rootOnly",
        "state",
    ];

    const RULES: &'static [Rule<Self>] = &[
        controller_name(),
        controller_namespace(),
        Rule {
            id: "partition-name",
            field: "spec.partitionName, metadata.name",
            holds: "must be a name of a partition that is not reserved in Slurm",
            remedy: "use letters, digits, dashes, underscores and dots, at most 63 of them, but not default and all",
            cel: Cel::Object {
                reads: &["spec.partitionName"],
                holds: "(has(self.spec.partitionName) && self.spec.partitionName != '' ? self.spec.partitionName : \
                    self.metadata.name).matches('^[-._a-zA-Z0-9]{1,63}$') && \
                    !((has(self.spec.partitionName) && self.spec.partitionName != '' ? self.spec.partitionName : \
                    self.metadata.name).lowerAscii() in ['default', 'all'])",
            },
            check: Check::Problems(|partition, problems| {
                let given = partition.spec.partition_name.as_deref().unwrap_or_default();
                let field = if given.is_empty() {
                    "metadata.name"
                } else {
                    "spec.partitionName"
                };
                check_partition_name(problems, field, &partition.slurm_name());
            }),
            good: &[
                "spec: {partitionName: gpu_Long.1}",
                "metadata: {name: all}\nspec: {partitionName: every}",
            ],
            bad: &[
                "spec: {partitionName: DEFAULT}",
                "spec: {partitionName: a b}",
                "metadata: {name: all}",
            ],
        },
        Rule {
            id: "nodesets",
            field: "spec.nodeSets[]",
            holds: "must be the name of a NodeSet",
            remedy: "use the name that `kubectl get nodesets` shows",
            cel: Cel::Object {
                reads: &["spec.nodeSets"],
                holds: concat!(
                    "!has(self.spec.nodeSets) || self.spec.nodeSets.all(name, ",
                    is_name!("name"),
                    ")"
                ),
            },
            check: Check::Problems(|partition, problems| {
                for (index, name) in partition.spec.node_sets.iter().flatten().enumerate() {
                    check_name(problems, &format!("spec.nodeSets[{index}]"), "NodeSet", name);
                }
            }),
            good: &["spec: {nodeSets: [a, b-1]}"],
            bad: &["spec: {nodeSets: [a, '']}", "spec: {nodeSets: [A]}"],
        },
        Rule {
            id: "nodes",
            field: "spec.nodes[], spec.excludeNodes[], spec.allowAllocNodes[]",
            holds: "must be a hostlist",
            remedy: "set a hostlist such as ext[001-004]",
            cel: Cel::Object {
                reads: &["spec.nodes", "spec.excludeNodes", "spec.allowAllocNodes"],
                holds: are_words!(text list "nodes" "excludeNodes" "allowAllocNodes"),
            },
            check: Check::Problems(|partition, problems| {
                for (field, list) in [
                    ("spec.nodes", &partition.spec.nodes),
                    ("spec.excludeNodes", &partition.spec.exclude_nodes),
                    ("spec.allowAllocNodes", &partition.spec.allow_alloc_nodes),
                ] {
                    for (index, entry) in list.iter().flatten().enumerate() {
                        let field = format!("{field}[{index}]");
                        check_word(problems, &field, entry, "a hostlist such as ext[001-004]");
                    }
                }
            }),
            good: &["spec: {nodes: ['ext[001-004]', head]}"],
            bad: &["spec: {nodes: [a b]}", "spec: {excludeNodes: ['a#']}"],
        },
        Rule {
            id: "members",
            field: "spec.nodeSets",
            holds: "must not be empty, unless spec.nodeSetSelector or spec.nodes is set",
            remedy: "name NodeSets, select them by labels, or list nodes",
            cel: Cel::Object {
                reads: &["spec.nodeSets", "spec.nodes", "spec.nodeSetSelector"],
                holds: "has(self.spec.nodeSetSelector) || (has(self.spec.nodeSets) && size(self.spec.nodeSets) > 0) || \
                    (has(self.spec.nodes) && size(self.spec.nodes) > 0)",
            },
            check: Check::Fault(Reason::Missing, |partition| {
                let spec = &partition.spec;
                let none = |list: &Option<Vec<String>>| list.as_ref().is_none_or(Vec::is_empty);
                (none(&spec.node_sets) && none(&spec.nodes) && spec.node_set_selector.is_none())
                    .then(|| "is absent or empty, and so are spec.nodeSetSelector and spec.nodes".into())
            }),
            good: &[
                "spec: {nodeSets: null, nodes: [a]}",
                "spec: {nodeSets: null, nodeSetSelector: {}}",
            ],
            bad: &["spec: {nodeSets: null}", "spec: {nodeSets: []}"],
        },
        Rule {
            id: "settings",
            field: "spec.maxTime, spec.defaultTime, spec.overTimeLimit, spec.preemptMode, spec.overSubscribe, \
                    spec.allowAccounts, spec.denyAccounts, spec.allowGroups, spec.allowQos, spec.denyQos, spec.qos, \
                    spec.allowAllocNodes, spec.alternate, spec.maxNodes, spec.maxCPUsPerNode, spec.tresBillingWeights",
            holds: "must be one word, or a list of words, as in slurm.conf",
            remedy: "write it without blanks, quotes, backslashes and number signs",
            cel: Cel::Object {
                reads: &[
                    "spec.preemptMode",
                    "spec.overSubscribe",
                    "spec.qos",
                    "spec.alternate",
                    "spec.tresBillingWeights",
                    "spec.allowAccounts",
                    "spec.denyAccounts",
                    "spec.allowGroups",
                    "spec.allowQos",
                    "spec.denyQos",
                ],
                holds: are_words!(
                    text "preemptMode" "overSubscribe" "qos" "alternate" "tresBillingWeights"
                    list "allowAccounts" "denyAccounts" "allowGroups" "allowQos" "denyQos"
                ),
            },
            check: Check::Problems(|partition, problems| {
                for setting in partition.spec.settings() {
                    let field = format!("spec.{}", setting.field);
                    check_word(problems, &field, &setting.value, "one word as in slurm.conf");
                }
            }),
            good: &["spec: {qos: high, allowGroups: [a, b], maxTime: 1-00:00:00}"],
            bad: &[
                "spec: {qos: x Nodes=ALL}",
                "spec: {allowGroups: [a, 'b\\']}",
                "spec: {alternate: ''}",
            ],
        },
        Rule {
            id: "numbers",
            field: "spec.graceTime, spec.priorityTier, spec.priorityJobFactor, spec.minNodes, spec.defMemPerCPU, \
                    spec.defMemPerNode, spec.maxMemPerCPU, spec.maxMemPerNode, spec.defCpuPerGPU, spec.defMemPerGPU",
            holds: "must not be negative, and priorities must be at most 65533",
            remedy: "set a number in these bounds",
            cel: Cel::Schema,
            check: Check::Problems(|partition, problems| {
                let settings = partition.spec.settings();
                for (setting, number) in settings.iter().filter_map(|setting| Some((setting, number(setting)?))) {
                    let field = format!("spec.{}", setting.field);
                    if number < 0 {
                        problems.bad_value(field, format!("is {number}"), "set 0 or more");
                    } else if setting.field.starts_with("priority") && number > MAX_PRIORITY {
                        problems.bad_value(field, format!("is {number}"), format!("set {MAX_PRIORITY} or less"));
                    }
                }
            }),
            good: &["spec: {priorityTier: 65533}"],
            bad: &["spec: {priorityTier: 65534}", "spec: {graceTime: -1}"],
        },
        Rule {
            id: "exclusive",
            field: "spec.defMemPerNode, spec.maxMemPerNode, spec.denyAccounts, spec.denyQos",
            holds: "cannot be set beside spec.defMemPerCPU, spec.maxMemPerCPU, spec.allowAccounts and spec.allowQos",
            remedy: "remove one of them",
            cel: Cel::Object {
                reads: &[
                    "spec.defMemPerNode",
                    "spec.defMemPerCPU",
                    "spec.maxMemPerNode",
                    "spec.maxMemPerCPU",
                    "spec.denyAccounts",
                    "spec.allowAccounts",
                    "spec.denyQos",
                    "spec.allowQos",
                ],
                holds: "!(has(self.spec.defMemPerNode) && has(self.spec.defMemPerCPU)) && \
                    !(has(self.spec.maxMemPerNode) && has(self.spec.maxMemPerCPU)) && \
                    !(has(self.spec.denyAccounts) && has(self.spec.allowAccounts)) && \
                    !(has(self.spec.denyQos) && has(self.spec.allowQos))",
            },
            check: Check::Problems(|partition, problems| {
                let settings = partition.spec.settings();
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
            }),
            good: &["spec: {defMemPerCPU: 5, maxMemPerNode: 6}"],
            bad: &[
                "spec: {defMemPerCPU: 5, defMemPerNode: 6}",
                "spec: {allowQos: [a], denyQos: [b]}",
            ],
        },
        Rule {
            id: "config-line",
            field: "spec.config",
            holds: "must be part of one line of slurm.conf",
            remedy: "write it in one line, without backslashes and #, and close double quotes",
            cel: Cel::Value(ONE_LINE),
            check: Check::Problems(|partition, problems| {
                check_line(
                    problems,
                    "spec.config",
                    partition.spec.config.as_deref().unwrap_or_default(),
                );
            }),
            good: &["spec: {config: 'SuspendTime=5 Topology=\"a b\"'}"],
            bad: &[
                "spec: {config: 'AllowGroups=x,\\'}",
                "spec: {config: 'SuspendTime=5 # why'}",
            ],
        },
        Rule {
            id: "config-keys",
            field: "spec.config",
            holds: "must be Key=Value items, without keys that have a field of their own",
            remedy: "write Key=Value items separated by blanks, and set the fields instead",
            cel: Cel::No("it needs a parser"),
            check: Check::Problems(|partition, problems| {
                let config = partition.spec.config.as_deref().unwrap_or_default();
                if check_line(&mut Problems::default(), "spec.config", config) {
                    check_items(problems, &partition.spec.settings(), config);
                }
            }),
            good: &["spec: {config: SuspendTime=5}"],
            bad: &[
                "spec: {config: State=UP}",
                "spec: {config: words}",
                "spec: {config: maxtime=5, maxTime: 6}",
            ],
        },
        controller_immutable(REMEDY),
        Rule {
            id: "partition-name-immutable",
            field: "spec.partitionName",
            holds: "cannot be changed",
            remedy: REMEDY,
            cel: Cel::Constant(
                "has(self.spec.partitionName) && self.spec.partitionName != '' ? self.spec.partitionName : \
                 self.metadata.name",
            ),
            check: Check::Unchanged(|old, new| old.slurm_name() == new.slurm_name()),
            good: &[
                "spec: {}",
                "spec: {partitionName: compute}",
                "spec: {partitionName: ''}",
            ],
            bad: &["spec: {partitionName: x}"],
        },
    ];
}

/// The value of a setting that is a number only.
fn number(setting: &Setting) -> Option<i64> {
    let is_number = |field: &&SettingField| field.name == setting.field && field.form == SettingForm::Number;
    SETTING_FIELDS.iter().find(is_number)?;
    setting.value.parse().ok()
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

/// Checks that `config` sets nothing that has a field.
fn check_items(problems: &mut Problems, settings: &[Setting], config: &str) {
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
