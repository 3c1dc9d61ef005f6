//! The operator works with upstream's definitions of the kinds, and reports that they are outdated.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::command::output;
use testbed::harness::{Namespace, alone, eventually, expect};
use testbed::paths;

use crate::common::clusters::{ONE_WORKER, install_chart};
use crate::common::operator::{PutBack, helm, install, install_charts};
use crate::common::slurm::{SOON, slurm, wait_idle};
use crate::operator::expect_no_writes;

const OBJECTS: [&str; 3] = ["controller/slurm", "restapi/slurm", "nodeset/slurm-worker-slinky"];

/// The fields of upstream's definitions by kind and path, with type and constraints. The test of our schema uses the
/// same list and describes its format.
fn upstreams_fields() -> BTreeMap<String, Vec<&'static str>> {
    let lines = include_str!("../../../api/tests/api/upstream-fields.txt").lines();
    let fields = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    fields
        .map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            (words[..2].join(" "), words[2..].to_vec())
        })
        .collect()
}

/// Reduces the schema of an object, or of a list of objects, to upstream's.
fn reduce(fields: &BTreeMap<String, Vec<&str>>, path: &str, schema: &mut Value) {
    if let Some(items) = schema.get_mut("items") {
        let path = format!("{path}[]");
        return take_over(&fields[&path], fields, &path, items);
    }
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    properties.retain(|name, _| fields.contains_key(&format!("{path}.{name}")));
    let mut required = Vec::new();
    for (name, child) in properties {
        let path = format!("{path}.{name}");
        let facts = &fields[&path];
        if facts.contains(&"required") {
            required.push(name.clone());
        }
        take_over(facts, fields, &path, child);
    }
    schema["required"] = required.into();
}

fn take_over(facts: &[&str], fields: &BTreeMap<String, Vec<&str>>, path: &str, schema: &mut Value) {
    let fact = |key: &str| facts.iter().find_map(|fact| fact.strip_prefix(key));
    let field = schema.as_object_mut().unwrap();
    for (name, value) in [("default", fact("default=")), ("minimum", fact("minimum="))] {
        field.remove(name);
        if let Some(value) = value {
            field.insert(name.to_owned(), serde_json::from_str(value).unwrap());
        }
    }
    match facts[0] {
        "object" | "array" => reduce(fields, path, schema),
        "ref" => schema["properties"]
            .as_object_mut()
            .unwrap()
            .retain(|name, _| name == "name"),
        "any" => *schema = json!({"nullable": true, "x-kubernetes-preserve-unknown-fields": true}),
        _ => {}
    }
}

/// Reduces one of our definitions to upstream's.
fn as_upstream_has_it(definition: &mut Value) {
    let fields = upstreams_fields();
    let kind = definition["spec"]["names"]["kind"].as_str().unwrap().to_owned();
    definition["metadata"] = json!({ "name": definition["metadata"]["name"] });
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema.as_object_mut().unwrap().remove("x-kubernetes-validations");
    for part in ["spec", "status"] {
        reduce(&fields, &format!("{kind} {part}"), &mut schema["properties"][part]);
    }
    let spec = &mut schema["properties"]["spec"];
    spec.as_object_mut().unwrap().remove("default");
    // Upstream's rules and its pattern, which the list does not contain.
    let rule = |rule: &str, message: &str| json!({ "rule": rule, "message": message });
    let external = rule("!self.external || has(self.externalConfig)", "externalConfig");
    let keys = [
        rule("self.external || has(self.slurmKeyRef)", "slurmKeyRef"),
        rule(
            "self.external || has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)",
            "jwtKeyRef",
        ),
    ];
    match kind.as_str() {
        "Accounting" => spec["x-kubernetes-validations"] = json!([external, keys[0], keys[1]]),
        "Controller" => {
            let ha = rule(
                "!has(self.ha) || !self.ha.enabled || (has(self.persistence) && self.persistence.enabled && \
                 has(self.persistence.existingClaim) && self.persistence.existingClaim != '')",
                "ha",
            );
            spec["x-kubernetes-validations"] = json!([external, keys[0], keys[1], ha]);
        }
        "Token" => {
            let key = rule("has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)", "jwtKeyRef");
            spec["x-kubernetes-validations"] = json!([key]);
        }
        "NodeSet" => {
            let fields = &mut spec["properties"];
            fields["partition"]["properties"]["config"]["pattern"] = json!("^[^\\n]+$");
            let schedule = rule(
                "self.type != 'ScheduledUpdate' || (has(self.scheduledUpdate) && \
                 has(self.scheduledUpdate.startTime) && has(self.scheduledUpdate.duration))",
                "scheduledUpdate",
            );
            fields["updateStrategy"]["x-kubernetes-validations"] = json!([schedule]);
        }
        _ => {}
    }
}

