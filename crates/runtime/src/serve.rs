//! The HTTP servers for health and metrics.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header::AUTHORIZATION},
    middleware::{Next, from_fn_with_state},
    response::Response,
    routing::get,
};
use axum_server::tls_rustls::RustlsConfig;
use host::Host;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};

use crate::{Context, Object, error::describe, health::Health, metrics::number};

/// The content type Prometheus expects of this text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A host without free file descriptors may have some again after this time.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// The audiences that a caller's token must have one of; the API server's own if there is none. With an audience of its own, a
/// token for metrics is of no use at the API server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Audiences(pub(crate) Vec<String>);

/// Serves metrics. With `audiences`, over HTTPS and only to callers whom the API server authorizes.
pub(crate) async fn serve_metrics(
    address: SocketAddr,
    audiences: Option<Audiences>,
    context: Context,
) -> anyhow::Result<()> {
    let (metrics, health) = (context.metrics.clone(), context.health.clone());
    let routes = metrics_routes(move || {
        metrics.silent.set(number(health.silent().len()));
        metrics.render()
    });
    serve_guarded(context.clock.host(), address, audiences, context.client.clone(), routes).await
}

pub(crate) fn metrics_routes(
    render: impl Fn() -> Result<String, std::fmt::Error> + Clone + Send + Sync + 'static,
) -> Router {
    let respond = async move || {
        let text = render().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
        Ok::<_, StatusCode>(([("content-type", OPEN_METRICS)], text))
    };
    Router::new().route("/metrics", get(respond))
}

/// Serves to everybody, or, with `audiences`, over HTTPS and only to callers whom the API server authorizes.
pub(crate) async fn serve_guarded(
    host: &Host,
    address: SocketAddr,
    audiences: Option<Audiences>,
    client: Client,
    routes: Router,
) -> anyhow::Result<()> {
    match audiences {
        Some(audiences) => serve_secure(address, routes, client, audiences).await,
        None => serve(host, address, routes).await,
    }
}

pub(crate) async fn serve_health(address: SocketAddr, context: Context) -> anyhow::Result<()> {
    serve(context.clock.host(), address, health_routes(context.health.clone())).await
}

fn health_routes(health: Health) -> Router {
    let ready = health.clone();
    let healthz = async move || respond(&health.stuck(), "these loops hang");
    let readyz = async move || match ready.missing() {
        missing if missing.is_empty() => respond(&ready.silent(), "no response from the API server for these watches"),
        missing => respond(&missing, "these caches are not synced yet"),
    };
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

pub(crate) async fn serve(host: &Host, address: SocketAddr, routes: Router) -> anyhow::Result<()> {
    let listener = host.listen(address).await;
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

/// Serves over HTTPS, to callers whom the API server authenticates by their token (TokenReview) and authorizes
/// (SubjectAccessReview). The certificate is self-signed and lives as long as this process: it encrypts the connection,
/// but does not authenticate the server.
async fn serve_secure(address: SocketAddr, routes: Router, client: Client, audiences: Audiences) -> anyhow::Result<()> {
    let config = RustlsConfig::from_config(Arc::new(build_tls()?));
    axum_server::bind_rustls(address, config)
        .serve(guarded(routes, client, audiences).into_make_service())
        .await
        .with_context(|| format!("HTTPS server on {address}"))
}

fn build_tls() -> anyhow::Result<ServerConfig> {
    let own = rcgen::generate_simple_self_signed(vec!["slurm-operator".to_owned()]).context("no certificate")?;
    let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], PrivateKeyDer::Pkcs8(key))
        .context("no certificate")
}

fn guarded(routes: Router, client: Client, audiences: Audiences) -> Router {
    routes.layer(from_fn_with_state((client, audiences), admit))
}

async fn admit(
    State((client, audiences)): State<(Client, Audiences)>,
    request: Request,
    next: Next,
) -> Result<Response, StatusCode> {
    let header = request.headers().get(AUTHORIZATION);
    let token = header.and_then(|header| header.to_str().ok()?.strip_prefix("Bearer "));
    let token = token.ok_or(StatusCode::UNAUTHORIZED)?;
    let user = authenticate(&client, token, &audiences)
        .await?
        .ok_or(StatusCode::UNAUTHORIZED)?;
    if !is_authorized(&client, user, request.uri().path()).await? {
        return Err(StatusCode::FORBIDDEN);
    }
    Ok(next.run(request).await)
}

/// Returns the user of a token, or `None` if the API server does not accept it.
async fn authenticate(client: &Client, token: &str, audiences: &Audiences) -> Result<Option<UserInfo>, StatusCode> {
    let mut request = TokenReview::default();
    request.spec.token = Some(token.to_owned());
    request.spec.audiences = Some(audiences.0.clone()).filter(|audiences| !audiences.is_empty());
    let status = review(client, request).await?.status.unwrap_or_default();
    // An authenticator that does not know audiences accepts the token and returns none.
    let found = status.audiences.unwrap_or_default();
    let is_meant = audiences.0.is_empty() || audiences.0.iter().any(|audience| found.contains(audience));
    Ok(status.user.filter(|_| status.authenticated == Some(true) && is_meant))
}

async fn is_authorized(client: &Client, user: UserInfo, path: &str) -> Result<bool, StatusCode> {
    let spec = SubjectAccessReviewSpec {
        user: user.username,
        groups: user.groups,
        uid: user.uid,
        extra: user.extra,
        non_resource_attributes: Some(NonResourceAttributes {
            path: Some(path.to_owned()),
            verb: Some("get".to_owned()),
        }),
        resource_attributes: None,
    };
    let request = SubjectAccessReview {
        spec,
        ..SubjectAccessReview::default()
    };
    let response = review(client, request).await?;
    Ok(response.status.is_some_and(|status| status.allowed))
}

/// Asks the API server. Without its response the caller is not authorized.
async fn review<K: Object>(client: &Client, request: K) -> Result<K, StatusCode> {
    let response = Api::all(client.clone()).create(&PostParams::default(), &request).await;
    response.map_err(|error| {
        tracing::warn!(
            error = describe(&error),
            "cannot ask the API server whether the caller may read metrics"
        );
        StatusCode::SERVICE_UNAVAILABLE
    })
}

#[cfg(test)]
mod tests;
