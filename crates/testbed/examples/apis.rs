//! A server for tests: a web page, admission webhooks, a metrics API for autoscaling, and a slurmrestd that lies.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::routing::{get, post};
use axum::{Json, Router};
use axum_server::tls_rustls::RustlsConfig;
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<()> {
    // The last argument of slurmrestd is where it listens.
    if let Some(address) = std::env::args()
        .next_back()
        .and_then(|last| last.parse::<SocketAddr>().ok())
    {
        let lies = Router::new()
            .route("/tokens", get(tokens))
            .route("/slurm/v0.0.45/{*path}", get(lie))
            .with_state(Tokens::default());
        return Ok(axum_server::bind(address).serve(lies.into_make_service()).await?);
    }
    let page = Router::new()
        .route("/hostname", get(hostname))
        .route("/calls", get(async || CALLS.load(Ordering::Relaxed).to_string()));
    let plain = axum_server::bind(SocketAddr::from(([0, 0, 0, 0], 8080))).serve(page.into_make_service());
    if !std::path::Path::new("/tls/tls.crt").exists() {
        return Ok(plain.await?);
    }
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let tls = RustlsConfig::from_pem_file("/tls/tls.crt", "/tls/tls.key").await?;
    let apis = Router::new()
        .route("/mutate", post(mutate))
        .route("/hang", post(hang))
        .route("/nonsense", post(nonsense))
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

/// How often the webhooks that do not work were called.
static CALLS: AtomicUsize = AtomicUsize::new(0);

async fn hang() {
    CALLS.fetch_add(1, Ordering::Relaxed);
    std::future::pending::<()>().await;
}

async fn nonsense() -> &'static str {
    CALLS.fetch_add(1, Ordering::Relaxed);
    "{\"kind\": \"Weather\", \"response\": 7"
}

/// The tokens that were sent to the slurmrestd that lies.
type Tokens = Arc<Mutex<Vec<String>>>;

async fn tokens(State(tokens): State<Tokens>) -> Json<Vec<String>> {
    Json(tokens.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Every worker is drained and there is no job.
async fn lie(State(tokens): State<Tokens>, headers: HeaderMap, Path(path): Path<String>) -> Json<Value> {
    let token = headers.get("x-slurm-user-token").and_then(|token| token.to_str().ok());
    let token = token.unwrap_or_default().to_owned();
    tokens.lock().unwrap_or_else(PoisonError::into_inner).push(token);
    let nodes =
        ["compute-0", "compute-1"].map(|name| json!({ "name": name, "state": ["IDLE", "DRAIN", "DYNAMIC_NORM"] }));
    let meta = json!({ "slurm": { "release": "26.05.5" } });
    Json(match path.trim_end_matches('/') {
        "ping" => json!({ "meta": meta, "pings": [{ "hostname": "slurm", "responding": true, "primary": true }] }),
        "nodes" => json!({ "meta": meta, "nodes": nodes }),
        "conf" => {
            json!({ "meta": meta, "slurm_conf_meta": { "BOOT_TIME": 1_800_000_000, "LastUpdate": 1_800_000_000, "HashValue": 1 } })
        }
        list => json!({ "meta": meta, list: [] }),
    })
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
