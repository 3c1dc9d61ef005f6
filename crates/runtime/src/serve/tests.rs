use std::convert::Infallible;

use axum::{
    body::Body,
    http::{self, Request},
};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;

async fn request(health: &Health, path: &str) -> StatusCode {
    let request = Request::get(path).body(Body::empty()).unwrap();
    health_routes(health.clone()).oneshot(request).await.unwrap().status()
}

#[tokio::test(start_paused = true)]
async fn a_process_whose_loop_hangs_is_not_healthy() {
    let health = Health::new(host::Host::real());
    assert_eq!(request(&health, "/healthz").await, StatusCode::OK);
    health.turned("nodeset");
    tokio::time::advance(std::time::Duration::from_mins(2)).await;
    assert_eq!(request(&health, "/healthz").await, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_process_whose_caches_are_not_synced_is_not_ready() {
    let health = Health::new(host::Host::real());
    health.synced("Pod", false);
    assert_eq!(request(&health, "/readyz").await, StatusCode::SERVICE_UNAVAILABLE);
    health.synced("Pod", true);
    assert_eq!(request(&health, "/readyz").await, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_process_with_a_silent_watch_is_not_ready() {
    let health = Health::new(host::Host::real());
    let silent_after = Duration::from_secs(80);
    health.heard("Pod", silent_after);
    assert_eq!(request(&health, "/readyz").await, StatusCode::OK);
    tokio::time::advance(silent_after).await;
    assert_eq!(request(&health, "/readyz").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(health.silent(), ["Pod"]);
    health.heard("Pod", silent_after);
    assert_eq!(request(&health, "/readyz").await, StatusCode::OK);
}

/// An API server that accepts the tokens `reader` and `stranger`, authorizes only the first, and fails on `fault`.
fn api_server() -> Client {
    let service = tower::service_fn(|request: http::Request<kube::client::Body>| async {
        let body = request.into_body().collect_bytes().await.unwrap();
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        let token = review["spec"]["token"].clone();
        if review["kind"] == "TokenReview" {
            let known = token == "reader" || token == "stranger";
            let audiences = &review["spec"]["audiences"];
            // `reader` has a token for metrics. The authenticator of `stranger` knows no audiences.
            let audiences = if token == "reader" {
                audiences.clone()
            } else {
                json!([])
            };
            review["status"] = json!({"authenticated": known, "user": {"username": token}, "audiences": audiences});
        } else {
            let spec = &review["spec"];
            let path = &spec["nonResourceAttributes"]["path"];
            review["status"] = json!({"allowed": spec["user"] == "reader" && path == "/metrics"});
        }
        let code = if token == "fault" { 500 } else { 201 };
        let response = http::Response::builder().status(code);
        Ok::<_, Infallible>(response.body(Body::from(review.to_string())).unwrap())
    });
    Client::new(service, "default")
}

#[tokio::test]
async fn only_authorized_callers_are_served() {
    let cases = [
        (None, StatusCode::UNAUTHORIZED),
        (Some("Basic reader"), StatusCode::UNAUTHORIZED),
        (Some("Bearer forged"), StatusCode::UNAUTHORIZED),
        (Some("Bearer stranger"), StatusCode::FORBIDDEN),
        (Some("Bearer fault"), StatusCode::SERVICE_UNAVAILABLE),
        (Some("Bearer reader"), StatusCode::OK),
    ];
    for (header, expected) in cases {
        let routes = Router::new().route("/metrics", get(async || "numbers"));
        let mut request = http::Request::get("/metrics");
        if let Some(header) = header {
            request = request.header(AUTHORIZATION, header);
        }
        let request = request.body(Body::empty()).unwrap();
        let answer = guarded(routes, api_server(), Audiences::default())
            .oneshot(request)
            .await
            .unwrap();
        assert_eq!(answer.status(), expected, "{header:?}");
    }
}

#[tokio::test]
async fn a_token_for_another_audience_is_refused() {
    let metrics = Audiences(vec!["slurm-operator-metrics".to_owned()]);
    for (token, expected) in [("reader", StatusCode::OK), ("stranger", StatusCode::UNAUTHORIZED)] {
        let routes = Router::new().route("/metrics", get(async || "numbers"));
        let request = http::Request::get("/metrics").header(AUTHORIZATION, format!("Bearer {token}"));
        let request = request.body(Body::empty()).unwrap();
        let answer = guarded(routes, api_server(), metrics.clone())
            .oneshot(request)
            .await
            .unwrap();
        assert_eq!(answer.status(), expected, "{token}");
    }
}

#[test]
fn a_process_has_a_certificate_of_its_own() {
    build_tls().unwrap();
}
