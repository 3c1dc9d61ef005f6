//! The API server enforces the rules in the definitions: it tries the examples of each (docs/admission.md).

use std::process::Command;

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value, json};
use testbed::command::{output, output_with_input};
use testbed::harness::{Namespace, cluster};

use crate::common::clusters::operator_namespace;

/// An entry of the table of rules.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    kind: String,
    id: String,
    holds: String,
    remedy: String,
    moment: String,
    in_definition: bool,
    good: Vec<Value>,
    bad: Vec<Value>,
}

impl Rule {
    fn is_about_changes(&self) -> bool {
        self.moment == "Change"
    }

    /// Fails unless the answer is a refusal with the text of the rule. The schema's own texts differ.
    fn assert_refused(&self, object: &Value, answer: Result<String>) {
        let name = format!("{} {}", self.kind, self.id);
        let said = answer.expect_err(&format!("{name}: accepted {object}")).to_string();
        let of_schema = [
            "Unsupported value",
            "in body should ",
            "Too many: ",
            "Too long: ",
            "Duplicate value: ",
        ];
        let by_schema = of_schema.iter().any(|words| said.contains(words));
        let text = format!("{}; {}", self.holds, self.remedy);
        assert!(said.contains(&text) || by_schema, "{name}: {object}: {said}");
    }
}

fn rules() -> Vec<Rule> {
    let example = testbed::sibling("examples/admission").unwrap();
    serde_json::from_str(&output(Command::new(example).arg("--json")).unwrap()).unwrap()
}

/// The object in the namespace of the test.
fn placed(namespace: &Namespace, object: &Value) -> Value {
    let own = format!("\"namespace\":\"{}\"", namespace.name);
    serde_json::from_str(&object.to_string().replace("\"namespace\":\"slurm\"", &own)).unwrap()
}

fn kubectl(namespace: &Namespace, arguments: &[&str], object: &Value) -> Result<String> {
    let mut command = namespace.kubectl(&[arguments, &["-f", "-"]].concat());
    output_with_input(&mut command, &object.to_string())
}

#[test]
fn new_objects_must_fulfil_the_rules() {
    let namespace = operator_namespace(cluster(), "rules");
    let create = |object: &Value| kubectl(&namespace, &["create", "--dry-run=server", "-o", "name"], object);
    let mut accepted = Vec::new();
    for rule in rules() {
        accepted.extend(rule.good.iter().map(|good| placed(&namespace, good)));
        for bad in rule.bad.iter().map(|bad| placed(&namespace, bad)) {
            if rule.in_definition && !rule.is_about_changes() {
                rule.assert_refused(&bad, create(&bad));
            } else {
                accepted.push(bad);
            }
        }
    }
    create(&json!({ "apiVersion": "v1", "kind": "List", "items": accepted })).unwrap();
}

#[test]
fn immutable_fields_cannot_be_changed() {
    let namespace = operator_namespace(cluster(), "immutable");
    let rules = rules();
    let immutable = rules
        .iter()
        .filter(|rule| rule.is_about_changes() && rule.in_definition);
    for rule in immutable {
        let object = |example: &Value| {
            let mut object = placed(&namespace, example);
            // The operator does not act on such a Controller or Accounting. Sets do not start without a Controller.
            if ["Controller", "Accounting"].contains(&rule.kind.as_str()) {
                object["spec"]["template"] = json!({ "spec": { "hostNetwork": true } });
            }
            object
        };
        let replace = |object: &Value| kubectl(&namespace, &["replace", "--dry-run=server"], object);
        let [old, good @ ..] = rule.good.as_slice() else {
            panic!("{} has no example", rule.id)
        };
        kubectl(&namespace, &["create"], &object(old)).unwrap();
        for good in good.iter().map(object) {
            replace(&good).unwrap();
        }
        for bad in rule.bad.iter().map(object) {
            rule.assert_refused(&bad, replace(&bad));
        }
        kubectl(&namespace, &["delete"], &object(old)).unwrap();
    }
}
