//! Upstream's definitions of the kinds in place of ours: the operator works with them, and says that it could do more.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::command::output;
use testbed::harness::{Namespace, cluster, eventually, expect};
use testbed::paths;

use crate::common::operator::{
    ONE_WORKER, PutBack, SOON, helm, install, install_chart, install_charts, slurm, wait_idle,
};
use crate::operator::expect_no_writes;

const OBJECTS: [&str; 3] = ["controller/slurm", "restapi/slurm", "nodeset/slurm-worker-slinky"];

/// The field at a path of an object's schema, such as `spec.partition`.
fn field<'a>(definition: &'a mut Value, path: &str) -> &'a mut Value {
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    path.split('.')
        .fold(schema, |schema, name| &mut schema["properties"][name])
}

fn remove(definition: &mut Value, path: &str, name: &str) {
    field(definition, path)["properties"]
        .as_object_mut()
        .unwrap()
        .remove(name);
}

/// References to an object of the same namespace have a `namespace` only here.
fn remove_namespaces(schema: &mut Value) {
    let is_reference = schema["x-kubernetes-map-type"] == "atomic";
    if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        if is_reference {
            fields.remove("namespace");
        }
        fields.values_mut().for_each(remove_namespaces);
    }
    if let Some(items) = schema.get_mut("items") {
        remove_namespaces(items);
    }
}

/// Makes one of our definitions what upstream's is. The differences are those that the test of our schema against upstream's
/// lists (`crates/api/tests/api/upstream.rs`), and the rules, which upstream has more of.
fn as_upstream_has_it(definition: &mut Value) {
    let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
    definition["metadata"] = json!({ "name": name });
    remove_namespaces(&mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
    let root = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    root.as_object_mut().unwrap().remove("required");
    field(definition, "spec").as_object_mut().unwrap().remove("default");
    let key_rules = json!([
        {"rule": "self.external || has(self.slurmKeyRef)", "message": "slurmKeyRef"},
        {"rule": "self.external || has(self.jwtKeyRef) || has(self.jwtHs256KeyRef)", "message": "jwtKeyRef"},
    ]);
    let mut add_key_rules = |definition: &mut Value| {
        let rules = field(definition, "spec")["x-kubernetes-validations"]
            .as_array_mut()
            .unwrap();
        rules.extend(key_rules.as_array().unwrap().iter().cloned());
    };
    match name.split('.').next().unwrap() {
        "controllers" => {
            add_key_rules(definition);
            remove(definition, "spec", "configUpdate");
            field(definition, "spec.ha")["required"] = json!(["enabled"]);
            field(definition, "spec.persistence")["required"] = json!(["enabled"]);
            remove(definition, "status", "observedGeneration");
        }
        "accountings" => {
            add_key_rules(definition);
            remove(definition, "status", "observedGeneration");
        }
        "nodesets" => {
            let partition = field(definition, "spec.partition");
            partition["required"] = json!(["enabled"]);
            partition["properties"]["enabled"]["default"] = json!(false);
            partition["properties"]["config"]["pattern"] = json!("^[^\\n]+$");
            field(definition, "spec.ssh")["required"] = json!(["enabled", "sssdConfRef"]);
            let padding = field(definition, "spec.ordinalPadding");
            padding.as_object_mut().unwrap().remove("minimum");
            *field(definition, "spec.volumeClaimTemplates") =
                json!({"nullable": true, "x-kubernetes-preserve-unknown-fields": true});
        }
        "loginsets" | "restapis" | "tokens" => remove(definition, "status", "observedGeneration"),
        other => panic!("{other} is a kind that upstream does not have"),
    }
}

/// A chart of upstream's definitions, under the name that upstream's and ours have.
fn write_upstreams_chart(cluster: &Cluster, folder: &Path) -> Result<()> {
    let ours = paths::repository().join("charts/slurm-operator-crds");
    std::fs::copy(ours.join("Chart.yaml"), folder.join("Chart.yaml"))?;
    std::fs::create_dir(folder.join("templates"))?;
    for entry in std::fs::read_dir(ours.join("templates"))? {
        let path = entry?.path();
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

/// The status of condition `CRDsOutdated`; nothing if nobody says it.
fn outdated(namespace: &Namespace, object: &str) -> Result<String> {
    namespace.field(object, ".status.conditions[?(@.type==\"CRDsOutdated\")].status")
}

#[test]
fn with_upstreams_definitions_clusters_run_and_an_upgrade_is_asked_for() {
    let cluster = cluster();
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
    install_chart(cluster, &namespace, ONE_WORKER).unwrap();
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
