//! One request and one response, within a time and a size, over the connections of the [`Host`](host::Host).
//!
//! The clients of slurmrestd, of slurmctld and of the agent report the same failures of this exchange: [`Error`].

mod http;

use std::io;
use std::time::Duration;

pub(crate) use http::Http;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why there is no usable response. A command may have been carried out in either case.
///
/// The messages continue the name of the server: "slurmctld cannot be reached: …".
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No complete response arrived in time.
    #[error("cannot be reached: {reason}")]
    Unreachable {
        reason: String,
        #[source]
        source: Option<Source>,
    },
    /// The response does not follow the protocol.
    #[error("sent an invalid response: {reason}")]
    Malformed {
        reason: String,
        #[source]
        source: Option<Source>,
    },
}

impl Error {
    pub(crate) fn unreachable(reason: impl Into<String>, source: impl Into<Source>) -> Self {
        Self::Unreachable {
            reason: reason.into(),
            source: Some(source.into()),
        }
    }

    pub(crate) fn malformed(reason: impl Into<String>, source: impl Into<Source>) -> Self {
        Self::Malformed {
            reason: reason.into(),
            source: Some(source.into()),
        }
    }

    /// Returns the error for a response that `source` describes in full.
    pub(crate) fn invalid(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::malformed(source.to_string(), source)
    }

    /// Whether the server accepted the connection and closed it without a response.
    pub fn is_hang_up(&self) -> bool {
        let Self::Unreachable { source, .. } = self else {
            return false;
        };
        let source = source.as_ref().and_then(|source| source.downcast_ref::<io::Error>());
        source.is_some_and(|source| {
            matches!(
                source.kind(),
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
            )
        })
    }
}

/// Fails an exchange that has not ended after `limit`.
pub(crate) async fn within<T, E: From<Error>>(
    limit: Duration,
    exchange: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    // Boxed, since the futures of all callers contain it.
    tokio::time::timeout(limit, Box::pin(exchange))
        .await
        .unwrap_or_else(|elapsed| Err(Error::unreachable(format!("no response within {limit:?}"), elapsed).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_that_was_open_can_hang_up() {
        let unreachable = |kind| Error::unreachable("", io::Error::from(kind));
        assert!(unreachable(io::ErrorKind::UnexpectedEof).is_hang_up());
        assert!(unreachable(io::ErrorKind::ConnectionReset).is_hang_up());
        assert!(!unreachable(io::ErrorKind::ConnectionRefused).is_hang_up());
        assert!(!Error::malformed("", io::Error::from(io::ErrorKind::UnexpectedEof)).is_hang_up());
    }

    #[tokio::test(start_paused = true)]
    async fn an_exchange_ends_with_its_time_limit() {
        let limit = Duration::from_secs(5);
        let error = within(limit, std::future::pending::<Result<(), Error>>())
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "cannot be reached: no response within 5s");
    }
}
