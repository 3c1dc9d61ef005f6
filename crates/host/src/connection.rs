//! An open connection, real or simulated.

use tokio::io::{AsyncRead, AsyncWrite};

/// What a connection reads from and writes to.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// An open connection.
pub type Connection = Box<dyn Stream>;
