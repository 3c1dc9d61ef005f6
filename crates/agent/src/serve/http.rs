//! Who may come in, and what they may ask.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use slurm::Revision;
use slurm::agent::{
    self, Action, AgentKey, Candidate, Checked, Claims, Commanded, Fence, JobCommand, NodeCommand, Outcome,
    PROOF_HEADER, PROTOCOL, PartitionCommand, Pushed, Refusal, ReservationCommand, Status, Way, path,
};
use slurm::revision::{Digest, MAX_BUNDLE};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::admission::Admission;
use super::checker::{Checker, refusal};
use super::fences::Subject;
use super::keeper::{Handle, Push};
use super::nodes::Nodes;
use super::restore::restore;
use super::slurm_tools::{Read, SlurmTools};
use super::unsettled::Taken;
use super::ways::Ways;
use crate::config_dir::ConfigDir;
use crate::control::Supervisor;

/// One operator talks to this agent, over a few connections. Each costs some kilobytes.
const CONNECTIONS: usize = 256;

/// Longer than the operator keeps an idle connection, so that it is the one who closes it.
const HEAD_PATIENCE: Duration = Duration::from_mins(1);

const BODY_PATIENCE: Duration = Duration::from_secs(10);

/// Below the operator's own patience, so that it hears that the push goes on.
const PUSH_PATIENCE: Duration = Duration::from_secs(10);

/// After a failure to accept, which is one of memory or descriptors.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Door {
    pub(super) pod: String,
    pub(super) keys: PathBuf,
    pub(super) config: ConfigDir,
    pub(super) supervisor: Supervisor,
    pub(super) admission: Arc<Admission>,
    pub(super) keeper: Handle,
    pub(super) checker: Arc<Checker>,
    pub(super) slurm: Arc<SlurmTools>,
    pub(super) ways: Arc<Ways>,
    pub(super) nodes: Nodes,
}

pub(super) async fn serve(listener: TcpListener, door: Arc<Door>) -> Infallible {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&free).acquire_owned().await;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
                continue;
            }
        };
        let door = Arc::clone(&door);
        tokio::spawn(async move {
            let _place = place;
            let _ = stream.set_nodelay(true);
            let service = service_fn(move |request| {
                let door = Arc::clone(&door);
                async move { Ok::<_, Infallible>(door.answer(request).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_PATIENCE)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                debug!(%error, "connection ended");
            }
        });
    }
}

/// A status and what goes with it.
struct Reply {
    status: StatusCode,
    body: Vec<u8>,
}

impl Reply {
    fn json(status: StatusCode, message: &impl Serialize) -> Self {
        Self {
            status,
            // Our own messages have nothing that JSON does not have.
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

impl Door {
    async fn answer<B>(&self, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (reply, proof) = match (request.method(), request.uri().path()) {
            (&Method::GET, path::HEALTHZ) => (text(StatusCode::OK, "ok\n"), None),
            (&Method::GET, path::READYZ) => (self.readiness(), None),
            _ => self.answer_known(request).await,
        };
        let mut response = Response::new(Full::from(reply.body));
        *response.status_mut() = reply.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(proof) = proof.and_then(|proof| HeaderValue::from_str(&proof).ok()) {
            headers.insert(PROOF_HEADER, proof);
        }
        response
    }

    fn readiness(&self) -> Reply {
        match self.config.live() {
            Some(_) => text(StatusCode::OK, "ok\n"),
            None => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "no revision in the configuration directory\n",
            ),
        }
    }

    /// For who has the key.
    async fn answer_known<B>(&self, request: Request<B>) -> (Reply, Option<String>)
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let key = match self.key() {
            Ok(key) => key,
            Err(refusal) => return (refusal.into(), None),
        };
        let Some(token) = bearer(&request).map(str::to_owned) else {
            let detail = "there is none".to_owned();
            return (Refusal::Token { detail }.into(), None);
        };
        let reply = match self.admit(&key, &token, request).await {
            Ok(admitted) => self.route(admitted).await.unwrap_or_else(Reply::from),
            Err(refusal) => {
                warn!(%refusal, "request refused");
                refusal.into()
            }
        };
        let proof = key.prove(&token, reply.status.as_u16(), &reply.body);
        (reply, Some(proof))
    }

    /// Read each time: the kubelet brings a new one when the Secret changes.
    fn key(&self) -> Result<AgentKey, Refusal> {
        let path = self.keys.join("jwt.key");
        let failed = |error: &dyn std::fmt::Display| Refusal::Failed {
            detail: format!("cannot use {}: {error}", path.display()),
        };
        let bytes = std::fs::read(&path).map_err(|error| failed(&error))?;
        AgentKey::derive(&bytes).map_err(|error| failed(&error))
    }

    async fn admit<B>(&self, key: &AgentKey, token: &str, request: Request<B>) -> Result<Question, Refusal>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let about = agent::Request {
            method: head.method.as_str(),
            path: head.uri.path_and_query().map_or("", |path| path.as_str()),
            pod: &self.pod,
        };
        let refused = |detail: &dyn std::fmt::Display| Refusal::Token {
            detail: detail.to_string(),
        };
        let claims = Claims::verify(token, key, about, SystemTime::now()).map_err(|error| refused(&error))?;
        let body = read_body(body).await?;
        if Digest::of(&body) != claims.body {
            return Err(refused(&"it is for another body"));
        }
        Ok(Question {
            method: head.method,
            path: head.uri.path().to_owned(),
            body,
            fence: claims.fence,
        })
    }

