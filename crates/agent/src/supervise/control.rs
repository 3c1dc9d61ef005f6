//! The control socket of the supervisor: accepts requests and hands them to the loop that owns the daemon.

use std::io;
use std::path::Path;
use std::time::Duration;

use host::{Connection, FileError, Host, Listener};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::control::{Request, read_line, write_line};

/// For the one line of a request.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// After a failure to accept, which means a lack of memory or descriptors.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A request with the channel for its response.
#[derive(Debug)]
pub struct ControlRequest {
    pub request: Request,
    pub reply: Reply,
}

/// The channel for one response.
#[derive(Debug)]
pub struct Reply(oneshot::Sender<Vec<u8>>);

impl Reply {
    /// Sends the response, unless the caller has timed out.
    pub fn send(self, response: &impl Serialize) {
        // Serializing our own types cannot fail.
        let _ = self.0.send(serde_json::to_vec(response).unwrap_or_default());
    }
}

/// Returns the incoming requests. Without a path there are none.
pub fn listen(host: &Host, path: Option<&Path>) -> Result<mpsc::Receiver<ControlRequest>, FileError> {
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

fn bind(host: &Host, path: &Path) -> Result<Listener, FileError> {
    // The directory outlives the container, and with it the socket of an earlier run.
    host.files().remove_if_exists(path)?;
    let listener = host.listen_unix(path)?;
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
    let request = serde_json::from_slice(&line)?;
    let (reply, response) = oneshot::channel();
    let reply = Reply(reply);
    // The receiving loop ends only with the process.
    let _ = sender.send(ControlRequest { request, reply }).await;
    match response.await {
        Ok(response) => write_line(&mut connection, response).await,
        Err(_) => Ok(()),
    }
}
