//! The rules of a RestApi, as tests.

use std::time::Duration;

use api::{ConditionStatus, RestApi, RestApiStatus};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Observed, Plan, observe};
use crate::{
    defaults::Images,
    kind::{self, Kind as _},
    restapi::RestApiReconciler,
    runtime::{Caches, Change, Clock, Context, Delta, Events, Key, Metrics, Reconciler as _, State, fake::FakeServer},
    testing::any_spec::any_spec,
};

fn object(kind: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": kind,
        "metadata": { "name": "slurm", "namespace": "hpc", "uid": kind, "generation": 2 },
        "spec": spec,
    })
}

fn rest_api(spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["controllerRef"] = json!({ "name": "slurm" });
    object("RestApi", &spec)
}

fn cluster() -> Vec<Value> {
    vec![
        object("Controller", &json!({})),
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "slurm-auth-slurm", "namespace": "hpc" }, "data": { "slurm.key": "YQ==" } }),
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "slurm-config", "namespace": "hpc" }, "data": {} }),
    ]
}

fn observed(objects: Vec<Value>) -> Observed {
    let caches = Caches::of(objects);
    let images = Images {
        slurmrestd: "slurmrestd:default".to_owned(),
        ..Images::default()
    };
    observe(caches.rest_apis.all().remove(0), &caches, images)
}

fn with(mut objects: Vec<Value>, spec: &Value) -> Vec<Value> {
    objects.push(rest_api(spec));
    objects
}

fn planned(objects: Vec<Value>) -> Plan {
    kind::plan::<RestApi>(&observed(objects)).1
}

fn status(objects: Vec<Value>) -> RestApiStatus {
    let observed = observed(objects);
    let plan = kind::plan::<RestApi>(&observed);
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    kind::status::<RestApi>(&observed, &plan, None, &[], now)
}

fn ready(objects: Vec<Value>) -> (ConditionStatus, String, String) {
    let condition = status(objects)
        .conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready")
        .unwrap();
    (condition.status, condition.reason, condition.message)
}

#[test]
fn a_minimal_rest_api() {
    let (findings, plan) = kind::plan::<RestApi>(&observed(with(cluster(), &json!({}))));
    assert_eq!(findings, []);
    insta::assert_yaml_snapshot!(json!([plan.service, plan.deployment]));
}

#[test]
fn the_address_is_the_last_argument_whatever_the_user_adds() {
    let args = |spec: &Value| {
        let deployment = planned(with(cluster(), spec))
            .deployment
            .and_then(|deployment| deployment.spec)
            .unwrap();
        deployment.template.spec.unwrap().containers[0].args.clone().unwrap()
    };
    assert_eq!(
        args(&json!({ "slurmrestd": { "args": ["-v"] } })),
        ["-s", "openapi/slurmctld", "-v", "0.0.0.0:6820"]
    );
}

