//! Two clients of the API server: one for single requests, one for watches.

use std::time::Duration;

use kube::{Client, Config};

/// kube's clients have no read timeout by default, so a request on a connection that was cut silently would hang. A watch
/// may be silent for minutes and has a timeout of its own.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Both clients.
#[derive(Clone)]
pub struct Clients {
    /// For single requests.
    pub calls: Client,
    /// For watches.
    pub watches: Client,
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clients").finish_non_exhaustive()
    }
}

impl Clients {
    /// Clients of the API server of this configuration.
    pub fn new(mut config: Config) -> Result<Self, kube::Error> {
        let watches = Client::try_from(config.clone())?;
        config.read_timeout = Some(READ_TIMEOUT);
        // Otherwise the time that a connection was idle in the pool would count.
        config.reset_reader_on_write = true;
        let calls = Client::try_from(config)?;
        Ok(Self { calls, watches })
    }

    /// For tests: one client for both.
    pub fn same(client: Client) -> Self {
        Self {
            calls: client.clone(),
            watches: client,
        }
    }
}
