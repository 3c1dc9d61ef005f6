//! The HTTP servers for health and metrics.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};

use anyhow::Context as _;
use axum::{Router, http::StatusCode, routing::get};
use host::Host;
use kube::Client;

use crate::{Metrics, health::Health, secure};

/// The content type Prometheus expects of this text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A host without free file descriptors may have some again after this time.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);
/// No handler depends on the peer.
const UNKNOWN_PEER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// Serves metrics. With a client, only to callers whom its API server authorizes.
pub(crate) async fn serve_metrics(
    host: Host,
    address: SocketAddr,
    metrics: Metrics,
    guard: Option<Client>,
) -> anyhow::Result<()> {
    let render = move || async move {
        let text = metrics.render().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
        Ok::<_, StatusCode>(([("content-type", OPEN_METRICS)], text))
    };
    let routes = Router::new().route("/metrics", get(render));
    match guard {
        Some(client) => secure::serve(address, routes, client).await,
        None => serve(&host, address, routes).await,
    }
}

pub(crate) async fn serve_health(host: Host, address: SocketAddr, health: Health) -> anyhow::Result<()> {
    serve(&host, address, health_routes(health)).await
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

async fn serve(host: &Host, address: SocketAddr, routes: Router) -> anyhow::Result<()> {
    let listener = host.listen(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
    axum::serve(HttpListener(listener), routes).await.context("HTTP server")
}

/// A listener of the host, for axum.
#[derive(Debug)]
struct HttpListener(host::Listener);

impl axum::serve::Listener for HttpListener {
    type Io = host::Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.0.accept().await {
                Ok(connection) => return (connection, UNKNOWN_PEER),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.address().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }
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
