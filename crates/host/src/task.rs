//! A running task.

use tokio::task::{AbortHandle, JoinError, JoinHandle};

/// A task that [`Host::spawn`](crate::Host::spawn) started. It is aborted when this is dropped, unless it was detached.
#[derive(Debug)]
pub struct Task {
    handle: Option<JoinHandle<()>>,
    abort: AbortHandle,
}

impl Task {
    pub(crate) fn new(handle: JoinHandle<()>) -> Self {
        let abort = handle.abort_handle();
        Self {
            handle: Some(handle),
            abort,
        }
    }

    /// Lets it run to its end, whatever becomes of the caller.
    pub fn detach(mut self) {
        self.handle = None;
    }

    pub fn is_finished(&self) -> bool {
        self.abort.is_finished()
    }

    /// Waits for its end, or for the panic that ended it. Dropping the wait aborts the task.
    pub async fn join(mut self) -> Result<(), JoinError> {
        match self.handle.as_mut() {
            Some(handle) => handle.await,
            None => Ok(()),
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.handle.is_some() {
            self.abort.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Arc, time::Duration};

    use crate::Host;

    #[tokio::test(start_paused = true)]
    async fn a_task_ends_with_its_handle_unless_it_was_detached() {
        let host = Host::real();
        let alive = Arc::new(());
        let held = |alive: Arc<()>| async move {
            pending::<()>().await;
            drop(alive);
        };
        let task = host.spawn("held", held(Arc::clone(&alive)));
        host.spawn("detached", held(Arc::clone(&alive))).detach();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(Arc::strong_count(&alive), 3);
        drop(task);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(Arc::strong_count(&alive), 2);
    }
}
