//! What `serve` and `supervise` say to each other: one line of JSON each way, over a unix socket that only the pod's own
//! user can open. Both are the same binary, so there are no versions.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use slurm::agent::Daemon;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// A line is a state with twenty last words of a kilobyte each.
pub const LONGEST_LINE: u64 = 256 * 1024;

/// For what the supervisor knows by itself.
const AT_ONCE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// Answered by [`State`].
    Status,
    /// Answered by [`Reconfigured`], when it is over.
    Reconfigure,
    /// Answered by [`State`]. A daemon that is between two lives starts at once.
    Restart,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    pub daemon: Daemon,
    /// The directory in /etc/slurm whose files it runs with.
    pub files: Option<String>,
    pub reconfiguring: bool,
    /// How often in a row it ended by itself, with these files, before it was ready.
    pub stillborn: u32,
}

/// How a reconfigure ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reconfigured {
    Done,
    /// The daemon goes on with what it had.
    Failed {
        last_words: Vec<String>,
    },
    /// It died, of this or of something else, and is started again.
    Died,
    /// Nobody is there to be told, or is busy with another.
    Away,
}

#[derive(Debug, Error)]
pub enum Error {
    #[error("the supervisor at {path} does not answer: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the supervisor's answer makes no sense: {0}")]
    Json(#[from] serde_json::Error),
}

/// Where the supervisor listens.
#[derive(Debug, Clone)]
pub struct Supervisor {
    path: PathBuf,
}

impl Supervisor {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub async fn state(&self) -> Result<State, Error> {
        self.ask(Request::Status, AT_ONCE).await
    }

    pub async fn restart(&self) -> Result<State, Error> {
        self.ask(Request::Restart, AT_ONCE).await
    }

    /// Waits for it to end, up to `patience`. It goes on after that.
    pub async fn reconfigure(&self, patience: Duration) -> Result<Reconfigured, Error> {
        self.ask(Request::Reconfigure, patience).await
    }

    async fn ask<T: DeserializeOwned>(&self, request: Request, patience: Duration) -> Result<T, Error> {
        let exchange = async {
            let mut stream = UnixStream::connect(&self.path).await?;
            write_line(&mut stream, &request).await?;
            read_line(stream).await
        };
        let line = timeout(patience, exchange)
            .await
            .unwrap_or_else(|late| Err(io::Error::new(io::ErrorKind::TimedOut, late)))
            .map_err(|source| Error::Io {
                path: self.path.clone(),
                source,
            })?;
        Ok(serde_json::from_slice(&line)?)
    }
}

pub async fn write_line(stream: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line).await
}

pub async fn read_line(stream: impl tokio::io::AsyncRead + Unpin) -> io::Result<Vec<u8>> {
    use tokio::io::AsyncReadExt as _;
    let mut line = Vec::new();
    BufReader::new(stream.take(LONGEST_LINE))
        .read_until(b'\n', &mut line)
        .await?;
    Ok(line)
}
