//! The time, which tests can set.

use std::sync::{Arc, Mutex, PoisonError};

use host::Host;
use jiff::Timestamp;

/// The clocks of one host. A clone shares them.
#[derive(Debug, Clone)]
pub struct Clock {
    host: Host,
    fixed: Option<Arc<Mutex<Timestamp>>>,
}

impl Clock {
    /// The clocks of this host.
    pub fn of(host: Host) -> Self {
        Self { host, fixed: None }
    }

    /// The clocks of the real machine.
    pub fn system() -> Self {
        Self::of(Host::real())
    }

    /// A wall clock for tests, which stands still until [`Clock::set`].
    pub fn fixed(at: Timestamp) -> Self {
        Self {
            fixed: Some(Arc::new(Mutex::new(at))),
            ..Self::system()
        }
    }

    /// The wall clock.
    pub fn now(&self) -> Timestamp {
        match &self.fixed {
            // jiff represents every time between the years -9999 and 9999.
            None => Timestamp::try_from(self.host.now()).unwrap_or_default(),
            Some(fixed) => *fixed.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Sets a fixed clock and every clone of it. The clock of a real host does not change.
    pub fn set(&self, to: Timestamp) {
        if let Some(fixed) = &self.fixed {
            *fixed.lock().unwrap_or_else(PoisonError::into_inner) = to;
        }
    }
}
