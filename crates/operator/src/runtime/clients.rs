//! Two ways to the API server: one for single calls, one for watches.

use std::time::Duration;

use kube::{Client, Config};

/// kube's own clients have no read timeout, so a connection that was cut without a word would hang a call for ever. A
/// watch is silent for minutes by nature and has a timeout of its own.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Both clients.
#[derive(Clone)]
pub struct Clients {
    /// For single calls.
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
    /// To the API server of this configuration.
    pub fn new(mut config: Config) -> Result<Self, kube::Error> {
        let watches = Client::try_from(config.clone())?;
        config.read_timeout = Some(READ_TIMEOUT);
        // Else the time a connection waited unused in the pool would count.
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
