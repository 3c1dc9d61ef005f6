//! The HTTP servers for health and metrics.

use std::net::SocketAddr;

use anyhow::Context as _;
use axum::{Router, http::StatusCode, routing::get};
use kube::Client;
use tokio::net::TcpListener;

use crate::{Metrics, health::Health, secure};

/// The content type Prometheus expects of this text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves metrics. With a client, only to callers whom its API server authorizes.
pub(crate) async fn serve_metrics(address: SocketAddr, metrics: Metrics, guard: Option<Client>) -> anyhow::Result<()> {
    let render = move || async move {
        let text = metrics.render().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
        Ok::<_, StatusCode>(([("content-type", OPEN_METRICS)], text))
    };
    let routes = Router::new().route("/metrics", get(render));
    match guard {
        Some(client) => secure::serve(address, routes, client).await,
        None => serve(address, routes).await,
    }
}

pub(crate) async fn serve_health(address: SocketAddr, health: Health) -> anyhow::Result<()> {
    serve(address, health_routes(health)).await
}

fn health_routes(health: Health) -> Router {
    let ready = health.clone();
    Router::new()
        .route(
            "/healthz",
            get(async move || respond(&health.stuck(), "these loops hang")),
        )
        .route(
            "/readyz",
            get(async move || respond(&ready.missing(), "these caches are not synced yet")),
        )
}

fn respond<T: AsRef<str>>(wrong: &[T], what: &str) -> (StatusCode, String) {
    if wrong.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let names: Vec<&str> = wrong.iter().map(AsRef::as_ref).collect();
    (
        StatusCode::SERVICE_UNAVAILABLE,
        format!("{what}: {}\n", names.join(", ")),
    )
}

async fn serve(address: SocketAddr, routes: Router) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    axum::serve(listener, routes).await.context("HTTP server")
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
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
}
