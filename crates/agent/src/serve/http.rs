//! The HTTP server: authenticates requests and routes them.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use host::{Limits, Listener, Slot, Slots};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use slurm::Revision;
use slurm::agent::{
    self, AgentKey, Candidate, Checked, Claims, Commanded, Fence, JobCommand, NodeCommand, Outcome, PROOF_HEADER,
    PROTOCOL, PROTOCOL_HEADER, PartitionCommand, Pushed, Refusal, ReservationCommand, Status, path,
};
use slurm::revision::{Digest, MAX_BUNDLE};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::Services;
use super::answers::{Answers, TooOld};
use super::checker::refusal;
use super::fences::Subject;
use super::nodes::Nodes;
use super::rejections::Rejections;
use super::restore::restore;
use super::rollout::PushResult;
use super::slurm_tools::read;
use super::writer::{Handle, Push};

/// An operator opens a connection per order that it has under way, and a kubelet one per probe. Together they stay below the 1,024
/// descriptors that a process may have on many systems.
const LIMITS: Limits = Limits {
    unauthenticated: 512,
    // A burst of orders comes from one address, and none of its connections has authenticated yet. A flood gives way to others
    // because it has most.
    per_address: 512,
    authenticated: 384,
    // The operator sends its first request as soon as it is connected.
    patience: Some(Duration::from_secs(5)),
};

/// Longer than the operator keeps an idle connection, so that the operator closes it.
const HEAD_TIMEOUT: Duration = Duration::from_mins(1);

const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Below the operator's own timeout, so that the operator learns that the push is pending.
const PUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// After a failure to accept, which means a lack of memory or descriptors.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Server {
    pub(super) services: Arc<Services>,
    /// The UID of this pod.
    pub(super) pod: String,
    pub(super) keys: PathBuf,
    pub(super) writer: Handle,
    pub(super) nodes: Nodes,
    /// The answers to orders whose subjects have no sequence of their own.
    pub(super) answers: Answers<Result<Reply, Refusal>>,
    /// The protocol of the operator that sent the last request.
    pub(super) operator: AtomicU32,
    pub(super) rejections: Rejections,
}

pub(super) async fn serve(listener: Listener, server: Arc<Server>) -> Infallible {
    let slots = Slots::new(LIMITS);
    loop {
        let connection = match listener.accept_from().await {
            Ok((connection, client)) => slots.hold(connection, client),
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                sleep(RETRY_INTERVAL).await;
                continue;
            }
        };
        let host = server.services.host.clone();
        let server = Arc::clone(&server);
        let serve = async move {
            let slot = connection.slot();
            let service = service_fn(move |request| {
                let (server, slot) = (Arc::clone(&server), slot.clone());
                async move { Ok::<_, Infallible>(server.respond(request, &slot).await) }
            });
            let serving = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(connection), service);
            if let Err(error) = serving.await {
                debug!(%error, "connection ended");
            }
        };
        host.spawn("connection", serve).detach();
    }
}

/// A response.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    status: StatusCode,
    body: Vec<u8>,
}

