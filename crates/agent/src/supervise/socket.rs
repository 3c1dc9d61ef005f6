//! The datagram socket behind `NOTIFY_SOCKET`.

use std::env;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::close;
use tempfile::TempDir;
use thiserror::Error;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use super::notify::Message;
use super::user::User;

#[derive(Debug, Error)]
pub enum Error {
    #[error("no directory for the notify socket is writable, tried {}: {source}", list(.tried))]
    NoDirectory { tried: Vec<PathBuf>, source: io::Error },
    #[error("cannot make the notify socket {path}: {source}", path = .path.display())]
    Bind { path: PathBuf, source: io::Error },
    #[error("cannot read the notify socket: {0}")]
    Read(#[source] io::Error),
}

fn list(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

#[derive(Debug)]
pub struct NotifySocket {
    socket: UnixDatagram,
    path: PathBuf,
    // Removed with the value. A directory of our own, since containers of a pod may share /run and each has a process 1.
    _dir: TempDir,
}

impl NotifySocket {
    /// Only the daemon's user can reach it: whoever writes here names the process that gets our signals.
    pub fn bind(user: Option<&User>) -> Result<Self, Error> {
        let dir = private_dir()?;
        let path = dir.path().join("notify");
        let failed = |source| Error::Bind {
            path: path.clone(),
            source,
        };
        let socket = UnixDatagram::bind(&path).map_err(failed)?;
        if let Some(user) = user {
            chown(dir.path(), Some(user.uid), Some(user.gid)).map_err(failed)?;
            chown(&path, Some(user.uid), Some(user.gid)).map_err(failed)?;
        }
        Ok(Self {
            socket,
            path,
            _dir: dir,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub async fn recv(&self) -> Result<Message, Error> {
        self.socket
            .async_io(Interest::READABLE, || receive(self.socket.as_raw_fd()))
            .await
            .map_err(Error::Read)
    }

    /// A message that is already there.
    pub fn try_recv(&self) -> Result<Option<Message>, Error> {
        // Not try_io: it answers from the last known readiness, and a message that came with a SIGCHLD must be seen now.
        match receive(self.socket.as_raw_fd()) {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(Error::Read(error)),
        }
    }
}

/// The first place that takes a directory: the service's own, the usual one, the temporary one.
fn private_dir() -> Result<TempDir, Error> {
    let runtime = env::var_os("RUNTIME_DIRECTORY")
        .and_then(|value| env::split_paths(&value).next())
        .filter(|path| path.is_absolute());
    let places: Vec<PathBuf> = runtime
        .into_iter()
        .chain([PathBuf::from("/run"), env::temp_dir()])
        .collect();
    let mut refused = io::Error::from(io::ErrorKind::NotFound);
    for place in &places {
        match tempfile::Builder::new().prefix("slurm-agent-").tempdir_in(place) {
            Ok(dir) => return Ok(dir),
            Err(error) => refused = error,
        }
    }
    Err(Error::NoDirectory {
        tried: places,
        source: refused,
    })
}

/// Reads one datagram and closes what came with it, which is the answer to `BARRIER=1`: messages are handled in order, so
/// whatever the sender wanted to be sure of has been seen.
fn receive(socket: RawFd) -> io::Result<Message> {
    // Slurm's longest message has two short lines.
    let mut text = [0; 4096];
    let mut parts = [IoSliceMut::new(&mut text)];
    // A barrier carries one descriptor; the kernel closes what does not fit.
    let mut control = cmsg_space!([RawFd; 16]);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let received = loop {
        match recvmsg::<()>(socket, &mut parts, Some(&mut control), flags) {
            Err(Errno::EINTR) => {}
            other => break other?,
        }
    };
    let length = received.bytes;
    let descriptors: Vec<RawFd> = received
        .cmsgs()?
        .filter_map(|message| match message {
            ControlMessageOwned::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    for descriptor in descriptors {
        close(descriptor)?;
    }
    Ok(Message::parse(text.get(..length).unwrap_or_default()))
}
