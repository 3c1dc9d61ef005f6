//! HTTPS for callers whom the API server authorizes.
//!
//! The certificate is self-signed and lives as long as this process: it encrypts the connection, but does not authenticate
//! the server. The API server authenticates callers by their token (TokenReview) and authorizes them (SubjectAccessReview).

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header::AUTHORIZATION},
    middleware::{Next, from_fn_with_state},
    response::Response,
};
use axum_server::tls_rustls::RustlsConfig;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};

use crate::error::describe;

pub(crate) async fn serve(address: SocketAddr, routes: Router, client: Client) -> anyhow::Result<()> {
    let config = RustlsConfig::from_config(Arc::new(build_tls()?));
    axum_server::bind_rustls(address, config)
        .serve(guarded(routes, client).into_make_service())
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

fn guarded(routes: Router, client: Client) -> Router {
    routes.layer(from_fn_with_state(client, admit))
}

async fn admit(State(client): State<Client>, request: Request, next: Next) -> Result<Response, StatusCode> {
    let header = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let token = header
        .and_then(|header| header.strip_prefix("Bearer "))
        .ok_or(StatusCode::UNAUTHORIZED)?;
    let user = authenticate(&client, token).await?.ok_or(StatusCode::UNAUTHORIZED)?;
    if !is_authorized(&client, user, request.uri().path()).await? {
        return Err(StatusCode::FORBIDDEN);
    }
    Ok(next.run(request).await)
}

/// Returns the user of a token, or `None` if the API server does not accept it.
async fn authenticate(client: &Client, token: &str) -> Result<Option<UserInfo>, StatusCode> {
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: Some(token.to_owned()),
            ..TokenReviewSpec::default()
        },
        ..TokenReview::default()
    };
    let response = Api::all(client.clone()).create(&PostParams::default(), &review).await;
    let status = response
        .map_err(|error| unavailable(&error))?
        .status
        .unwrap_or_default();
    Ok(status.user.filter(|_| status.authenticated == Some(true)))
}

async fn is_authorized(client: &Client, user: UserInfo, path: &str) -> Result<bool, StatusCode> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username,
            groups: user.groups,
            uid: user.uid,
            extra: user.extra,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.to_owned()),
                verb: Some("get".to_owned()),
            }),
            resource_attributes: None,
        },
        ..SubjectAccessReview::default()
    };
    let response = Api::all(client.clone()).create(&PostParams::default(), &review).await;
    let response: SubjectAccessReview = response.map_err(|error| unavailable(&error))?;
    Ok(response.status.is_some_and(|status| status.allowed))
}

/// Rejects the caller: without the API server's response it is not authorized.
fn unavailable(error: &kube::Error) -> StatusCode {
    tracing::warn!(
        error = describe(error),
        "cannot ask the API server whether the caller may read metrics"
    );
    StatusCode::SERVICE_UNAVAILABLE
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::{body::Body, http, routing::get};
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;

    /// An API server that accepts the tokens `reader` and `stranger`, authorizes only the first, and fails on `fault`.
    fn api_server() -> Client {
        let service = tower::service_fn(|request: http::Request<kube::client::Body>| async {
            let body = request.into_body().collect_bytes().await.unwrap();
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            let token = review["spec"]["token"].clone();
            if review["kind"] == "TokenReview" {
                let known = token == "reader" || token == "stranger";
                review["status"] = json!({"authenticated": known, "user": {"username": token}});
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
            let answer = guarded(routes, api_server()).oneshot(request).await.unwrap();
            assert_eq!(answer.status(), expected, "{header:?}");
        }
    }

    #[test]
    fn a_process_has_a_certificate_of_its_own() {
        build_tls().unwrap();
    }
}