impl Reply {
    fn json(status: StatusCode, message: &impl Serialize) -> Self {
        Self {
            status,
            // Serializing our own types cannot fail.
            body: serde_json::to_vec(message).unwrap_or_default(),
        }
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        let status = match &refusal {
            Refusal::Token { .. } => StatusCode::UNAUTHORIZED,
            Refusal::StaleFence { .. }
            | Refusal::StaleSequence { .. }
            | Refusal::OtherController { .. }
            | Refusal::Busy { .. }
            | Refusal::Changed { .. } => StatusCode::CONFLICT,
            Refusal::Malformed { .. } => StatusCode::BAD_REQUEST,
            Refusal::Slurm { .. } => StatusCode::BAD_GATEWAY,
            Refusal::NotFound | Refusal::NoSuchNode | Refusal::NoSuchThing => StatusCode::NOT_FOUND,
            Refusal::Failed { .. } | Refusal::Stuck { .. } | Refusal::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::json(status, &refusal)
    }
}

impl Server {
    async fn respond(&self, request: Request<Incoming>, slot: &Slot) -> Response<Full<Bytes>> {
        let (reply, proof) = match (request.method(), request.uri().path()) {
            (&Method::GET, path::HEALTHZ) => (text(StatusCode::OK, "ok\n"), None),
            (&Method::GET, path::READYZ) => (self.readiness(), None),
            _ => self.respond_authenticated(request, slot).await,
        };
        let mut response = Response::new(Full::from(reply.body));
        *response.status_mut() = reply.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // The operator computes the times of its next token from it.
        let date = self.services.host.timestamp().strftime("%a, %d %b %Y %H:%M:%S GMT");
        if let Ok(date) = HeaderValue::from_str(&date.to_string()) {
            headers.insert(DATE, date);
        }
        if let Some(proof) = proof.and_then(|proof| HeaderValue::from_str(&proof).ok()) {
            headers.insert(PROOF_HEADER, proof);
        }
        response
    }

    fn readiness(&self) -> Reply {
        match self.services.config.live() {
            Some(_) => text(StatusCode::OK, "ok\n"),
            None => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "no revision in the configuration directory\n",
            ),
        }
    }

    /// Responds to a caller that has the key.
    async fn respond_authenticated(&self, request: Request<Incoming>, slot: &Slot) -> (Reply, Option<String>) {
        let key = match self.key() {
            Ok(key) => key,
            Err(refusal) => return (refusal.into(), None),
        };
        let Some(token) = bearer(&request).map(str::to_owned) else {
            return (Refusal::token("the request has none").into(), None);
        };
        let reply = match self.admit(&key, &token, request, slot).await {
            Ok((request, fence)) => self.route(request, fence).await.unwrap_or_else(Reply::from),
            Err(refusal) => {
                if let Some(count) = self.rejections.note(self.services.host.instant()) {
                    warn!(%refusal, count, "requests rejected");
                }
                refusal.into()
            }
        };
        let proof = key.prove(&token, reply.status.as_u16(), &reply.body);
        (reply, Some(proof))
    }

    /// Read each time: the kubelet replaces the file when the Secret changes.
    fn key(&self) -> Result<AgentKey, Refusal> {
        let failed = |error: &dyn std::fmt::Display| Refusal::failed(format!("cannot use jwt.key: {error}"));
        let bytes = self.services.host.files().read(&self.keys.join("jwt.key"));
        AgentKey::derive(&bytes.map_err(|error| failed(&error))?).map_err(|error| failed(&error))
    }

    /// Verifies token and body of a request, and returns its fence.
    async fn admit(
        &self,
        key: &AgentKey,
        token: &str,
        request: Request<Incoming>,
        slot: &Slot,
    ) -> Result<(Request<Bytes>, Option<Fence>), Refusal> {
        let (head, body) = request.into_parts();
        let about = agent::Request {
            method: head.method.as_str(),
            path: head.uri.path_and_query().map_or("", |path| path.as_str()),
            pod: &self.pod,
        };
        let claims = Claims::verify(token, key, about, self.services.host.now()).map_err(Refusal::token)?;
        slot.authenticated();
        let body = read_body(body).await?;
        if Digest::of(&body) != claims.body {
            return Err(Refusal::token("it is for another body"));
        }
        let protocol = head.headers.get(PROTOCOL_HEADER).and_then(|value| value.to_str().ok());
        let protocol = protocol.and_then(|value| value.parse().ok()).unwrap_or(1);
        if self.operator.swap(protocol, Ordering::Relaxed) != protocol && protocol != PROTOCOL {
            info!(
                protocol,
                own = PROTOCOL,
                "the operator has another protocol than this agent"
            );
        }
        Ok((Request::from_parts(head, body), claims.fence))
    }

