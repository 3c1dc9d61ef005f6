use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
};

use axum::{
    body::Body,
    http::{self, Request},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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

#[tokio::test]
async fn a_process_without_definitions_names_them_and_the_remedy() {
    let health = Health::new(host::Host::real());
    health.note_undefined(vec!["controllers.slinky.slurm.net".to_owned()]);
    let request = Request::get("/readyz").body(Body::empty()).unwrap();
    let response = health_routes(health).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let text = axum::body::to_bytes(response.into_body(), 1000).await.unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    assert!(
        text.contains("slurm-operator-crds") && text.contains("controllers.slinky"),
        "{text}"
    );
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

/// Opens connections from this address and sends half a request on each.
async fn flood(server: SocketAddr, from: [u8; 4], count: usize) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for _ in 0..count {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let mut stream = socket.connect(server).await.unwrap();
        // The server may have closed it already.
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: ").await;
        open.push(stream);
    }
    open
}

async fn probe(server: SocketAddr) -> String {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn is_closed(stream: &TcpStream) -> bool {
    match stream.try_read(&mut [0; 1]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

#[tokio::test]
async fn a_probe_is_answered_during_a_flood_and_slow_requests_end() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let host = host::Host::real();
    let health = Health::new(host.clone());
    let serving = tokio::spawn(async move { serve(&host, address, health_routes(health)).await });
    while TcpStream::connect(address).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut open = Vec::new();
    for last in 2..22 {
        open.extend(flood(address, [127, 0, 0, last], 50).await);
        assert!(probe(address).await.starts_with("HTTP/1.1 200"));
    }
    let held = open.iter().filter(|stream| !is_closed(stream)).count();
    assert!((1..=64).contains(&held), "{held} connections are open");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !open.iter().all(is_closed) {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    serving.abort();
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

fn guard(audiences: Audiences) -> Guard {
    Guard::new(&Host::real(), api_server(), audiences)
}

#[tokio::test(start_paused = true)]
async fn rejected_tokens_of_one_address_stop_costing_reviews_and_other_callers_are_served() {
    static REVIEWS: AtomicUsize = AtomicUsize::new(0);
    let api_server = tower::service_fn(|request: http::Request<kube::client::Body>| async {
        REVIEWS.fetch_add(1, Ordering::Relaxed);
        api_server().send(request).await
    });
    let guard = Guard::new(&Host::real(), Client::new(api_server, "default"), Audiences::default());
    let routes = guarded(Router::new().route("/metrics", get(async || "numbers")), guard);
    let ask = async |address: [u8; 4], token: String| {
        let request = http::Request::get("/metrics").header(AUTHORIZATION, format!("Bearer {token}"));
        let mut request = request.body(Body::empty()).unwrap();
        let connection = ConnectInfo(SocketAddr::from((address, 1)));
        request.extensions_mut().insert(connection);
        routes.clone().oneshot(request).await.unwrap().status()
    };
    let (job, prometheus) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    for number in 0..1000 {
        let expected = if number < 10 {
            StatusCode::UNAUTHORIZED
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        assert_eq!(ask(job, format!("forged-{number}")).await, expected, "{number}");
    }
    assert_eq!(REVIEWS.load(Ordering::Relaxed), 10);
    assert_eq!(ask(prometheus, "reader".to_owned()).await, StatusCode::OK);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(ask(job, "reader".to_owned()).await, StatusCode::OK);
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
        let answer = guarded(routes, guard(Audiences::default()))
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
        let answer = guarded(routes, guard(metrics.clone())).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), expected, "{token}");
    }
}

#[test]
fn a_process_has_a_certificate_of_its_own() {
    build_tls().unwrap();
}