#[test]
fn a_missing_controller_key_or_configuration_is_named_and_nothing_is_rolled() {
    for (missing, reason, words) in [
        (
            "Controller",
            "ControllerMissing",
            "spec.controllerRef.name names Controller \"slurm\", which does not exist",
        ),
        (
            "Secret",
            "SecretMissing",
            "Secret \"slurm-auth-slurm\", which does not exist",
        ),
        ("ConfigMap", "ConfigMissing", "has no slurm.conf yet"),
    ] {
        let mut objects = cluster();
        objects.retain(|object| object["kind"] != missing);
        let plan = planned(with(objects.clone(), &json!({})));
        assert!(plan.deployment.is_none() && plan.service.is_some());
        let (status, said, message) = ready(with(objects, &json!({})));
        assert_eq!((status, said.as_str()), (ConditionStatus::False, reason));
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn an_invalid_spec_changes_nothing() {
    let objects = with(cluster(), &json!({ "replicas": -1 }));
    let plan = planned(objects.clone());
    assert!(plan.deployment.is_none() && plan.service.is_none());
    let (_, reason, message) = ready(objects);
    assert_eq!(reason, "InvalidSpec");
    assert!(message.starts_with("spec.replicas is -1"), "{message}");
}

#[test]
fn it_is_ready_when_its_pods_are() {
    let mut objects = with(cluster(), &json!({}));
    assert_eq!(ready(objects.clone()).1, "Starting");
    let mut deployment = serde_json::to_value(planned(objects.clone()).deployment).unwrap();
    deployment["status"] = json!({ "availableReplicas": 1, "updatedReplicas": 1 });
    objects.push(deployment);
    assert_eq!(ready(objects.clone()).0, ConditionStatus::True);
    assert_eq!(status(objects).observed_generation, Some(2));
}

#[test]
fn a_new_default_image_rolls_nothing() {
    let mut objects = with(cluster(), &json!({}));
    let deployment = planned(objects.clone()).deployment;
    objects.push(serde_json::to_value(&deployment).unwrap());
    let mut observed = observed(objects);
    observed.images.slurmrestd = "slurmrestd:newer".to_owned();
    assert_eq!(kind::plan::<RestApi>(&observed).1.deployment, deployment);
}

#[test]
fn it_depends_on_its_controller_and_the_controllers_key_and_configuration() {
    let caches = Caches::of(with(cluster(), &json!({})));
    let hears = |change: Change| RestApi::references().affected(&change, &caches) == [Key::new("hpc", "slurm")];
    let is_heard = |change: Change| assert!(hears(change.clone()), "{change:?}");
    is_heard(Change::from(Delta::appeared(caches.controllers.all().remove(0))));
    is_heard(Change::from(Delta::appeared(caches.secrets.all().remove(0))));
    is_heard(Change::from(Delta::appeared(caches.rest_apis.all().remove(0))));
    let mut config = cluster().remove(2);
    config["metadata"]["ownerReferences"] = json!([{ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "name": "slurm", "uid": "Controller" }]);
    is_heard(Change::from(Delta::appeared(std::sync::Arc::new(
        serde_json::from_value::<k8s_openapi::api::core::v1::ConfigMap>(config).unwrap(),
    ))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_manifest_makes_a_plan_panic(spec in any_spec("RestApi"), controller in any_spec("Controller")) {
        let mut objects = cluster();
        objects.remove(0);
        objects.push(object("Controller", &controller));
        objects.push(rest_api(&spec));
        let observed = observed(objects);
        let plan = kind::plan::<RestApi>(&observed);
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        kind::status::<RestApi>(&observed, &plan, None, &[], now);
        kind::state::<RestApi>(&observed, &plan);
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_object_that_may_be_created_soon_is_no_warning_at_first() {
    let clock = Clock::system();
    let mut young = rest_api(&json!({}));
    young["metadata"]["creationTimestamp"] = format!("{:.0}", clock.now()).into();
    let (events, mut said) = Events::new(clock.clone(), "test".to_owned(), Metrics::default());
    let mut context = Context::for_tests(FakeServer::new().client(), Caches::of(vec![young.clone()]));
    context.runtime.events = events;
    let registry = context.registry.clone();
    let reconciler = RestApiReconciler::new(context);
    let key = Key::new("hpc", "slurm");

    let outcome = reconciler.reconcile(&key).await.unwrap();
    assert!(
        said.try_recv().is_err(),
        "Helm may make the Controller in this very moment"
    );
    let again = outcome.requeue.unwrap();
    assert!(matches!(outcome.state, State::Blocked { .. }));

    // The stamps have no fractions of a second.
    let created = clock.now() - again - Duration::from_secs(1);
    young["metadata"]["creationTimestamp"] = format!("{created:.0}").into();
    registry.insert(&young).unwrap();
    reconciler.reconcile(&key).await.unwrap();
    let event = said.try_recv().unwrap();
    assert_eq!(event.reason.as_deref(), Some("ControllerMissing"));
}
