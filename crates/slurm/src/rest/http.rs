//! One request, one answer: within its time, within its size.

use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::error::Error;

/// 5,000 nodes are 12.6 MB (measured); 64 Ki of them, Slurm's limit, would be 165 MB.
const MAX_ANSWER: usize = 256 * 1024 * 1024;

/// A pod that is gone does not answer at all; one that is there does within a round trip.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Below the 60 s after which common proxies and conntrack tables forget an idle connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
    timeout: Duration,
}

pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl Http {
    pub(super) fn new(timeout: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        Self { client, timeout }
    }

    pub(super) async fn exchange(
        &self,
        method: Method,
        uri: &str,
        token: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Reply, Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header("X-SLURM-USER-TOKEN", token)
            .header(header::ACCEPT, "application/json");
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Full::from(body.unwrap_or_default()))
            .map_err(|error| Error::unreachable(format!("{uri} is no address"), error))?;
        tokio::time::timeout(self.timeout, self.read(uri, request))
            .await
            .unwrap_or_else(|late| Err(Error::unreachable(format!("no answer within {:?}", self.timeout), late)))
    }

    async fn read(&self, uri: &str, request: Request<Full<Bytes>>) -> Result<Reply, Error> {
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| Error::unreachable(uri.to_owned(), error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|error| {
                if error.is::<LengthLimitError>() {
                    Error::Malformed {
                        what: format!("it has more than {MAX_ANSWER} bytes"),
                        source: Some(error),
                    }
                } else {
                    Error::unreachable("the connection broke in the middle of the answer", error)
                }
            })?;
        Ok(Reply {
            status,
            body: body.to_bytes(),
        })
    }
}
