//! A server for tests: a web page, an admission webhook, and a metrics API for autoscaling.

use std::net::SocketAddr;

use anyhow::Result;
use axum::extract::Path;
use axum::routing::{get, post};
use axum::{Json, Router};
use axum_server::tls_rustls::RustlsConfig;
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<()> {
    let page = Router::new().route("/hostname", get(hostname));
    let plain = axum_server::bind(SocketAddr::from(([0, 0, 0, 0], 8080))).serve(page.into_make_service());
    if !std::path::Path::new("/tls/tls.crt").exists() {
        return Ok(plain.await?);
    }
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let tls = RustlsConfig::from_pem_file("/tls/tls.crt", "/tls/tls.key").await?;
    let apis = Router::new()
        .route("/mutate", post(mutate))
        .route("/apis/external.metrics.k8s.io/v1beta1", get(resources))
        .route(
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{metric}",
            get(metric),
        );
    let secure = axum_server::bind_rustls(SocketAddr::from(([0, 0, 0, 0], 8443)), tls).serve(apis.into_make_service());
    tokio::try_join!(plain, secure)?;
    Ok(())
}

async fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default()
}

/// Labels the objects it admits, and rejects those with the label `forbidden`.
async fn mutate(Json(review): Json<Value>) -> Json<Value> {
    let uid = review.pointer("/request/uid").cloned().unwrap_or_default();
    let forbidden = review.pointer("/request/object/metadata/labels/forbidden").is_some();
    let patch = json!([{"op": "add", "path": "/metadata/annotations", "value": {"reviewed": "yes"}}]);
    let response = if forbidden {
        json!({"uid": uid, "allowed": false, "status": {"message": "the label forbidden is refused here"}})
    } else {
        let patch = testbed::pki::base64(patch.to_string().as_bytes());
        json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": patch})
    };
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

async fn resources() -> Json<Value> {
    Json(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "external.metrics.k8s.io/v1beta1",
        "resources": [{"name": "load", "namespaced": true, "kind": "ExternalMetricValueList", "verbs": ["get"]}],
    }))
}

/// Every metric has the value five.
async fn metric(Path((_, metric)): Path<(String, String)>) -> Json<Value> {
    Json(json!({
        "kind": "ExternalMetricValueList",
        "apiVersion": "external.metrics.k8s.io/v1beta1",
        "metadata": {},
        "items": [{"metricName": metric, "metricLabels": {}, "timestamp": "2026-01-01T00:00:00Z", "value": "5"}],
    }))
}
