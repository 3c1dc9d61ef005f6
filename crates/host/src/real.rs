//! The real machine. Its file system is in [`files`](crate::files).
#![allow(clippy::disallowed_methods, reason = "everything else goes through this file")]

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::SystemTime,
};

use futures::future::BoxFuture;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::{Connection, Files, Listener, Machine};

#[derive(Debug)]
pub(crate) struct Real;

impl Machine for Real {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn fill(&self, bytes: &mut [u8]) {
        // getrandom(2) fails only for a bad address, and blocks only before the kernel has entropy.
        if let Err(error) = getrandom::fill(bytes) {
            tracing::error!(%error, "the kernel provides no random bytes");
            std::process::abort();
        }
    }

    fn hostname(&self) -> String {
        hostname()
    }

    fn files(&self) -> &dyn Files {
        self
    }

    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<Connection>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Connection)
        })
    }

    fn connect_unix(&self, path: PathBuf) -> BoxFuture<'static, io::Result<Connection>> {
        Box::pin(async move { Ok(Box::new(UnixStream::connect(path).await?) as Connection) })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<Listener>> {
        Box::pin(async move { Ok(Listener::new(TcpListener::bind(address).await?)) })
    }

    fn listen_unix(&self, path: &Path) -> io::Result<Listener> {
        Ok(Listener::new(UnixListener::bind(path)?))
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) -> tokio::task::JoinHandle<()> {
        tokio::spawn(task)
    }

    fn spawn_thread(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
    }
}

/// Empty if the kernel has none.
pub(crate) fn hostname() -> String {
    nix::unistd::gethostname()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}
