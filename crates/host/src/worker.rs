//! A series of work that blocks.

use std::fmt;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// One piece of it.
pub type Work = Box<dyn FnOnce() + Send>;

/// Does one piece of work after the other. It ends when the last clone is dropped and all work is done.
#[derive(Clone)]
pub struct Worker(UnboundedSender<Work>);

impl Worker {
    pub(crate) fn new() -> (Self, UnboundedReceiver<Work>) {
        let (sender, receiver) = unbounded_channel();
        (Self(sender), receiver)
    }

    pub fn submit(&self, work: impl FnOnce() + Send + 'static) {
        // It outlives this handle.
        let _ = self.0.send(Box::new(work));
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}
