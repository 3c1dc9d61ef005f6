//! The protocol between `serve` and `supervise`: one line of JSON each way, over a unix socket that only the pod's own user can
//! open. Both are the same binary, so there are no versions.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use host::Host;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use slurm::agent::Daemon;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::time::timeout;

/// Ten times a state with twenty log lines of a kilobyte each.
pub const MAX_LINE: u64 = 256 * 1024;

/// For requests that the supervisor responds to at once.
const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// The response is a [`State`].
    Status,
    /// The response is a [`Reconfigured`], once the reconfigure is over.
    Reconfigure,
    /// The response is a [`State`]. A daemon that waits for its next start is started at once. One that runs goes on: it may have
    /// been started since the request was decided on.
    Start,
    /// Like [`Request::Start`], but a daemon that runs is stopped before.
    Restart,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    pub daemon: Daemon,
    /// The directory in /etc/slurm whose files the daemon runs with.
    pub files: Option<String>,
    pub reconfiguring: bool,
    /// How often in a row the daemon exited, with these files, before it was ready.
    pub failed_starts: u32,
}

/// How a reconfigure ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reconfigured {
    Done,
    /// The daemon continues with its old configuration.
    Failed {
        last_words: Vec<String>,
    },
    /// The daemon died, of this or of something else, and is restarted.
    Died,
    /// The daemon does not run, is not ready, or is reconfiguring already.
    NotReady,
}

#[derive(Debug, Error)]
pub enum Error {
    #[error("the supervisor at {path} does not respond: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot decode the supervisor's response: {0}")]
    Json(#[from] serde_json::Error),
}

/// A client of the supervisor.
#[derive(Debug, Clone)]
pub struct Supervisor {
    host: Host,
    path: PathBuf,
}

impl Supervisor {
    pub fn new(host: &Host, path: &Path) -> Self {
        Self {
            host: host.clone(),
            path: path.to_owned(),
        }
    }

    pub async fn state(&self) -> Result<State, Error> {
        self.request(Request::Status, TIMEOUT).await
    }

    pub async fn start(&self) -> Result<State, Error> {
        self.request(Request::Start, TIMEOUT).await
    }

    pub async fn restart(&self) -> Result<State, Error> {
        self.request(Request::Restart, TIMEOUT).await
    }

    /// Waits for the end of the reconfigure, which continues after the timeout.
    pub async fn reconfigure(&self, limit: Duration) -> Result<Reconfigured, Error> {
        self.request(Request::Reconfigure, limit).await
    }

    async fn request<T: DeserializeOwned>(&self, request: Request, limit: Duration) -> Result<T, Error> {
        let exchange = async {
            let mut connection = self.host.connect_unix(&self.path).await?;
            write_line(&mut connection, serde_json::to_vec(&request)?).await?;
            read_line(connection).await
        };
        let line = timeout(limit, exchange)
            .await
            .unwrap_or_else(|late| Err(io::Error::new(io::ErrorKind::TimedOut, late)))
            .map_err(|source| Error::Io {
                path: self.path.clone(),
                source,
            })?;
        Ok(serde_json::from_slice(&line)?)
    }
}

pub async fn write_line(stream: &mut (impl AsyncWrite + Unpin), mut line: Vec<u8>) -> io::Result<()> {
    line.push(b'\n');
    stream.write_all(&line).await
}

pub async fn read_line(stream: impl AsyncRead + Unpin) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    BufReader::new(stream.take(MAX_LINE))
        .read_until(b'\n', &mut line)
        .await?;
    Ok(line)
}
