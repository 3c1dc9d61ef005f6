//! No spec makes a plan panic.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{Effect, plan};
use crate::{
    nodeset::fixture::{DRAINED, controller, finished, known, marked, nodeset, observed, slurm_key, with, worker},
    testing::any_spec as schema,
};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        let field = prop_oneof![
            Just("name"),
            Just("containers"),
            Just("affinity"),
            Just("podAntiAffinity"),
            Just("env"),
            Just("resources"),
            Just("limits"),
            Just("cpu"),
            Just("memory"),
            Just("volumes"),
            Just("metadata"),
            Just("hostname"),
            Just("args"),
            Just("requiredDuringSchedulingIgnoredDuringExecution"),
            Just("tolerations"),
            Just("nodeSelector"),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(field.prop_map(str::to_owned), inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn any_object() -> impl Strategy<Value = Value> {
    any_json().prop_map(|value| {
        if value.is_object() {
            value
        } else {
            json!({ "x": value })
        }
    })
}

prop_compose! {
    fn any_spec()(
        replicas in prop::option::of(-3..40_i32),
        mode in prop::option::of("StatefulSet|DaemonSet|[a-z]{1,4}"),
        slurmd in prop::option::of(any_object()),
        logfile in prop::option::of(any_object()),
        template in prop::option::of(any_object()),
        hostname in prop::option::of(".{0,8}"),
        extra_conf in prop::option::of(".{0,30}"),
        padding in prop::option::of(any::<i64>()),
        claims in prop::option::of(prop::collection::vec(any_object(), 0..3)),
        limit in prop::option::of(any::<i32>()),
    ) -> Value {
        let mut spec = json!({ "controllerRef": { "name": "slurm" } });
        for (field, value) in [
            ("replicas", json!(replicas)), ("scalingMode", json!(mode)), ("slurmd", json!(slurmd)), ("logfile", json!(logfile)),
            ("extraConf", json!(extra_conf)), ("ordinalPadding", json!(padding)), ("volumeClaimTemplates", json!(claims)),
            ("revisionHistoryLimit", json!(limit)),
        ] {
            if !value.is_null() {
                spec[field] = value;
            }
        }
        if let Some(mut template) = template {
            if let Some(hostname) = hostname {
                template["hostname"] = json!(hostname);
            }
            spec["template"] = json!({ "spec": template });
        }
        spec
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Everything planned deserializes as its kind.
    #[test]
    fn no_spec_makes_a_plan_panic(spec in any_spec(), replaced in any::<bool>()) {
        let mut pods = vec![worker(0), marked(worker(1))];
        if replaced {
            pods.push(finished(worker(2)));
        }
        pods.push(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "k1" } }));
        let mut objects = vec![controller(), slurm_key(), with(nodeset(&json!({})), &[("/spec", spec)])];
        objects.extend(pods);
        let observed = observed(objects, known(&[("compute-1", DRAINED)], &[]));
        let plan = plan(&observed);
        crate::nodeset::status::status(&observed, &plan, None);
        // Also specs that validation rejects.
        let blueprint = crate::nodeset::build::Blueprint {
            observed: &observed,
            controller: observed.controller.as_deref().unwrap(),
            revision: "x",
        };
        let place = crate::nodeset::build::Place::of_ordinal(&observed.nodeset, 7, None);
        crate::nodeset::build::build_pod(&blueprint, &place);
        crate::nodeset::build::build_claims(&observed.nodeset, &place);
        for effect in &plan.effects {
            if let Effect::CreatePod { pod, claims } = effect {
                prop_assert!(serde_json::from_value::<k8s_openapi::api::core::v1::Pod>(*pod.clone()).is_ok(), "{pod}");
                for claim in claims {
                    let claim = serde_json::from_value::<k8s_openapi::api::core::v1::PersistentVolumeClaim>(claim.clone());
                    prop_assert!(claim.is_ok());
                }
            }
        }
    }

    /// As the schema has them, with the largest numbers and longest lists.
    #[test]
    fn no_manifest_makes_a_plan_panic(mut spec in schema::any_spec("NodeSet")) {
        spec["controllerRef"] = json!({ "name": "slurm" });
        let mut objects = vec![controller(), slurm_key(), with(nodeset(&json!({})), &[("/spec", spec)])];
        prop_assume!(serde_json::from_value::<api::NodeSet>(objects[2].clone()).is_ok());
        objects.extend([worker(0), marked(worker(1))]);
        let observed = observed(objects, known(&[("compute-1", DRAINED)], &[]));
        let plan = plan(&observed);
        crate::nodeset::status::status(&observed, &plan, None);
    }
}
