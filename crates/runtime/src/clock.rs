//! The time.

use host::Host;
use jiff::Timestamp;

/// The clocks of one host.
#[derive(Debug, Clone)]
pub struct Clock(Host);

impl Clock {
    /// The clocks of this host.
    pub fn of(host: Host) -> Self {
        Self(host)
    }

    /// The clocks of the real machine.
    pub fn system() -> Self {
        Self(Host::real())
    }

    /// The wall clock.
    pub fn now(&self) -> Timestamp {
        self.0.timestamp()
    }

    pub fn host(&self) -> &Host {
        &self.0
    }
}
