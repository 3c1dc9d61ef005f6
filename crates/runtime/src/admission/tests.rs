use axum::{body::Body, http::Request as HttpRequest};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;

/// Rejects objects with a field `bad`, and never answers about those with a field `slow`.
#[derive(Clone)]
struct Sample;

impl Rules for Sample {
    async fn review(&self, path: &str, request: &Request) -> Option<Verdict> {
        if path != "known" {
            return None;
        }
        if request.object.get("slow").is_some() {
            std::future::pending::<()>().await;
        }
        let is_bad = request.object.get("bad").is_some();
        Some(if is_bad {
            Verdict::reject("no")
        } else {
            Verdict::default()
        })
    }
}

async fn post(uri: &str, body: Vec<u8>) -> (StatusCode, Value) {
    let routes = review_routes(Sample, Metrics::default());
    let request = HttpRequest::post(uri).header("content-type", "application/json");
    let response = routes.oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let status = response.status();
    let bytes = axum::body::to_bytes(response.into_body(), MAX_REQUEST).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

fn review(object: &Value) -> Vec<u8> {
    let request = json!({"uid": "u", "operation": "CREATE", "object": object});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    review.to_string().into_bytes()
}

#[tokio::test]
async fn objects_are_judged_by_the_rules() {
    let (status, answer) = post("/known?timeout=10s", review(&json!({}))).await;
    assert_eq!((status, &answer["response"]["allowed"]), (StatusCode::OK, &json!(true)));
    let (_, answer) = post("/known", review(&json!({"bad": 1}))).await;
    assert_eq!(answer["response"]["allowed"], json!(false));
    assert_eq!(answer["response"]["uid"], json!("u"));
    assert_eq!(post("/unknown", review(&json!({}))).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn an_answer_comes_before_the_api_server_gives_up() {
    let begin = tokio::time::Instant::now();
    let (_, answer) = post("/known?timeout=2s", review(&json!({"slow": 1}))).await;
    assert!(begin.elapsed() < Duration::from_secs(2));
    assert_eq!(answer["response"]["allowed"], json!(true));
    assert_eq!(answer["response"]["warnings"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn nonsense_is_refused_without_harm() {
    let deep = "[".repeat(100_000);
    for body in ["", "{}", "[]", "null", "\u{0}", deep.as_str()] {
        let (status, _) = post("/known", body.as_bytes().to_vec()).await;
        assert!(status.is_client_error(), "{status} for {body:.20}");
    }
    let (status, _) = post("/known", vec![b' '; MAX_REQUEST + 1]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}
