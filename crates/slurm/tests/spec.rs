//! Every field we read or write is in Slurm's own specification, with the type we take it for.
//!
//! A document is made up from the specification with every field it knows. Our types are then read from it by a
//! deserializer that notes each field they ask for and that is not there, so there is no list of fields to keep.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests, but does not see that the functions beside them are tests too"
)]

mod strict;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use slurm::agent::{NodeAction, Reason};
use slurm::answer::{DecodeError, JobResult, Payload, Ping, ServedConf, decode, decode_empty};
use slurm::job::JobStateName;
use slurm::node::{BaseState, NodeFlag};
use slurm::partition::PartitionStateName;
use slurm::rest::{ApiVersion, render_node};
use slurm::{Job, Node, NodeDescription, NodeFeatures, Partition, Reservation, SingleLine};

struct Spec {
    version: ApiVersion,
    text: Value,
}

fn specs() -> [Spec; 3] {
    [
        (ApiVersion::V42, include_str!("spec/v0.0.42.json")),
        (ApiVersion::V44, include_str!("spec/v0.0.44.json")),
        (ApiVersion::V45, include_str!("spec/v0.0.45.json")),
    ]
    .map(|(version, text)| Spec {
        version,
        text: serde_json::from_str(text).unwrap(),
    })
}

impl Spec {
    fn schema(&self, name: &str) -> &Value {
        &self.text["schemas"][format!("{}_{name}", self.version)]
    }

    fn operation(&self, name: &str, side: &str) -> Option<&Value> {
        let schema = self.text["operations"][name][side].as_str()?;
        Some(&self.text["schemas"][schema])
    }

    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(reference) => &self.text["schemas"][reference.rsplit('/').next().unwrap()],
            None => schema,
        }
    }

    /// The values that items of a list can have.
    fn values<'a>(&'a self, list: &'a Value) -> &'a Value {
        let items = &self.resolve(list)["items"];
        &self.resolve(items)["enum"]
    }

    fn sample(&self, schema: &Value) -> Value {
        let schema = self.resolve(schema);
        match schema["type"].as_str().unwrap_or("anything") {
            "object" => {
                let none = Map::new();
                let properties = schema["properties"].as_object().unwrap_or(&none);
                properties
                    .iter()
                    .map(|(name, schema)| (name.clone(), self.sample(schema)))
                    .collect()
            }
            "array" => json!([self.sample(&schema["items"])]),
            "string" => schema["enum"].get(0).cloned().unwrap_or_else(|| json!("text")),
            "integer" => json!(1),
            "number" => json!(1.5),
            "boolean" => json!(true),
            "anything" => Value::Null,
            other => panic!("{other}"),
        }
    }

    fn missing_fields<T: Payload + DeserializeOwned>(&self, operation: &str) -> Vec<String> {
        let answer = self.sample(self.operation(operation, "answer").unwrap());
        strict::missing_fields::<T>(&answer[T::FIELD], T::FIELD)
    }
}

/// Returns the fields of a partition that are empty. The document has a value for every field of the specification, so these are
/// read from places that it does not have.
fn empty_fields(partition: &Value) -> Vec<String> {
    let partition: Partition = serde_json::from_value(partition.clone()).unwrap();
    let shown = format!("{partition:#?}");
    let fields = shown.lines().filter_map(|line| line.trim().split_once(": "));
    fields
        .filter(|(_, value)| ["\"\",", "0,", "Unset,", "None,", "[],"].contains(value))
        .map(|(field, _)| field.to_owned())
        .collect()
}

#[test]
fn every_field_we_read_exists() {
    for spec in specs() {
        // Slurm 24.11 has no topology of a node.
        let absent = match spec.version {
            ApiVersion::V42 => vec!["nodes[0].topology"],
            ApiVersion::V44 | ApiVersion::V45 => vec![],
        };
        assert_eq!(spec.missing_fields::<Vec<Node>>("get nodes/"), absent);
        assert_eq!(spec.missing_fields::<Vec<Node>>("get node/{node_name}"), absent);
        assert_eq!(spec.missing_fields::<Vec<Job>>("get jobs/"), [""; 0]);
        assert_eq!(spec.missing_fields::<Vec<Ping>>("get ping/"), [""; 0]);
        assert_eq!(spec.missing_fields::<Vec<Reservation>>("get reservations/"), [""; 0]);
        let answer = spec.sample(spec.operation("get partitions/", "answer").unwrap());
        let partitions = empty_fields(&answer["partitions"][0]);
        match spec.version {
            ApiVersion::V44 | ApiVersion::V42 => {
                // What is not shown is not compared.
                let absent = ["cpu_bind", "over_subscribe", "exclusive", "preempt_mode", "flags"];
                assert_eq!(partitions, absent);
                assert!(spec.operation("get conf", "answer").is_none());
                assert!(spec.operation("get job/{job_id}/requeue", "answer").is_none());
            }
            ApiVersion::V45 => {
                assert_eq!(partitions, [""; 0]);
                assert_eq!(spec.missing_fields::<ServedConf>("get conf"), [""; 0]);
            }
        }
    }
}

#[test]
fn the_fields_beside_the_content_are_read_from_every_response() {
    for spec in specs() {
        for operation in spec.text["operations"].as_object().unwrap().keys() {
            let mut answer = spec.sample(spec.operation(operation, "answer").unwrap());
            let Err(DecodeError::Complaints(complaints)) = decode_empty(answer.to_string().as_bytes()) else {
                panic!("{operation}: the error is not seen");
            };
            assert_eq!(complaints[0].number, 1);
            assert_eq!(complaints[0].to_string(), "text");
            assert_eq!(complaints[0].source, "text");

            answer["errors"] = json!([]);
            let answer = decode_empty(answer.to_string().as_bytes()).unwrap();
            assert_eq!(answer.release.as_deref(), Some("text"));
        }
    }
}