    async fn route(&self, question: Question) -> Result<Reply, Refusal> {
        let Question {
            method,
            path,
            body,
            fence,
        } = question;
        match (&method, path.as_str()) {
            (&Method::GET, path::REVISION) => {
                if let Some(fence) = fence {
                    self.command(Some(fence), Subject::Leadership).await?;
                }
                Ok(Reply::json(StatusCode::OK, &self.status().await))
            }
            (&Method::PUT, path::REVISION) => self.push(&body, fence).await,
            (&Method::PUT, path::CHECK) => self.check(&body).await,
            (&Method::GET, path::NODES) => self.read(Read::Nodes).await,
            (&Method::GET, path::JOBS) => self.read(Read::Jobs).await,
            (&Method::GET, path::PARTITIONS) => self.read(Read::Partitions).await,
            (&Method::GET, path::CONFIG) => self.read(Read::Config).await,
            (&Method::GET, path::QOS) => self.read(Read::Qos).await,
            (&Method::POST, path::NODE) => {
                let command: NodeCommand = serde_json::from_slice(&body).map_err(|error| malformed(&error))?;
                let _turn = self.nodes.turn().await;
                self.command(fence, Subject::Node(&command.node)).await?;
                let way = self.nodes.command(&command).await?;
                Ok(Reply::json(StatusCode::OK, &Commanded { way }))
            }
            (&Method::POST, path::PARTITION) => {
                let command: PartitionCommand = serde_json::from_slice(&body).map_err(|error| malformed(&error))?;
                self.command(fence, Subject::Partition).await?;
                let restored = restore(&self.config, &self.ways, &command).await?;
                Ok(Reply::json(StatusCode::OK, &restored))
            }
            (&Method::POST, path::JOB) => {
                let command: JobCommand = serde_json::from_slice(&body).map_err(|error| malformed(&error))?;
                self.command(fence, Subject::Job).await?;
                self.slurm.command_job(&command).await?;
                Ok(done())
            }
            (&Method::GET, path::RESERVATIONS) => self.read(Read::Reservations).await,
            (&Method::POST, path::RESERVATION) => {
                let command: ReservationCommand = serde_json::from_slice(&body).map_err(|error| malformed(&error))?;
                self.command(fence, Subject::Reservation(command.name())).await?;
                self.slurm.command_reservation(&command).await?;
                Ok(done())
            }
            _ => Err(Refusal::NotFound),
        }
    }

    async fn read(&self, read: Read) -> Result<Reply, Refusal> {
        Ok(Reply {
            status: StatusCode::OK,
            body: self.slurm.read(read).await?,
        })
    }

    /// What came by a mounted ConfigMap, under the checks of a push.
    pub(super) async fn take_candidate(&self, candidate: Candidate) -> Result<Outcome, Refusal> {
        let Candidate { bundle, token } = candidate;
        let refused = |detail: &dyn std::fmt::Display| Refusal::Token {
            detail: detail.to_string(),
        };
        let request = agent::candidate::request(&self.pod);
        let claims =
            Claims::verify(&token, &self.key()?, request, SystemTime::now()).map_err(|error| refused(&error))?;
        if Digest::of(&bundle) != claims.body {
            return Err(refused(&"it is for another candidate"));
        }
        self.push_revision(&bundle, claims.fence)
            .await
            .map(|taken| taken.outcome)
    }

