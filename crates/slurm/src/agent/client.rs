use std::net::SocketAddr;
use std::time::Duration;

use host::Host;
use hyper::body::Bytes;
use hyper::{HeaderMap, Method, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

use super::command::{JobCommand, NodeAction, NodeCommand, PartitionCommand, Reason, ReservationCommand};
use super::error::Error;
use super::fence::Fence;
use super::key::AgentKey;
use super::message::{Checked, Commanded, PROTOCOL, Pushed, Refusal, Restored, Status, UpdateChannel};
use super::token::{Claims, InvalidToken, Request};
use super::{PROOF_HEADER, PROTOCOL_HEADER, path};
use crate::answer::{Answer, DecodeError, Payload, Qos, ServedConf, decode};
use crate::job::Job;
use crate::node::Node;
use crate::partition::Partition;
use crate::remote_clock::RemoteClock;
use crate::reservation::Reservation;
use crate::rest::{Observation, Process};
use crate::revision::Revision;
use crate::transport::{self, Http};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// For a request that the agent answers by itself.
    pub timeout: Duration,
    /// For a request that the agent passes on to Slurm.
    pub slurm_timeout: Duration,
    /// For a push.
    pub push_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            // The agent gives Slurm 15 s, which in turn waits 10 s for slurmctld (MessageTimeout).
            slurm_timeout: Duration::from_secs(20),
            // After 10 s the agent responds that the push is still running.
            push_timeout: Duration::from_secs(12),
        }
    }
}

/// The client of the agent in one pod. It connects when it is first used.
#[derive(Debug)]
pub struct Client {
    host: Host,
    http: Http,
    address: SocketAddr,
    pod: String,
    key: AgentKey,
    options: Options,
    /// By the last response.
    clock: RemoteClock,
    /// The agent's protocol, which stays the same as long as its pod.
    protocol: OnceCell<u32>,
}

/// 60 s are tolerated. The agent's clock is read in whole seconds, and a response takes a while.
const MAX_OFFSET: u64 = 90;

impl Client {
    /// `pod` is the pod's UID: the agent of another pod that was given the same address rejects the request.
    pub fn new(host: Host, address: SocketAddr, pod: impl Into<String>, key: AgentKey, options: Options) -> Self {
        Self {
            http: Http::new(host.clone()),
            host,
            address,
            pod: pod.into(),
            key,
            options,
            clock: RemoteClock::default(),
            protocol: OnceCell::new(),
        }
    }

    pub async fn status(&self) -> Result<Status, Error> {
        self.read_status(None).await
    }

    /// The first request of a new leader. From here on the agent rejects the previous leader, so the live revision cannot change.
    pub async fn claim(&self, fence: Fence) -> Result<Status, Error> {
        self.read_status(Some(fence)).await
    }

    async fn read_status(&self, fence: Option<Fence>) -> Result<Status, Error> {
        let sent = self.send(Method::GET, path::REVISION, Vec::new(), fence, self.options.timeout);
        parse(&sent.await?)
    }

    /// Returns when slurmctld runs the revision, has refused it, or takes longer than the agent waits.
    pub async fn push(&self, revision: &Revision, fence: Fence) -> Result<Pushed, Error> {
        self.put(path::REVISION, revision, Some(fence)).await
    }

    /// Has the agent check a revision without making it live. An agent that is too old for it responds [`Refusal::NotFound`].
    pub async fn check(&self, revision: &Revision) -> Result<Checked, Error> {
        self.put(path::CHECK, revision, None).await
    }

    async fn put<T: DeserializeOwned>(
        &self,
        path: &'static str,
        revision: &Revision,
        fence: Option<Fence>,
    ) -> Result<T, Error> {
        let body = revision
            .to_bundle()
            .map_err(|error| Error::Refused(Refusal::malformed(error)))?;
        let sent = self.send(Method::PUT, path, body, fence, self.options.push_timeout);
        parse(&sent.await?)
    }

