//! The supervisor's ear: takes requests from its socket and hands them to the loop that knows the daemon.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::control::{Reconfigured, Request, State, read_line, write_line};

/// For the one line of a request.
const PATIENCE: Duration = Duration::from_secs(2);

/// After a failure to accept, which is one of memory or descriptors.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Error)]
#[error("cannot listen on {path}: {source}", path = .path.display())]
pub struct Error {
    path: PathBuf,
    source: io::Error,
}

/// A request with the place for its answer.
#[derive(Debug)]
pub enum Asked {
    Status(oneshot::Sender<State>),
    Reconfigure(oneshot::Sender<Reconfigured>),
    Restart(oneshot::Sender<State>),
}

/// Requests as they come. Without a path there are none, ever.
pub fn listen(path: Option<&Path>) -> Result<mpsc::Receiver<Asked>, Error> {
    let (sender, receiver) = mpsc::channel(8);
    let listener = path.map(bind).transpose()?;
    tokio::spawn(async move {
        match listener {
            Some(listener) => accept(&listener, &sender).await,
            // Keeps the channel open.
            None => sender.closed().await,
        }
    });
    Ok(receiver)
}

fn bind(path: &Path) -> Result<UnixListener, Error> {
    let failed = |source| Error {
        path: path.to_owned(),
        source,
    };
    // Of a life before this one: the directory outlives the container.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

async fn accept(listener: &UnixListener, sender: &mpsc::Sender<Asked>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let sender = sender.clone();
                tokio::spawn(async move {
                    if let Err(error) = answer(stream, &sender).await {
                        warn!(%error, "cannot answer on the control socket");
                    }
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept on the control socket");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn answer(mut stream: UnixStream, sender: &mpsc::Sender<Asked>) -> io::Result<()> {
    let line = timeout(PATIENCE, read_line(&mut stream)).await??;
    match serde_json::from_slice(&line)? {
        Request::Status => forward(&mut stream, sender, Asked::Status).await,
        Request::Reconfigure => forward(&mut stream, sender, Asked::Reconfigure).await,
        Request::Restart => forward(&mut stream, sender, Asked::Restart).await,
    }
}

async fn forward<T: serde::Serialize>(
    stream: &mut UnixStream,
    sender: &mpsc::Sender<Asked>,
    asked: impl FnOnce(oneshot::Sender<T>) -> Asked,
) -> io::Result<()> {
    let (reply, answer) = oneshot::channel();
    // The loop ends only with the process.
    let _ = sender.send(asked(reply)).await;
    match answer.await {
        Ok(answer) => write_line(stream, &answer).await,
        Err(_) => Ok(()),
    }
}
