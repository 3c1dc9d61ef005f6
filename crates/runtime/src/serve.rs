//! The HTTP servers for health and metrics.

mod rejected_callers;

use std::{
    future::{Ready, ready},
    io,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use axum::{
    Router,
    extract::{ConnectInfo, Request, State},
    http::{StatusCode, header::AUTHORIZATION},
    middleware::{Next, from_fn_with_state},
    response::Response,
    routing::get,
};
use axum_server::{
    Server,
    accept::Accept,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use host::{Held, Host, Limits, Slots};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
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
use tokio::net::TcpStream;

use self::rejected_callers::RejectedCallers;
use crate::{Context, Object, error::describe, health::Health, metrics::number};

/// The content type Prometheus expects of this text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics have a few readers, and a kubelet opens a connection per probe. Clients are not told apart: a job that opens
/// thousands of connections has one address, and displaces its own.
const LIMITS: Limits = Limits {
    unauthenticated: 64,
    per_address: 8,
    authenticated: 0,
    patience: None,
};

/// Readers of metrics and kubelets send a request as soon as they are connected.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

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
        Some(audiences) => serve_secure(address, routes, Guard::new(host, client, audiences)).await,
        None => serve(host, address, routes).await,
    }
}

pub(crate) async fn serve_health(address: SocketAddr, context: Context) -> anyhow::Result<()> {
    serve(context.clock.host(), address, health_routes(context.health.clone())).await
}

fn health_routes(health: Health) -> Router {
    let ready = health.clone();
    let healthz = async move || respond(&health.stuck(), "these loops hang");
    let readyz = async move || {
        let checks = [
            (ready.missing(), "these caches are not synced yet"),
            (
                ready.undefined(),
                "the chart slurm-operator-crds is not installed; the cluster lacks",
            ),
            (ready.silent(), "no response from the API server for these watches"),
        ];
        let failed = checks.into_iter().find(|(wrong, _)| !wrong.is_empty());
        failed.map_or_else(|| respond(&[], ""), |(wrong, what)| respond(&wrong, what))
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
    let slots = Slots::new(LIMITS);
    loop {
        let connection = match listener.accept_from().await {
            Ok((connection, client)) => slots.hold(connection, client),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(routes.clone());
        let serving = async move {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
            if let Err(error) = builder.serve_connection(TokioIo::new(connection), service).await {
                tracing::debug!(%error, "connection ended");
            }
        };
        host.spawn("connection", serving).detach();
    }
}

/// Gives connections their places, before TLS.
#[derive(Debug, Clone)]
pub(crate) struct SlotAcceptor(Slots);

impl<S> Accept<TcpStream, S> for SlotAcceptor {
    type Stream = Held<TcpStream>;
    type Service = S;
    type Future = Ready<io::Result<(Self::Stream, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let client = stream.peer_addr().ok().map(|client| client.ip());
        ready(Ok((self.0.hold(stream, client), service)))
    }
}

/// A server of HTTPS. It closes a connection on which no request begins for `head_timeout`.
pub(crate) fn bind_secure(
    address: SocketAddr,
    tls: ServerConfig,
    limits: Limits,
    head_timeout: Duration,
) -> Server<SocketAddr, RustlsAcceptor<SlotAcceptor>> {
    let acceptor = RustlsAcceptor::new(RustlsConfig::from_config(Arc::new(tls))).handshake_timeout(HEAD_TIMEOUT);
    // Without ALPN, clients speak HTTP/1.1.
    let mut server = axum_server::bind(address)
        .acceptor(acceptor.acceptor(SlotAcceptor(Slots::new(limits))))
        .http1_only();
    let mut http1 = server.http_builder().http1();
    http1.timer(TokioTimer::new()).header_read_timeout(head_timeout);
    server
}

/// Serves over HTTPS, to callers whom the API server authenticates by their token (TokenReview) and authorizes
/// (SubjectAccessReview). The certificate is self-signed and lives as long as this process: it encrypts the connection,
/// but does not authenticate the server.
async fn serve_secure(address: SocketAddr, routes: Router, guard: Guard) -> anyhow::Result<()> {
    bind_secure(address, build_tls()?, LIMITS, HEAD_TIMEOUT)
        .serve(guarded(routes, guard).into_make_service_with_connect_info::<SocketAddr>())
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

/// Decides who is served.
#[derive(Clone)]
struct Guard {
    host: Host,
    client: Client,
    audiences: Audiences,
    rejected: Arc<RejectedCallers>,
}

impl Guard {
    fn new(host: &Host, client: Client, audiences: Audiences) -> Self {
        Self {
            host: host.clone(),
            client,
            audiences,
            rejected: Arc::default(),
        }
    }

    /// Returns whether the caller with this token may read this path. Without the API server's response it may not.
    async fn check(&self, token: &str, path: &str) -> Result<(), StatusCode> {
        let user = authenticate(&self.client, token, &self.audiences).await?;
        let user = user.ok_or(StatusCode::UNAUTHORIZED)?;
        if is_authorized(&self.client, user, path).await? {
            Ok(())
        } else {
            Err(StatusCode::FORBIDDEN)
        }
    }
}

fn guarded(routes: Router, guard: Guard) -> Router {
    routes.layer(from_fn_with_state(guard, admit))
}

async fn admit(State(guard): State<Guard>, request: Request, next: Next) -> Result<Response, StatusCode> {
    let header = request.headers().get(AUTHORIZATION);
    let token = header.and_then(|header| header.to_str().ok()?.strip_prefix("Bearer "));
    let token = token.ok_or(StatusCode::UNAUTHORIZED)?;
    let connection = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let address = connection.map(|ConnectInfo(address)| address.ip());
    if guard.rejected.is_blocked(address, guard.host.instant()) {
        return Err(StatusCode::TOO_MANY_REQUESTS);
    }
    let checked = guard.check(token, request.uri().path()).await;
    if let Err(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) = checked {
        guard.rejected.note(address, guard.host.instant());
    }
    checked?;
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
