//! The reservation of a scheduled update.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use slurm::{ReservationName, ReservationRequest, SingleLine};
use tokio::time::Instant;
use tracing::info;

use super::{Applied, Hands, PATIENCE};
use crate::{
    cluster::CommandError,
    nodeset::plan::{Effect, Plan},
    runtime::{Error, Key},
};

/// Slurm may write a request down otherwise than it was sent. Then the same is not sent again and again.
const AGAIN: Duration = Duration::from_mins(1);

/// What was last asked for each NodeSet, and when.
#[derive(Debug, Default)]
pub(in crate::nodeset) struct Asked(Mutex<HashMap<Key, (ReservationRequest, Instant)>>);

impl Asked {
    fn is_news(&self, nodeset: &Key, request: &ReservationRequest) -> bool {
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = asked
            .get(nodeset)
            .is_some_and(|(last, at)| last == request && at.elapsed() < AGAIN);
        !same
    }

    fn note(&self, nodeset: &Key, request: Option<&ReservationRequest>) {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match request {
            Some(request) => drop(asked.insert(nodeset.clone(), (request.clone(), Instant::now()))),
            None => drop(asked.remove(nodeset)),
        }
    }
}

impl Hands<'_> {
    pub(super) async fn apply_reservation(&self, plan: &Plan, applied: &mut Applied) {
        let mut done = false;
        for effect in &plan.effects {
            let step = match effect {
                Effect::Unreserve { name } => self.unreserve(name).await,
                Effect::Reserve { request, new } if self.asked.is_news(&self.key(), request) => {
                    self.reserve(request, *new).await
                }
                _ => continue,
            };
            done |= applied.take(step).is_some();
        }
        if done {
            self.ctx.clusters.poll_now(&self.cluster(), PATIENCE).await;
        }
    }

    async fn reserve(&self, request: &ReservationRequest, new: bool) -> Result<(), Error> {
        let name = &request.name;
        info!(nodeset = %self.key(), ?request, new, "Asking Slurm for a reservation");
        self.ctx
            .clusters
            .reserve(&self.cluster(), request)
            .await
            .map_err(|error| Error::other(format!("cannot make or change reservation {name}: {error}")))?;
        self.asked.note(&self.key(), Some(request));
        let (reason, message) = if new {
            (
                "ReservationCreated",
                format!("Made reservation {name}: {}", shown(request)),
            )
        } else {
            (
                "ReservationUpdated",
                format!("Changed reservation {name}: {}", shown(request)),
            )
        };
        self.ctx.events.normal(self.nodeset(), reason, message);
        Ok(())
    }

    async fn unreserve(&self, name: &ReservationName) -> Result<(), Error> {
        info!(nodeset = %self.key(), %name, "Removing a reservation from Slurm");
        self.asked.note(&self.key(), None);
        match self.ctx.clusters.unreserve(&self.cluster(), name).await {
            Ok(()) => {
                let message = format!("Removed reservation {name}");
                self.ctx.events.normal(self.nodeset(), "ReservationDeleted", message);
                Ok(())
            }
            Err(CommandError::NotFound(_)) => Ok(()),
            Err(error) => Err(Error::other(format!("cannot remove reservation {name}: {error}"))),
        }
    }
}

/// What is asked for, in words for people.
fn shown(request: &ReservationRequest) -> String {
    let ReservationRequest {
        name: _,
        start,
        minutes,
        nodes,
        users: _,
        flags,
    } = request;
    let start = start
        .and_then(|start| i64::try_from(start).ok())
        .and_then(|start| jiff::Timestamp::from_second(start).ok());
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
    async fn the_same_is_not_asked_for_again_and_again() {
        let asked = Asked::default();
        let key = Key::new("ns", "compute");
        let request = ReservationRequest::new(ReservationName::new("r").unwrap());
        let other = ReservationRequest {
            minutes: Some(3),
            ..request.clone()
        };
        assert!(asked.is_news(&key, &request));
        asked.note(&key, Some(&request));
        assert!(!asked.is_news(&key, &request));
        assert!(asked.is_news(&key, &other));
        tokio::time::advance(AGAIN).await;
        assert!(asked.is_news(&key, &request));
        asked.note(&key, Some(&request));
        // After it was removed it is made again at once.
        asked.note(&key, None);
        assert!(asked.is_news(&key, &request));
    }
}
