//! Asks again until something has come about, and says for what it waits.

use std::time::{Duration, Instant};

use crate::cli::Wait;
use crate::failure::{Failure, Outcome};
use crate::output::tell;

/// How often the API server is asked. A partition's change takes some tens of milliseconds.
const PAUSE: Duration = Duration::from_millis(100);
/// A person who waits wants to know what for after about this long.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress<T> {
    Done(T),
    /// For what.
    Waits(String),
}

/// Asks until it is done or the time is over. `what` is a sentence about what has not come about.
pub(crate) async fn until<T>(
    wait: &Wait,
    what: &str,
    mut ask: impl AsyncFnMut(Duration) -> Outcome<Progress<T>>,
) -> Outcome<T> {
    let start = Instant::now();
    let mut told = String::new();
    loop {
        let why = match ask(start.elapsed()).await? {
            Progress::Done(done) => return Ok(done),
            Progress::Waits(why) => why,
        };
        if start.elapsed() > wait.timeout {
            return Err(Failure::TimedOut(format!(
                "{what} after {} s: {why}; what was asked for stands in the object and may yet come about",
                wait.timeout.as_secs()
            )));
        }
        if start.elapsed() > PATIENCE && why != told {
            tell(&format!("waiting: {why}"));
            told = why;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
