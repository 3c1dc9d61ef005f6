//! Whatever a manifest contains, planning does not panic, and returns the same plan each time.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    super::{
        plan::plan,
        status::{build_status, state},
    },
    UID, config_map, keys, observed, pod, written,
};
use crate::{
    cluster::deliver::{LiveRevision, Report, State},
    testing::any_spec::any_spec,
};

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": kind,
        "metadata": { "name": name, "namespace": "hpc", "uid": if kind == "Controller" { UID } else { name } },
        "spec": spec,
    })
}

/// Half of them are valid enough to pass validation.
fn any_controller() -> impl Strategy<Value = Value> {
    let calm = any_spec("Controller").prop_map(|mut spec| {
        for field in [
            "slurmKeyRef",
            "jwtKeyRef",
            "jwtHs256KeyRef",
            "ha",
            "persistence",
            "clusterName",
            "externalConfig",
            "external",
        ] {
            spec.as_object_mut().unwrap().remove(field);
        }
        for field in [
            "configFileRefs",
            "prologScriptRefs",
            "epilogScriptRefs",
            "prologSlurmctldScriptRefs",
            "epilogSlurmctldScriptRefs",
        ] {
            if spec.get(field).is_some() {
                spec[field] = json!([{ "name": "files" }]);
            }
        }
        spec
    });
    prop_oneof![any_spec("Controller"), calm].prop_map(|spec| object("Controller", "slurm", &spec))
}

fn any_report() -> impl Strategy<Value = Report> {
    let state = prop_oneof![
        Just(State::Busy),
        Just(State::Done),
        Just(State::Waiting { why: "x".to_owned() }),
        Just(State::Away { why: "x".to_owned() }),
    ];
    (any::<bool>(), any::<u32>(), state).prop_map(|(known, sequence, state)| Report {
        pod: "pod-0".to_owned(),
        live: known.then(|| LiveRevision {
            sequence: u64::from(sequence),
            digest: slurm::revision::Digest::of(b"x"),
        }),
        state,
        ..Report::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_manifest_makes_a_plan_panic(
        controller in any_controller(),
        node_sets in prop::collection::vec(any_spec("NodeSet"), 0..3),
        accounting in any_spec("Accounting"),
        file in "[a-z.]{1,10}",
        report in any_report(),
    ) {
        let mut objects = keys();
        objects.push(controller);
        objects.push(object("Accounting", "slurm", &accounting));
        objects.push(config_map("files", &json!({ file: "x" })));
        for (index, mut spec) in node_sets.into_iter().enumerate() {
            spec["controllerRef"] = json!({ "name": "slurm" });
            objects.push(object("NodeSet", &format!("n{index}"), &spec));
        }
        // Objects that cannot be decoded never reach a plan.
        prop_assume!(objects.iter().all(decodes));
        let first = observed(objects.clone(), Report::default());
        let planned = plan(&first);
        let again = plan(&observed(objects.clone(), Report::default()));
        prop_assert_eq!(written(&planned), written(&again));
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        build_status(&first, &planned, None, now);
        state(&first, &planned);

        // Again with the written objects and a pod.
        objects.extend(written(&planned).into_iter().filter(|object| object["metadata"]["name"] != "slurm-config" || !object["data"].is_null()));
        objects.push(pod(0));
        let second = observed(objects, report);
        let planned = plan(&second);
        build_status(&second, &planned, None, now);
    }
}

fn decodes(object: &Value) -> bool {
    match object["kind"].as_str() {
        Some("Controller") => serde_json::from_value::<api::Controller>(object.clone()).is_ok(),
        Some("NodeSet") => serde_json::from_value::<api::NodeSet>(object.clone()).is_ok(),
        Some("Accounting") => serde_json::from_value::<api::Accounting>(object.clone()).is_ok(),
        _ => true,
    }
}
