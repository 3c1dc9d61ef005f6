//! The only place the wall clock is read, so that tests can set it.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

/// What time it is.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<Mutex<Timestamp>>>);

impl Clock {
    /// The machine's.
    pub fn system() -> Self {
        Self(None)
    }

    /// Stands still until [`Clock::set`].
    pub fn fixed(at: Timestamp) -> Self {
        Self(Some(Arc::new(Mutex::new(at))))
    }

    pub fn now(&self) -> Timestamp {
        match &self.0 {
            None => Timestamp::now(),
            Some(fixed) => *fixed.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Puts a fixed clock, and every clone of it, to this time. The machine's clock is left alone.
    pub fn set(&self, to: Timestamp) {
        if let Some(fixed) = &self.0 {
            *fixed.lock().unwrap_or_else(PoisonError::into_inner) = to;
        }
    }
}
