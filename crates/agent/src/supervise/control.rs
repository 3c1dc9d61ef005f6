//! The control socket of the supervisor: accepts requests and hands them to the loop that owns the daemon.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use host::{Connection, FileError, Host, Listener};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::control::{Reconfigured, Request, State, read_line, write_line};

/// For the one line of a request.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// After a failure to accept, which means a lack of memory or descriptors.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot listen on {path}: {source}", path = .path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error(transparent)]
    File(#[from] FileError),
}

/// A request with the channel for its response.
#[derive(Debug)]
pub enum ControlRequest {
    Status(oneshot::Sender<State>),
    Reconfigure(oneshot::Sender<Reconfigured>),
    Restart(oneshot::Sender<State>),
}

/// Returns the requests as they come. Without a path there are none.
pub fn listen(host: &Host, path: Option<&Path>) -> Result<mpsc::Receiver<ControlRequest>, Error> {
    let (sender, receiver) = mpsc::channel(8);
    let listener = path.map(|path| bind(host, path)).transpose()?;
    let accepting = {
        let host = host.clone();
        async move {
            match listener {
                Some(listener) => accept(&host, &listener, &sender).await,
                // Keeps the channel open.
                None => sender.closed().await,
            }
        }
    };
    host.spawn("control", accepting).detach();
    Ok(receiver)
}

fn bind(host: &Host, path: &Path) -> Result<Listener, Error> {
    // The directory outlives the container, and with it the socket of an earlier run.
    host.files().remove_if_exists(path)?;
    let listener = host.listen_unix(path).map_err(|source| Error::Listen {
        path: path.to_owned(),
        source,
    })?;
    host.files().set_mode(path, 0o600)?;
    Ok(listener)
}

async fn accept(host: &Host, listener: &Listener, sender: &mpsc::Sender<ControlRequest>) {
    loop {
        match listener.accept().await {
            Ok(connection) => {
                let sender = sender.clone();
                let respond = async move {
                    if let Err(error) = respond(connection, &sender).await {
                        warn!(%error, "cannot respond on the control socket");
                    }
                };
                host.spawn("control request", respond).detach();
            }
            Err(error) => {
                warn!(%error, "cannot accept on the control socket");
                sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

async fn respond(mut connection: Connection, sender: &mpsc::Sender<ControlRequest>) -> io::Result<()> {
    let line = timeout(READ_TIMEOUT, read_line(&mut connection)).await??;
    match serde_json::from_slice(&line)? {
        Request::Status => forward(&mut connection, sender, ControlRequest::Status).await,
        Request::Reconfigure => forward(&mut connection, sender, ControlRequest::Reconfigure).await,
        Request::Restart => forward(&mut connection, sender, ControlRequest::Restart).await,
    }
}

async fn forward<T: serde::Serialize>(
    connection: &mut Connection,
    sender: &mpsc::Sender<ControlRequest>,
    request: impl FnOnce(oneshot::Sender<T>) -> ControlRequest,
) -> io::Result<()> {
    let (reply, response) = oneshot::channel();
    // The receiving loop ends only with the process.
    let _ = sender.send(request(reply)).await;
    match response.await {
        Ok(response) => write_line(connection, &response).await,
        Err(_) => Ok(()),
    }
}