    async fn push(&self, body: &[u8], fence: Option<Fence>) -> Result<Reply, Refusal> {
        let begun = Instant::now();
        let taken = self.push_revision(body, fence).await?;
        let status = match &taken.outcome {
            Outcome::Pending { .. } => StatusCode::ACCEPTED,
            _ => StatusCode::OK,
        };
        let pushed = Pushed {
            outcome: taken.outcome,
            milliseconds: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            steps: taken.steps,
            action: taken.action,
            way: taken.way,
            kept_states: taken.kept_states,
            status: self.status().await,
        };
        Ok(Reply::json(status, &pushed))
    }

    /// A dry run, of which nothing is left. It commands nobody, so it needs no fence.
    async fn check(&self, body: &[u8]) -> Result<Reply, Refusal> {
        let revision = Revision::from_bundle(body).map_err(|error| malformed(&error))?;
        let refused = self.checker.check(&revision).await.map_err(|error| refusal(&error))?;
        Ok(Reply::json(StatusCode::OK, &Checked { refused }))
    }

    async fn push_revision(&self, body: &[u8], fence: Option<Fence>) -> Result<Taken, Refusal> {
        let revision = Revision::from_bundle(body).map_err(|error| malformed(&error))?;
        let fence = self.command(fence, Subject::Configuration).await?;
        let busy = {
            let shown = self.keeper.shown.borrow();
            shown.busy.then_some(shown.phase)
        };
        if let Some(phase) = busy {
            return Err(Refusal::Busy { phase });
        }
        let (reply, answer) = oneshot::channel();
        let gone = || Refusal::Failed {
            detail: "the agent is ending".to_owned(),
        };
        let push = Push { revision, fence, reply };
        self.keeper.pushes.send(push).await.map_err(|_| gone())?;
        match timeout(PUSH_PATIENCE, answer).await {
            Ok(answer) => answer.map_err(|_| gone())?,
            Err(_) => Ok(Taken {
                outcome: Outcome::Pending {
                    reason: self.keeper.shown.borrow().waiting.clone(),
                },
                steps: Vec::new(),
                action: Action::default(),
                way: Way::default(),
                kept_states: Vec::new(),
            }),
        }
    }

    /// Lets a command pass, and makes every older one stale.
    async fn command(&self, fence: Option<Fence>, subject: Subject<'_>) -> Result<Fence, Refusal> {
        let fence = fence.ok_or_else(|| malformed(&"a command needs a fence"))?;
        self.admission.admit(fence, subject).await?;
        Ok(fence)
    }

    async fn status(&self) -> Status {
        let slurmctld = self.supervisor.state().await.ok().map(|state| state.daemon);
        let live = self.config.live().filter(|live| self.config.check(live).is_ok());
        let shown = self.keeper.shown.borrow().clone();
        Status {
            protocol: PROTOCOL,
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            live: live.map(|live| live.summary),
            phase: shown.phase,
            slurmctld,
            rolled_back: shown.rolled_back,
            refused: self.checker.refused(),
            fence: self.admission.highest(),
        }
    }
}

/// A request whose sender and body are known to be right.
struct Question {
    method: Method,
    path: String,
    body: Bytes,
    fence: Option<Fence>,
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

fn malformed(error: &dyn std::fmt::Display) -> Refusal {
    Refusal::Malformed {
        detail: error.to_string(),
    }
}

fn bearer<B>(request: &Request<B>) -> Option<&str> {
    request
        .headers()
        .get(AUTHORIZATION)?
        .to_str()
        .ok()?
        .strip_prefix("Bearer ")
}

async fn read_body<B>(body: B) -> Result<Bytes, Refusal>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match timeout(BODY_PATIENCE, Limited::new(body, MAX_BUNDLE).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(malformed(&format_args!("the body has more than {MAX_BUNDLE} bytes")))
        }
        Ok(Err(error)) => Err(malformed(&error)),
        Err(_) => Err(malformed(&format_args!(
            "the body did not come within {BODY_PATIENCE:?}"
        ))),
    }
}