    pub async fn command_node(&self, command: &NodeCommand, fence: Fence) -> Result<UpdateChannel, Error> {
        let read = async || self.status().await.map(|status| status.protocol);
        if *self.protocol.get_or_try_init(read).await? == 1 {
            let command = self.compare(command.clone()).await?;
            let Commanded { way } = parse(&self.post(path::NODE, &command, fence).await?)?;
            return Ok(way);
        }
        let Commanded { way } = parse(&self.post(path::NODE, command, fence).await?)?;
        Ok(way)
    }

    /// Does what an agent of protocol 1 does not do: compares the node with the expected state, and keeps its reason.
    async fn compare(&self, mut command: NodeCommand) -> Result<NodeCommand, Error> {
        let nodes = self.nodes().await?.value;
        let node = nodes.iter().find(|node| node.name == command.node.as_str());
        let now = node.ok_or(Error::Refused(Refusal::NoSuchNode))?.admin_state();
        if let NodeAction::Drain { reason } | NodeAction::Down { reason } = &mut command.action {
            reason.get_or_insert_with(|| Reason::of(&now.reason));
        }
        if command.expect.as_ref().is_some_and(|expected| *expected != now) {
            return Err(Error::Refused(Refusal::Changed { now }));
        }
        Ok(command)
    }

    /// An agent that is too old for it responds [`Refusal::NotFound`].
    pub async fn command_partition(&self, command: &PartitionCommand, fence: Fence) -> Result<Restored, Error> {
        parse(&self.post(path::PARTITION, command, fence).await?)
    }

    pub async fn command_job(&self, command: &JobCommand, fence: Fence) -> Result<(), Error> {
        self.post(path::JOB, command, fence).await.map(drop)
    }

    pub async fn command_reservation(&self, command: &ReservationCommand, fence: Fence) -> Result<(), Error> {
        self.post(path::RESERVATION, command, fence).await.map(drop)
    }

    async fn post(&self, path: &'static str, command: &impl Serialize, fence: Fence) -> Result<Bytes, Error> {
        let body = serde_json::to_vec(command).map_err(|source| Error::Encode {
            what: "a command",
            source,
        })?;
        self.send(Method::POST, path, body, Some(fence), self.options.slurm_timeout)
            .await
    }

    pub async fn reservations(&self) -> Result<Answer<Vec<Reservation>>, Error> {
        self.get(path::RESERVATIONS).await
    }

    pub async fn partitions(&self) -> Result<Answer<Vec<Partition>>, Error> {
        self.get(path::PARTITIONS).await
    }

    pub async fn nodes(&self) -> Result<Answer<Vec<Node>>, Error> {
        self.get(path::NODES).await
    }

    pub async fn jobs(&self) -> Result<Answer<Vec<Job>>, Error> {
        self.get(path::JOBS).await
    }

    /// The QOS of the accounting database. An error without a database, and from an agent that is too old for it.
    pub async fn qos(&self) -> Result<Answer<Vec<Qos>>, Error> {
        self.get(path::QOS).await
    }

    /// The configuration slurmctld runs with.
    pub async fn served_conf(&self) -> Result<ServedConf, Error> {
        self.get(path::CONFIG).await.map(|answer| answer.value)
    }

    /// Reads nodes, then jobs, and which process of slurmctld reported both.
    pub async fn observe(&self) -> Result<Observation, Error> {
        let process = || async { self.served_conf().await.map(Process::of_conf) };
        Observation::read(process, self.nodes(), self.jobs()).await
    }

    /// Returns the JSON output of one of Slurm's programs in the pod.
    async fn get<T: Payload>(&self, path: &'static str) -> Result<Answer<T>, Error> {
        let sent = self.send(Method::GET, path, Vec::new(), None, self.options.slurm_timeout);
        decode(&sent.await?).map_err(|error| match error {
            DecodeError::Complaints(_) => Error::Refused(Refusal::slurm(error)),
            DecodeError::Json(_) | DecodeError::Missing(_) => Error::Transport(transport::Error::invalid(error)),
        })
    }