    async fn route(&self, request: Request<Bytes>, fence: Option<Fence>) -> Result<Reply, Refusal> {
        let body = request.body();
        match (request.method(), request.uri().path()) {
            (&Method::GET, path::REVISION) => {
                if let Some(fence) = fence {
                    self.command(Some(fence), &Subject::Leadership).await?;
                }
                Ok(Reply::json(StatusCode::OK, &self.status().await))
            }
            (&Method::PUT, path::REVISION) => self.push(body, fence).await,
            (&Method::PUT, path::CHECK) => self.check(body).await,
            (&Method::GET, path::NODES) => self.read(read::NODES).await,
            (&Method::GET, path::JOBS) => self.read(read::JOBS).await,
            (&Method::GET, path::PARTITIONS) => Ok(Reply {
                status: StatusCode::OK,
                body: self.services.show_partitions().await?,
            }),
            (&Method::GET, path::CONFIG) => Ok(Reply {
                status: StatusCode::OK,
                body: self.services.channels.tools.config().await?,
            }),
            (&Method::GET, path::QOS) => self.read(read::QOS).await,
            (&Method::POST, path::NODE) => {
                let command: NodeCommand = decode(body)?;
                let _turn = self.nodes.turn().await;
                self.command(fence, &Subject::Node(command.node.clone())).await?;
                let way = self.nodes.command(&command).await?;
                Ok(Reply::json(StatusCode::OK, &Commanded { way }))
            }
            (&Method::POST, path::PARTITION) => {
                let command: PartitionCommand = decode(body)?;
                let fence = self.command(fence, &Subject::Partition).await?;
                let order = async {
                    let restored = restore(&self.services, &command).await?;
                    Ok(Reply::json(StatusCode::OK, &restored))
                };
                self.once(fence, body, order).await
            }
            (&Method::POST, path::JOB) => {
                let command: JobCommand = decode(body)?;
                let fence = self.command(fence, &Subject::Job).await?;
                let order = async {
                    self.services.channels.tools.command_job(&command).await?;
                    Ok(done())
                };
                self.once(fence, body, order).await
            }
            (&Method::GET, path::RESERVATIONS) => self.read(read::RESERVATIONS).await,
            (&Method::POST, path::RESERVATION) => {
                let command: ReservationCommand = decode(body)?;
                self.command(fence, &Subject::Reservation(command.name().clone()))
                    .await?;
                self.services.channels.tools.command_reservation(&command).await?;
                Ok(done())
            }
            _ => Err(Refusal::NotFound),
        }
    }

    async fn read(&self, command: &[&str]) -> Result<Reply, Refusal> {
        Ok(Reply {
            status: StatusCode::OK,
            body: self.services.channels.tools.read(command).await?,
        })
    }

    /// Takes the revision in the mounted ConfigMap, with the checks of a push.
    pub(super) async fn take_candidate(&self, candidate: Candidate) -> Result<Outcome, Refusal> {
        let Candidate { bundle, token } = candidate;
        let request = agent::candidate::request(&self.pod);
        let claims = Claims::verify(&token, &self.key()?, request, self.services.host.now());
        let claims = claims.map_err(Refusal::token)?;
        if Digest::of(&bundle) != claims.body {
            return Err(Refusal::token("it is for another candidate"));
        }
        let pushed = self.push_revision(&bundle, claims.fence).await?;
        Ok(pushed.outcome)
    }

    async fn push(&self, body: &[u8], fence: Option<Fence>) -> Result<Reply, Refusal> {
        let start = self.services.host.instant();
        let result = self.push_revision(body, fence).await?;
        let took = self.services.host.instant().saturating_duration_since(start);
        let status = match &result.outcome {
            Outcome::Pending { .. } => StatusCode::ACCEPTED,
            _ => StatusCode::OK,
        };
        let pushed = Pushed {
            outcome: result.outcome,
            milliseconds: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            steps: result.steps,
            action: result.action,
            way: result.way,
            kept_states: result.kept_states,
            status: self.status().await,
        };
        Ok(Reply::json(status, &pushed))
    }

