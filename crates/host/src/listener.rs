//! A socket that accepts connections, real or simulated.

use std::{fmt, io, net::SocketAddr};

use futures::future::BoxFuture;
use tokio::net::{TcpListener, UnixListener};

use crate::Connection;

/// What a [`Listener`] accepts from.
pub trait Accept: fmt::Debug + Send + Sync {
    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>>;

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
        self.0.accept().await
    }

    /// The address it listens on; `None` for a unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.address()
    }
}

impl Accept for TcpListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async {
            let (stream, _) = Self::accept(self).await?;
            // It fails if the peer has closed the connection already, which the first read shows.
            let _ = stream.set_nodelay(true);
            Ok(Box::new(stream) as Connection)
        })
    }

    fn address(&self) -> Option<SocketAddr> {
        self.local_addr().ok()
    }
}

impl Accept for UnixListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async { Ok(Box::new(Self::accept(self).await?.0) as Connection) })
    }

    fn address(&self) -> Option<SocketAddr> {
        None
    }
}
