//! The datagram socket behind `NOTIFY_SOCKET`.

use std::env;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};

use host::{FileError, Host, TemporaryDirectory};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::close;
use thiserror::Error;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use super::notify::Message;
use super::user::User;

#[derive(Debug, Error)]
pub enum Error {
    #[error("no directory for the notify socket is writable, tried {}: {source}", list(.tried))]
    NoDirectory { tried: Vec<PathBuf>, source: FileError },
    #[error(transparent)]
    File(#[from] FileError),
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
    // A directory of its own, since containers of a pod may share /run and each has a process 1.
    _directory: TemporaryDirectory,
}

impl NotifySocket {
    /// Only the daemon's user can write to it: a message names the process that gets the supervisor's signals.
    pub fn bind(host: &Host, user: Option<&User>) -> Result<Self, Error> {
        let directory = private_directory(host)?;
        let path = directory.path().join("notify");
        let socket =
            UnixDatagram::bind(&path).map_err(|source| FileError::new("create the notify socket", &path, source))?;
        if let Some(User { uid, gid }) = user {
            host.files().set_owner(directory.path(), *uid, *gid)?;
            host.files().set_owner(&path, *uid, *gid)?;
        }
        Ok(Self {
            socket,
            path,
            _directory: directory,
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

    /// The next message, if one has arrived.
    pub fn try_recv(&self) -> Result<Option<Message>, Error> {
        // Not try_io, which uses the last known readiness: a message that came with a SIGCHLD must be seen now.
        match receive(self.socket.as_raw_fd()) {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(Error::Read(error)),
        }
    }
}

/// Creates a directory in the service's own runtime directory, in /run, or in the directory for temporary files.
fn private_directory(host: &Host) -> Result<TemporaryDirectory, Error> {
    let runtime = env::var_os("RUNTIME_DIRECTORY")
        .and_then(|value| env::split_paths(&value).next())
        .filter(|path| path.is_absolute());
    let last = env::temp_dir();
    let create = |parent: &Path| host.temporary_directory(parent, "slurm-agent-");
    let mut tried: Vec<PathBuf> = runtime.into_iter().chain([PathBuf::from("/run")]).collect();
    if let Some(directory) = tried.iter().find_map(|parent| create(parent).ok()) {
        return Ok(directory);
    }
    create(&last).map_err(|source| {
        tried.push(last);
        Error::NoDirectory { tried, source }
    })
}

/// Reads one datagram and closes the descriptors that came with it, which is the response to `BARRIER=1`: messages are handled
/// in order, so the earlier ones have been handled by then.
fn receive(socket: RawFd) -> io::Result<Message> {
    // Slurm's longest message has two short lines.
    let mut text = [0; 4096];
    let mut parts = [IoSliceMut::new(&mut text)];
    // A barrier carries one descriptor; the kernel closes those that do not fit.
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