    /// A dry run. It changes nothing, so it needs no fence.
    async fn check(&self, body: &[u8]) -> Result<Reply, Refusal> {
        let revision = Revision::from_bundle(body).map_err(Refusal::malformed)?;
        let refused = self
            .services
            .checker
            .check(&revision)
            .await
            .map_err(|error| refusal(&error))?;
        Ok(Reply::json(StatusCode::OK, &Checked { refused }))
    }

    async fn push_revision(&self, body: &[u8], fence: Option<Fence>) -> Result<PushResult, Refusal> {
        let revision = Revision::from_bundle(body).map_err(Refusal::malformed)?;
        let fence = self.command(fence, &Subject::Configuration).await?;
        let busy = {
            let progress = self.writer.progress.borrow();
            progress.busy.then_some(progress.phase)
        };
        if let Some(phase) = busy {
            return Err(Refusal::Busy { phase });
        }
        let (reply, response) = oneshot::channel();
        let stopping = || Refusal::failed("the agent is stopping");
        let push = Push { revision, fence, reply };
        self.writer.pushes.send(push).await.map_err(|_| stopping())?;
        let Ok(response) = timeout(PUSH_TIMEOUT, response).await else {
            let reason = self.writer.progress.borrow().waiting.clone();
            return Ok(PushResult::without_action(Outcome::Pending { reason }, &[]));
        };
        response.map_err(|_| stopping())?
    }

    /// Accepts a command and makes every older one stale.
    async fn command(&self, fence: Option<Fence>, subject: &Subject) -> Result<Fence, Refusal> {
        let fence = fence.ok_or_else(|| Refusal::malformed("a command needs a fence"))?;
        self.services.admission.admit(fence, subject).await?;
        Ok(fence)
    }

    /// Carries out an order unless it was already. A repeated one gets the same answer.
    async fn once(
        &self,
        fence: Fence,
        body: &[u8],
        order: impl Future<Output = Result<Reply, Refusal>>,
    ) -> Result<Reply, Refusal> {
        match self.answers.once(fence, Digest::of(body), order).await {
            Ok(answer) => answer,
            Err(TooOld) => Err(Refusal::StaleFence {
                highest: self.services.admission.highest(),
            }),
        }
    }

    async fn status(&self) -> Status {
        let slurmctld = self.services.supervisor.state().await.ok().map(|state| state.daemon);
        let live = self
            .services
            .config
            .live()
            .filter(|live| self.services.config.check(live).is_ok());
        let progress = self.writer.progress.borrow().clone();
        Status {
            protocol: PROTOCOL,
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            live: live.map(|live| live.summary),
            phase: progress.phase,
            slurmctld,
            rolled_back: progress.rolled_back,
            refused: self.services.checker.refused(),
            fence: self.services.admission.highest(),
        }
    }
}

fn done() -> Reply {
    Reply::json(StatusCode::OK, &serde_json::json!({}))
}

fn text(status: StatusCode, text: &str) -> Reply {
    Reply {
        status,
        body: text.as_bytes().to_vec(),
    }
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(Refusal::malformed)
}

fn bearer(request: &Request<Incoming>) -> Option<&str> {
    request
        .headers()
        .get(AUTHORIZATION)?
        .to_str()
        .ok()?
        .strip_prefix("Bearer ")
}

async fn read_body(body: Incoming) -> Result<Bytes, Refusal> {
    match timeout(BODY_TIMEOUT, Limited::new(body, MAX_BUNDLE).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::malformed(format_args!(
            "the body has more than {MAX_BUNDLE} bytes"
        ))),
        // The connection failed, which says nothing about the content.
        Ok(Err(error)) => Err(Refusal::failed(error)),
        Err(_) => Err(Refusal::failed(format_args!(
            "the body did not arrive within {BODY_TIMEOUT:?}"
        ))),
    }
}
