//! The request to stop, for everything that runs for long.

use tokio::sync::watch;

/// Requests the stop. Dropping it requests it too.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// Receives the request. A clone receives the same one.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stopper {
    pub fn new() -> (Self, Stop) {
        let (sender, receiver) = watch::channel(false);
        (Self(sender), Stop(receiver))
    }

    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Returns when the stop is requested, or when the [`Stopper`] is dropped.
    pub async fn requested(&mut self) {
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }
}