#[test]
fn a_whole_answer_is_read() {
    for spec in specs() {
        let mut answer = spec.sample(spec.operation("get nodes/", "answer").unwrap());
        answer["errors"] = json!([]);
        let nodes = decode::<Vec<Node>>(answer.to_string().as_bytes()).unwrap().value;
        assert_eq!(nodes[0].features, ["text"]);
    }
}

#[test]
fn the_result_of_a_job_is_read_in_both_forms() {
    for spec in specs() {
        for operation in ["delete job/{job_id}", "get job/{job_id}/requeue"] {
            let Some(schema) = spec.operation(operation, "answer") else {
                assert_eq!(operation, "get job/{job_id}/requeue");
                assert!(spec.version < ApiVersion::V45);
                continue;
            };
            let mut answer = spec.sample(schema);
            answer["errors"] = json!([]);
            let verdicts = decode::<Vec<JobResult>>(answer.to_string().as_bytes()).unwrap().value;
            assert_eq!(verdicts[0].error(), (1, "text"), "{operation}");
        }
    }
}

#[test]
fn numbers_are_wrapped_as_we_expect() {
    for spec in specs() {
        for bits in [16, 32, 64] {
            let schema = spec.schema(&format!("uint{bits}_no_val_struct"));
            let types =
                ["set", "infinite", "number"].map(|field| schema["properties"][field]["type"].as_str().unwrap());
            assert_eq!(types, ["boolean", "boolean", "integer"]);
        }
    }
}

#[test]
fn every_state_in_the_specification_has_a_name_here() {
    for spec in specs() {
        for name in names(spec.values(&spec.schema("node")["properties"]["state"])) {
            assert!(
                BaseState::from_name(name).is_some() || NodeFlag::from_name(name).is_some(),
                "{name}"
            );
        }
        for name in names(spec.values(&spec.schema("job_info")["properties"]["job_state"])) {
            assert!(JobStateName::from_name(name).is_some(), "{name}");
        }
        let partition = spec.resolve(&spec.schema("partition_info")["properties"]["partition"]);
        let partition = &partition["properties"]["state"];
        for name in names(spec.values(partition)).filter(|name| *name != "UNKNOWN") {
            assert!(PartitionStateName::from_name(name).is_some(), "{name}");
        }
    }
}

fn names(list: &Value) -> impl Iterator<Item = &str> {
    let list = list.as_array().unwrap();
    assert!(!list.is_empty());
    list.iter().filter_map(Value::as_str)
}

#[test]
fn every_field_we_write_exists() {
    let line = |text: &str| SingleLine::new(text).unwrap();
    let description = NodeDescription {
        comment: Some(line("c")),
        extra: Some(line("e")),
        features: Some(NodeFeatures {
            available: vec![line("f")],
            active: vec![line("f")],
        }),
        topology: Some(line("default:s1")),
        address: Some(line("10.0.0.1")),
    };
    let reason = || Some(Reason::new("r").unwrap());
    for spec in specs() {
        let schema = spec.operation("post node/{node_name}", "request").unwrap();
        // Slurm 24.11 has no topology of a node, and slurmrestd no writes of reservations.
        let is_old = spec.version == ApiVersion::V42;
        let topology = description.topology.clone().filter(|_| !is_old);
        let description = NodeDescription {
            topology,
            ..description.clone()
        };
        for (update, fields) in [
            (NodeAction::Drain { reason: reason() }, 2),
            (NodeAction::Down { reason: reason() }, 2),
            (NodeAction::Undrain, 1),
            (NodeAction::Resume, 1),
            (NodeAction::Describe(description), if is_old { 5 } else { 6 }),
        ] {
            let body = render_node(&update).unwrap();
            assert_eq!(body.as_object().unwrap().len(), fields, "{body}");
            spec.assert_fits(schema, &body, "body");
        }
        assert!(spec.operation("delete node/{node_name}", "answer").is_some());
        let unreserve = spec.operation("delete reservation/{reservation_name}", "answer");
        assert_eq!(unreserve.is_none(), is_old);
    }
}

impl Spec {
    fn assert_fits(&self, schema: &Value, value: &Value, path: &str) {
        let schema = self.resolve(schema);
        let expected = schema["type"].as_str();
        match value {
            Value::Object(fields) => {
                assert_eq!(expected, Some("object"), "{path}");
                for (name, value) in fields {
                    let property = schema["properties"]
                        .get(name)
                        .unwrap_or_else(|| panic!("{path}.{name} is not known"));
                    self.assert_fits(property, value, &format!("{path}.{name}"));
                }
            }
            Value::Array(items) => {
                assert_eq!(expected, Some("array"), "{path}");
                for item in items {
                    self.assert_fits(&schema["items"], item, path);
                }
            }
            Value::String(text) => {
                assert_eq!(expected, Some("string"), "{path}");
                let allowed = schema["enum"].as_array();
                assert!(
                    allowed.is_none_or(|allowed| allowed.contains(&json!(text))),
                    "{path}: {text}"
                );
            }
            Value::Number(_) => assert_eq!(expected, Some("integer"), "{path}"),
            Value::Bool(_) => assert_eq!(expected, Some("boolean"), "{path}"),
            Value::Null => panic!("{path} is null"),
        }
    }
}
