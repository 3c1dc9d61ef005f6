//! Two clients of the API server: one for single requests, one for watches.

use std::{sync::Arc, time::Duration};

use http::Request;
use kube::{Client, Config, client::Body};
use tokio::time::timeout;

/// kube's clients have no read timeout by default, so a request on a connection that was cut silently would hang. A watch
/// whose response has begun may be silent for a minute and has a timeout of its own.
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
        config.connect_timeout = Some(READ_TIMEOUT);
        let mut of_watches = config.clone();
        // A retry of kube's sleeps as long as the API server asks for, unnoticed. A watch has its own back-off.
        of_watches.default_retry = false;
        let watches = Client::try_from(of_watches)?;
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

    /// A client for one watch and its lists, which calls `heard` after every successful response. A response that does not
    /// begin in time is an error.
    pub(crate) fn of_watch(self, heard: impl Fn() + Send + Sync + 'static) -> Client {
        let heard = Arc::new(heard);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (clients, heard) = (self.clone(), Arc::clone(&heard));
            async move {
                let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
                let client = if is_watch { clients.watches } else { clients.calls };
                let response = timeout(READ_TIMEOUT, client.send(request)).await??;
                if response.status().is_success() {
                    heard();
                }
                Ok::<_, tower::BoxError>(response)
            }
        });
        Client::new(service, "default")
    }
}
