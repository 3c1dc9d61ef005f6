//! Creates, changes and deletes the reservation of a scheduled update.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use slurm::{ReservationName, ReservationRequest, SingleLine};
use tokio::time::Instant;
use tracing::info;

use super::{ApplyResult, Executor};
use crate::{
    cluster::CommandError,
    nodeset::plan::{Effect, Plan},
    runtime::{Error, Key},
    unix_time::timestamp,
};

/// Slurm may store a request differently from how it was sent. The same request is not repeated sooner than this.
const RETRY_AFTER: Duration = Duration::from_mins(1);

/// The last request for each NodeSet and its time.
#[derive(Debug, Default)]
pub(in crate::nodeset) struct ReservationRequests(Mutex<HashMap<Key, (ReservationRequest, Instant)>>);

impl ReservationRequests {
    fn is_new(&self, nodeset: &Key, request: &ReservationRequest, now: Instant) -> bool {
        let requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = requests
            .get(nodeset)
            .is_some_and(|(last, at)| last == request && now.duration_since(*at) < RETRY_AFTER);
        !same
    }

    fn note(&self, nodeset: &Key, request: Option<&ReservationRequest>, now: Instant) {
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match request {
            Some(request) => drop(requests.insert(nodeset.clone(), (request.clone(), now))),
            None => drop(requests.remove(nodeset)),
        }
    }
}

impl Executor<'_> {
    pub(super) async fn apply_reservation(&self, plan: &Plan, applied: &mut ApplyResult) {
        let mut done = false;
        for effect in &plan.effects {
            let step = match effect {
                Effect::Unreserve { name } => self.unreserve(name).await,
                Effect::Reserve { request, new }
                    if self.reservation_requests.is_new(&self.key(), request, self.instant()) =>
                {
                    self.reserve(request, *new).await
                }
                _ => continue,
            };
            done |= applied.take(step).is_some();
        }
        if done {
            self.poll_now().await;
        }
    }

    async fn reserve(&self, request: &ReservationRequest, new: bool) -> Result<(), Error> {
        let name = &request.name;
        info!(nodeset = %self.key(), ?request, new, "sending reservation");
        self.ctx
            .clusters
            .reserve(&self.cluster(), request)
            .await
            .map_err(|error| Error::other(format!("cannot create or change reservation {name}: {error}")))?;
        self.reservation_requests
            .note(&self.key(), Some(request), self.instant());
        let (reason, message) = if new {
            (
                "ReservationCreated",
                format!("Created reservation {name}: {}", shown(request)),
            )
        } else {
            (
                "ReservationUpdated",
                format!("Changed reservation {name}: {}", shown(request)),
            )
        };
        self.event(reason, message);
        Ok(())
    }

    async fn unreserve(&self, name: &ReservationName) -> Result<(), Error> {
        info!(nodeset = %self.key(), %name, "deleting reservation");
        self.reservation_requests.note(&self.key(), None, self.instant());
        match self.ctx.clusters.unreserve(&self.cluster(), name).await {
            Ok(()) => {
                let message = format!("Deleted reservation {name}");
                self.event("ReservationDeleted", message);
                Ok(())
            }
            Err(CommandError::NotFound(_)) => Ok(()),
            Err(error) => Err(Error::other(format!("cannot delete reservation {name}: {error}"))),
        }
    }
}

/// Describes a request for events.
fn shown(request: &ReservationRequest) -> String {
    let ReservationRequest {
        name: _,
        start,
        minutes,
        nodes,
        users: _,
        flags,
    } = request;
    let start = start.and_then(timestamp);
    let list = |lines: &[SingleLine]| lines.iter().map(SingleLine::as_str).collect::<Vec<_>>().join(",");
    [
        start.map(|start| format!("from {start:.0}")),
        minutes.map(|minutes| format!("{minutes} minutes")),
        (!nodes.is_empty()).then(|| format!("nodes {}", list(nodes))),
        (!flags.is_empty()).then(|| format!("flags {}", list(flags))),
    ]
    .into_iter()
    .flatten()
    .collect::<Vec<_>>()
    .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_same_request_is_not_repeated_within_a_minute() {
        let requests = ReservationRequests::default();
        let key = Key::new("ns", "compute");
        let request = ReservationRequest::new(ReservationName::new("r").unwrap());
        let other = ReservationRequest {
            minutes: Some(3),
            ..request.clone()
        };
        assert!(requests.is_new(&key, &request, Instant::now()));
        requests.note(&key, Some(&request), Instant::now());
        assert!(!requests.is_new(&key, &request, Instant::now()));
        assert!(requests.is_new(&key, &other, Instant::now()));
        tokio::time::advance(RETRY_AFTER).await;
        assert!(requests.is_new(&key, &request, Instant::now()));
        requests.note(&key, Some(&request), Instant::now());
        // After a deletion the same request is sent at once.
        requests.note(&key, None, Instant::now());
        assert!(requests.is_new(&key, &request, Instant::now()));
    }
}
