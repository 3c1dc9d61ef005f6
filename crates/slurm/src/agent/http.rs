//! One request, one answer that is proven to be the agent's.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::{Method, StatusCode, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::error::Error;
use super::fence::Fence;
use super::key::AgentKey;
use super::token::{Claims, Request};
use super::{PROOF_HEADER, Refusal};

/// 5,000 nodes are 12.6 MB (measured); 64 Ki of them, Slurm's limit, would be 165 MB.
const MAX_ANSWER: usize = 256 * 1024 * 1024;

/// A pod that is gone does not answer at all; one that is there does within a round trip.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Below the 60 s after which common proxies and conntrack tables forget an idle connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Http {
    address: SocketAddr,
    pod: String,
    key: AgentKey,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// What is asked of the agent.
pub(super) struct Question {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) body: Vec<u8>,
    pub(super) fence: Option<Fence>,
    pub(super) timeout: Duration,
}

impl Http {
    pub(super) fn new(address: SocketAddr, pod: String, key: AgentKey) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        Self {
            address,
            pod,
            key,
            client,
        }
    }

    /// The body of an answer of success.
    pub(super) async fn ask(&self, question: Question) -> Result<Bytes, Error> {
        let timeout = question.timeout;
        tokio::time::timeout(timeout, self.exchange(question))
            .await
            .unwrap_or_else(|late| Err(Error::unreachable(format!("no answer within {timeout:?}"), late)))
    }

    async fn exchange(&self, question: Question) -> Result<Bytes, Error> {
        let Question {
            method,
            path,
            body,
            fence,
            timeout: _,
        } = question;
        let about = Request {
            method: method.as_str(),
            path,
            pod: &self.pod,
        };
        let token = Claims::new(about, &body, fence, SystemTime::now())
            .sign(&self.key)
            .map_err(|error| Error::malformed("our own token", error))?;
        let uri = format!("http://{}{path}", self.address);
        let request = hyper::Request::builder()
            .method(method)
            .uri(&uri)
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .body(Full::from(body))
            .map_err(|error| Error::unreachable(format!("{uri} is no address"), error))?;
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| Error::unreachable(uri, error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER)
            .collect()
            .await
            .map_err(|error| {
                if error.is::<LengthLimitError>() {
                    Error::malformed(format!("it has more than {MAX_ANSWER} bytes"), error)
                } else {
                    Error::unreachable("the connection broke in the middle of the answer", error)
                }
            })?
            .to_bytes();
        let proof = head.headers.get(PROOF_HEADER).and_then(|proof| proof.to_str().ok());
        let proven = proof.is_some_and(|proof| self.key.is_proven(proof, &token, head.status.as_u16(), &body));
        // An agent that does not have our key cannot prove anything; that it refused is no news to be protected.
        if !proven && head.status != StatusCode::UNAUTHORIZED {
            return Err(Error::Malformed {
                what: format!(
                    "HTTP {} without a proof that the agent of this pod gave it",
                    head.status
                ),
                source: None,
            });
        }
        if head.status.is_success() {
            return Ok(body);
        }
        match serde_json::from_slice::<Refusal>(&body) {
            Ok(refusal) => Err(refusal.into()),
            Err(error) => Err(Error::malformed(format!("HTTP {}", head.status), error)),
        }
    }
}