    /// Returns the body of a successful response that is proven to be the agent's. The token's times are those of the agent's
    /// clock. A command is sent only if that is known.
    async fn send(
        &self,
        method: Method,
        path: &'static str,
        body: Vec<u8>,
        fence: Option<Fence>,
        timeout: Duration,
    ) -> Result<Bytes, Error> {
        let body = Bytes::from(body);
        if fence.is_some() {
            if self.clock.offset().is_none() {
                let read = self.exchange(&Method::GET, path::REVISION, Bytes::new(), None, self.options.timeout);
                read.await.or_else(|error| {
                    if is_untimely(&error) {
                        Ok(Bytes::new())
                    } else {
                        Err(error)
                    }
                })?;
            }
            match self.clock.offset() {
                Some(offset) if offset.unsigned_abs() <= MAX_OFFSET => {}
                offset => return Err(Error::Clock { offset }),
            }
        }
        let answer = self.exchange(&method, path, body.clone(), fence, timeout).await;
        match answer {
            // The clock was not known yet, or was set since. The refusal shows it, and nothing was done.
            Err(error) if is_untimely(&error) => self.exchange(&method, path, body, fence, timeout).await,
            answer => answer,
        }
    }

    /// How many seconds the agent's clock is ahead, if a response has shown it.
    pub(crate) fn clock_offset(&self) -> Option<i64> {
        self.clock.offset()
    }

    /// Learns the agent's clock from a response.
    fn note_time(&self, headers: &HeaderMap) {
        let date = headers.get(header::DATE).and_then(|date| date.to_str().ok());
        let parser = jiff::fmt::rfc2822::DateTimeParser::new();
        if let Some(time) = date.and_then(|date| parser.parse_timestamp(date).ok()) {
            self.clock.note(&self.host, time.as_second());
        }
    }

    async fn exchange(
        &self,
        method: &Method,
        path: &'static str,
        body: Bytes,
        fence: Option<Fence>,
        timeout: Duration,
    ) -> Result<Bytes, Error> {
        let subject = Request {
            method: method.as_str(),
            path,
            pod: &self.pod,
        };
        let token = Claims::new(subject, &body, fence, self.clock.now(&self.host)).sign(&self.key);
        let token = token.map_err(|source| Error::Encode {
            what: "a token",
            source,
        })?;
        let request = hyper::Request::builder()
            .method(method.clone())
            .uri(format!("http://{}{path}", self.address))
            .header(PROTOCOL_HEADER, PROTOCOL)
            .header(header::AUTHORIZATION, format!("Bearer {token}"));
        let (head, body) = self.http.exchange(request, body, timeout).await?.into_parts();
        let proof = head.headers.get(PROOF_HEADER).and_then(|proof| proof.to_str().ok());
        let is_proven = proof.is_some_and(|proof| self.key.is_proven(proof, &token, head.status.as_u16(), &body));
        if is_proven {
            self.note_time(&head.headers);
        }
        // An agent with another key cannot prove anything, and its refusal reveals nothing.
        if !is_proven && head.status != StatusCode::UNAUTHORIZED {
            let reason = format!(
                "HTTP {} without a proof that the agent of this pod sent it",
                head.status
            );
            return Err(transport::Error::Malformed { reason, source: None }.into());
        }
        if head.status.is_success() {
            return Ok(body);
        }
        match serde_json::from_slice::<Refusal>(&body) {
            Ok(refusal) => Err(refusal.into()),
            Err(error) => Err(transport::Error::malformed(format!("HTTP {}", head.status), error).into()),
        }
    }
}

fn is_untimely(error: &Error) -> bool {
    matches!(error, Error::Refused(Refusal::Token { detail }) if *detail == InvalidToken::Time.to_string())
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| transport::Error::invalid(error).into())
}
