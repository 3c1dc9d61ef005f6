//! The server of an admission webhook: TLS, certificates, reviews, health. What is accepted is decided by [`Rules`].

mod certificates;
mod review;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, Query, State},
    http::StatusCode,
    routing::{get, post},
};
use axum_server::Handle;
use host::{Host, Limits};
use rustls::{ServerConfig, crypto::aws_lc_rs};
use serde::Deserialize;
use tokio::time::timeout;

use self::{
    certificates::{Keeper, Serving},
    review::{Answer, Review},
};
use crate::{Clients, Metrics, serve};

pub use self::{
    certificates::Certificates,
    review::{Request, Verdict},
};

/// A request has the object twice, with its managed fields.
const MAX_REQUEST: usize = 16 << 20;
/// The time for an answer if the API server names none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for the answer's way back.
const MARGIN: Duration = Duration::from_millis(500);
/// How long requests may arrive after the pod has begun to stop, until all nodes send them elsewhere.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// An API server uses a connection per concurrent request, over HTTP/1.1, and may reach all webhooks from one address.
const LIMITS: Limits = Limits {
    unauthenticated: 512,
    per_address: 256,
    authenticated: 0,
    patience: None,
};

/// Longer than the 90 s for which an API server keeps an idle connection: a request must not meet a closed one.
const HEAD_TIMEOUT: Duration = Duration::from_mins(2);

/// What is accepted.
pub trait Rules: Clone + Send + Sync + 'static {
    /// Judges a request; `None` if nobody serves this path.
    fn review(&self, path: &str, request: &Request) -> impl Future<Output = Option<Verdict>> + Send;
}

/// Where and with which certificate to serve.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address for reviews.
    pub address: SocketAddr,
    /// The address for `/healthz` and `/readyz`.
    pub health_address: Option<SocketAddr>,
    /// The address for `/metrics`.
    pub metrics_address: Option<SocketAddr>,
    /// Whether metrics are served over HTTPS and only to callers whom the API server authorizes.
    pub metrics_secure: bool,
    /// The certificate.
    pub certificates: Certificates,
}

/// Serves reviews until `stop` returns.
pub async fn run(
    clients: Clients,
    options: Options,
    rules: impl Rules,
    host: Host,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let (serving, stopping, metrics) = (Serving::default(), Arc::new(AtomicBool::new(false)), Metrics::default());
    let keeper = Keeper {
        certificates: options.certificates,
        serving: serving.clone(),
        clients: clients.clone(),
        host: host.clone(),
    };
    let routes = review_routes(rules, metrics.clone());
    let handle = Handle::new();
    let reviews = serve::bind_secure(options.address, tls(serving.clone())?, LIMITS, HEAD_TIMEOUT)
        .handle(handle.clone())
        .serve(routes.into_make_service());
    let health = async {
        match options.health_address {
            Some(address) => serve::serve(&host, address, health_routes(serving, Arc::clone(&stopping))).await,
            None => std::future::pending().await,
        }
    };
    let metrics = async {
        match options.metrics_address {
            Some(address) => {
                let routes = serve::metrics_routes(move || metrics.render());
                let audiences = options.metrics_secure.then(serve::Audiences::default);
                serve::serve_guarded(&host, address, audiences, clients.calls, routes).await
            }
            None => std::future::pending().await,
        }
    };
    let end = async {
        stop.await;
        tracing::info!("stopping");
        stopping.store(true, Ordering::Relaxed);
        tokio::time::sleep(LAST_REQUESTS).await;
        handle.graceful_shutdown(Some(LAST_REQUESTS));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = reviews => served.context("server of reviews"),
        ended = health => ended,
        ended = metrics => ended,
        () = keeper.run() => Ok(()),
        () = end => Ok(()),
    }
}

fn tls(serving: Serving) -> anyhow::Result<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    Ok(builder.with_cert_resolver(Arc::new(serving)))
}

fn health_routes(serving: Serving, stopping: Arc<AtomicBool>) -> Router {
    let ready = async move || match serving.get() {
        _ if stopping.load(Ordering::Relaxed) => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n"),
        None => (StatusCode::SERVICE_UNAVAILABLE, "there is no certificate yet\n"),
        Some(_) => (StatusCode::OK, "ok\n"),
    };
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
}

fn review_routes(rules: impl Rules, metrics: Metrics) -> Router {
    Router::new()
        .route("/{path}", post(answer))
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .with_state((rules, metrics))
}

/// The API server tells how long it waits.
#[derive(Debug, Default, Deserialize)]
struct Wait {
    timeout: Option<String>,
}

impl Wait {
    fn limit(&self) -> Duration {
        let seconds = self
            .timeout
            .as_deref()
            .and_then(|text| text.strip_suffix('s')?.parse().ok());
        let limit = seconds
            .map_or(DEFAULT_TIMEOUT, Duration::from_secs)
            .min(DEFAULT_TIMEOUT * 3);
        limit.saturating_sub(MARGIN)
    }
}

async fn answer<R: Rules>(
    State((rules, metrics)): State<(R, Metrics)>,
    Path(path): Path<String>,
    Query(wait): Query<Wait>,
    Json(review): Json<Review>,
) -> Result<Json<Answer>, StatusCode> {
    let verdict = match timeout(wait.limit(), rules.review(&path, &review.request)).await {
        Ok(verdict) => verdict.ok_or(StatusCode::NOT_FOUND)?,
        Err(_) => Verdict::warn("it was not checked in time; the operator checks it again when it acts on it"),
    };
    let outcome = if verdict.errors.is_empty() {
        "accepted"
    } else {
        "rejected"
    };
    let labels = [("path", path), ("verdict", outcome.to_owned())];
    metrics.reviews.get_or_create(&labels).inc();
    Ok(Json(review.answer(verdict)))
}

#[cfg(test)]
mod tests;
