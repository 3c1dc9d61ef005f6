//! The HTTP servers for health and metrics.

use std::{io, net::SocketAddr, time::Duration};

use anyhow::Context as _;
use axum::{Router, http::StatusCode, routing::get};

use crate::{Context, health::Health, secure};

/// The content type Prometheus expects of this text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A host without free file descriptors may have some again after this time.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// Serves metrics. If `secure`, over HTTPS and only to callers whom the API server authorizes.
pub(crate) async fn serve_metrics(address: SocketAddr, secure: bool, context: Context) -> anyhow::Result<()> {
    let metrics = context.metrics.clone();
    let render = move || async move {
        let text = metrics.render().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
        Ok::<_, StatusCode>(([("content-type", OPEN_METRICS)], text))
    };
    let routes = Router::new().route("/metrics", get(render));
    if secure {
        secure::serve(address, routes, context.client).await
    } else {
        serve(&context, address, routes).await
    }
}

pub(crate) async fn serve_health(address: SocketAddr, context: Context) -> anyhow::Result<()> {
    serve(&context, address, health_routes(context.health.clone())).await
}

fn health_routes(health: Health) -> Router {
    let ready = health.clone();
    let healthz = async move || respond(&health.stuck(), "these loops hang");
    let readyz = async move || respond(&ready.missing(), "these caches are not synced yet");
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
}

fn respond(wrong: &[String], what: &str) -> (StatusCode, String) {
    if wrong.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let text = format!("{what}: {}\n", wrong.join(", "));
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

async fn serve(context: &Context, address: SocketAddr, routes: Router) -> anyhow::Result<()> {
    let listener = context.clock.host().listen(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
    axum::serve(HttpListener(listener), routes).await.context("HTTP server")
}

/// A listener of the host, for axum. No handler depends on the peer's address.
struct HttpListener(host::Listener);

impl axum::serve::Listener for HttpListener {
    type Io = host::Connection;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.0.accept().await {
                Ok(connection) => return (connection, ()),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(())
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
