//! HTTP over the host's connections, which are kept and reused.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use host::{Connection, Host};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::http::request::Builder;
use hyper::rt::{Executor, Read, ReadBufCursor, Write};
use hyper::{Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{self, Connected};
use hyper_util::rt::{TokioIo, TokioTimer};

use super::{Error, within};

/// 5,000 nodes are 12.6 MB (measured); 64 Ki of them, Slurm's limit, would be 165 MB.
const MAX_RESPONSE: usize = 256 * 1024 * 1024;

/// A deleted pod does not respond at all; a running one does within a round trip.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Below the 60 s after which common proxies and conntrack tables forget an idle connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Http(Client<Connector, Full<Bytes>>);

impl Http {
    pub(crate) fn new(host: Host) -> Self {
        let connector = Connector(host);
        let client = Client::builder(connector.clone())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        Self(client)
    }

    /// Sends a request and reads the whole response, whatever its status.
    pub(crate) async fn exchange(
        &self,
        request: Builder,
        body: impl Into<Bytes>,
        limit: Duration,
    ) -> Result<Response<Bytes>, Error> {
        within(limit, self.read(request, body.into())).await
    }

    async fn read(&self, request: Builder, body: Bytes) -> Result<Response<Bytes>, Error> {
        let request = request
            .body(Full::new(body))
            .map_err(|error| Error::unreachable("its address is invalid", error))?;
        let uri = request.uri().to_string();
        let response = self.0.request(request).await;
        let (head, body) = response.map_err(|error| Error::unreachable(uri, error))?.into_parts();
        let body = Limited::new(body, MAX_RESPONSE).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                Error::malformed(format!("it has more than {MAX_RESPONSE} bytes"), error)
            } else {
                Error::unreachable("the connection broke in the middle of the response", error)
            }
        })?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}

/// Opens the connections of one [`Http`], and runs their tasks.
#[derive(Debug, Clone)]
struct Connector(Host);

impl tower_service::Service<Uri> for Connector {
    type Response = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = self.0.clone();
        let address = format!("{}:{}", uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(80));
        Box::pin(async move {
            let connection = tokio::time::timeout(CONNECT_TIMEOUT, host.connect(address)).await??;
            Ok(Stream(TokioIo::new(connection)))
        })
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Connector {
    fn execute(&self, task: F) {
        self.0.spawn("http connection", task).detach();
    }
}

/// A connection as hyper's pool takes it.
struct Stream(TokioIo<Connection>);

impl connect::Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
