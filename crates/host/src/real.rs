//! The real machine.
#![allow(clippy::disallowed_methods, reason = "everything else goes through this file")]

use std::{io, time::SystemTime};

use futures::future::BoxFuture;
use tokio::net::TcpStream;

use crate::{Connection, Machine};

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

    fn connect(&self, address: String) -> BoxFuture<'static, io::Result<Connection>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Connection::new(stream))
        })
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) -> tokio::task::JoinHandle<()> {
        tokio::spawn(task)
    }
}
