//! The fake server itself does what the real one does, as far as other tests rely on it.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::FakeServer;

fn data(object: &ConfigMap) -> Value {
    json!(object.data)
}

async fn apply(api: &Api<ConfigMap>, manager: &str, data: Value) -> ConfigMap {
    let patch = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}));
    api.patch("a", &PatchParams::apply(manager).force(), &patch)
        .await
        .unwrap()
}

#[tokio::test]
async fn an_apply_removes_what_the_manager_no_longer_applies_and_nothing_else() {
    let server = FakeServer::new();
    let api: Api<ConfigMap> = Api::namespaced(server.client(), "n");
    apply(&api, "us", json!({"a": "1", "b": "1"})).await;
    apply(&api, "them", json!({"c": "1"})).await;
    let object = apply(&api, "us", json!({"a": "2"})).await;
    assert_eq!(data(&object), json!({"a": "2", "c": "1"}));
}

#[tokio::test]
async fn an_apply_that_changes_nothing_makes_no_new_version() {
    let server = FakeServer::new();
    let api: Api<ConfigMap> = Api::namespaced(server.client(), "n");
    let first = apply(&api, "us", json!({"a": "1"})).await;
    let second = apply(&api, "us", json!({"a": "1"})).await;
    assert_eq!(first.metadata.resource_version, second.metadata.resource_version);
}

#[tokio::test]
async fn of_two_replacements_of_one_version_one_fails() {
    let server = FakeServer::new();
    let api: Api<ConfigMap> = Api::namespaced(server.client(), "n");
    let object = apply(&api, "us", json!({"a": "1"})).await;
    let mut first = object.clone();
    first.data.as_mut().unwrap().insert("x".into(), "1".into());
    api.replace("a", &PostParams::default(), &first).await.unwrap();
    let error = api.replace("a", &PostParams::default(), &object).await.unwrap_err();
    assert!(matches!(error, kube::Error::Api(status) if status.code == 409));
}
