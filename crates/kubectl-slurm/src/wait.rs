//! Polls until a change is live, and reports what it waits for.

use std::time::{Duration, Instant};

use crate::cli::Wait;
use crate::failure::{Failure, Outcome};
use crate::output::notify;

/// The poll interval. A change of a partition takes some tens of milliseconds.
const PAUSE: Duration = Duration::from_millis(100);
/// After this time the reason for waiting is printed.
const REPORT_AFTER: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress<T> {
    Done(T),
    /// The reason.
    Waits(String),
    /// The reason and the remedy.
    Refused(String),
}

/// Polls until it is done or the timeout has passed. `what` is a sentence about what is not done.
pub(crate) async fn until<T>(
    wait: &Wait,
    what: &str,
    mut poll: impl AsyncFnMut(Duration) -> Outcome<Progress<T>>,
) -> Outcome<T> {
    let start = Instant::now();
    let mut reported = String::new();
    loop {
        let why = match poll(start.elapsed()).await? {
            Progress::Done(done) => return Ok(done),
            Progress::Waits(why) => why,
            Progress::Refused(why) => return Err(Failure::Rejected(why)),
        };
        if start.elapsed() > wait.timeout {
            return Err(Failure::TimedOut(format!(
                "{what} after {} s: {why}; the object has the change, which may still become live",
                wait.timeout.as_secs()
            )));
        }
        if start.elapsed() > REPORT_AFTER && why != reported {
            notify(&format!("waiting: {why}"));
            reported = why;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Polls unless `--wait=false`, and returns how it was done, in parentheses for the last line.
pub(crate) async fn report(
    wait: &Wait,
    what: &str,
    poll: impl AsyncFnMut(Duration) -> Outcome<Progress<String>>,
) -> Outcome<String> {
    if !wait.wait {
        return Ok(" (not waited for)".to_owned());
    }
    let how = until(wait, what, poll).await?;
    Ok(if how.is_empty() { how } else { format!(" ({how})") })
}
