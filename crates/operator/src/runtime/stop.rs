//! The word to stop, passed to everything that runs for long.

use tokio::sync::watch;

/// Says it.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// Hears it. A clone hears the same.
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
    /// Returns when it was said, or when nobody is left to say it.
    pub async fn requested(&mut self) {
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }
}
