//! The settings of Slurm that are fields of a Partition object. Pure.

use api::partition::PartitionState;
use serde_json::{Value, json};
use slurm::conf::Key;

use crate::failure::{Failure, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// Under `spec`.
    pub(super) name: &'static str,
    key: &'static str,
    shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Switch,
    Text,
    Number,
    /// A number, or one of Slurm's words.
    Either,
    List,
    State,
}

const fn field(name: &'static str, key: &'static str, shape: Shape) -> Field {
    Field { name, key, shape }
}

const FIELDS: &[Field] = &[
    field("state", "State", Shape::State),
    field("default", "Default", Shape::Switch),
    field("maxTime", "MaxTime", Shape::Either),
    field("defaultTime", "DefaultTime", Shape::Either),
    field("overTimeLimit", "OverTimeLimit", Shape::Either),
    field("graceTime", "GraceTime", Shape::Number),
    field("priorityTier", "PriorityTier", Shape::Number),
    field("priorityJobFactor", "PriorityJobFactor", Shape::Number),
    field("preemptMode", "PreemptMode", Shape::Text),
    field("overSubscribe", "OverSubscribe", Shape::Text),
    field("allowAccounts", "AllowAccounts", Shape::List),
    field("denyAccounts", "DenyAccounts", Shape::List),
    field("allowGroups", "AllowGroups", Shape::List),
    field("allowQos", "AllowQos", Shape::List),
    field("denyQos", "DenyQos", Shape::List),
    field("qos", "QOS", Shape::Text),
    field("allowAllocNodes", "AllocNodes", Shape::List),
    field("alternate", "Alternate", Shape::Text),
    field("minNodes", "MinNodes", Shape::Number),
    field("maxNodes", "MaxNodes", Shape::Either),
    field("maxCPUsPerNode", "MaxCPUsPerNode", Shape::Either),
    field("defMemPerCPU", "DefMemPerCPU", Shape::Number),
    field("defMemPerNode", "DefMemPerNode", Shape::Number),
    field("maxMemPerCPU", "MaxMemPerCPU", Shape::Number),
    field("maxMemPerNode", "MaxMemPerNode", Shape::Number),
    field("defCpuPerGPU", "DefCpuPerGPU", Shape::Number),
    field("defMemPerGPU", "DefMemPerGPU", Shape::Number),
    field("tresBillingWeights", "TRESBillingWeights", Shape::Text),
    field("hidden", "Hidden", Shape::Switch),
    field("rootOnly", "RootOnly", Shape::Switch),
    field("disableRootJobs", "DisableRootJobs", Shape::Switch),
    field("reqResv", "ReqResv", Shape::Switch),
    field("lln", "LLN", Shape::Switch),
    field("exclusiveUser", "ExclusiveUser", Shape::Switch),
];

/// Finds a field by Slurm's key, or by its own name.
pub(super) fn find_field(key: &Key) -> Option<Field> {
    FIELDS
        .iter()
        .find(|field| *key == *field.key || *key == *field.name)
        .copied()
}

impl Field {
    /// Returns the value of the field.
    pub(super) fn value(&self, text: &str) -> Outcome<Value> {
        let bad = |wanted: &str| Failure::usage(format!("{}={text}: give {wanted}", self.key));
        match self.shape {
            Shape::Text => Ok(text.into()),
            Shape::Number => text.parse::<i64>().map(Value::from).map_err(|_| bad("a number")),
            Shape::Either => Ok(text.parse::<i64>().map_or_else(|_| text.into(), Value::from)),
            Shape::List => Ok(json!(super::super::members::split_items(text))),
            // Slurm's words for booleans.
            Shape::Switch => match text.to_ascii_lowercase().as_str() {
                "yes" | "true" | "1" | "up" => Ok(true.into()),
                "no" | "false" | "0" | "down" => Ok(false.into()),
                _ => Err(bad("YES or NO")),
            },
            Shape::State => {
                let states = [
                    PartitionState::Up,
                    PartitionState::Down,
                    PartitionState::Drain,
                    PartitionState::Inactive,
                ];
                let state = states.iter().find(|state| state.as_str().eq_ignore_ascii_case(text));
                let state = state.ok_or_else(|| bad("UP, DOWN, DRAIN or INACTIVE"))?;
                Ok(state.as_str().into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use api::PartitionSpec;

    use super::*;

    /// Every field with a setting is listed, with the same key, and accepts the values of slurm.conf.
    #[test]
    fn the_fields_are_those_of_the_kind() {
        let mut spec = serde_json::Map::new();
        spec.insert("controllerRef".into(), json!({ "name": "slurm" }));
        for field in FIELDS {
            let sample = match field.shape {
                Shape::Switch => "YES",
                Shape::Text | Shape::List => "a",
                Shape::Number | Shape::Either => "1",
                Shape::State => "DRAIN",
            };
            spec.insert(field.name.into(), field.value(sample).unwrap());
        }
        let known: PartitionSpec = serde_json::from_value(spec.into()).unwrap();
        let said: Vec<(&str, &str)> = known
            .settings()
            .iter()
            .map(|setting| (setting.field, setting.key))
            .collect();
        let ours: Vec<(&str, &str)> = FIELDS.iter().skip(1).map(|field| (field.name, field.key)).collect();
        assert_eq!(said, ours);
        assert_eq!(known.state(), PartitionState::Drain);
    }
}