/// Writes a chart with upstream's definitions, under the name that both charts have.
fn write_upstreams_chart(cluster: &Cluster, folder: &Path) -> Result<()> {
    let ours = paths::repository().join("charts/slurm-operator-crds");
    std::fs::copy(ours.join("Chart.yaml"), folder.join("Chart.yaml"))?;
    std::fs::create_dir(folder.join("templates"))?;
    for entry in std::fs::read_dir(ours.join("templates"))? {
        let path = entry?.path();
        // Upstream has no such kind.
        if path.ends_with("partitions.yaml") {
            continue;
        }
        let shown = cluster.ask(&["create", "--dry-run=client", "-o", "json", "-f", path.to_str().unwrap()])?;
        let mut definition: Value = serde_json::from_str(&shown)?;
        as_upstream_has_it(&mut definition);
        std::fs::write(
            folder.join("templates").join(path.file_name().unwrap()),
            definition.to_string(),
        )?;
    }
    Ok(())
}

/// The status of condition `CRDsOutdated`, or an empty string.
fn outdated(namespace: &Namespace, object: &str) -> Result<String> {
    namespace.field(object, ".status.conditions[?(@.type==\"CRDsOutdated\")].status")
}

#[test]
fn clusters_run_with_upstreams_definitions_and_an_upgrade_is_requested() {
    let alone = alone();
    let cluster = alone.cluster;
    install(cluster);
    let _put_back = PutBack(cluster);
    let folder = tempfile::tempdir().unwrap();
    write_upstreams_chart(cluster, folder.path()).unwrap();
    let arguments = ["upgrade", "--namespace", "slinky", "slurm-operator-crds"];
    output(helm(cluster).args(arguments).arg(folder.path())).unwrap();
    let revision = ".metadata.annotations.slinky\\.slurm\\.net/schema-revision";
    let path = format!("jsonpath={{{revision}}}");
    let left = cluster.ask(&["get", "crd", "controllers.slinky.slurm.net", "-o", &path]);
    assert_eq!(left.unwrap(), "");

    let namespace = Namespace::create(cluster, "outdated").unwrap();
    install_chart(&namespace, ONE_WORKER).unwrap();
    wait_idle(&namespace, 1).unwrap();
    assert_eq!(slurm(&namespace, "srun -p all hostname").unwrap(), "slinky-0\n");
    for object in OBJECTS {
        eventually(&format!("{object} says it"), SOON, || {
            let said = outdated(&namespace, object)?;
            expect(said == "True", said)
        })
        .unwrap();
        namespace.wait("condition=Ready", object).unwrap();
    }
    expect_no_writes(cluster);

    let pods = || namespace.ask(&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"]);
    let before = pods().unwrap();
    install_charts(cluster).unwrap();
    for object in OBJECTS {
        eventually(&format!("{object} has nothing to say any more"), SOON, || {
            let said = outdated(&namespace, object)?;
            let seen = namespace.field(object, ".status.observedGeneration")?;
            expect(said.is_empty() && !seen.is_empty(), (said, seen))
        })
        .unwrap();
    }
    assert_eq!(pods().unwrap(), before);
}
