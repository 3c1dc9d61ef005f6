//! A socket that accepts connections, real or simulated.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
};

use futures::future::BoxFuture;
use tokio::net::{TcpListener, UnixListener};

use crate::Connection;

/// What a [`Listener`] accepts from.
pub trait Accept: fmt::Debug + Send + Sync {
    /// The next connection and the address of its client, which a unix socket does not have.
    fn accept(&self) -> BoxFuture<'_, io::Result<(Connection, Option<IpAddr>)>>;

    /// `None` for a unix socket.
    fn address(&self) -> Option<SocketAddr>;
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener(Box<dyn Accept>);

impl Listener {
    pub fn new(accept: impl Accept + 'static) -> Self {
        Self(Box::new(accept))
    }

    /// The next connection.
    pub async fn accept(&self) -> io::Result<Connection> {
        Ok(self.0.accept().await?.0)
    }

    /// The next connection and the address of its client; `None` for a unix socket.
    pub async fn accept_from(&self) -> io::Result<(Connection, Option<IpAddr>)> {
        self.0.accept().await
    }

    /// The address it listens on; `None` for a unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.address()
    }
}

impl Accept for TcpListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<(Connection, Option<IpAddr>)>> {
        Box::pin(async {
            let (stream, client) = Self::accept(self).await?;
            // It fails if the peer has closed the connection already, which the first read shows.
            let _ = stream.set_nodelay(true);
            Ok((Box::new(stream) as Connection, Some(client.ip())))
        })
    }

    fn address(&self) -> Option<SocketAddr> {
        self.local_addr().ok()
    }
}

impl Accept for UnixListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<(Connection, Option<IpAddr>)>> {
        Box::pin(async { Ok((Box::new(Self::accept(self).await?.0) as Connection, None)) })
    }

    fn address(&self) -> Option<SocketAddr> {
        None
    }
}
